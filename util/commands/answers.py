"""Classification tasks answered by a model with some heads edited: what `ablate` and `knockout` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from util.commands.arguments import SHARE, Asked, Compared
from util.commands.results import Out, shown
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.plan import how_many
from util.figures.induction_scores.task_study import Answers, TaskStudy
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.heads import plain
from util.roles.sequences_study import SequenceStudy
from util.stats.controls import layer_matched
from util.stats.heads import Head, head_name, top
from util.stats.intervals import accuracy, paired_interval
from util.stats.tests import mcnemar, rank_p

WHOLE_MODEL = "whole model"


def chosen_heads(heads: Sequence[Head] | None, share: float | None, sequences: SequenceStudy) -> list[Head]:
    """The heads that are named, or the share of all whose prefix-matching scores are best."""
    if heads:
        return list(heads)
    score = sequences.scores().mean()
    return top(score, how_many(share or SHARE, score.size))


def other_heads(chosen: Sequence[Head], sequences: SequenceStudy, draws: int, seed: int) -> list[list[Head]]:
    """Sets of other heads below a score of 0.3, with as many in each layer as the chosen ones.

    Raises ValueError for heads that there are not, and where a layer has too few others.
    """
    score = sequences.scores().mean()
    layers, in_layer = score.shape
    if wrong := [head for head in chosen if head[0] >= layers or head[1] >= in_layer]:
        raise ValueError(f"the model has {layers} layers of {in_layer} heads, not {wrong}")
    return layer_matched(chosen, score < INDUCTION_HEAD, draws, seed)


def compare(
    command: str,
    asked: Asked,
    given: Compared,
    out: Out,
    edit: Callable[[Sequence[Head]], Edit],
    kind: Mapping[str, Any],
    **reference: Any,
) -> None:
    """Measure all tasks under an edit of some heads beside the whole model, and write the result.

    kind: what the edit is, in plain JSON; reference: arguments of `TaskStudy`. Raises ValueError, before anything is
    loaded, for numbers out of range; and where a layer has too few other heads for controls.
    """
    model, heads = asked.source, given.heads
    if heads and given.top or given.controls and given.random is not None:
        raise ValueError("give --heads or --top, and --controls or --random, not both")
    if given.prompts < 2:
        raise ValueError(f"prompts = {given.prompts}: two or more have intervals")
    names = {name: getattr(given, name) for name in ("hard_negatives", "labels", "data")}
    studies = [
        TaskStudy(model, task, given.k, given.prompts, seed, redo=out.redo, **names, **reference)
        for task in given.task
        for seed in given.seed
    ]
    sequences = SequenceStudy(model, redo=out.redo)
    drawn = {name: getattr(given, name) for name in ("controls", "random", "control_seed")}
    which = {"heads": plain(heads) if heads else given.top or SHARE, "scores": dict(sequences.request)}
    write = out.checked(command, studies, **kind, **drawn, **which)
    chosen = chosen_heads(heads, given.top, sequences)
    if given.random is not None:
        sets = {f"random heads {given.random}": other_heads(chosen, sequences, 1, given.random)[0]}
    else:
        others = other_heads(chosen, sequences, given.controls, given.control_seed) if given.controls else []
        sets = {"chosen heads": chosen} | {f"other heads {number}": one for number, one in enumerate(others, 1)}
    for name, one in sets.items():
        print(f"{name}: {', '.join(map(head_name, one))}")
    edits = {WHOLE_MODEL: WHOLE} | {name: edit(one) for name, one in sets.items()}
    measured = [(study, study.answers(edits)) for study in studies]
    tasks = {
        task: _results({
            name: np.stack([answers[name].right for study, answers in measured if study.task == task])
            for name in edits
        })
        for task in given.task
    }  # fmt: skip
    rows = [
        _rows(study, name, answers[name])
        for task in given.task
        for name in edits
        for study, answers in measured
        if study.task == task
    ]
    lines = {(task, name): _line(one) for task, results in tasks.items() for name, one in results.items()}
    table = pd.DataFrame.from_dict(lines, orient="index").fillna("").rename_axis(["task", "edit"])
    write({"heads": sets, "tasks": tasks}, pd.concat(rows, ignore_index=True), table, [sequences, *studies])


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


def _line(result: Mapping[str, Any]) -> dict[str, str]:
    """The result of one edit in the printed table."""
    names = {"mcnemar_p": "McNemar p", "rank_p": "p among controls"}
    return {
        names.get(name, name): f"{value:.2g}" if name in names else shown(value)
        for name, value in result.items()
        if name != "least_rank_p"
    }


def _rows(study: TaskStudy, edit: str, answers: Answers) -> pd.DataFrame:
    """A line for each query of one run; log-probabilities of labels are in nats."""
    labels = list(study.classes.labels)
    queries = [prompt.text[slice(*prompt.spans["x"][-1])] for prompt in study.drawn]
    about = pd.DataFrame({"task": study.task, "edit": edit, "seed": study.seed, "query": queries})
    about["gold"] = [labels[place] for place in answers.gold]
    about["right"] = answers.right
    scores = answers.log_prob.astype(np.float64)
    return about.assign(**{f"log_prob {label}": scores[:, place] for place, label in enumerate(labels)})
