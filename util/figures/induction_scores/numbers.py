"""Numbers of induction heads, and of what is lost without them, from arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from util.figures.induction_scores.plan import WHOLE, TaskShots, is_control_set
from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.intervals import accuracy, mean_interval, paired_interval
from util.stats.tests import rank_p

Arrays = Mapping[str, Any]
Numbers = dict[str, Any]


# ------------------------------------------------------------------------------------------------ heads


def scores(arrays: Arrays, settings: Any) -> Numbers:
    """Prefix-matching scores of all heads, and the best heads, which everything is about."""
    heads, untrained = arrays["heads"], arrays["untrained"]
    intervals = heads.intervals()
    found = {"mean": intervals.value, "low": intervals.low, "high": intervals.high, "uniform": heads.uniform}
    found["untrained"] = None if untrained is None else untrained.mean()
    return {"scores": found, "chosen": arrays["chosen"], "setup": arrays["setup"]}


def pattern(arrays: Arrays, settings: Any) -> Numbers:
    """What the best head attends to in one prompt from the last token, as in Fig. 6 of Crosbie & Shutova 2024."""
    tokens, attention = arrays["tokens"], arrays["attention"]
    ends = np.flatnonzero(np.diff([kind == "label" for kind in ["", *arrays["kinds"], ""]])).reshape(-1, 2)
    labels = [["".join(tokens[start:end]).strip(), float(attention[-1, start:end].sum())] for start, end in ends]
    shown = {"queries": [len(tokens) - 1], "rows": attention[-1:], "labels": labels}
    return {"pattern": {name: arrays[name] for name in ("head", "task", "answer", "tokens")} | shown}


# ------------------------------------------------------------------------------------------------ tasks


def ablation(arrays: Arrays, settings: Any) -> Numbers:
    """Accuracies on the primary task with demonstrations by row, and the primary endpoint."""
    plan, rows, task, check = (arrays[name] for name in ("plan", "right", "task", "check"))
    others = [drawn.mean() for row, drawn in rows.items() if is_control_set(row)]
    p, least = rank_p(rows[plan.ablated].mean(), others, tail="low")
    lost = paired_interval(rows[WHOLE].mean(axis=0) - rows[plan.ablated].mean(axis=0))
    return {
        "controls": plan.controls,
        "primary": {"task": task, "p": p, "least p": least, "lost": lost},
        "tasks_done": {task: check} if check and check.done else {},
        "queries": {task: rows[WHOLE].shape[1]},
        "accuracy": {task: {row: accuracy(drawn) for row, drawn in rows.items()}},
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
    return {"benefits": benefits(arrays["tasks"]) | {"worth most": worth, "left out": arrays["left out"]}}


def planted(arrays: Arrays, settings: Any) -> Numbers:
    """Whether a score of 0.3 finds just the planted heads."""
    return {"planted": {"exact": arrays["truth"].found_exactly("induction", arrays["score"], INDUCTION_HEAD)}}
