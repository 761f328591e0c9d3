"""What an ablation cuts: cells (query, key) of the attention matrix of one prompt, and random cells to compare with.

An ablation "a -> b" forbids the tokens b to attend to the tokens a (Cho et al. 2025, Tables 1, 2).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from util.prompts.prompt import LabelledTokens

Cells = NDArray[np.int64]  # [C, 2]: query, key
Part = tuple[float, float]  # of the layers: from this ratio of their number up to that one


TITLES = {  # the steps that can be cut, as in the paper: rows 2-5 of Table 1, and Table 2
    "xi_to_si": "x_i -> s_i",
    "xq_to_sq": "x_q -> s_q",
    "si_to_yi": "s_i -> y_i",
    "yi_to_sq": "y_i -> s_q",
    "si_to_si": "s_i -> s_j, i < j",
}
CUTS = tuple(TITLES)  # the order decides the seeds of random cells
EVERYWHERE: Part = (0.0, 1.0)
QUARTERS: tuple[Part, ...] = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


class Condition(NamedTuple):
    """An entry of the tables: what is cut (None: nothing), in which part of the layers; draw: 0 for random cells."""

    cut: str | None
    part: Part = EVERYWHERE
    draw: int | None = None


WHOLE = Condition(None)


def conditions() -> list[Condition]:
    """The conditions of a table: every cut in every part of the layers, and its random cells in all layers."""
    return [
        WHOLE,
        *(Condition(cut, part) for cut in CUTS for part in (EVERYWHERE, *QUARTERS)),
        *(Condition(cut, draw=0) for cut in CUTS),
    ]


def cells(cut: str, tokens: LabelledTokens, special: int = 1) -> Cells:
    """The cells [C, 2] (query, key) of one cut in a prompt that ends at the query's forerunner.

    special: how many special tokens stand in front, which are taken from no reader. The lists of the authors' code
    differ: there `xi_to_si` cuts the query's forerunner and the BOS token as well, `xq_to_sq` and `si_to_si` cut the
    forerunners from themselves, and a label is its first token alone.
    """
    *s, s_q = tokens.forerunners
    labels = zip(tokens.labels[:-1], tokens.label_lengths[:-1], strict=True)
    y = [range(start, start + length) for start, length in labels]
    *x, x_q = map(range, [special, *(label.stop for label in y)], [*s, s_q])  # with their templates
    readers_and_read: dict[str, list[tuple[Sequence[int], Sequence[int]]]] = {
        "xi_to_si": [([forerunner], text) for forerunner, text in zip(s, x, strict=True)],
        "xq_to_sq": [([s_q], x_q)],
        "si_to_yi": [(label, [forerunner]) for label, forerunner in zip(y, s, strict=True)],
        "yi_to_sq": [([s_q], label) for label in y],
        "si_to_si": [([forerunner], s[:i]) for i, forerunner in enumerate([*s, s_q])],
    }
    listed = [(reader, key) for readers, read in readers_and_read[cut] for reader in readers for key in read]
    return np.array(listed, dtype=np.int64).reshape(-1, 2)


def control_cells(cut: Cells, length: int, seed: Sequence[int]) -> Cells:
    """As many cells as `cut` [C, 2] has, of a prompt of `length` tokens: its matched control.

    Uniform over what a later token may read of an earlier one, without the cells of the cut; as no token is cut from
    itself, none is left with nothing to attend to.
    """
    free = np.tri(length, k=-1, dtype=bool)
    free[tuple(cut.T)] = False
    eligible = np.argwhere(free)
    drawn = np.random.default_rng(list(seed)).permutation(len(eligible))[: len(cut)]
    return eligible[np.sort(drawn)]


def layer_range(layers: Sequence[int], part: Part) -> list[int]:
    """The layers of a range of ratios: numbers from int(r0 L) up to, without it, int(r1 L) of L layers."""
    low, high = (int(ratio * len(layers)) for ratio in part)
    return list(layers[low:high])
