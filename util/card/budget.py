"""How much a card measures within its minutes: the sizes of its parts, what they cost, and which fit.

The cost of a part is the number of tokens that have to run through the whole model, estimated from the model's shape;
of IOI, which runs many sets of heads on few prompts at a time, also the number of forward passes. How long both take is
measured first (`study.Study.pace`). Estimates are rough, so the plan is made again before every part, with the time
that is left and with what the parts before it have taken. This file needs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

ROLES, IOI, WORD_PAIRS, KNOCKED_OUT = "roles", "IOI", "word pairs", "knocked out"
PARTS = (ROLES, IOI, WORD_PAIRS, KNOCKED_OUT)  # in the order in which they are measured

# tokens of a typical prompt, special tokens included
NAMES, PAIRS, SEQUENCE, LABELLED, CLASSIFIED = 20, 65, 41, 90, 110
TASKS = 5  # of word pairs
CIRCUITS, TYPE_PAIRS = 7, 21  # that are compared in each task; that are removed one by one
FEW = 0.12  # the share of a model's heads that pass a score, and are put to the test
FRAMES = 16  # of IOI prompts; where heads are ablated, those of one frame are run together
RESERVE = 0.2  # of the time that is left: no part grows into it, because parts take up to half as long again as said


@dataclass(frozen=True)
class Shape:
    """Layers that have attention, and heads of each."""

    layers: int
    heads: int

    @property
    def all_heads(self) -> int:
        """How many heads there are."""
        return self.layers * self.heads


@dataclass(frozen=True)
class Pace:
    """How fast a machine runs a model: tokens a second in large batches, and seconds that any forward pass takes."""

    speed: float
    of_pass: float


@dataclass(frozen=True)
class Size:
    """How much of a part is measured: the arguments of its studies, by name. The largest sizes are the notebooks'."""

    name: str
    settings: Mapping[str, Any]


SIZES: Mapping[str, tuple[Size, ...]] = {
    ROLES: (
        Size("tiny", {"prompts": 8, "sequences": 12, "pairs": 32, "word_prompts": 4, "intact": 8}),
        Size("small", {"prompts": 16, "sequences": 16, "pairs": 48, "word_prompts": 8, "intact": 16}),
        Size("medium", {"prompts": 32, "sequences": 32, "pairs": 128, "word_prompts": 12, "intact": 32}),
        Size("full", {"prompts": 64, "sequences": 32, "pairs": 128, "word_prompts": 24, "intact": 32}),
    ),
    IOI: (
        Size("tiny", {"prompts": 12, "path_heads": 6, "random_sets": 1}),
        Size("small", {"prompts": 24, "path_heads": 8, "random_sets": 2}),
        Size("medium", {"prompts": 48, "path_heads": 12, "random_sets": 5}),
        Size("full", {"prompts": 128, "path_heads": 16, "random_sets": 5}),
    ),
    WORD_PAIRS: (
        Size("tiny", {"prompts": 8, "donor_seeds": (0,)}),
        Size("small", {"prompts": 16, "donor_seeds": (0,)}),
        Size("medium", {"prompts": 32, "donor_seeds": (0,)}),
        Size("full", {"prompts": 32, "donor_seeds": (0, 1, 2)}),
    ),
    KNOCKED_OUT: (
        Size("tiny", {"queries": 10, "sequences": 6, "texts": 8, "control_sets": 2}),
        Size("small", {"queries": 16, "sequences": 8, "texts": 16, "control_sets": 3}),
        Size("medium", {"queries": 24, "sequences": 16, "texts": 32, "control_sets": 5}),
        Size("full", {"queries": 40, "sequences": 32, "texts": 64, "control_sets": 10}),
    ),
}

# Seconds that a part takes however fast the model is: prompts are drawn and tokenised, means and intervals are taken.
# Measured, as the shares below, on the embedded model and on SmolLM2; see `tests/benchmarks/budgets.py`.
FIXED = {ROLES: 4.0, IOI: 1.0, WORD_PAIRS: 2.0, KNOCKED_OUT: 1.5}


