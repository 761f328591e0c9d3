"""Classification tasks answered by a model with some heads edited: what `ablate` and `knockout` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from util.commands.arguments import Asked, Chosen, Compared, Queries
from util.commands.results import Out
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.plan import how_many
from util.figures.induction_scores.task_study import Answers, TaskStudy
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.sequences_study import SequenceStudy
from util.stats.controls import layer_matched
from util.stats.heads import Head, head_name, top
from util.stats.intervals import accuracy, paired_interval
from util.stats.tests import mcnemar, rank_p

SHARE = 0.01  # of all heads: the smaller of the two that Crosbie & Shutova ablate


def edited_heads(given: Chosen, sequences: Callable[[], SequenceStudy], controls: int = 0) -> dict[str, list[Head]]:
    """The sets of heads that are edited, by name: the chosen ones or random ones in their place, then the controls.

    sequences: gives the study whose prefix-matching scores choose; it is not asked where heads are named and no others
    are drawn. Raises ValueError for heads that there are not, and where a layer has too few others.
    """

    score = cache(lambda: sequences().scores().mean())
    chosen = list(given.heads or top(score(), how_many(given.top or SHARE, score().size)))

    def others(draws: int, seed: int = 0) -> list[list[Head]]:
        return layer_matched(chosen, score() < INDUCTION_HEAD, draws, seed)

    if given.random is not None:
        return {f"random heads {given.random}": others(1, given.random)[0]}
    drawn = others(controls) if controls else []
    return {"chosen heads": chosen} | {f"other heads {number}": one for number, one in enumerate(drawn, 1)}


def compare(
    command: str,
    asked: Asked,
    queries: Queries,
    given: Compared,
    out: Out,
    edit: Callable[[Sequence[Head]], Edit],
    **reference: Any,
) -> None:
    """Measure all tasks under an edit of some heads beside the whole model, and write the result.

    reference: arguments of `TaskStudy`. Raises ValueError, before anything is loaded, for what there is not; and where
    a layer has too few other heads for controls.
    """
    model = asked.source
    studies, sequences = queries.studies(model, redo=out.redo, **reference), SequenceStudy(model, redo=out.redo)
    heads = {**asdict(given), "heads": given.heads or given.top or SHARE, "scores": sequences.request}
    asked_for = {"edit": edit([]).plain(), "studies": [study.request for study in studies]}
    result = out.checked(command, sequences, **heads, **asked_for)
    sets = edited_heads(given, lambda: sequences, given.controls)
    for name, one in sets.items():
        print(f"{name}: {', '.join(map(head_name, one))}")
    edits = {"whole model": WHOLE} | {name: edit(one) for name, one in sets.items()}
    rows = pd.concat([_rows(study, name, one) for study in studies for name, one in study.answers(edits).items()])
    right: dict[str, dict[str, Any]] = {task: {} for task in queries.task}
    for (task, name), column in rows.groupby(["task", "edit"], sort=False)["right"]:
        right[task][name] = column.to_numpy().reshape(len(queries.seed), -1)
    tasks = {task: _results(of_task) for task, of_task in right.items()}
    lines = {(task, name): one for task, results in tasks.items() for name, one in results.items()}
    table = pd.DataFrame(lines).T.rename_axis(["task", "edit"])
    result.write({"heads": sets, "tasks": tasks}, rows, table, [sequences, *studies])


def _results(right: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The accuracy of every edit [seeds, N], and what it changes; of the first set its rank among the others."""
    whole, first, *others = right
    results: dict[str, dict[str, Any]] = {name: {"accuracy": accuracy(values)} for name, values in right.items()}
    for name in (first, *others):
        change = paired_interval(right[name].mean(0) - right[whole].mean(0))
        results[name] |= {"change": change, "mcnemar_p": mcnemar(right[whole], right[name])}
    if others:
        rank = rank_p(right[first].mean(), [right[name].mean() for name in others], tail="low")
        results[first] |= {"rank_p": rank.p, "least_rank_p": rank.least}
    return results


def _rows(study: TaskStudy, edit: str, answers: Answers) -> pd.DataFrame:
    """A line for each query of one run; log-probabilities of labels are in nats."""
    labels, scores = study.classes.labels, answers.log_prob.astype(np.float64)
    return pd.DataFrame(
        {
            "task": study.task,
            "edit": edit,
            "seed": study.seed,
            "query": [prompt.text[slice(*prompt.spans["x"][-1])] for prompt in study.drawn],
            "gold": [labels[place] for place in answers.gold],
            "right": answers.right,
            **{f"log_prob {label}": scores[:, place] for place, label in enumerate(labels)},
        }
    )
