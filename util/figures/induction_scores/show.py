"""The figure of induction heads: settings, sentences and pictures, made of its numbers.

What tasks lose stands beside what Crosbie & Shutova (2024) report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from pydantic import AfterValidator

from util.figures.edits import WHOLE, Mode, TaskName
from util.figures.induction_scores import numbers
from util.figures.induction_scores.numbers import (
    KNOCKED_OUT,
    LAYER_MATCHED,
    OTHER_PATTERNS,
    PRESETS,
    ablated_row,
    is_control_set,
    published,
)
from util.prompts import text_tasks
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.draw import BLUE, GREY, PALE_RED, RED, Grid
from util.show.panels import (
    CHANCE,
    CONTROLS,
    DIAMOND,
    HERE,
    ROW,
    heads,
    intervals,
    name_at_right,
    points,
    row_names,
    row_panel,
    token_grid,
    triples,
)
from util.show.part import CLAIMS, Figure, Part, Values, interval_at, listed, none_or, say, title, written
from util.stats.heads import head_name, heads_where, top
from util.stats.intervals import POWERED, Interval, detectable
from util.study.checked import AsList, AtLeastTwo, Count, Distinct, Natural, Text, checked, distinct

COLOURS = {WHOLE: BLUE, KNOCKED_OUT: PALE_RED, **dict.fromkeys((LAYER_MATCHED, *OTHER_PATTERNS), GREY)}  # else red
PUBLISHED = Line2D([], [], color="black", ls="", **DIAMOND, label="published, Llama-3-8B, 1 % of heads")


# ------------------------------------------------------------------------------------------------ settings


Tasks = Annotated[tuple[TaskName, ...], AsList, Distinct]
Naturals = Annotated[tuple[Natural, ...], AsList, Distinct]
TextTaskName = Annotated[str, AfterValidator(lambda name: text_tasks.find(name).name)]
NoneTwice = AfterValidator(lambda names: distinct(names) if names else names)


@checked
class Settings:
    """What is measured of a model's induction heads. What is None follows from `settings`, or from the model.

    tasks, primary_task: classification tasks, and the one with all controls. k: demonstrations; prompts: as many
    queries of each task; seed: of control sets, random keys and sequences. settings: "default" or "paper", see
    `numbers.PRESETS`. demonstration_seeds: a run for each, by default those of the settings plus `seed`; reference: see
    `TaskStudy`. primary, mode, control_sets, other_sets: see `measure.setup_for`. all_tasks:
    whether ablations are measured on tasks, too, that the whole model does not do. text_tasks: tasks with texts that
    people wrote; text_data: where they are, None (those of StaICC, then the hub), "hub", or a folder with a folder for
    each task, see `load_model_and_data.load_text_task`, and with a folder mnli where that is the reference; shots:
    numbers of demonstrations. sequences, length, copies, bos: see `SequenceStudy`. untrained_control: whether the
    untrained twin is scored too, a second model in memory. More prompts than the smallest task has are as many as it
    has.
    """

    tasks: Tasks | None = None
    primary_task: TaskName = "wordseq1"
    k: Natural = 10
    prompts: AtLeastTwo | None = None
    seed: Natural = 0
    _: KW_ONLY
    settings: Literal["default", "paper"] = "default"
    demonstration_seeds: Naturals | None = None
    reference: Literal["task", "staicc", "mnli"] | None = None
    primary: Count | None = None
    mode: Mode | None = None
    control_sets: Count | None = None
    other_sets: Count | None = None
    all_tasks: bool | None = None
    text_tasks: Annotated[tuple[TextTaskName, ...], AsList, NoneTwice] | None = None
    text_data: Text | None = None
    shots: Naturals = (0, 5, 10)
    sequences: Count = 5
    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    bos: bool = True
    untrained_control: bool = True

    def __post_init__(self) -> None:
        preset = dict(PRESETS[self.settings])
        preset["demonstration_seeds"] = tuple(self.seed + seed for seed in preset["demonstration_seeds"])
        tasks = self.tasks or preset["tasks"]
        preset["text_tasks"] = tuple(task for task in preset["text_tasks"] if task not in tasks)
        for name, value in preset.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.primary_task not in tasks:
            raise ValueError(f"primary_task = {self.primary_task!r} is none of tasks = {list(tasks)}")
        if twice := {*tasks} & {*(self.text_tasks or ())}:
            raise ValueError(f"tasks and text_tasks both have {sorted(twice)}: name a task in one of them")


# ------------------------------------------------------------------------------------------------ heads


def the_best(count: int) -> str:
    """So many best induction heads, in words."""
    return "the best induction head" if count == 1 else f"the {count} best induction heads"


def scores_say(values: Values) -> Iterator[str]:
    scores = values["scores"]
    mean = np.array(scores["mean"], dtype=float)
    strong = heads_where(mean >= INDUCTION_HEAD)
    ends = dict.fromkeys(str(layer) for layer, _ in strong[:1] + strong[-1:])
    where = f", in layer{'s' * (len(ends) > 1)} {' to '.join(ends)}" if ends else ""
    having = f"{none_or(len(strong)).capitalize()} of {mean.size} heads {'has' if len(strong) < 2 else 'have'}"
    yield f"{having} a prefix-matching score of {INDUCTION_HEAD} or more{where}"
    (best,) = top(mean, 1)
    untrained = f"; untrained, at most {np.max(scores['untrained']):.2f}" if scores["untrained"] is not None else ""
    yield f"The best is {head_name(best)}: {interval_at(scores, *best, value='mean')}{untrained}."


def scores_about(values: Values) -> str:
    request = values["request"]
    tokens = f"{request['sequences']} sequences of {request['length']} random tokens, {request['copies']} times each"
    return f"{title(values)}, {tokens}"


def pattern_say(values: Values) -> Iterator[str]:
    pattern = values["pattern"]
    read = sum(share for _, share in pattern["labels"])
    right = sum(share for text, share in pattern["labels"] if text == pattern["answer"])
    if pattern["labels"]:
        yield (
            f"From the last token {head_name(tuple(pattern['head']))} gives {read:.2f} of its attention to labels, "
            f"{right:.2f} to {pattern['answer']}, the right answer"
        )


def pattern_about(values: Values) -> str:
    pattern = values["pattern"]
    return f"{title(values)}, one prompt of {pattern['task']}, {len(pattern['labels'])} demonstrations"


# ------------------------------------------------------------------------------------------------ tasks


def ablation_say(values: Values) -> Iterator[str]:
    """What the primary task loses, the endpoint that was fixed beforehand, and what a knockout costs."""
    primary, number = values["primary"], len(values["chosen"])
    task, p = primary["task"], primary["p"]
    rows, ablated = values["accuracy"][task], ablated_row(number)
    done = task in values["tasks_done"] or values["request"]["all_tasks"]
    controls = [row[0] for name, row in rows.items() if is_control_set(name)]
    as_low = sum(value <= rows[ablated][0] for value in controls)
    if done:
        both = f"Accuracy {rows[WHOLE][0]:.2f}, without {number} head{'s' * (number > 1)} {rows[ablated][0]:.2f}"
        yield f"{both}, {as_low} of {len(controls)} controls as low"
        missed = "not met" if primary["least p"] <= 0.05 else "which so few sets cannot meet"
        met, level = "met" if p <= 0.05 else missed, f"p = {p:.3f}"
    else:
        yield f"{task} is not done from its demonstrations: accuracy {written(rows[WHOLE])}"
        met, level = "not asked, as the task is not done", f"the best has {max(controls):.2f}"
    yield (
        f"Primary endpoint, {met}: accuracy on `{task}` is {written(rows[ablated])} "
        f"without {the_best(number)}, {written(rows[WHOLE])} with them ({values['queries'][task]} "
        f"queries); {as_low} of {len(controls)} sets of as many other heads {'is' if as_low == 1 else 'are'} as low, "
        f"{level}. The paired difference is {written(primary['lost'])}."
    )
    if done:
        yield f"With the pattern forbidden accuracy on `{task}` is {written(rows[KNOCKED_OUT])}."


def plain_text_says(values: Values) -> Iterator[str]:
    losses, plain, number = values["losses"], values["plain text"], len(values["chosen"])
    whole, *others = (loss[0] for row, loss in losses.items() if row not in ("uniform", ablated_row(number)))
    if whole >= losses["uniform"]:
        yield "On plain text the model is no better than equal odds, so its loss there says nothing."
        return
    yield (
        f"Without {the_best(number)} plain text costs {written(plain['lost'])} nats per token more than {whole:.2f} "
        f"({plain['texts']} texts), without as many others {min(others) - whole:.2f} to {max(others) - whole:.2f}."
    )


def tasks_about(values: Values) -> str:
    setup = values["setup"]
    ablated = f"{setup['mode']} ablation of {the_best(setup['primary'])}"
    return f"{title(values)}, {setup['prompts']} queries of each task, {ablated}"


def ablation_about(values: Values) -> str:
    return f"{tasks_about(values)}, {values['request']['k']} demonstrations"


def shots_say(values: Values) -> Iterator[str]:
    benefits = values["benefits"]
    shown = benefits["worth"]
    if shown:
        worth = "{shots} demonstrations of {task} are worth {whole}, without {n} induction {n:head|heads} {without}"
        first = say(worth, **shown, n=values["setup"]["primary"], without=shown["without induction heads"])
        shots = benefits["accuracy by shots"][shown["task"]]
        others = np.subtract(shots[str(shown["shots"])]["controls"], shots["0"]["controls"])
        sets = f"{others.size} set{'s' * (others.size > 1)}"
        yield f"{first}; without {sets} of others {min(others):.2f} to {max(others):.2f}"
    else:
        yield ""
    undone = {task: row["check"] for task, row in benefits["tasks"].items() if not row["does"]}
    if undone:
        names = [f"`{task}` ({check['accuracy']:.2f})" for task, check in undone.items()]
        comparisons = len(benefits["tasks"]) / 2  # tests are one-sided
        seen = [
            check["baseline"] + detectable(Interval(check["accuracy"], check["bound"], 1.0), check["n"], comparisons)
            for check in undone.values()
            if check["bound"] <= check["baseline"]  # others gain nothing by demonstrations
        ]
        power = f" ({POWERED} for accuracies from {max(seen):.2f} on)" if seen and max(seen) < 1 else ""
        yield (
            f"On up to {max(check['n'] for check in undone.values())} queries the model is not shown to do "
            f"{listed(names)} from demonstrations{power}."
        )
    yield from (f"`{task}`: {why}." for task, why in benefits["left out"].items())


def planted_say(values: Values) -> Iterator[str]:
    yield f"Of a model with planted induction heads just these are found: {values['planted']['exact']}"


# ------------------------------------------------------------------------------------------------ pictures


def scores(values: Values) -> Grid:
    """A: the scores of all heads. B: the best."""
    shown = values["scores"]
    all_heads = partial(heads, values=shown["mean"], limits=(0, 1), title="A) all heads", bar="prefix-matching score")
    return Grid([all_heads, partial(_best, entries=shown)], least=2.4, height=2.1)


def _best(ax: Axes, entries: Values) -> None:
    """The best 16 heads, lines at the bound of induction heads, uniform attention and the best untrained head."""
    strongest = top(np.array(entries["mean"], dtype=float), min(16, np.size(entries["mean"])))
    intervals(ax, triples(entries, strongest, "mean"), colour=BLUE, upright=True)
    levels = {f"{INDUCTION_HEAD}: counts": (INDUCTION_HEAD, "black"), "uniform": (entries["uniform"], "black")}
    if entries["untrained"] is not None:
        levels["untrained"] = (np.max(entries["untrained"]), "0.4")
    for (level, colour), dashes in zip(levels.values(), ("--", ":", "-"), strict=False):
        ax.axhline(level, color=colour, lw=0.8, ls=dashes)
    ax.set_xticks(range(len(strongest)), list(map(head_name, strongest)), rotation=90, fontsize=6.5)
    ax.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1), ylabel="prefix-matching score", title="B) the best heads")
    name_at_right(ax, levels)


def pattern(values: Values) -> Grid:
    """The tokens of a prompt, shaded by the attention that the best head gives them."""
    read = values["pattern"]
    name = f"{head_name(tuple(read['head']))} from the last token"
    return token_grid(read["tokens"], np.array(read["rows"]), [name], read["queries"])


def ablation(values: Values) -> Grid | None:
    """The primary task, if it is done, under every edit, and what the paper reports in the same place."""
    if not (values["tasks_done"] or values["request"]["all_tasks"]):
        return None
    task, ablated, k = values["primary"]["task"], ablated_row(len(values["chosen"])), values["request"]["k"]
    reported, rows = published(task, k, ablated), values["accuracy"][task]
    legend = [CONTROLS, HERE, *[PUBLISHED] * bool(reported), CHANCE]
    panel = partial(
        row_panel,
        rows=rows,
        colours=COLOURS,
        heading=task,
        label="accuracy",
        chance=values["primary"]["chance"],
        reported=reported,
    )
    return Grid([panel], height=0.6 + ROW * len(row_names(rows)), legend=legend)


def shots(values: Values) -> Grid | None:
    """A panel for each task with ablations, by the number of demonstrations; that of the headline is the first."""
    benefits, ablated = values["benefits"], ablated_row(len(values["chosen"]))
    first_task = benefits["worth"].get("task")
    panels = [
        partial(_by_shots, name=name, by_shots=by_shots, ablated=ablated, chance=benefits["tasks"][name]["chance"])
        for name, by_shots in sorted(benefits["accuracy by shots"].items(), key=lambda task: task[0] != first_task)
        if ablated in by_shots[max(by_shots, key=int)]["accuracy"]
    ]
    return Grid(panels, height=1.7, share="y", legend=[CHANCE], least=1.3) if panels else None


def _by_shots(ax: Axes, name: str, by_shots: Mapping[str, Any], ablated: str, chance: float) -> None:
    ax.axhline(chance, color="0.6", lw=0.8, ls=":", zorder=0)
    for x, row in enumerate(by_shots.values()):
        at = [x + 0.22] * len(row["controls"])
        ax.plot(at, row["controls"], "_", color=GREY, ms=6, mew=0.8, label="control sets")
    for number, edit in enumerate((WHOLE, ablated, KNOCKED_OUT)):
        known = {x: row["accuracy"][edit] for x, row in enumerate(by_shots.values()) if edit in row["accuracy"]}
        if known:  # prompts without demonstrations have no pattern to knock out
            shifted = [x + 0.1 * (number - 1) for x in known]
            points(ax, shifted, known.values(), fmt="o-", color=COLOURS.get(edit, RED), label=edit)
    ax.set_xticks(range(len(by_shots)), list(by_shots))
    ax.set(xlim=(-0.6, len(by_shots) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1))
    ax.set(xlabel="demonstrations", ylabel="accuracy")
    ax.set_title(name.replace("_", " "), fontsize=7)


# ------------------------------------------------------------------------------------------------ figure


FIGURE = Figure(
    "induction_scores",
    Settings,
    {
        "scores": Part(numbers.scores, "scores", scores_say, scores_about, scores),
        "pattern": Part(numbers.pattern, "pattern", pattern_say, pattern_about, pattern),
        "ablation": Part(
            numbers.ablation, "ablation", ablation_say, ablation_about, ablation, needs=("scores",)
        ),
        "plain_text": Part(numbers.plain_text, "plain_text", plain_text_says, needs=("scores",)),
        "shots": Part(
            numbers.shots, "shots", shots_say, lambda values: tasks_about(values) + "; bars: 95 %", shots,
            needs=("scores",),
        ),
        "planted": Part(numbers.planted, "planted", planted_say),
        "claims": CLAIMS,
    },
    ("scores", "ablation", "plain_text", "shots", "claims"),
)  # fmt: skip
