"""Numbers of induction heads, of what is lost without them, and of function-vector heads, from arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from util.figures.induction_scores.shots import WHOLE, TaskShots
from util.figures.induction_scores.vector_sets import (
    COPIES,
    FUNCTION_VECTOR,
    FUNCTION_VECTOR_ALONE,
    INDUCTION,
    INDUCTION_ALONE,
    PAIRS,
    Ablated,
)
from util.stats.heads import top
from util.stats.intervals import (
    Interval,
    Intervals,
    accuracy,
    bootstrap_interval,
    halves,
    mean_interval,
    mean_intervals,
    paired_interval,
    resampled,
)
from util.stats.tests import rank_p

Arrays = Mapping[str, Any]
Numbers = dict[str, Any]
Floats = NDArray[np.floating]
ATTENTION = {"previous token": "previous_token", "duplicate token": "duplicate_token", "first token (BOS)": "sink"}


def _map(intervals: Intervals, value: str = "value") -> Numbers:
    return {value: intervals.value, "low": intervals.low, "high": intervals.high}


# ------------------------------------------------------------------------------------------------ heads


def scores(arrays: Arrays, settings: Any) -> Numbers:
    """Prefix-matching scores of all heads, and the best heads, which everything is about."""
    heads, untrained = arrays["heads"], arrays["untrained"]
    found = {
        **_map(heads.intervals(), "mean"),
        "uniform": heads.uniform,
        "untrained": None if untrained is None else untrained.mean(),
    }
    return {"scores": found, "chosen": arrays["chosen"], "setup": vars(arrays["setup"])}


def companions(arrays: Arrays, settings: Any) -> Numbers:
    """What else heads attend to, and what they write, [L, H] by name; of each the highest head.

    NaN where the class has no direct effects. Weights have no interval: they are not sampled.
    """
    copying, attribution = mean_intervals(arrays["copying"], within=(0, 1)), mean_intervals(arrays["attribution"])
    alone = np.asarray(arrays["weights_copying"], np.float64)
    none = np.full(alone.shape, np.nan)
    maps = {shown: arrays["heads"].intervals(name) for shown, name in ATTENTION.items()}
    maps |= {"copying": copying, "copying, weights alone": Intervals(alone, none, none), "attribution": attribution}
    highest: dict[str, list[Any]] = {}
    for name, one in maps.items():
        if np.isnan(one.value).all():
            continue
        (head,) = top(one.value, 1)
        highest[name] = [head, *(None if np.isnan(number) else number for number in one[head])]
    values = {name: one.value for name, one in maps.items()}
    return {"companions": values, "attribution": _map(attribution), "highest": highest}


def pattern(arrays: Arrays, settings: Any) -> Numbers:
    """What the best head attends to in one prompt, from the last token and from the query's first word.

    Source: Crosbie & Shutova 2024, Figs. 6 and 7, which show the last colon and a word of a pair.
    """
    tokens, kinds, attention = arrays["tokens"], arrays["kinds"], arrays["attention"]
    last = attention[-1]
    labels, parts = [], np.flatnonzero(np.diff([kind == "label" for kind in ["", *kinds, ""]]))
    for start, end in parts.reshape(-1, 2):
        labels.append(["".join(tokens[start:end]).strip(), float(last[start:end].sum())])
    queries = {len(tokens) - 1: "the last token"}
    if word := _first_word(tokens, kinds):
        text = "".join(tokens[token] for token in word).strip()
        queries[word[-1]] = f"the query's first word, {text}"
    found = {
        "head": arrays["head"], "task": arrays["task"], "answer": arrays["answer"], "labels": labels,
        "tokens": tokens, "queries": list(queries), "from": list(queries.values()), "rows": attention[list(queries)],
    }  # fmt: skip
    return {"pattern": found}


def _first_word(tokens: Sequence[str], kinds: Sequence[str]) -> list[int]:
    """The tokens of the first word of the query; none where no demonstration ends before it."""
    ends = [place for place, kind in enumerate(kinds) if kind == "blank line"]
    start = ends[-1] + 1 if ends else len(tokens)
    end = start + 1
    while end < len(tokens) - 1 and kinds[end] == kinds[start] and tokens[end][:1].isalnum():
        end += 1
    return list(range(start, end)) if end < len(tokens) else []


def mechanism(arrays: Arrays, settings: Any) -> Numbers:
    """The chosen heads' scores in the whole model, and without previous-token heads of earlier layers, or others."""
    layers, heads = np.array(arrays["chosen"]).T
    measured = {"whole model": arrays["heads"], **arrays["without"]}
    left = {
        name: [scores.intervals()[head] for head in zip(layers, heads, strict=True)]
        for name, scores in measured.items()
    }
    means = {
        name: mean_interval(scores.scores["prefix_matching"][:, layers, heads].mean(axis=1), within=(0, 1))
        for name, scores in measured.items()
    }
    whole = means.pop("whole model")
    found = {
        "previous_token_heads": arrays["makers"],
        "scores": {name: [interval.value for interval in left[name]] for name in arrays["without"]},
        "mean scores": means,
        "whole": whole,
        "left": left,
    }
    return {"mechanism": found}


