"""Flags that several commands have, and what they stand for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from util.figures.induction_scores.measures import how_many
from util.figures.induction_scores.task_study import Reference
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.heads import named_heads, plain
from util.roles.sequences_study import SequenceStudy
from util.stats.controls import layer_matched
from util.stats.heads import Head, top
from util.study.model import Model

SHARE = 0.01  # of all heads: the smaller of the two that Crosbie & Shutova ablate


# ------------------------------------------------------------------------------------------------ models


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how a model is loaded."""
    parser.add_argument("--revision", help="a commit, branch or tag of the hub")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, float16, float64; default: as README says")
    parser.add_argument("--quantized", action="store_true", help="4-bit weights (NF4; CUDA)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ...; default: what there is")
    parser.add_argument("--device-map", type=_device_map, metavar="MAP", help='"auto", or a JSON object of modules')


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model and how it is loaded."""
    about = "embedded (the default), smollm2, a hub id, a folder, a GGUF file"
    parser.add_argument("model", nargs="?", default="embedded", help=about)
    add_loading(parser)


def model_of(arguments: argparse.Namespace) -> Model:
    """Returns the model that the flags name, not loaded yet. Raises ValueError for what there is not."""
    return Model(
        arguments.model,
        arguments.revision,
        arguments.dtype,
        arguments.quantized,
        device=arguments.device,
        device_map=arguments.device_map,
    )


def _device_map(text: str) -> Any:
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no JSON object ({error})") from None


# ------------------------------------------------------------------------------------------------ means


def add_reference(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the flags that say what means are taken over, how much of it, and where the premises of MNLI are."""
    about = f"what means are taken over: other prompts of the task, StaICC's, or samples of MNLI (default: {default})"
    parser.add_argument("--reference", choices=get_args(Reference), default=default, help=about)
    about = "how many prompts or samples (default: 64)"
    parser.add_argument("--reference-prompts", type=int, default=64, metavar="N", help=about)
    about = "of reference mnli: a folder with train.jsonl, with the column premise (default: the hub)"
    parser.add_argument("--reference-data", metavar="FOLDER", help=about)


# ------------------------------------------------------------------------------------------------ numbers and lists


def count(text: str) -> int:
    """Returns a whole number from 1 on. Raises ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 on")
    return int(text)


def words(text: str) -> tuple[str, ...]:
    """Returns the entries of a list with commas. Raises ArgumentTypeError for an empty one or one that stands twice."""
    entries = tuple(entry.strip() for entry in text.split(","))
    if not all(entries) or len(set(entries)) < len(entries):
        raise argparse.ArgumentTypeError(f"{text!r}: give one or more with commas between, none of them twice")
    return entries


def numbers(text: str) -> tuple[int, ...]:
    """Returns the whole numbers of a list with commas. Raises ArgumentTypeError for anything else."""
    try:
        return tuple(map(int, words(text)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers with commas between") from None


# ------------------------------------------------------------------------------------------------ heads


def add_heads(parser: argparse.ArgumentParser) -> None:
    """Add the two flags that name heads; both stand for `heads`, and one of them at most may be given."""
    group = parser.add_mutually_exclusive_group()
    named = 'such as "5.1,17.4" or "L5H1 L17H4", counted from 0, or a JSON file [[layer, head], ...]'
    group.add_argument("--heads", type=heads, default=SHARE, metavar="HEADS", help=named)
    best = f"this share of all heads, the best by prefix matching, rounded up (default: {SHARE})"
    group.add_argument("--top", dest="heads", type=share, default=argparse.SUPPRESS, metavar="SHARE", help=best)


def share(text: str) -> float:
    """Returns a share, more than 0 and at most 1. Raises ArgumentTypeError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: give a number above 0, at most 1, such as 0.01")
    return value


def heads(text: str) -> tuple[Head, ...]:
    """Returns heads by their names or of a file, see `named_heads`. Raises ArgumentTypeError for what names none."""
    try:
        named = named_heads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80}: {error}") from None
    if not named:
        raise argparse.ArgumentTypeError(f"{text!r} names no head")
    return named


@dataclass(frozen=True)
class Selection:
    """The heads that flags ask for: by name, or the share of all heads whose prefix-matching scores are best."""

    asked: float | tuple[Head, ...]
    sequences: SequenceStudy

    @property
    def request(self) -> dict[str, Any]:
        """What decides the heads, and the sets of others, in plain JSON."""
        named = self.asked if isinstance(self.asked, float) else plain(self.asked)
        return {"heads": named, "scores": dict(self.sequences.request)}

    def heads(self) -> list[Head]:
        """Returns the heads. Raises what `SequenceStudy.scores` raises."""
        if not isinstance(self.asked, float):
            return list(self.asked)
        score = self.sequences.scores().mean()
        return top(score, how_many(self.asked, score.size))

    def others(self, chosen: Sequence[Head], draws: int, seed: int) -> list[list[Head]]:
        """Returns sets of other heads below a score of 0.3, with as many in each layer as the chosen ones.

        Raises ValueError for heads that there are not, and where a layer has too few others.
        """
        score = self.sequences.scores().mean()
        layers, in_layer = score.shape
        if wrong := [head for head in chosen if head[0] >= layers or head[1] >= in_layer]:
            raise ValueError(f"the model has {layers} layers of {in_layer} heads, not {wrong}")
        return layer_matched(chosen, score < INDUCTION_HEAD, draws, seed)
