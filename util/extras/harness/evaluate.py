"""Evaluate a model in lm-evaluation-harness with heads ablated, or with a pattern of attention knocked out.

    python -m util evaluate --ablate heads.json -- --tasks icl_wordseq1 --num_fewshot 5 --model_args pretrained=smollm2

What follows `--` goes to the harness's own command line as it is. The harness runs once for each seed of
demonstrations, and prints and writes what it always does; the edit stands in its JSON file under config, intervention.
The means over seeds come last.

A run that is interrupted goes on where it stopped: what the model answers to all requests of one task, with one seed,
under one edit, is one record of the suite's cache.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from util.figures.induction_scores.edits import MODES, WHOLE, Edit
from util.figures.induction_scores.measures import how_many
from util.figures.induction_scores.task_study import Reference as Source
from util.prompts.induction_pattern import PATTERNS
from util.records.model import Model, as_model
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.heads import Head, checked_heads
from util.roles.sequences_study import SequenceStudy
from util.stats.controls import layer_matched
from util.stats.heads import top

SEEDS = (42, 43, 44)  # of demonstrations, those of Crosbie & Shutova's Table 2
OLDEST = (0, 4, 10)  # version of lm_eval: earlier ones do not run with transformers 5


def check_installed() -> None:
    """Raises ValueError where lm-evaluation-harness is missing or too old; the message names the cure."""
    cure = 'pip install "icl-circuits-suite[harness]"'
    try:
        import lm_eval  # noqa: F401

        version = importlib.metadata.version("lm_eval")
    except ImportError as error:
        raise ValueError(f"lm-evaluation-harness is not installed ({error}): {cure}") from None
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < OLDEST:
        raise ValueError(f"lm-evaluation-harness is {version}, and 0.4.10 or later is needed: {cure}")


# ------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True)
class Evaluations:
    """What the harness gives, by seed of the demonstrations: its dictionaries, as they are."""

    by_seed: Mapping[int, Mapping[str, Any]]

    def table(self, metric: str = "acc") -> pd.DataFrame:
        """One metric of each task and group: a column for each seed, and their mean."""
        columns = {}
        for seed, results in self.by_seed.items():
            rows = {**results["results"], **results.get("groups", {})}
            columns[f"seed {seed}"] = {
                task: value for task, row in rows.items() for name, value in row.items() if name.split(",")[0] == metric
            }
        table = pd.DataFrame(columns).astype(float)
        return table.assign(mean=table.mean(axis=1))

    def log_probs(self, task: str, seed: int) -> list[list[float]]:
        """The log-probability of each choice of each query in nats, by query. Raises KeyError for what was not run."""
        return [[answer[0][0] for answer in sample["resps"]] for sample in self.by_seed[seed]["samples"][task]]


# ------------------------------------------------------------------------------------------------ from Python


def evaluate(
    model: str | Model,
    tasks: Sequence[str | Mapping[str, Any]],
    edit: Edit = WHOLE,
    *,
    k: int | None = None,
    limit: int | None = None,
    seeds: Sequence[int] = SEEDS,
    reference: Source = "task",
    reference_prompts: int = 64,
    reference_data: str | None = None,
    batch_size: int = 8,
    include_path: str | Path | None = None,
    folder: Path | None = None,
    **options: Any,
) -> Evaluations:
    """Runs the harness once for each seed of demonstrations; see `InterventionLM` for what is kept, and where.

    tasks: names such as "icl_wordseq1", or configurations, see `tasks.config`. k: demonstrations, default each task's
    own number; limit: how many queries of each task, default all. reference, reference_prompts, reference_data:
    see `interventions.Reference`, its source, reference_prompts and data. include_path:
    a folder of more task configurations; the harness's own are found too where
    a name does not begin with "icl_". options: of the harness's `simple_evaluate`.

    Raises ValueError where the harness is missing, for its own caches (`use_cache`, `cache_requests`) under an edit,
    and for what `InterventionLM` refuses, before the first forward pass.
    """
    check_installed()
    from lm_eval.evaluator import simple_evaluate

    from util.extras.harness import tasks as harness_tasks
    from util.extras.harness.interventions import Reference
    from util.extras.harness.model import InterventionLM

    refuse_caches(options, edit)
    foreign = any(isinstance(task, str) and not task.startswith(harness_tasks.PREFIX) for task in tasks)
    manager = harness_tasks.manager(include_path, defaults=foreign)
    source = as_model(model)
    by_seed = {}
    for seed in seeds:
        means = Reference(reference, k, limit, seed, reference_prompts, reference_data)
        lm = InterventionLM(source, edit=edit, reference=means, keep=True, folder=folder, batch_size=batch_size)
        by_seed[seed] = simple_evaluate(
            lm,
            tasks=list(tasks),
            num_fewshot=k,
            limit=limit,
            fewshot_random_seed=seed,
            task_manager=manager,
            **{"bootstrap_iters": 0, **options},
        )
    return Evaluations(by_seed)


def refuse_caches(settings: Mapping[str, Any], edit: Edit) -> None:
    """Raises ValueError for the harness's own caches under an edit, of which they do not know."""
    for name in ("use_cache", "cache_requests"):
        if settings.get(name) and edit != WHOLE:
            raise ValueError(
                f"{name}: the harness's cache does not know of interventions or seeds, so that it gives what belongs "
                "to another run; leave it out. Answers are kept as the suite's own records"
            )


