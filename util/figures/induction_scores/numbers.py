"""Numbers of induction heads, and of what is lost without them, from arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from util.figures.induction_scores.plan import WHOLE, TaskShots, is_control_set
from util.stats.heads import top
from util.stats.intervals import Intervals, accuracy, mean_interval, mean_intervals, paired_interval
from util.stats.tests import rank_p

Arrays = Mapping[str, Any]
Numbers = dict[str, Any]
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
    return {"scores": found, "chosen": arrays["chosen"], "setup": arrays["setup"]}


def companions(arrays: Arrays, settings: Any) -> Numbers:
    """What else heads attend to, and what they write, [L, H] by name; of each the highest head.

    NaN where the class has no direct effects.
    """
    maps = {shown: arrays["heads"].intervals(name) for shown, name in ATTENTION.items()}
    maps["attribution"] = mean_intervals(arrays["attribution"])
    known = {name: one for name, one in maps.items() if not np.isnan(one.value).all()}
    best = {name: top(one.value, 1)[0] for name, one in known.items()}
    return {
        "companions": {name: one.value for name, one in maps.items()},
        "attribution": _map(maps["attribution"]),
        "highest": {name: [head, *maps[name][head]] for name, head in best.items()},
    }


def pattern(arrays: Arrays, settings: Any) -> Numbers:
    """What the best head attends to in one prompt, from the last token and from the query's first word.

    Source: Crosbie & Shutova 2024, Figs. 6 and 7, which show the last colon and a word of a pair. No row of the word
    where no demonstration ends before it.
    """
    tokens, kinds, attention = arrays["tokens"], arrays["kinds"], arrays["attention"]
    ends = np.flatnonzero(np.diff([kind == "label" for kind in ["", *kinds, ""]])).reshape(-1, 2)
    labels = [["".join(tokens[start:end]).strip(), float(attention[-1, start:end].sum())] for start, end in ends]
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
    left = {name: [scores.intervals()[tuple(head)] for head in arrays["chosen"]] for name, scores in measured.items()}
    means = {
        name: mean_interval(scores.scores["prefix_matching"][:, layers, heads].mean(axis=1), within=(0, 1))
        for name, scores in measured.items()
    }
    found = {
        "previous_token_heads": arrays["makers"],
        "scores": {name: [interval.value for interval in left[name]] for name in arrays["without"]},
        "whole": means.pop("whole model"),
        "mean scores": means,
        "left": left,
    }
    return {"mechanism": found}


# ------------------------------------------------------------------------------------------------ tasks


def ablation(arrays: Arrays, settings: Any) -> Numbers:
    """Accuracies with demonstrations by task and row, and the primary endpoint."""
    plan, right, task = arrays["plan"], arrays["right"], arrays["task"]
    rows = right[task]
    others = [drawn.mean() for row, drawn in rows.items() if is_control_set(row)]
    p, least = rank_p(rows[plan.ablated].mean(), others, tail="low")
    lost = paired_interval(rows[WHOLE].mean(axis=0) - rows[plan.ablated].mean(axis=0))
    return {
        "controls": plan.controls,
        "primary": {"task": task, "p": p, "least p": least, "lost": lost},
        "tasks_done": arrays["passed"],
        "done": list(arrays["done"]),
        "queries": {name: rows[WHOLE].shape[1] for name, rows in right.items()},
        "accuracy": {name: {row: accuracy(drawn) for row, drawn in rows.items()} for name, rows in right.items()},
    }


def plain_text(arrays: Arrays, settings: Any) -> Numbers:
    """Losses of plain text by row, in nats per token, and what the ablated heads cost of it."""
    losses = arrays["losses"]
    return {
        "losses": {row: mean_interval(loss) for row, loss in losses.items()} | {"uniform": arrays["uniform"]},
        "plain text": {
            "texts": len(losses[WHOLE]),
            "lost": mean_interval(losses[arrays["plan"].ablated] - losses[WHOLE]),
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
    """The entry "benefits": what `benefits` has, what was left out, and, where they help most, what examples bring."""
    worth = {}
    measured = [task for task in arrays["tasks"] if task.check.done and task.ablated in task.right.get(0, {})]
    helped = [task for task in measured if mean_interval(task.benefit()).low > 0]
    if helped:
        most = max(helped, key=lambda task: float(task.benefit().mean()))
        whole, without = (mean_interval(most.benefit(row), within=(-1, 1)) for row in (WHOLE, most.ablated))
        worth = {"task": most.name, "shots": most.most, "whole": whole, "without induction heads": without}
    left_out = [[name, k, why] for (name, k), why in arrays["left out"].items()]
    return {"benefits": benefits(arrays["tasks"]) | {"worth most": worth, "left out": left_out}}


def planted(arrays: Arrays, settings: Any) -> Numbers:
    """Whether a score of 0.3 finds just the planted heads."""
    return {"planted": {"exact": arrays["exact"]}}
