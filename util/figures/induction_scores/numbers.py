"""Numbers of induction heads, what is lost without them, and verdicts on the claims of Crosbie & Shutova (2024).

What is done to a model, and to which heads, is decided before tasks are measured. Edits have names, the rows of
figures, tables and values files; control sets are numbered from 1. Numbers are made from arrays alone.
data/published/VERDICTS.md has the rules of verdicts: "others" are control sets, other heads of the same layers;
few-shot answers have the most demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from util.figures.edits import INTACT, WHOLE, Edit
from util.prompts.text_tasks import TEXT_TASKS
from util.roles.attention_scores import INDUCTION_HEAD
from util.show import files
from util.show.part import Arrays
from util.stats.answers import TaskCheck
from util.stats.heads import Bools, Floats, Head, layer_matched, norm_matched, shortage, top
from util.stats.intervals import Interval, accuracy, halves, mean_interval, paired_interval, rank_p
from util.stats.verdicts import (
    HOLDS,
    NO_PREMISE,
    NOT_ASKED,
    NOT_DONE,
    Claim,
    Effect,
    judged,
    shown,
)

Numbers = dict[str, Any]


# ------------------------------------------------------------------------------------------------ what is done


KNOCKED_OUT, KNOCKED_OUT_IN_OTHERS = "pattern knocked out", "pattern in others"
LAYER_MATCHED, NORM_MATCHED = "layer-matched", "norm-matched"
OTHER_PATTERNS = ("random keys", "previous part")
TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")
PRESETS: Mapping[str, Arrays] = {  # what follows from `settings`; what is None there follows from the model
    "default": {
        "tasks": TASKS,
        "demonstration_seeds": (42,),
        "mode": "mean",
        "reference": "task",
        "all_tasks": False,
        "text_tasks": ("sst2", "subj"),  # those whose texts come with StaICC
    },
    # Crosbie & Shutova: three draws of demonstrations and of random heads, the mode of their code with means over 500
    # samples of MNLI's premises, texts of the hub
    "paper": {
        "tasks": (*TASKS, "wordseq1_4way", "wordseq2_4way"),
        "demonstration_seeds": (42, 43, 44),
        "mode": "input_mean",
        "reference": "mnli",
        "all_tasks": True,
        "text_tasks": TEXT_TASKS,
        "text_data": "hub",
        "prompts": 500,
        "control_sets": 3,
    },
}


def ablated_row(heads: int) -> str:
    """The row of the ablation of so many of the best heads."""
    return f"top {heads} ablated"


def is_control_set(row: str) -> bool:
    """Whether as many other heads are ablated in a row."""
    return row.startswith((LAYER_MATCHED, NORM_MATCHED))


def planned(score: Floats, norms: Floats, setup: Arrays, seed: int = 0) -> Numbers:
    """What is done to a model with prefix-matching scores [L, H].

    setup: what is measured of it, see `measure.setup_for`; edits: those that are compared, by their rows; ablated: the
    row of the ablation of the best heads.

    norms: the lengths [L, H] of what heads write. No head of a control set has a score of 0.3 or more; layers with too
    few such heads leave no layer-matched sets. Raises ValueError where there are too few heads for norm-matched sets.
    """
    chosen, eligible = top(score, setup["primary"]), score < INDUCTION_HEAD
    sets = setup["control_sets"]
    controls = {
        LAYER_MATCHED: [] if shortage(chosen, eligible) else layer_matched(chosen, eligible, sets, seed),
        NORM_MATCHED: norm_matched(chosen, eligible, norms, sets, seed),
    }
    others = (controls[LAYER_MATCHED] or controls[NORM_MATCHED])[:3]

    def numbered(kind: str, drawn: Sequence[Sequence[Head]], edit: Callable[[Any], Edit]) -> dict[str, Edit]:
        return {f"{kind} {draw}": edit(heads) for draw, heads in enumerate(drawn, 1)}

    ablate = partial(Edit.ablate, mode=setup["mode"])
    ablated = ablated_row(len(chosen))
    edits = {WHOLE: INTACT, ablated: ablate(chosen)}
    for kind, drawn in controls.items():
        edits |= numbered(kind, drawn, ablate)
    edits |= {KNOCKED_OUT: Edit.knock_out(chosen), **numbered(KNOCKED_OUT_IN_OTHERS, others, Edit.knock_out)}
    edits |= {pattern: Edit.knock_out(chosen, pattern, seed) for pattern in OTHER_PATTERNS}
    return {"setup": setup, "edits": edits, "ablated": ablated}


def by_shots(plan: Arrays, shots: int) -> dict[str, Edit]:
    """The edits of a plan that are measured with some number of demonstrations.

    These are the whole model, the ablation, the knockout, and `other_sets` control sets: layer-matched ones, then
    norm-matched ones where there are too few. Prompts without demonstrations have no pattern to knock out.
    """
    edits = plan["edits"]
    controls = [row for row in edits if is_control_set(row)][: plan["setup"]["other_sets"]]
    return {row: edits[row] for row in (WHOLE, plan["ablated"], *[KNOCKED_OUT] * bool(shots), *controls)}


# ------------------------------------------------------------------------------------------------ what was measured


@dataclass(frozen=True)
class TaskShots:
    """Right answers to one task at several numbers of demonstrations, each with means of its own.

    unrelated: whether the labels are Foo and Bar, which are unrelated to its classes. right: answers by the number of
    demonstrations and by row, [R, N]; controls: the control sets among its rows. chance: what guessing and always
    answering with the most frequent class have at most. check: whether the whole model does the task, on other queries
    with the most demonstrations; does_bare: whether it is above chance without any. available: how many queries there
    are.
    """

    task: str
    unrelated: bool
    right: Mapping[int, Mapping[str, Bools]]
    ablated: str
    controls: tuple[str, ...]
    chance: float
    check: TaskCheck
    available: int
    does_bare: bool = False

    @property
    def name(self) -> str:
        """How figures, tables and values files call it."""
        return f"{self.task}, Foo/Bar" if self.unrelated else self.task

    @property
    def most(self) -> int:
        """The largest number of demonstrations."""
        return max(self.right)

    @property
    def queries(self) -> int:
        """How many queries were asked."""
        return self.right[self.most][WHOLE].shape[1]

    def by_query(self, shots: int, row: str) -> Floats:
        """How often each query is answered right, [N]; the mean of all runs."""
        return np.asarray(self.right[shots][row], dtype=np.float64).mean(axis=0)

    def benefit(self, row: str = WHOLE) -> Floats:
        """What demonstrations are worth under an edit, by query [N]."""
        return self.by_query(self.most, row) - self.by_query(0, row)


# ------------------------------------------------------------------------------------------------ heads


def scores(arrays: Arrays, settings: Any) -> Numbers:
    """Prefix-matching scores of all heads, and the best heads, which everything is about."""
    heads, untrained = arrays["heads"], arrays["untrained"]
    intervals = heads.intervals()
    entries = {
        "mean": intervals.value,
        "low": intervals.low,
        "high": intervals.high,
        "uniform": heads.uniform,
        "untrained": None if untrained is None else untrained.mean(),
    }
    return {"scores": entries, "chosen": arrays["chosen"], "setup": arrays["setup"]}


def pattern(arrays: Arrays, settings: Any) -> Numbers:
    """What the best head attends to in one prompt from the last token, as in Fig. 6 of Crosbie & Shutova 2024."""
    tokens, attention = arrays["tokens"], arrays["attention"]
    ends = np.flatnonzero(np.diff([kind == "label" for kind in ["", *arrays["kinds"], ""]])).reshape(-1, 2)
    labels = [
        [text, float(attention[-1, start:end].sum())] for text, (start, end) in zip(arrays["labels"], ends, strict=True)
    ]
    shown = {"queries": [len(tokens) - 1], "rows": attention[-1:], "labels": labels}
    return {"pattern": {name: arrays[name] for name in ("head", "task", "answer", "tokens")} | shown}


# ------------------------------------------------------------------------------------------------ tasks


def ablation(arrays: Arrays, settings: Any) -> Numbers:
    """Accuracies on the primary task with demonstrations by row, and the primary endpoint."""
    edits, rows, task, check = (arrays[name] for name in ("edits", "right", "task", "check"))
    whole, ablated = rows[WHOLE], rows[arrays["ablated"]]
    p, least = rank_p(ablated.mean(), [drawn.mean() for row, drawn in rows.items() if is_control_set(row)])
    lost = paired_interval(whole.mean(axis=0) - ablated.mean(axis=0))
    return {
        "controls": {
            kind: [edit.heads for row, edit in edits.items() if row.startswith(kind)]
            for kind in (LAYER_MATCHED, NORM_MATCHED)
        },
        "primary": {"task": task, "chance": arrays["chance"], "p": p, "least p": least, "lost": lost},
        "tasks_done": {task: check} if check and check.done else {},
        "queries": {task: whole.shape[1]},
        "accuracy": {task: {row: accuracy(drawn) for row, drawn in rows.items()}},
    }


def plain_text(arrays: Arrays, settings: Any) -> Numbers:
    """Losses of plain text by row, in nats per token, and what the ablated heads cost of it."""
    losses = arrays["losses"]
    return {
        "losses": {row: mean_interval(loss) for row, loss in losses.items()} | {"uniform": arrays["uniform"]},
        "plain text": {
            "texts": len(losses[WHOLE]),
            "lost": mean_interval(losses[arrays["ablated"]] - losses[WHOLE]),
        },
    }


def benefits(tasks: Sequence[TaskShots]) -> Numbers:
    """Accuracies by task and number of demonstrations, and which tasks are done, for `shots` and claims."""

    def row(task: TaskShots, shots: int) -> Numbers:
        rows = task.right[shots]
        named = {row: accuracy(right) for row, right in rows.items() if row not in task.controls}
        return {"accuracy": named, "controls": [float(rows[row].mean()) for row in task.controls if row in rows]}

    checks = {
        task.name: {"queries": task.queries, "does": task.check.done, "chance": task.chance, "check": vars(task.check)}
        for task in tasks
    }
    by_shots = {task.name: {str(shots): row(task, shots) for shots in task.right} for task in tasks}
    return {"accuracy by shots": by_shots, "tasks": checks}


def shots(arrays: Arrays, settings: Any) -> Numbers:
    """The entry "benefits": what `benefits` has, what was left out, and what examples of one task are worth.

    That is the primary task where the model does it, else the first that it does: the one with the largest benefit
    would have it in part by chance.
    """
    worth = {}
    measured = [task for task in arrays["tasks"] if task.check.done and task.ablated in task.right.get(0, {})]
    if measured:
        shown = next((task for task in measured if task.name == settings.primary_task), measured[0])
        whole, without = (mean_interval(shown.benefit(row), within=(-1, 1)) for row in (WHOLE, shown.ablated))
        worth = {"task": shown.name, "shots": shown.most, "whole": whole, "without induction heads": without}
    return {"benefits": benefits(arrays["tasks"]) | {"worth": worth, "left out": arrays["left out"]}}


def planted(arrays: Arrays, settings: Any) -> Numbers:
    """Whether a score of 0.3 finds just the planted heads."""
    return {"planted": {"exact": arrays["truth"].found_exactly("induction", arrays["score"], INDUCTION_HEAD)}}


# What queries [N] of a task add to the two sums of an effect; without a row: others are all control sets, else this one
Shares = Callable[[TaskShots, str | None], tuple[Floats, Floats | float]]

TEXTS = {
    1: "ablating induction heads costs pattern tasks more than ablating others",
    2: "it brings accuracy close to chance",
    3: "forbidding the pattern alone costs nearly as much",
    4: "text tasks benefit less from demonstrations",
    5: "few-shot answers come close to zero-shot ones",
    6: "with unrelated labels more is lost than with a task's own",
    7: "zero-shot answers change little",
}
MARGINS = {1: 0.1, 2: 0.55, 3: 0.4, 4: 0.35, 5: 0.75, 6: 0.05, 7: 0.2}  # by `make bench NAME=verdicts`
COUNTLESS = 10**5  # queries: the paper's numbers are taken as they stand
ABOVE = (1, 4, 6)  # the effect of these claims is above its margin; that of the others, claims of likeness, below


def shares(number: int, task: TaskShots, control: str | None = None) -> tuple[Floats, Floats]:
    """What queries add to numerator and denominator of the effect of a claim but the sixth, [N] each."""

    def of(shots: int, *rows: str) -> Any:
        right = task.right.get(shots, {})
        return np.mean([task.by_query(shots, row) for row in rows], axis=0) if right.keys() >= {*rows} else np.nan

    chance, rows = task.chance, [(WHOLE,), (task.ablated,), task.controls if control is None else (control,)]
    whole, ablated, others = (of(task.most, *row) for row in rows)
    bare_whole, bare_ablated, bare_others = (of(0, *row) for row in rows)
    claims = {
        # what is lost of what is above chance without others
        1: (others - ablated, others - chance),
        # what is left of what the whole model has above chance
        2: (ablated - chance, whole - chance),
        # what forbidding the pattern spares of what ablation costs
        3: (of(task.most, KNOCKED_OUT) - ablated, whole - ablated),
        # what is lost of what demonstrations are worth without others
        4: (others - ablated - (bare_others - bare_ablated), others - bare_others),
        # what is left of what demonstrations are worth to the whole model
        5: (ablated - bare_whole, whole - bare_whole),
        # what is lost of what is above chance without any demonstrations
        7: (bare_whole - bare_ablated, bare_whole - chance),
    }
    return claims[number]


def lost_more_than(with_own_labels: Mapping[str, TaskShots]) -> Shares:
    """Claim 6: what is lost with unrelated labels, minus that with a task's own; the mean over these tasks."""

    def more(task: TaskShots, control: str | None = None) -> tuple[Floats, float]:
        unrelated, related = (shares(1, one, control)[0] for one in (task, with_own_labels[task.task]))
        return (unrelated - related) / len(with_own_labels), 1 / len(with_own_labels)

    return more