# ------------------------------------------------------------------------------------------------ the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of this command to a parser. Those of the harness follow behind `--`."""
    heads = "a JSON file [[layer, head], ...], both counted from 0; leave it out with --top"
    parser.add_argument("--ablate", nargs="?", const="", metavar="HEADS", help=f"replace the outputs of heads: {heads}")
    parser.add_argument("--knock-out", nargs="?", const="", metavar="HEADS", help=f"forbid heads a pattern: {heads}")
    parser.add_argument("--top", type=float, metavar="SHARE", help="the best share of all heads by prefix matching")
    about = "as many other heads in the same layers instead, drawn by this seed"
    parser.add_argument("--random", type=int, metavar="SEED", help=about)
    parser.add_argument("--mode", choices=MODES, help="what stands for an ablated head (default: mean)")
    names = [pattern.replace(" ", "-") for pattern in PATTERNS]
    parser.add_argument("--pattern", choices=names, help="what is knocked out (default: induction)")
    about = "what means are taken over (default: task, other prompts of it); mnli: samples of 3000 tokens"
    parser.add_argument("--reference", choices=get_args(Source), default="task", help=about)
    parser.add_argument("--reference-prompts", type=int, default=64, help="how many (default: 64)")
    about = "of reference mnli: a folder with train.jsonl, with the column premise (default: the hub)"
    parser.add_argument("--reference-data", metavar="FOLDER", help=about)
    about = "of demonstrations, a run of the harness for each (default: 42 43 44)"
    parser.add_argument("--seeds", type=int, nargs="+", help=about)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where the harness's files and the means are written"
    )
    parser.add_argument("harness", nargs="*", metavar="-- ...", help="the harness's own arguments")


def run(arguments: argparse.Namespace) -> None:
    """Evaluates a model in the harness's own command line.

    Raises ValueError, before anything is loaded, where the harness is missing, and for flags that do not fit together.
    """
    kind, named = _kind(arguments)
    check_installed()
    from util.extras.harness.interventions import Reference
    from util.extras.harness.model import NAME, InterventionLM
    from util.extras.harness.tasks import FOLDER

    cli, given = _harness_arguments(arguments.harness)
    settings = _settings(given)
    if settings.get("model") not in (None, NAME):
        raise ValueError(
            f"--model {settings['model']}: leave it out; edits are in the suite's own model class, {NAME!r}"
        )
    model_args = dict(settings.get("model_args") or {})
    if "pretrained" not in model_args:
        raise ValueError("name a model for the harness, behind `--`: --model_args pretrained=smollm2")
    refuse_caches(settings, Edit.ablate([(0, 0)]) if kind else WHOLE)
    seeds = _seeds(arguments.seeds, settings.get("seed"))
    limit = settings.get("limit")
    prompts = int(limit) if limit is not None and limit >= 1 else None

    asked = arguments.reference_prompts, arguments.reference_data
    references = {
        seed: Reference(arguments.reference, settings.get("num_fewshot"), prompts, seed, *asked) for seed in seeds
    }
    edit = WHOLE
    if kind:
        loading = {**model_args, "device": settings.get("device")}
        heads = _heads(arguments, named, lambda: InterventionLM(**_set(loading)).source)
        pattern = (arguments.pattern or "induction").replace("-", " ")
        edit = Edit.knock_out(heads, pattern) if kind == "knock out" else Edit.ablate(heads, arguments.mode or "mean")

    with tempfile.TemporaryDirectory() as scratch:
        out = arguments.out or (Path(settings["output_path"]) if settings.get("output_path") else Path(scratch))
        by_seed = {}
        for seed, reference in references.items():
            given.model = NAME
            given.model_args = {**model_args, "edit": edit.plain(), "reference": reference.arguments, "keep": True}
            given.include_path = [str(FOLDER), *([settings["include_path"]] if settings.get("include_path") else [])]
            given.seed = [*(settings.get("seed") or (0, 1234, 1234))[:3], seed]
            given.output_path = str(out / f"seed_{seed}")
            given.device = settings.get("device") or "auto"
            cli.execute(argparse.Namespace(**vars(given)))
            by_seed[seed] = _written(Path(given.output_path))
        evaluations = Evaluations(by_seed)
        table = evaluations.table()
        print(table.to_string(float_format="{:.4f}".format))
        if arguments.out is not None:
            summary = {"acc": table.to_dict("index"), "intervention": by_seed[seeds[0]]["config"]["intervention"]}
            (out / "means.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")