# ------------------------------------------------------------------------------------------------ tasks


def ablation(arrays: Arrays, settings: Any) -> Numbers:
    """Accuracies with demonstrations by task and row, and the primary endpoint."""
    plan, right = arrays["plan"], arrays["right"]
    task = plan.setup.primary_task
    rows = right[task]
    others = [drawn.mean() for row, drawn in rows.items() if row.is_control_set]
    p, least = rank_p(rows[plan.ablated].mean(), others, tail="low")
    lost = paired_interval(rows[WHOLE].mean(axis=0) - rows[plan.ablated].mean(axis=0))
    return {
        "controls": {group.value: sets for group, sets in plan.controls.items()},
        "primary": {"task": task, "p": p, "least p": least, "lost": lost},
        "tasks_done": arrays["passed"],
        "done": list(arrays["done"]),
        "queries": {name: rows[WHOLE].shape[1] for name, rows in right.items()},
        "accuracy": {
            name: {row.name: accuracy(answers) for row, answers in rows.items()} for name, rows in right.items()
        },
    }


def plain_text(arrays: Arrays, settings: Any) -> Numbers:
    """Losses of plain text by row, in nats per token, and what the ablated heads cost of it."""
    losses = arrays["losses"]
    return {
        "losses": {row.name: mean_interval(loss) for row, loss in losses.items()} | {"uniform": arrays["uniform"]},
        "plain text": {
            "texts": len(losses[WHOLE]),
            "lost": mean_interval(losses[arrays["plan"].ablated] - losses[WHOLE]),
        },
    }


def benefits(tasks: Sequence[TaskShots]) -> Numbers:
    """Accuracies by task and number of demonstrations, and which tasks are done, for `shots` and claims."""

    def row(task: TaskShots, shots: int) -> Numbers:
        rows = task.right[shots]
        named = {one.name: accuracy(right) for one, right in rows.items() if one not in task.controls}
        return {"accuracy": named, "controls": [float(rows[one].mean()) for one in task.controls if one in rows]}

    return {
        "accuracy by shots": {
            task.labelled.name: {str(shots): row(task, shots) for shots in task.right} for task in tasks
        },
        "tasks": {
            task.labelled.name: {
                "queries": task.queries, "does": task.does, "chance": task.chance, "check": vars(task.check),
            }
            for task in tasks
        },
    }  # fmt: skip


