"""Classification tasks answered by a model with some heads edited: what `ablate` and `knockout` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from util.commands.arguments import Selection, add_heads, add_model, model_of, numbers, words
from util.commands.results import Destination, add_out, shown
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.task_study import Answers, TaskStudy
from util.roles.sequences_study import SequenceStudy
from util.stats.heads import Head, head_name
from util.stats.intervals import accuracy, paired_interval
from util.stats.tests import mcnemar, rank_p

WHOLE_MODEL = "whole model"
Runs = Mapping[str, Sequence[Answers]]  # by edit: the answers with each seed of demonstrations


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which prompts are answered."""
    tasks = "one or more with commas between, such as repetition,recursion,sst2; a wrong name lists all"
    parser.add_argument("--task", type=words, default=("wordseq1",), metavar="TASKS", help=tasks)
    about = "where the texts of a text task are: hub, or a folder; default: StaICC's where it has them, else the hub"
    parser.add_argument("--data", metavar="SOURCE", help=about)
    parser.add_argument("--k", type=int, default=10, help="demonstrations of each query (default: 10)")
    parser.add_argument("--prompts", type=int, default=60, help="queries of each task, at least 2 (default: 60)")
    seeds = "of demonstrations; several with commas between are averaged (default: 42)"
    parser.add_argument("--seed", type=numbers, default=(42,), metavar="SEEDS", help=seeds)
    about = "other words than the task's own, one for each class, such as Foo,Bar"
    parser.add_argument("--labels", type=words, help=about)
    parser.add_argument("--hard-negatives", action="store_true", help="letter tasks: Bar sequences repeat letters too")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of both commands, but for the kind of edit."""
    add_model(parser)
    add_task(parser)
    add_heads(parser)
    controls = parser.add_mutually_exclusive_group()
    about = "also this many sets of other heads, with as many in each layer, none of them an induction head"
    controls.add_argument("--controls", type=int, default=0, metavar="N", help=about)
    about = "one such set, drawn by this seed, in place of the heads"
    controls.add_argument("--random", type=int, metavar="SEED", help=about)
    parser.add_argument("--control-seed", type=int, default=0, metavar="SEED", help="of --controls (default: 0)")
    add_out(parser)


def task_studies(arguments: argparse.Namespace, **more: Any) -> dict[str, list[TaskStudy]]:
    """Returns the studies of each task, one for each seed of demonstrations.

    more: other arguments of `TaskStudy`. Raises ValueError for what there is not, before anything is loaded.
    """
    if arguments.prompts < 2:
        raise ValueError(f"prompts = {arguments.prompts}: two or more have intervals")
    model = model_of(arguments)
    return {
        task: [
            TaskStudy(
                model, task, arguments.k, arguments.prompts, seed, hard_negatives=arguments.hard_negatives,
                labels=arguments.labels, data=arguments.data, redo=arguments.redo, **more,
            )
            for seed in arguments.seed
        ]
        for task in arguments.task
    }  # fmt: skip


def run(
    arguments: argparse.Namespace,
    command: str,
    studies: Mapping[str, Sequence[TaskStudy]],
    edit: Callable[[Sequence[Head]], Edit],
    **kind: Any,
) -> None:
    """Measure all tasks under an edit of some heads beside the whole model, and write the result.

    kind: what the edit is, in plain JSON. Raises ValueError, before anything is loaded, for numbers out of range; and
    where a layer has too few other heads for controls.
    """
    if min(arguments.controls, arguments.control_seed, arguments.random or 0) < 0:
        raise ValueError("controls, control-seed and random are whole numbers from 0 on")
    flat = [study for of_task in studies.values() for study in of_task]
    sequences = SequenceStudy(flat[0].model, redo=arguments.redo)
    selection = Selection(arguments.heads, sequences)
    drawn = {name: getattr(arguments, name) for name in ("controls", "random", "control_seed")}
    destination = Destination.of(arguments, command, flat, **kind, **drawn, **selection.request)
    sets = _sets(arguments, selection)
    for name, heads in sets.items():
        print(f"{name}: {', '.join(map(head_name, heads))}")
    edits = {WHOLE_MODEL: WHOLE} | {name: edit(heads) for name, heads in sets.items()}
    results: dict[str, Any] = {"heads": sets, "tasks": {}}
    rows, lines = [], []
    for task, of_task in studies.items():
        measured = [study.answers(edits) for study in of_task]
        runs = {name: [by_edit[name] for by_edit in measured] for name in edits}
        results["tasks"][task] = _results(runs, [*sets])
        lines += [{"task": task, "edit": name, **_line(result)} for name, result in results["tasks"][task].items()]
        for name, several in runs.items():
            rows += [_rows(task, name, study, one) for study, one in zip(of_task, several, strict=True)]
    table = pd.DataFrame(lines).set_index(["task", "edit"]).fillna("")
    destination.write(results, pd.concat(rows, ignore_index=True), table, [sequences, *flat])


def _sets(arguments: argparse.Namespace, selection: Selection) -> dict[str, list[Head]]:
    """The sets of heads that are edited, by the names of their rows; all but the first are controls of it."""
    chosen = selection.heads()
    if arguments.random is not None:
        return {f"random heads {arguments.random}": selection.others(chosen, 1, arguments.random)[0]}
    others = selection.others(chosen, arguments.controls, arguments.control_seed) if arguments.controls else []
    return {"chosen heads": chosen} | {f"other heads {number}": heads for number, heads in enumerate(others, 1)}


def _results(runs: Runs, sets: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The accuracy of every edit, and what it changes; of the first set its rank among the others."""
    right = {name: np.stack([answers.right for answers in runs[name]]) for name in runs}
    whole = right[WHOLE_MODEL]
    results: dict[str, dict[str, Any]] = {WHOLE_MODEL: {"accuracy": accuracy(whole)}}
    for name in sets:
        change = paired_interval(right[name].mean(0) - whole.mean(0))
        results[name] = {"accuracy": accuracy(right[name]), "change": change, "mcnemar_p": mcnemar(whole, right[name])}
    first, *others = sets
    if others:
        rank = rank_p(right[first].mean(), [right[name].mean() for name in others], tail="low")
        results[first] |= {"rank_p": rank.p, "least_rank_p": rank.least}
    return results


def _line(result: Mapping[str, Any]) -> dict[str, str]:
    """The result of one edit in the printed table."""
    intervals = {name: shown(result[name]) for name in ("accuracy", "change") if name in result}
    names = {"mcnemar_p": "McNemar p", "rank_p": "p among controls"}
    return intervals | {title: f"{result[name]:.2g}" for name, title in names.items() if name in result}


def _rows(task: str, edit: str, study: TaskStudy, answers: Answers) -> pd.DataFrame:
    """A line for each query of one run; log-probabilities of labels are in nats."""
    labels = list(study.classes.labels)
    queries = [prompt.text[slice(*prompt.spans["x"][-1])] for prompt in study.drawn]
    about = pd.DataFrame({"task": task, "edit": edit, "seed": study.seed, "query": queries})
    about["gold"] = [labels[place] for place in answers.gold]
    about["right"] = answers.right
    scores = answers.log_prob.astype(np.float64)
    return about.assign(**{f"log_prob {label}": scores[:, place] for place, label in enumerate(labels)})
