"""lm-evaluation-harness on a model with heads edited, see `extras.harness.evaluate`."""

import argparse
import importlib
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser. Raises ValueError where the harness is not installed."""
    _harness().add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Hand what follows `--` to the harness, with an edit attached to the model."""
    _harness().run(arguments)


def _harness() -> Any:
    try:
        return importlib.import_module("util.extras.harness.evaluate")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise ValueError('lm-evaluation-harness is missing: pip install "icl-circuits-suite[harness]"') from None