def shots(arrays: Arrays, settings: Any) -> Numbers:
    """The entry "benefits": what `benefits` has, what was left out, and, where they help most, what examples bring."""
    helped = [
        task for task in arrays["tasks"]
        if task.does and task.has_zero_shot and task.ablated in task.right[0] and mean_interval(task.benefit).low > 0
    ]  # fmt: skip
    worth = {}
    if helped:
        most = max(helped, key=lambda task: float(task.benefit.mean()))
        left = most.by_query(most.most, most.ablated) - most.by_query(0, most.ablated)
        both = [mean_interval(values, within=(-1, 1)) for values in (most.benefit, left)]
        worth = {"task": most.labelled.name, "shots": most.most, "whole": both[0], "without induction heads": both[1]}
    left_out = [[name, k, why] for (name, k), why in arrays["left out"].items()]
    return {"benefits": benefits(arrays["tasks"]) | {"worth most": worth, "left out": left_out}}


# ------------------------------------------------------------------------------------------------ function vectors


def _spearman(first: Floats, second: Floats) -> float:
    return float(spearmanr(first.ravel(), second.ravel()).statistic)


def _share(values: NDArray[Any]) -> Interval:
    """The share of right answers [N], or the mean of shares [N], with its interval."""
    return accuracy(values) if values.dtype == bool else mean_interval(values, within=(0, 1))


def function_vectors(arrays: Arrays, settings: Any) -> Numbers:
    """Function-vector heads beside induction heads: their scores, how far they agree, and what is lost without either.

    The rank correlation's interval is over the sequences and prompts of the scores, for these heads; its reliability is
    that of the AIE of one half of the prompts with that of the other: most heads have next to no effect, and no other
    score can agree with the AIE much better than it does with itself.
    """
    heads, matching, sets = arrays["effects"], arrays["heads"].scores["prefix_matching"], arrays["sets"]
    effects, units = heads.intervals(), heads.units
    drawn = zip(resampled(len(matching), 1000), resampled(len(units), 1000, seed=1), strict=True)
    redrawn = [_spearman(np.tensordot(one, matching, 1), np.tensordot(other, units, 1)) for one, other in drawn]
    correlation = bootstrap_interval(_spearman(matching.mean(0), heads.mean()), np.array(redrawn), within=(-1, 1))
    first, second = halves(len(units))
    measured: dict[str, Mapping[Ablated, NDArray[Any]]] = {
        PAIRS: {ablated: np.concatenate([*tasks.values()]) for ablated, tasks in arrays["pairs"].items()},
        arrays["task"]: arrays["classified"],
        COPIES: arrays["copied"],
    }
    counts = {name: len(rows[Ablated()]) for name, rows in measured.items()}
    found = {
        "corruption": heads.corruption,
        "AIE": _map(effects, "mean"),
        "by_task": {task.task: task.effects.mean(axis=0) for task in heads.tasks},
        "rank_correlation": correlation,
        "reliability": _spearman(units[first].mean(axis=0), units[second].mean(axis=0)),
        "sets": sets.sets,
        "both": [head for head in sets.sets[INDUCTION] if head in sets.sets[FUNCTION_VECTOR]],
        "controls": sets.controls,
        "matched": sets.matched,
        "asked": {name: f"{n} {'sequences' if name == COPIES else 'queries'}" for name, n in counts.items()},
        "accuracy": {name: {one.name: _share(v) for one, v in rows.items()} for name, rows in measured.items()},
        "contrast": {name: _contrast(rows) for name, rows in measured.items()},
        "room": heads.room,
        "prompts": len(units),
        "left out": list(heads.left_out.values()),
        "classification": {"task": arrays["task"], "chance": arrays["chance"]},
    }
    return {"function vectors": found}


def _contrast(rows: Mapping[Ablated, NDArray[Any]]) -> Interval:
    """How much more is lost without the FV heads alone than without the induction heads alone, paired."""
    without_induction, without_fv = (rows[Ablated(kind)] for kind in (INDUCTION_ALONE, FUNCTION_VECTOR_ALONE))
    more = without_induction.astype(np.float64) - without_fv
    return paired_interval(more) if without_fv.dtype == bool else mean_interval(more, within=(-1, 1))


def planted(arrays: Arrays, settings: Any) -> Numbers:
    """Whether a score of 0.3 finds just the planted heads."""
    return {"planted": {"exact": arrays["exact"]}}