def effect(share: Shares, tasks: Sequence[TaskShots]) -> Effect:
    """The effect of a claim over some tasks. Control sets of one number are the same heads in each task."""
    sums = [
        np.sum([[np.mean(part) for part in share(task, row)] for task in tasks], axis=0) for row in tasks[0].controls
    ]
    return Effect.of(*(share(task, None) for task in tasks), sets=sums)


def judge(tasks: Sequence[TaskShots]) -> tuple[Claim, ...]:
    """The seven claims with their verdicts."""
    related, unrelated = ([task for task in tasks if task.unrelated == to] for to in (False, True))
    done = [task for task in related if task.check.done]
    pattern = [task for task in done if task.task not in TEXT_TASKS]
    texts = [task for task in done if task.task in TEXT_TASKS and 0 in task.right]
    of_own = {task.task: task for task in related if task.ablated in task.right[task.most]}
    both = [task for task in unrelated if task.check.done and task.task in of_own]
    none, more = NOT_DONE if unrelated else NOT_ASKED, lost_more_than({task.task: of_own[task.task] for task in both})
    first, second, third, *others = (
        _claim(1, pattern),
        _claim(2, [worst_hit(pattern)] if pattern else []),
        _claim(3, pattern),
        _claim(4, texts, none),
        _claim(5, texts, none),
        _claim(6, both, none, more),
        _claim(7, [task for task in related if task.does_bare], NO_PREMISE),
    )
    if any(part.high < 0 for part in second.parts):
        second = replace(second, note="accuracy falls below chance")
    if third.verdict != NOT_DONE and first.verdict != HOLDS:
        third = Claim(3, TEXTS[3], NO_PREMISE, note=f"claim 1 {first.verdict}")
    return first, second, third, *others


