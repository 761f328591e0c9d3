"""lm-evaluation-harness on a model with heads edited. What follows `--` goes to the harness's own command line."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from util.commands.arguments import SHARE, Selection, add_heads, add_reference, numbers
from util.commands.knockout import BY_FLAG
from util.extras.harness import evaluate as harness
from util.figures.induction_scores.edits import MODES, WHOLE, Edit
from util.roles.heads import plain
from util.roles.sequences_study import SequenceStudy
from util.study.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser. Those of the harness follow behind `--`."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--mode", choices=MODES, help="ablate heads: what replaces their output")
    kind.add_argument("--pattern", choices=BY_FLAG, help="knock a pattern out: what the heads may not read")
    add_heads(parser)
    parser.set_defaults(heads=None)
    about = "other heads instead, with as many in each layer, none of them an induction head, drawn by this seed"
    parser.add_argument("--random", type=int, metavar="SEED", help=about)
    add_reference(parser, "task")
    about = "of demonstrations, a run of the harness for each (default: 42,43,44)"
    parser.add_argument("--seed", type=numbers, default=harness.SEEDS, metavar="SEEDS", help=about)
    about = "the harness's own arguments; its --output_path receives its files by seed, and the means over seeds"
    parser.add_argument("harness", nargs="*", metavar="-- ...", help=about)


def run(arguments: argparse.Namespace) -> None:
    """Run the harness for each seed: it prints and writes what it always does; the means over seeds come last.

    Raises ValueError, before anything is loaded, where the harness is missing, and for flags that do not fit together.
    """
    edited = arguments.mode is not None or arguments.pattern is not None
    if not edited and (arguments.heads is not None or arguments.random is not None):
        raise ValueError("say what is done to heads: --mode ablates them, --pattern knocks a pattern out")
    harness.check_installed()
    from util.extras.harness.interventions import checked_reference
    from util.extras.harness.model import NAME, InterventionLM
    from util.extras.harness.tasks import FOLDER

    cli, given = _harness_arguments(arguments.harness)
    settings = _settings(given)
    if settings.get("model") not in (None, NAME):
        raise ValueError(f"--model {settings['model']}: leave it out; edits are in the suite's own model class, {NAME}")
    if settings.get("seed") is not None:
        raise ValueError("the harness's --seed: leave it out; --seed before `--` has the seeds of demonstrations")
    model_args = dict(settings.get("model_args") or {})
    if "pretrained" not in model_args:
        raise ValueError("name a model for the harness, behind `--`: --model_args pretrained=smollm2")
    harness.refuse_caches(settings)
    limit = settings.get("limit")
    reference = {name: getattr(arguments, name) for name in ("reference", "reference_prompts", "reference_data")}
    reference |= {"k": settings.get("num_fewshot"), "prompts": int(limit) if limit is not None and limit >= 1 else None}
    checked_reference(**reference)
    loading = {"device": settings.get("device") or "auto", **model_args}
    edit = _edit(arguments, lambda: InterventionLM(**loading).source) if edited else WHOLE

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(settings.get("output_path") or scratch)
        by_seed = {}
        for seed in arguments.seed:
            given.model = NAME
            given.model_args = {**model_args, "edit": edit.plain(), "reference": {**reference, "seed": seed}}
            given.include_path = [str(FOLDER), *([settings["include_path"]] if settings.get("include_path") else [])]
            given.seed = [0, 1234, 1234, seed]
            given.output_path = str(out / f"seed_{seed}")
            given.device = loading["device"]
            cli.execute(argparse.Namespace(**vars(given)))
            written = (out / f"seed_{seed}").rglob("results_*.json")
            newest = max(written, key=lambda file: file.stat().st_mtime_ns)
            by_seed[seed] = json.loads(newest.read_text(encoding="utf-8"))
        table = harness.table(by_seed)
        print(table.to_string(float_format="{:.4f}".format))
        means = {"acc": table.to_dict("index"), "intervention": by_seed[seed]["config"]["intervention"]}
        (out / "means.json").write_text(json.dumps(means, indent=1), encoding="utf-8")


def _edit(arguments: argparse.Namespace, model: Callable[[], Model]) -> Edit:
    """What is done to the model, which model() loads where heads are chosen by their scores."""
    asked = SHARE if arguments.heads is None else arguments.heads
    heads = [] if isinstance(asked, float) else list(asked)
    if not heads or arguments.random is not None:
        selection = Selection(asked, SequenceStudy(model()))
        heads = selection.heads()
        if arguments.random is not None:
            heads = selection.others(heads, 1, arguments.random)[0]
        print("heads:", json.dumps(plain(heads)))
    if arguments.pattern is not None:
        return Edit.knock_out(heads, BY_FLAG[arguments.pattern])
    return Edit.ablate(heads, arguments.mode)


def _harness_arguments(argv: Sequence[str]) -> tuple[Any, argparse.Namespace]:
    """The harness's command line, and its arguments as it understands them."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    before, cli = sys.argv, HarnessCLI()
    sys.argv = ["lm-eval", "run", *argv]  # it reads them there
    try:
        return cli, cli.parse_args()
    finally:
        sys.argv = before


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    """The harness's settings: those of its --config file, and the flags that win over them."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    file = EvaluatorConfig.load_yaml_config(given.config) if given.config else {}
    return {**file, **{name: value for name, value in vars(given).items() if value is not None}}
