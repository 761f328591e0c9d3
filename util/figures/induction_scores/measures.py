"""What induction heads write, sets of heads, and what ablating them costs, from arrays alone.

Heads are (layer, head), both places in the arrays. Source: Crosbie & Shutova 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from util.figures.induction_scores.edits import Group, Row
from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.controls import layer_matched, shortage
from util.stats.heads import Head, top

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


# ------------------------------------------------------------------------------------------------ output scores


def copying(raised: Floats, attended: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns the copying (OV) scores of heads on sequences of distinct tokens, [N, L, H] from 0 to 1.

    raised: [N, L, H, P, P], what a head's write at token i adds directly to the logit of the token at j. attended:
    [N, L, H, P], the token that i attends to most. The candidates at i are the tokens 0 to i, without BOS. The score is
    the attended token's share of all that is raised above the candidates' mean, 0 where nothing is, averaged over i
    from 1 on. Source: Bansal et al. 2023, section 4; here with the head's true output and without their softmax.
    """
    places = raised.shape[-1]
    shares = []
    for i in range(1, places):
        logits = raised[..., i, : i + 1].astype(np.float64)
        above = np.maximum(logits - logits.mean(axis=-1, keepdims=True), 0)
        copied = np.take_along_axis(above, attended[..., i, None], axis=-1)[..., 0]
        total = above.sum(axis=-1)
        shares.append(np.divide(copied, total, out=np.zeros_like(copied), where=total > 0))
    return np.mean(shares, axis=0)


def weights_copying(logits: Floats) -> NDArray[np.float64]:
    """Returns the share of S tokens that a head raises most where it reads them, [...].

    logits: [..., S, S], what the head's weights alone make of each token read, for each token written.
    """
    return (logits.argmax(axis=-1) == np.arange(logits.shape[-1])).mean(axis=-1)


def repeated_attribution(change: Floats, wanted: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns how much more the next token is raised than the mean of the others, [..., P] in logits.

    change: [..., P, A], what a head adds to the logits of A tokens at P places; wanted: [..., P], which one is next.
    """
    raised = np.take_along_axis(change, wanted[..., None], axis=-1)[..., 0]
    return raised - (change.sum(axis=-1) - raised) / (change.shape[-1] - 1)


# ------------------------------------------------------------------------------------------------ sets of heads


def how_many(share: float, heads: int) -> int:
    """Returns how many heads are a share of them, rounded up as Crosbie & Shutova do."""
    return ceil(round(share * heads, 9))


def previous_token_heads(
    previous: Floats, score: Floats, draws: int = 3, seed: int = 0, most: int = 4
) -> tuple[list[Head], list[list[Head]]]:
    """Returns the heads that give most attention to the token before, and layer-matched sets of other heads.

    previous: that attention [L, H], 0 for heads that do not count; score: prefix-matching scores [L, H]. The heads are
    those from 0.3 on, at most `most`, or the best one where there are none. The other heads are below 0.3 in both
    scores; there are no sets where a layer has too few of them.
    """
    makers = [head for head in top(previous, most) if previous[head] >= INDUCTION_HEAD] or top(previous, 1)
    eligible = (previous < INDUCTION_HEAD) & (score < INDUCTION_HEAD)
    return makers, [] if shortage(makers, eligible) else layer_matched(makers, eligible, draws, seed)


# ------------------------------------------------------------------------------------------------ what it costs


def benefit_change(
    full: tuple[float, float], ablated: tuple[float, float], error: float = 0.0
) -> tuple[float, float | None]:
    """Returns what an ablation changes of the benefit of demonstrations, and the change in per cent of the benefit.

    full, ablated: accuracies with demonstrations and without. The second is None where the full model's benefit is not
    positive or no more than twice its standard error `error`. Source: Crosbie & Shutova 2024, Fig. 4.
    """
    whole, left = full[0] - full[1], ablated[0] - ablated[1]
    share = 100 * (left - whole) / whole if whole > max(0.0, 2 * error) else None
    return left - whole, share


PUBLISHED_SHARES = {"1 %": 0.01, "3 %": 0.03}  # of all heads
MODES_OF_TABLES = {"input_mean": "mean", "zero": "zero"}  # what the paper calls mean is what its code does


def place_in_tables(task: str, shots: int, unrelated: bool = False) -> str:
    """Returns how data/published calls a row of the paper's tables. unrelated: whether the labels are Foo and Bar."""
    return f"{task}, {shots} shots" + (", unrelated labels" if unrelated else "")


def comparable(
    right: Mapping[str, Mapping[Row, Bools]], mode: str, heads: int, primary: int
) -> dict[str, tuple[float, float]]:
    """Returns accuracies in per cent with their standard errors, by the names that the paper's tables have for them.

    right: by place in the tables (see `place_in_tables`) and row, [R, N]; mode: of the ablations; heads: of the whole
    model; primary: the size with controls. Ablations in other modes than the paper's, and sets of other sizes than its
    1 % and 3 %, are left out.
    """
    sizes = {how_many(share, heads): name for name, share in PUBLISHED_SHARES.items()}
    given: dict[str, tuple[float, float]] = {}
    for where, rows in right.items():
        given[f"{where}: full"] = _per_cent([rows[Row(Group.WHOLE)]])
        for n, size in sizes.items():
            of = None if n == primary else n
            knocked_out, ablated = Row(Group.KNOCKED_OUT, of), Row(Group.SIZE, n)
            random = [values for row, values in rows.items() if (row.group, row.size) == (Group.LAYER_MATCHED, of)]
            wanted = {"knockout, top": [rows[knocked_out]] if knocked_out in rows else []}
            if mode in MODES_OF_TABLES:
                kind = f"{MODES_OF_TABLES[mode]} ablation"
                wanted |= {f"{kind}, top": [rows[ablated]] if ablated in rows else [], f"{kind}, random": random}
            given |= {f"{where}: {name} {size}": _per_cent(values) for name, values in wanted.items() if values}
    return given


def _per_cent(draws: Sequence[Bools]) -> tuple[float, float]:
    """The mean of several draws [R, N] each and its standard error, over queries and over draws."""
    queries = np.mean([draw.mean(0) for draw in draws], axis=0)
    between = np.var([draw.mean() for draw in draws], ddof=1) / len(draws) if len(draws) > 1 else 0.0
    return 100 * float(queries.mean()), 100 * float(np.sqrt(queries.var(ddof=1) / len(queries) + between))
