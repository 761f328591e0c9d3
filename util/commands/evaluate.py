"""Tasks answered by a model with heads edited: `ablate`, `knockout`, `means`, and `evaluate` in lm-evaluation-harness.

What follows `--` goes to the harness's own command line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from util.commands.arguments import Chosen, ModelFlags, Numbers, Out, Queries, Reference, Seed, write
from util.figures.edits import INTACT, PAPER_SHARES, WHOLE, Edit, Mode, how_many
from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.heads import Head, head_name, layer_matched, top
from util.stats.intervals import accuracy, mcnemar, paired_interval, rank_p

if TYPE_CHECKING:
    from util.figures.task_study import TaskStudy
    from util.roles.sequences_study import SequenceStudy


Pattern = Literal["induction", "random-keys", "previous-part", "exact-tokens"]
SHARE = PAPER_SHARES[0]  # of all heads


def ablate(
    model: ModelFlags = ModelFlags(),
    *,
    queries: Queries = Queries(),
    heads: Chosen = Chosen(),
    controls: Seed = 0,
    mode: Mode = "mean",
    reference: Reference = Reference(),
    out: Out = Out(),
) -> None:
    """Ablate heads on classification tasks. Raises ValueError, before anything is loaded, for an unknown name.

    Args:
        controls: also this many such sets of other heads
        mode: what replaces a head's output
    """
    _compare("ablate", model, queries, heads, controls, out, partial(Edit.ablate, mode=mode), **asdict(reference))


def knockout(
    model: ModelFlags = ModelFlags(),
    *,
    queries: Queries = Queries(),
    heads: Chosen = Chosen(),
    controls: Seed = 0,
    pattern: Pattern = "induction",
    out: Out = Out(),
) -> None:
    """Knock a pattern out on classification tasks. Raises ValueError, before any loading, for an unknown name.

    Args:
        controls: also this many such sets of other heads
        pattern: what the heads may not read: what followed an earlier part of the same kind (the default), as many
            random keys, or what followed any earlier part
    """
    edit = partial(Edit.knock_out, pattern=pattern.replace("-", " "))
    _compare("knockout", model, queries, heads, controls, out, edit)


def means(
    model: ModelFlags = ModelFlags(),
    *,
    queries: Queries = Queries(),
    mode: Literal["mean", "mean_pos", "input_mean"] = "mean",
    reference: Reference = Reference(),
    redo: bool = False,
) -> None:
    """Measure means of all heads and print where they are. Raises ValueError, before loading, for an unknown name.

    Args:
        mode: mean: over all tokens; mean_pos: also position by position; input_mean: also what heads make of the mean
            input of their layer, position by position
        redo: measure again what is cached
    """
    for study in queries.studies(model.source, redo=redo, **asdict(reference)):
        heads = list(np.ndindex(study.means()["mean"].shape[:2]))
        if mode != "mean":
            study.means_by_position(Edit.ablate(heads, mode))
        print(*(study.folder / file for file in study.origins), sep="\n")


# ------------------------------------------------------------------------------------------------ heads


def edited_heads(flags: Chosen, sequences: Callable[[], SequenceStudy], controls: int = 0) -> dict[str, list[Head]]:
    """The sets of heads that are edited, by name: the chosen ones or random ones in their place, then the controls.

    sequences: gives the study whose prefix-matching scores choose; it is not called where heads are named and no others
    are drawn. Raises ValueError for heads that the model has not, and where a layer has too few others.
    """
    score = cache(lambda: sequences().scores().mean())
    chosen = list(flags.heads or top(score(), how_many(flags.top or SHARE, score().size)))
    if flags.random is not None:
        return {f"random heads {flags.random}": layer_matched(chosen, score() < INDUCTION_HEAD, 1, flags.random)[0]}
    others = layer_matched(chosen, score() < INDUCTION_HEAD, controls) if controls else []
    return {"chosen heads": chosen} | {f"other heads {number}": heads for number, heads in enumerate(others, 1)}


# ------------------------------------------------------------------------------------------------ answers


def _compare(
    command: str,
    model: ModelFlags,
    queries: Queries,
    flags: Chosen,
    controls: int,
    out: Out,
    edit: Callable[[Sequence[Head]], Edit],
    **reference: Any,
) -> None:
    """Measure all tasks under an edit of some heads beside the whole model, and write the result."""
    from util.roles.sequences_study import SequenceStudy

    if controls and flags.random is not None:
        raise ValueError("give --controls or --random, not both")
    source = model.source
    studies, sequences = queries.studies(source, redo=out.redo, **reference), SequenceStudy(source, redo=out.redo)
    chosen = flags.heads or flags.top or SHARE
    heads = {**asdict(flags), "controls": controls, "heads": chosen, "scores": sequences.request}
    how, requests = edit([]), [study.request for study in studies]
    folder, request = out.checked(command, sequences, **heads, edit=how.plain(), studies=requests)
    sets = edited_heads(flags, lambda: sequences, controls)
    for name, edited in sets.items():
        print(f"{name}, {command} ({how.mode or how.pattern}): {', '.join(map(head_name, edited))}")
    edits = {WHOLE: INTACT} | {name: edit(edited) for name, edited in sets.items()}
    rows = pd.concat([_rows(study, *answers) for study in studies for answers in study.answers(edits).items()])
    tasks = {task: _results(of_task, len(queries.seed)) for task, of_task in rows.groupby("task", sort=False)}
    lines = {(task, name): numbers for task, results in tasks.items() for name, numbers in results.items()}
    table = pd.DataFrame(lines).T.rename_axis(["task", "edit"])
    write(folder, request, {"heads": sets, "tasks": tasks}, rows, table, [sequences, *studies])


def _results(rows: pd.DataFrame, seeds: int) -> dict[str, dict[str, Any]]:
    """The accuracy of every edit of a task, and what it changes; of the first set of heads its rank among others."""
    right = {edit: of_edit.to_numpy().reshape(seeds, -1) for edit, of_edit in rows.groupby("edit", sort=False)["right"]}
    results: dict[str, dict[str, Any]] = {edit: {"accuracy": accuracy(values)} for edit, values in right.items()}
    whole, first, *others = right
    for edit in (first, *others):
        change = paired_interval(right[edit].mean(0) - right[whole].mean(0))
        results[edit] |= {"change": change, "mcnemar_p": mcnemar(right[whole], right[edit])}
    if others:
        p, least = rank_p(right[first].mean(), [right[edit].mean() for edit in others])
        results[first] |= {"rank_p": p, "least_rank_p": least}
    return results


def _rows(study: TaskStudy, edit: str, answers: Mapping[str, Any]) -> pd.DataFrame:
    """A line for each query of one run; log-probabilities of labels are in nats."""
    labels = study.classes.labels
    scores = {f"log_prob {label}": values for label, values in zip(labels, answers["log_prob"].T, strict=True)}
    return pd.DataFrame(
        {
            "task": study.task,
            "edit": edit,
            "seed": study.seed,
            "query": [prompt.texts("x")[-1] for prompt in study.drawn],
            "gold": [labels[place] for place in answers["gold"]],
            "right": answers["right"],
            **scores,
        }
    )


def evaluate(
    *harness: str,
    mode: Mode | None = None,
    pattern: Pattern | None = None,
    chosen: Chosen = Chosen(),
    reference: Reference = Reference(),
    seed: Numbers = (42, 43, 44),
) -> None:
    """Run the harness for each seed: it prints and writes what it always does; the means over seeds come last.

    Raises ValueError, before anything is loaded, for flags that do not fit together, and ImportError where the harness
    is missing.

    Args:
        harness: behind `--`, the harness's own arguments; its --output_path receives its files by seed, and the means
        mode: ablate heads: what replaces their output
        pattern: knock a pattern out: what the heads may not read
        seed: of demonstrations, a run of the harness for each
    """
    if not (mode or pattern) and chosen != Chosen():
        raise ValueError("say what is done to heads: --mode ablates them, --pattern knocks a pattern out")
    if mode and pattern:
        raise ValueError("give --mode or --pattern, not both")
    from util.extras.harness.model import NAME, InterventionLM, checked_reference, refuse_caches
    from util.extras.harness.tasks import FOLDER
    from util.roles.sequences_study import SequenceStudy

    cli, given, settings = _of_harness(harness)
    if settings.get("model") not in (None, NAME):
        raise ValueError(f"--model {settings['model']}: leave it out; edits are in the suite's own model class, {NAME}")
    if settings.get("seed") is not None:
        raise ValueError("the harness's --seed: leave it out; --seed before `--` has the seeds of demonstrations")
    model_args = dict(settings.get("model_args") or {})
    if "pretrained" not in model_args:
        raise ValueError("name a model for the harness, behind `--`: --model_args pretrained=smollm2")
    refuse_caches(settings)
    limit = settings.get("limit") or 0
    means = {**asdict(reference), "k": settings.get("num_fewshot"), "prompts": int(limit) if limit >= 1 else None}
    checked_reference(**means)
    loading = {"device": settings.get("device") or "auto", **model_args}
    given.model, given.device = NAME, loading["device"]
    edit = INTACT
    if mode or pattern:
        (heads,) = edited_heads(chosen, lambda: SequenceStudy(InterventionLM(**loading).source)).values()
        print("heads:", json.dumps(heads))
        edit = Edit.ablate(heads, mode) if mode else Edit.knock_out(heads, str(pattern).replace("-", " "))

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(settings.get("output_path") or scratch)
        by_seed = {}
        for number in seed:
            given.model_args = {**model_args, "edit": edit.plain(), "reference": {**means, "seed": number}}
            given.include_path = [*filter(None, [str(FOLDER), settings.get("include_path")])]
            given.seed, given.output_path = [0, 1234, 1234, number], str(out / f"seed_{number}")
            cli.execute(Namespace(**vars(given)))
            files = Path(given.output_path).rglob("results_*.json")
            newest = max(files, key=lambda file: file.stat().st_mtime_ns)
            by_seed[number] = json.loads(newest.read_text(encoding="utf-8"))
        means_of_seeds = _accuracies(by_seed)
        print(means_of_seeds.to_string(float_format="{:.4f}".format))
        result = {"acc": means_of_seeds.to_dict("index"), "intervention": by_seed[seed[-1]]["config"]["intervention"]}
        (out / "means.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


def _of_harness(words: Sequence[str]) -> tuple[Any, Any, dict[str, Any]]:
    """The harness's command line, its arguments as it understands them, and its settings, a --config file's too."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.utils import setup_logging

    setup_logging()
    before, cli = sys.argv, HarnessCLI()
    sys.argv = ["lm-eval", "run", *words]  # it reads them there
    try:
        given = cli.parse_args()
    finally:
        sys.argv = before
    file = EvaluatorConfig.load_yaml_config(given.config) if given.config else {}
    return cli, given, {**file, **{name: value for name, value in vars(given).items() if value is not None}}


def _accuracies(by_seed: Mapping[int, Mapping[str, Any]]) -> pd.DataFrame:
    """The accuracy in each task and group of what the harness gave: a column for each seed, and their mean."""
    columns = {}
    for seed, results in by_seed.items():
        rows = {**results["results"], **results.get("groups", {})}
        columns[f"seed {seed}"] = {
            task: value for task, row in rows.items() for name, value in row.items() if name.split(",")[0] == "acc"
        }
    made = pd.DataFrame(columns).astype(float)
    return made.assign(mean=made.mean(axis=1))