def _kind(arguments: argparse.Namespace) -> tuple[str, str]:
    """What is done to the model ("ablate", "knock out" or nothing), and the file of heads, which may be unnamed.

    Raises ValueError for flags that do not fit together.
    """
    knocked_out = arguments.knock_out is not None or arguments.pattern is not None
    ablated = arguments.ablate is not None or arguments.mode is not None
    if knocked_out and ablated:
        raise ValueError(
            "--ablate and --mode are for one edit, --knock-out and --pattern for another: give one of them"
        )
    named = (arguments.knock_out if knocked_out else arguments.ablate) or ""
    if not (knocked_out or ablated or arguments.top is not None):
        if arguments.random is not None:
            raise ValueError("--random: say of which heads others are drawn, with --ablate, --knock-out or --top")
        return "", ""
    if bool(named) == (arguments.top is not None):
        raise ValueError("name heads in a file, or ask for the best with --top SHARE: one of the two")
    if arguments.top is not None and not 0 < arguments.top <= 1:
        raise ValueError(f"--top {arguments.top}: give a share above 0, at most 1, such as 0.01")
    return ("knock out" if knocked_out else "ablate"), named


def _heads(arguments: argparse.Namespace, named: str, model: Any) -> tuple[Head, ...]:
    """The heads of a file, or the best; or others in their place. model(): loads the model."""
    heads: list[Head] = []
    if named:
        try:
            heads = list(checked_heads(json.loads(Path(named).read_text(encoding="utf-8"))))
        except OSError as error:
            raise ValueError(
                f"{named} cannot be read ({error.strerror}): give a JSON file [[layer, head], ...]"
            ) from None
        except ValueError as error:
            raise ValueError(f"{named}: {error}; give [[layer, head], ...]") from None
    if named and arguments.random is None:
        return tuple(heads)
    scores = SequenceStudy(model()).scores().mean()
    if not named:
        heads = top(scores, how_many(arguments.top, scores.size))
    if arguments.random is not None:
        heads = layer_matched(heads, scores < INDUCTION_HEAD, 1, arguments.random)[0]
    print("heads:", json.dumps([list(head) for head in heads]))
    return tuple(heads)


def _harness_arguments(argv: Sequence[str]) -> tuple[Any, argparse.Namespace]:
    """The harness's command line, and its arguments as it understands them."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    before, cli = sys.argv, HarnessCLI()
    sys.argv = ["lm-eval", "run", *argv]  # it reads them there
    try:
        given = cli.parse_args()
    finally:
        sys.argv = before
    return cli, given


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    """The harness's settings: those of its --config file, and the flags that win over them."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    file = EvaluatorConfig.load_yaml_config(given.config) if given.config else {}
    return {**file, **_set(vars(given))}


def _set(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _seeds(ours: Sequence[int] | None, harness: Any) -> tuple[int, ...]:
    """The seeds of demonstrations. Raises ValueError where both command lines name some."""
    if harness is None:
        return tuple(ours or SEEDS)
    if ours is not None:
        raise ValueError("--seeds and the harness's --seed: give one of the two")
    return (harness[3] if isinstance(harness, list | tuple) else harness,)


def _written(folder: Path) -> dict[str, Any]:
    """The results that the harness has just written."""
    files = sorted(folder.rglob("results_*.json"), key=lambda file: file.stat().st_mtime_ns)
    return json.loads(files[-1].read_text(encoding="utf-8"))


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluates a model, with this command's own flags."""
    parser = argparse.ArgumentParser(prog="python -m util.extras.harness.evaluate", description=__doc__)
    add_arguments(parser)
    run(parser.parse_args(argv))


if __name__ == "__main__":
    main()
