"""Induction heads, from arrays alone: attention scores on repeated sequences, sets of heads, what ablating them costs.

A sequence (`prompts.sequences`) is `copies` times the same `length` tokens, a BOS in front where `bos`. A head's row of
attention at a token of the second or a later copy is scored by what it gives to chosen keys (Crosbie & Shutova 2024,
section 4.2, after Olsson et al. 2022 and Bansal et al. 2023). Heads are (layer, head), both places in the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from util.stats.controls import layer_matched, shortage
from util.stats.heads import Head, top
from util.stats.intervals import t_interval
from util.stats.tests import mcnemar, rank_p

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
Interval = tuple[float, float, float]  # mean, low, high

INDUCTION_HEAD = 0.3  # the prefix-matching score from which Crosbie & Shutova speak of induction heads


# ------------------------------------------------------------------------------------------------ attention scores


def queries(length: int, copies: int, bos: bool = True) -> NDArray[np.int64]:
    """The positions that are scored: all tokens of all copies but the first, [Q]."""
    return np.arange(length, copies * length) + bos


def successors(length: int, copies: int, bos: bool = True, bansal_boundary: bool = False) -> Bools:
    """Which keys follow an earlier occurrence of a query's own token, [Q, T]: one for each copy before the query's.

    bansal_boundary: as in Bansal et al.'s code, and Crosbie & Shutova's after it, the first token too for the last
    query of each copy, where nothing matches.
    """
    asked = queries(length, copies, bos)
    keys = np.arange(copies * length + bos)
    distance = asked[:, None] - keys[None]
    first = bos and bansal_boundary
    return (distance >= 0) & (distance % length == length - 1) & (keys[None] > bos - first)


def cells(length: int, copies: int, bos: bool = True) -> dict[str, Bools]:
    """The keys [Q, T] that each score counts, by its name.

    prefix_matching, and bansal with the boundary of their code; duplicate_token: earlier occurrences of the query's own
    token; previous_token: the one before it; sink: the first token of all, BOS where there is one.
    """
    distance = queries(length, copies, bos)[:, None] - np.arange(copies * length + bos)[None]
    position = np.broadcast_to(np.arange(copies * length + bos), distance.shape)
    return {
        "prefix_matching": successors(length, copies, bos),
        "bansal": successors(length, copies, bos, bansal_boundary=True),
        "duplicate_token": (distance > 0) & (distance % length == 0) & (position >= bos),
        "previous_token": distance == 1,
        "sink": position == 0,
    }


def prefix_matching(rows: Floats, length: int, copies: int, bos: bool = True) -> NDArray[np.float64]:
    """The prefix-matching score of attention rows [..., Q, T], the rows of `queries`: [...], from 0 to 1.

    The attention to all `successors` of a query, summed over them and averaged over queries. Raises ValueError for rows
    of another shape.
    """
    found = successors(length, copies, bos)
    if rows.shape[-2:] != found.shape:
        raise ValueError(f"rows of shape {rows.shape}: the last two of {copies} x {length} tokens are {found.shape}")
    return np.einsum("...qt,qt->...", rows, found, dtype=np.float64) / len(found)


def uniform_prefix_matching(length: int, copies: int, bos: bool = True, bansal_boundary: bool = False) -> float:
    """The score of attention that is uniform over the keys that can be seen: what an untrained head has."""
    asked = queries(length, copies, bos)
    rows = np.tri(copies * length + bos)[asked] / (asked[:, None] + 1)
    return float((rows * successors(length, copies, bos, bansal_boundary)).sum() / len(asked))


def variants(score: Floats, length: int, copies: int, bos: bool = True) -> dict[str, NDArray[np.float64]]:
    """What other definitions make of prefix-matching scores [...], by name; tokens of a sequence are distinct.

    "mean over entries": averaged over (query, key) pairs, a literal reading of Olsson et al.; a perfect head has
    2 / copies. "TransformerLens mul", "TransformerLens abs": its `detect_head` for "induction_head", whose average runs
    over the first copy and BOS as well.
    """
    asked, total = len(queries(length, copies, bos)), copies * length + bos
    entries = successors(length, copies, bos).sum()
    given = np.asarray(score, np.float64) * asked
    return {
        "mean over entries": given / entries,
        "TransformerLens mul": given / total,
        "TransformerLens abs": (2 * given - entries) / total,
    }


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


def best_heads(
    scores: Mapping[str, Floats], names: Sequence[str] = ("previous_token", "prefix_matching")
) -> dict[str, tuple[Head, dict[str, Interval]]]:
    """For each score [N, L, H] of `names` the head where it is highest, and what that head has of all of them.

    Mean and 95 % t interval, over N sequences. The head is chosen on the first half of the sequences and measured on
    the others, so that the best of many heads has no head start. Raises ValueError for fewer than four sequences.
    """
    half = len(scores[names[0]]) // 2
    if half < 2:
        raise ValueError(f"{2 * half} sequences: at least two to choose a head on and two to measure it on are needed")
    held_out = {name: scores[name][half:] for name in names}
    best = {name: top(scores[name][:half].mean(axis=0), 1)[0] for name in names}
    return {name: (head, scores_of(held_out, head, names)) for name, head in best.items()}


def scores_of(
    scores: Mapping[str, Floats], head: Head, names: Sequence[str] = ("previous_token", "prefix_matching")
) -> dict[str, Interval]:
    """One head's mean and 95 % t interval over the sequences of each score [N, L, H], within 0 and 1 as scores are."""
    intervals = {name: t_interval(scores[name][:, head[0], head[1]]) for name in names}
    return {
        name: (float(mean), max(float(low), 0.0), min(float(high), 1.0))
        for name, (mean, low, high) in intervals.items()
    }


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
    right: Mapping[str, Mapping[str, Bools]], bare: Mapping[str, Mapping[str, Bools]], ablated: str, cut: str
) -> pd.DataFrame:
    """What an ablation costs, a row for each task.

    right: by task and edit, which queries are answered right, [R, N]; bare: the same without demonstrations. ablated,
    cut: the names of the ablation and of the knockout; control sets are named layer-matched and norm-matched. p: see
    `rank_p`; McNemar's is that of the ablation. benefit: of the demonstrations; change: see `benefit_change`, which is
    not given where the benefit is within two errors of 0.
    """
    rows = {}
    for task, edits in right.items():
        whole, without = edits["whole model"], bare[task]["whole model"]
        row: dict[str, object] = {"whole": whole.mean(), "0 shots": without.mean()}
        row["benefit"] = whole.mean() - without.mean()
        if ablated in edits:
            left, bare_left = edits[ablated].mean(), bare[task][ablated].mean()
            controls = [edits[name].mean() for name in edits if name.startswith(("layer-matched", "norm-matched"))]
            difference = whole.mean(0) - without.mean(0)
            error = difference.std(ddof=1) / len(difference) ** 0.5
            share = benefit_change((whole.mean(), without.mean()), (left, bare_left), error)[1]
            p, least = rank_p(left, controls, tail="low")
            row |= {"ablated": left, "pattern out": edits[cut].mean(), "0 shots, ablated": bare_left}
            row |= {"controls": f"{min(controls):.2f}-{max(controls):.2f}", "p": p, "least p": least}
            row |= {"McNemar p": mcnemar(whole, edits[ablated]), "change": "" if share is None else f"{share:+.0f} %"}
        rows[task] = row
    columns = ["whole", "ablated", "pattern out", "controls", "p", "least p", "McNemar p"]
    columns += ["0 shots", "0 shots, ablated", "benefit", "change"]
    return pd.DataFrame.from_dict(rows, orient="index").reindex(columns=columns).rename_axis("task")


