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


TITLES = {  # the steps that can be cut, as in the paper: rows 2-5 of Table 1, Table 2, and one of the authors' code
    "xi_to_si": "x_i -> s_i",
    "xq_to_sq": "x_q -> s_q",
    "si_to_yi": "s_i -> y_i",
    "yi_to_sq": "y_i -> s_q",
    "si_to_si": "s_i -> s_j, i < j",
    "si_to_yj": "s_i -> y_j, i <= j",
}
CUTS = tuple(TITLES)  # the order decides the seeds of random cells
PUBLISHED = CUTS[:5]  # of the two tables
LISTS = ("corrected", "reference")
EVERYWHERE: Part = (0.0, 1.0)
QUARTERS: tuple[Part, ...] = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


class Condition(NamedTuple):
    """An entry of the tables: what is cut (None: nothing), in which part of the layers; draw: or that control of it."""

    cut: str | None
    part: Part = EVERYWHERE
    draw: int | None = None


WHOLE = Condition(None)


def conditions(
    cuts: Sequence[str] = PUBLISHED, parts: Sequence[Part] = (EVERYWHERE, *QUARTERS), draws: int = 1
) -> list[Condition]:
    """The conditions of a table: every cut in every part of the layers, and its controls in all layers."""
    controls = [Condition(cut, EVERYWHERE, draw) for cut in cuts for draw in range(draws)]
    return [WHOLE, *(Condition(cut, part) for cut in cuts for part in parts), *controls]


# ------------------------------------------------------------------------------------------------ cells of a cut


def cells(cut: str, tokens: LabelledTokens, lists: str = "corrected", special: int = 1) -> Cells:
    """The cells [C, 2] (query, key) of one cut in a prompt that ends at the query's forerunner.

    special: how many special tokens stand in front; the corrected lists take them from no reader. The "reference" lists
    are those of the authors' code, which differ: `xi_to_si` cuts the query's forerunner and the BOS token as well,
    `xq_to_sq` and `si_to_si` cut the forerunners from themselves, and a label is its first token alone.
    Raises ValueError for an unknown name, and where the reference would leave a token nothing to attend to.
    """
    if cut not in CUTS or lists not in LISTS:
        raise ValueError(f"cut = {cut!r}, lists = {lists!r}; there are {', '.join(CUTS)}; {', '.join(LISTS)}")
    reference = lists == "reference"
    s, k = tokens.forerunners, len(tokens.forerunners) - 1
    if reference and cut == "xq_to_sq" and not k:
        raise ValueError("the reference's xq_to_sq leaves s_q nothing to attend to where there are no demonstrations")
    lengths = [1] * k if reference else tokens.label_lengths[:k]
    y = [range(start, start + length) for start, length in zip(tokens.labels[:k], lengths, strict=True)]
    starts = [0 if reference else special, *(label.stop for label in y)]
    x = [range(start, stop) for start, stop in zip(starts, s, strict=True)]  # with their templates
    more = 1 if reference else 0  # what the reference cuts beside the others
    readers_and_read: dict[str, list[tuple[Sequence[int], Sequence[int]]]] = {
        "xi_to_si": [([s[i]], x[i]) for i in range(k + more)],
        "xq_to_sq": [([s[k]], [*x[k], *s[k : k + more]])],
        "si_to_yi": [(y[i], [s[i]]) for i in range(k)],
        "yi_to_sq": [([s[k]], y[i]) for i in range(k)],
        "si_to_si": [([s[i]], s[: i + more]) for i in range(k + 1)],
        "si_to_yj": [(y[i], s[: i + 1]) for i in range(k)],
    }
    listed = [(reader, key) for readers, read in readers_and_read[cut] for reader in readers for key in read]
    return np.array(listed, dtype=np.int64).reshape(-1, 2)


# ------------------------------------------------------------------------------------------------ random cells


def control_cells(cut: Cells, length: int, draws: int, seed: Sequence[int]) -> list[Cells]:
    """`draws` sets of as many cells as `cut` [C, 2] has, of a prompt of `length` tokens: its matched controls.

    Uniform over what a later token may read of an earlier one, without the cells of the cut; the sets share none, and
    as no token is cut from itself, none is left with nothing to attend to. More draws leave the first as they are.
    Raises ValueError where the prompt is too short for so many.
    """
    free = np.tri(length, k=-1, dtype=bool)
    free[tuple(cut.T)] = False
    eligible = np.argwhere(free)
    if len(eligible) < draws * len(cut):
        raise ValueError(
            f"{len(cut)} cells cannot be matched {draws} times in a prompt of {length} tokens, which has "
            f"{len(eligible)} others; take fewer draws"
        )
    order = np.random.default_rng(list(seed)).permutation(len(eligible))
    sets = order[: draws * len(cut)].reshape(draws, len(cut))
    return [eligible[np.sort(places)] for places in sets]


def other_keys(cut: Cells, special: int, seed: Sequence[int]) -> Cells:
    """The readers of `cut` [C, 2] with another earlier token each, drawn at random.

    Readers with no other earlier token are left out.

    special: how many special tokens stand in front, which are never drawn.
    """
    rng, drawn = np.random.default_rng(list(seed)), []
    for query, key in cut.tolist():
        choices = [t for t in range(special, query) if t != key]
        if choices:
            drawn.append((query, int(rng.choice(choices))))
    return np.array(drawn, dtype=np.int64).reshape(-1, 2)


def layer_range(layers: Sequence[int], part: Part) -> list[int]:
    """The layers of a range of ratios: numbers from int(r0 L) up to, without it, int(r1 L) of L layers."""
    low, high = (int(ratio * len(layers)) for ratio in part)
    return list(layers[low:high])
