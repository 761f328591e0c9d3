"""What a study will take, before it is measured, see `util.figures.estimates`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from util.card import budget
from util.card.study import Study as CardStudy
from util.commands import studies
from util.figures import estimates as of_figures
from util.records import estimates
from util.records.estimates import Estimate, Part, Shape, Speed, Work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    about = 'a study such as {"study": "ioi_patching", "model": "smollm2", "prompts": 32, "parts": ["population"]}'
    parser.add_argument("study", type=Path, metavar="STUDY.json", help=about)
    about = "tokens that run through the model in a second; default: measured here, for which the model is loaded"
    parser.add_argument("--speed", type=float, metavar="TOKENS", help=about)
    about = "load no weights: the config says enough, together with --speed"
    parser.add_argument("--config-only", action="store_true", help=about)
    about = "that records are kept in, where parts that are there already cost nothing; default: the cache"
    parser.add_argument("--folder", type=Path, help=about)
    parser.add_argument("--words", action="store_true", help="say it in words instead of JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print the estimate: seconds, gigabytes of memory, disk_gigabytes of records, and the seconds of every part.

    Raises ValueError for what there is not, and for --config-only without --speed.
    """
    if arguments.config_only and arguments.speed is None:
        raise ValueError("--config-only: without weights the speed cannot be measured; give --speed TOKENS, too")
    collection = studies.read(arguments.study, arguments.folder)
    told = estimate(collection.measuring, tuple(collection.parts), arguments.speed)
    print(*told.lines if arguments.words else [json.dumps(told.plain())], sep="\n")


def estimate(measuring: Sequence[Any], parts: Sequence[str] | None = None, speed: float | None = None) -> Estimate:
    """Returns what a study will take, or a card. speed: tokens a second; None measures it, with the model loaded."""
    model = of_figures.model_of(measuring[0])
    if speed is None:
        known = Speed.measured(model.pair[0])
        shape = Shape.of_model(model)
    else:
        shape = Shape.of_model(model)
        known = Speed.given(speed, shape.layers)
    if isinstance(measuring[0], CardStudy):
        return estimates.estimate(card_parts(measuring[0], shape, known), model, shape, known)
    return of_figures.estimate(measuring, parts, speed=known, shape=shape)


def card_parts(card: CardStudy, shape: Shape, speed: Speed) -> dict[str, Part]:
    """Returns the one part of a card: what fits into its minutes, at the sizes that its own plan chooses."""
    of_card, pace = budget.Shape(shape.layers, shape.heads), budget.Pace(speed.tokens, speed.passes)
    each = {part: [budget.seconds(part, size, of_card, pace) for size in budget.SIZES[part]] for part in budget.PARTS}
    chosen = budget.plan(60 * card.minutes, budget.PARTS, each)
    seconds = sum(each[part][place] for part, place in chosen.items() if place is not None)
    # replayed runs, and keys and values that are kept, fill their budgets where the sizes allow it
    room = shape.replay(4096, 7, 20) + shape.batch(budget.CLASSIFIED)
    work = Work(seconds=seconds, room=room, stored=500 * estimates.RECORD)
    return {"card": Part(work, lambda: card.card(lambda line: None))}