def seconds(part: str, size: Size, shape: Shape, pace: Pace) -> float:
    """Returns how long a part takes, about."""
    return FIXED[part] + tokens(part, size, shape) / pace.speed + passes(part, size, shape) * pace.of_pass


def tokens(part: str, size: Size, shape: Shape) -> float:
    """Returns how many tokens have to run through the whole model for a part, about. Raises KeyError for another part.

    A run that begins at a layer, or at a token, in the middle counts as what is left of it. The shares are those of the
    tokens that were counted on the embedded model and on SmolLM2, and of the time that they took.
    """
    given, heads = size.settings, shape.all_heads
    if part == ROLES:
        tested = FEW * heads
        sequences = 2 * tested * given["sequences"] * SEQUENCE  # two roles, cut and control, half of the prompts
        pairs = 3 * tested * given["pairs"] / 2 * NAMES
        labels = 2 * tested * given["prompts"] * LABELLED
        vectors = 2 * heads * TASKS * given["word_prompts"]  # the last token alone is run again
        whole = 2 * given["sequences"] * SEQUENCE + 6 * given["pairs"] * NAMES + 2 * given["prompts"] * LABELLED
        return 0.2 * (sequences + pairs + labels + vectors) + whole + TASKS * 3 * given["intact"] * PAIRS
    if part == IOI:
        prompts = given["prompts"]
        maps = 0.36 * heads * prompts * NAMES  # to the source and back, from the first token and layer that differ on
        curve = 1.1 * _sets(given, shape) * prompts * NAMES  # the logits of all tokens are computed, too
        paths = 0.3 * given["path_heads"] ** 2 * min(32, prompts) * NAMES  # from the reader's layer on
        return maps + curve + paths
    if part == WORD_PAIRS:
        return (TASKS * CIRCUITS + TYPE_PAIRS) * len(given["donor_seeds"]) * given["prompts"] * PAIRS
    if part == KNOCKED_OUT:
        edits = 2 + 3 * (1 + given["control_sets"])  # the whole model is also asked what it can do at all
        of_each = given["queries"] * (CLASSIFIED + TASKS * PAIRS / 2) + given["sequences"] * 101 + given["texts"] * 40
        return edits * of_each
    raise KeyError(part)


def passes(part: str, size: Size, shape: Shape) -> float:
    """Returns how many forward passes of a part are of too few tokens to be as fast as large batches, about."""
    if part != IOI:
        return 0.0
    frames = FRAMES * (1 - (1 - 1 / FRAMES) ** size.settings["prompts"])  # that so many prompts have, on average
    return _sets(size.settings, shape) * frames


def _sets(given: Mapping[str, Any], shape: Shape) -> int:
    """How many sets of heads work alone in IOI: for 1, 2, 4, ... the strongest, all others, and random ones."""
    return 1 + ceil(log2(shape.all_heads)) * (2 + given["random_sets"])


def plan(left: float, ahead: Sequence[str], each: Mapping[str, Sequence[float]]) -> dict[str, int | None]:
    """Returns which size of the parts ahead fits into the seconds that are left, by part; None where none does.

    each: the seconds of every size of a part, smallest first. Parts that do not fit are left out, the last ones first.
    Then all parts grow together, a size at a time in their order, as long as RESERVE of the time is left.
    """
    reserve = RESERVE * left
    chosen: dict[str, int | None] = dict.fromkeys(ahead)
    for part in ahead:
        if each[part][0] > left:
            break
        chosen[part], left = 0, left - each[part][0]
    for place in range(1, max((len(each[part]) for part in ahead), default=0)):
        for part in ahead:
            if chosen[part] != place - 1 or place >= len(each[part]):
                continue
            more = each[part][place] - each[part][place - 1]
            if more <= left - reserve or not more:  # what is there costs nothing
                chosen[part], left = place, left - more
    return chosen