def _claim(number: int, tasks: Sequence[TaskShots], none: str = NOT_DONE, share: Shares | None = None) -> Claim:
    """The verdict on a claim about the mean over tasks, with each of them beside; `none` where there are none."""
    if not tasks:
        return Claim(number, TEXTS[number], none)
    available = min(task.available for task in tasks)
    name = ", ".join(task.name for task in tasks)
    share = share or partial(shares, number)
    part = judged(name, effect(share, tasks), MARGINS[number], above=number in ABOVE, available=available)
    single = [shown(task.name, effect(share, [task])) for task in tasks] if len(tasks) > 1 else []
    return Claim(number, TEXTS[number], part.verdict, (part,), beside=tuple(single))


def worst_hit(tasks: Sequence[TaskShots]) -> TaskShots:
    """Claim 2: the task that loses most by a random half of the queries, with the other half alone."""
    worst = max(tasks, key=lambda one: float(shares(1, one)[0][halves(one.queries)[0]].mean()))
    other = halves(worst.queries)[1]
    right = {shots: {row: drawn[:, other] for row, drawn in rows.items()} for shots, rows in worst.right.items()}
    return replace(worst, right=right, available=worst.available // 2)


# ------------------------------------------------------------------------------------------------ the paper's numbers


def published(task: str, shots: int, ablated: str = "ablated", *, unrelated: bool = False) -> dict[str, float]:
    """The accuracies of Llama-3-8B in a row of Tables 1 and 3, from 0 to 1, by the rows of this figure.

    ablated: how the row of the ablation is called; it is of the best 1 % of heads, control sets of as many random ones.
    unrelated: whether the labels are Foo and Bar. What the table does not have is left out.
    """
    rows = files.published("induction_scores")["values"]
    shares = {row["id"]: row["value"] / 100 for row in rows if row["model"] == "meta-llama/Meta-Llama-3-8B"}
    place = f"{task}, {shots} shots{', unrelated labels' * unrelated}: "
    columns = {
        "full": WHOLE,
        "mean ablation, top 1 %": ablated,
        "mean ablation, random 1 %": LAYER_MATCHED,
        "knockout, top 1 %": KNOCKED_OUT,
    }
    return {row: shares[place + column] for column, row in columns.items() if place + column in shares}


def of_paper() -> list[TaskShots]:
    """The paper's own accuracies as tasks of countless queries: Tables 1 and 3, 10 shots, 1 % of the heads.

    A task is done where the table has its ablation, and accuracy is above chance and above that without demonstrations.
    """
    chance, undefined, tasks = 0.5, Interval(np.nan, np.nan, np.nan), []
    for task, unrelated in (*((task, False) for task in TASKS), *product(TEXT_TASKS, (False, True))):
        tables = {shots: published(task, shots, unrelated=unrelated) for shots in (0, 10)}
        if not tables[10]:
            continue
        whole, bare = (tables[shots].get(WHOLE, chance) for shots in (10, 0))
        done = "ablated" in tables[10] and whole > max(chance, bare)
        check = TaskCheck(task, 10, whole, whole, chance, undefined, undefined, float(not done), COUNTLESS)
        right = {
            shots: {row: np.full((1, COUNTLESS), share) for row, share in table.items()}
            for shots, table in tables.items()
            if table
        }
        of_task = right, "ablated", (LAYER_MATCHED,), chance, check, COUNTLESS, bare > chance
        tasks.append(TaskShots(task, unrelated, *of_task))
    return tasks


def verdicts_on_paper() -> dict[str, Numbers]:
    """The effects of the paper's own numbers, and on which side of the margin they lie, by the number of a claim."""
    return {
        str(claim.number): {"value": part.value, "verdict": claim.verdict}
        for claim in judge(of_paper())
        for part in claim.parts
    }


def stored(title: str, arrays: Arrays, settings: Any) -> Numbers:
    """The verdicts on the claims and what they are about, for `files.save_claims`.

    title: of the model; arrays: what `measure.shots` gives.
    """
    setup = arrays["setup"]
    return {
        "model": title,
        "setting": f"{setup['mode']} ablation of {setup['primary']} heads, {setup['other_sets']} control sets",
        "settings": {**setup, **{name: getattr(settings, name) for name in ("tasks", "text_tasks", "shots")}},
        "margins": {str(number): margin for number, margin in MARGINS.items()},
        "published": verdicts_on_paper(),
        **benefits(arrays["tasks"]),
        "claims": judge(arrays["tasks"]),
    }
