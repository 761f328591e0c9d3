"""lm-evaluation-harness on a model with heads edited. What follows `--` goes to the harness's own command line."""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from util.commands.arguments import Chosen, Reference, Seeds
from util.commands.edits import Pattern, edited_heads
from util.figures.induction_scores.edits import WHOLE, Edit, Mode
from util.stats.heads import Head


def evaluate(
    *harness: str,
    mode: Mode | None = None,
    pattern: Pattern | None = None,
    chosen: Chosen = Chosen(),
    reference: Reference = Reference(),
    seed: Seeds = (42, 43, 44),
) -> None:
    """Run the harness for each seed: it prints and writes what it always does; the means over seeds come last.

    Raises ValueError, before anything is loaded, where the harness is missing, and for flags that do not fit together.

    Args:
        harness: behind `--`, the harness's own arguments; its --output_path receives its files by seed, and the means
        mode: ablate heads: what replaces their output
        pattern: knock a pattern out: what the heads may not read
        seed: of demonstrations, a run of the harness for each
    """
    from util.extras.harness.evaluate import check_installed, refuse_caches, table

    if not (mode or pattern) and chosen != Chosen():
        raise ValueError("say what is done to heads: --mode ablates them, --pattern knocks a pattern out")
    if mode and pattern:
        raise ValueError("give --mode or --pattern, not both")
    check_installed()
    from util.extras.harness.interventions import checked_reference
    from util.extras.harness.model import NAME
    from util.extras.harness.tasks import FOLDER

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
    edit = WHOLE
    if mode or pattern:
        heads = _heads(chosen, loading)
        edit = Edit.ablate(heads, mode) if mode else Edit.knock_out(heads, str(pattern).replace("-", " "))

    with ExitStack() as stack:
        out = Path(settings.get("output_path") or stack.enter_context(tempfile.TemporaryDirectory()))
        by_seed = {}
        for number in seed:
            given.model_args = {**model_args, "edit": edit.plain(), "reference": {**means, "seed": number}}
            given.include_path = [*filter(None, [str(FOLDER), settings.get("include_path")])]
            given.seed, given.output_path = [0, 1234, 1234, number], str(out / f"seed_{number}")
            cli.execute(Namespace(**vars(given)))
            files = Path(given.output_path).rglob("results_*.json")
            newest = max(files, key=lambda file: file.stat().st_mtime_ns)
            by_seed[number] = json.loads(newest.read_text(encoding="utf-8"))
        means_of_seeds = table(by_seed)
        print(means_of_seeds.to_string(float_format="{:.4f}".format))
        result = {"acc": means_of_seeds.to_dict("index"), "intervention": by_seed[seed[-1]]["config"]["intervention"]}
        (out / "means.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


def _heads(chosen: Chosen, loading: dict[str, Any]) -> list[Head]:
    """The heads that are edited; the model is loaded where they are chosen by their scores."""
    from util.extras.harness.model import InterventionLM
    from util.roles.sequences_study import SequenceStudy

    (heads,) = edited_heads(chosen, lambda: SequenceStudy(InterventionLM(**loading).source)).values()
    print("heads:", json.dumps(heads))
    return heads


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