MODES_OF_TABLES = {"input_mean": "mean", "zero": "zero"}  # what the paper calls mean is what its code does


def comparable(
    right: Mapping[str, Mapping[str, Bools]], k: int, mode: str, heads: int, primary: int
) -> dict[str, tuple[float, float]]:
    """Accuracies in per cent with their standard errors, by the names that the paper's tables have for them.

    right: by task and edit, [R, N], named as in `ablation.plan`. Ablations in other modes than
    the paper's, and sets of other sizes than its 1 % and 3 %, are left out.
    """
    sizes = {how_many(share, heads): name for share, name in ((0.01, "1 %"), (0.03, "3 %"))}
    given: dict[str, tuple[float, float]] = {}
    for task, edits in right.items():
        where = f"{task}, {k} shots"
        given[f"{where}: full"] = _per_cent([edits["whole model"]])
        for n, size in sizes.items():
            start = "" if n == primary else f"n = {n}, "
            drawn = [values for name, values in edits.items() if name.startswith(f"{start}layer-matched ")]
            wanted = {"knockout, top": [edits[name] for name in [f"{start}pattern knocked out"] if name in edits]}
            if mode in MODES_OF_TABLES:
                of = f"{MODES_OF_TABLES[mode]} ablation"
                wanted |= {
                    f"{of}, top": [edits[name] for name in [f"n = {n}"] if name in edits],
                    f"{of}, random": drawn,
                }
            given |= {f"{where}: {name} {size}": _per_cent(values) for name, values in wanted.items() if values}
    return given


def _per_cent(draws: Sequence[Bools]) -> tuple[float, float]:
    """The mean of several draws [R, N] each and its standard error, over queries and over draws."""
    queries = np.mean([draw.mean(0) for draw in draws], axis=0)
    between = np.var([draw.mean() for draw in draws], ddof=1) / len(draws) if len(draws) > 1 else 0.0
    return 100 * float(queries.mean()), 100 * float(np.sqrt(queries.var(ddof=1) / len(queries) + between))
