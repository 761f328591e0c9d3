"""What induction heads write, sets of heads, and what ablating them costs, from arrays alone.

Heads are (layer, head), both places in the arrays. Source: Crosbie & Shutova 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from util.figures.induction_scores.edits import Group, Row
from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.controls import layer_matched, shortage
from util.stats.heads import Head, top
from util.stats.tests import mcnemar, rank_p

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


# ------------------------------------------------------------------------------------------------ output scores


def copying(raised: Floats, attended: NDArray[np.integer]) -> NDArray[np.float64]:
    """The copying (OV) score of heads on sequences of distinct tokens: [N, L, H].

    raised [N, L, H, P, P]: what a head's write at token i, directly, adds to the logit of the token at j; attended
    [N, L, H, P]: the token that i attends to most. Candidates are the tokens 0 to i, BOS not among them: of what is
    raised above their mean, the share of the attended token, 0 where nothing is; averaged over i from 1 on (Bansal et
    al. 2023, section 4, with the head's true output and without their softmax).
    """
    places = raised.shape[-1]
    shares = []
    for i in range(1, places):
        logits = raised[..., i, : i + 1].astype(np.float64)
        above = np.maximum(logits - logits.mean(axis=-1, keepdims=True), 0)
        own = np.take_along_axis(above, attended[..., i, None], axis=-1)[..., 0]
        total = above.sum(axis=-1)
        shares.append(np.divide(own, total, out=np.zeros_like(own), where=total > 0))
    return np.mean(shares, axis=0)


def weights_copying(logits: Floats) -> NDArray[np.float64]:
    """The share of tokens that a head raises most where it reads them, by its weights alone: [...] of [..., S, S]."""
    return (logits.argmax(axis=-1) == np.arange(logits.shape[-1])).mean(axis=-1)


def chance_copying(places: int) -> float:
    """The copying score of writes that have nothing to do with what is attended: the mean of 1 / candidates."""
    return float(np.mean(1 / np.arange(2, places + 1)))


def repeated_attribution(change: Floats, wanted: NDArray[np.integer]) -> NDArray[np.float64]:
    """Direct logit attribution to the token that comes next, [..., P]: how much more it is raised than the others.

    change [..., P, A]: what a head adds to the logits of A tokens at P places; wanted [..., P]: which of them is next.
    """
    own = np.take_along_axis(change, wanted[..., None], axis=-1)[..., 0]
    return own - (change.sum(axis=-1) - own) / (change.shape[-1] - 1)


def writes(scores: Mapping[str, Floats], chosen: Sequence[Head], score: Floats) -> pd.DataFrame:
    """What chosen heads write beside the median of those that are no induction heads by their score [L, H].

    scores: maps [L, H] by name. A row for each, of the least and the mean of the chosen, and of the others' median.
    """
    at, others = tuple(np.array(chosen).T), score < INDUCTION_HEAD
    rows = {
        name: {
            "chosen, least": values[at].min(),
            "chosen, mean": values[at].mean(),
            "others": np.median(values[others]),
        }
        for name, values in scores.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------ sets of heads


def how_many(share: float, heads: int) -> int:
    """Heads in the top `share` of them, rounded up as Crosbie & Shutova do."""
    return ceil(round(share * heads, 9))


def previous_token_heads(
    previous: Floats, score: Floats, draws: int = 3, seed: int = 0, most: int = 4
) -> tuple[list[Head], list[list[Head]]]:
    """The heads that give most attention to the token before, and layer-matched sets of others.

    previous: that attention [L, H], 0 where a head is not asked for; those from 0.3 on, `most` of them, or the best.
    score: prefix-matching scores [L, H]; the others are below 0.3 in both. No others where a layer has too few.
    """
    makers = [head for head in top(previous, most) if previous[head] >= INDUCTION_HEAD] or top(previous, 1)
    eligible = (previous < INDUCTION_HEAD) & (score < INDUCTION_HEAD)
    return makers, [] if shortage(makers, eligible) else layer_matched(makers, eligible, draws, seed)


# ------------------------------------------------------------------------------------------------ what it costs


def benefit_change(
    full: tuple[float, float], ablated: tuple[float, float], error: float = 0.0
) -> tuple[float, float | None]:
    """What an ablation changes of the benefit of demonstrations (Crosbie & Shutova 2024, Fig. 4).

    full, ablated: accuracy with demonstrations and without. Returns the difference of the benefits, and as a share of
    the full model's in per cent; None where that is no more than twice its standard error `error`, or not positive.
    """
    whole, left = full[0] - full[1], ablated[0] - ablated[1]
    share = 100 * (left - whole) / whole if whole > max(0.0, 2 * error) else None
    return left - whole, share


def costs(
    right: Mapping[str, Mapping[Row, Bools]], without_examples: Mapping[str, Mapping[Row, Bools]]
) -> pd.DataFrame:
    """Returns what the primary ablation costs, a line for each task.

    right: by task and row, which queries are answered right, [R, N]; without_examples: the same without
    demonstrations. Columns: accuracies, p among the control sets (see `rank_p`) and the least that it can be, McNemar's
    p of the ablation, the benefit of demonstrations, and its change (see `benefit_change`), which is not given where
    the benefit is within two errors of 0. Tasks without ablations have NaN.
    """
    lines = {}
    for task, rows in right.items():
        whole, bare = rows[Row(Group.WHOLE)], without_examples[task][Row(Group.WHOLE)]
        line: dict[str, object] = {"whole": whole.mean(), "0 shots": bare.mean()}
        line["benefit"] = whole.mean() - bare.mean()
        for ablated in (row for row in rows if row.group is Group.ABLATED):
            left, bare_left = rows[ablated].mean(), without_examples[task][ablated].mean()
            controls = [values.mean() for row, values in rows.items() if row.is_control_set]
            difference = whole.mean(0) - bare.mean(0)
            error = difference.std(ddof=1) / len(difference) ** 0.5
            share = benefit_change((whole.mean(), bare.mean()), (left, bare_left), error)[1]
            p, least = rank_p(left, controls, tail="low")
            line |= {"ablated": left, "0 shots, ablated": bare_left}
            line |= {"pattern out": rows[Row(Group.KNOCKED_OUT)].mean()}
            line |= {"controls": f"{min(controls):.2f}-{max(controls):.2f}", "p": p, "least p": least}
            line |= {"McNemar p": mcnemar(whole, rows[ablated]), "change": "" if share is None else f"{share:+.0f} %"}
        lines[task] = line
    columns = ["whole", "ablated", "pattern out", "controls", "p", "least p", "McNemar p"]
    columns += ["0 shots", "0 shots, ablated", "benefit", "change"]
    return pd.DataFrame.from_dict(lines, orient="index").reindex(columns=columns).rename_axis("task")


PUBLISHED_SHARES = {"1 %": 0.01, "3 %": 0.03}  # of all heads
MODES_OF_TABLES = {"input_mean": "mean", "zero": "zero"}  # what the paper calls mean is what its code does


def comparable(
    right: Mapping[str, Mapping[Row, Bools]], k: int, mode: str, heads: int, primary: int
) -> dict[str, tuple[float, float]]:
    """Returns accuracies in per cent with their standard errors, by the names that the paper's tables have for them.

    right: by task and row, [R, N]; mode: of the ablations; heads: of the whole model; primary: the size with controls.
    Ablations in other modes than the paper's, and sets of other sizes than its 1 % and 3 %, are left out.
    """
    sizes = {how_many(share, heads): name for name, share in PUBLISHED_SHARES.items()}
    given: dict[str, tuple[float, float]] = {}
    for task, rows in right.items():
        where = f"{task}, {k} shots"
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
