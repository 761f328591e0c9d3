"""Edge ablation, from arrays alone: accuracies, what edges cost, how well a circuit stands for the whole model.

Bakalova et al., COLM 2025; right [N] or, with several draws of donors, [D, N] says which prompts are answered right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from util.edges import names
from util.stats.intervals import ANYTHING, ERROR, Interval, mean_interval, paired_interval, resampled
from util.stats.tests import holm, mcnemar, paired_p

Floats = NDArray[np.floating]
Row = Mapping[str, NDArray]  # of one ablation: query [N], and measures [D, N] over draws of donors
Rows = Mapping[str, Row]  # by the name of the ablation
MEASURES = ("right", "log_prob", "kl", "agrees", "copied", "line_right", "prefix_right")


def aligned(draws: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, NDArray]]:
    """Answers under several draws of donors as one: by ablation those of MEASURES that all draws have, [D, N].

    draws: of each draw, the data of a record by the name of its ablation. The result has the prompts that all draws
    have, and query [N], a number for the query of each prompt: prompts that ask the same are not independent.
    """
    if not draws[0]:
        return {}
    numbers = [next(iter(draw.values()))["index"] for draw in draws]
    common = [index for index in numbers[0] if all(index in others for others in numbers)]
    places = [np.searchsorted(index, common) for index in numbers]
    return {
        name: {
            "query": np.unique(np.array(first["queries"])[places[0]], return_inverse=True)[1],
            **{
                measure: np.stack([draw[name][measure][place] for draw, place in zip(draws, places, strict=True)])
                for measure in MEASURES
                if all(measure in draw[name] for draw in draws)
            },
        }
        for name, first in draws[0].items()
    }


def queries_of(row: Row) -> int:
    """How many distinct queries a row asks: so many prompts are independent."""
    return len(set(row["query"].tolist()))


def mean(values: Floats, queries: NDArray | None = None, within: tuple[float, float] = ANYTHING) -> Interval:
    """The mean of values [N] or [D, N], with an interval over distinct queries; without one for one query.

    within: the least and the most that the values can be.
    """
    means = by_query(values, queries)
    if len(means) < 2:
        return Interval(float(means.mean()), np.nan, np.nan)
    return mean_interval(means, within=within)


def line_right(written: str, answer: str) -> bool:
    """Whether the first line that was written is the answer (acc_line)."""
    return written.strip().partition("\n")[0].strip() == answer


def prefix_right(written: str, answer: str) -> bool:
    """Whether it begins with the answer, as the reference code counts (acc_prefix), even as "running" for "run"."""
    return written.strip().startswith(answer)


@dataclass(frozen=True)
class Cost:
    """What an ablation costs: accuracy, with a p-value, and log-probability of the answer (nats), with an interval."""

    accuracy: float
    p: float
    log_prob: float
    low: float
    high: float


def costs(
    whole: Mapping[str, NDArray], ablated: Mapping[str, Mapping[str, NDArray]], queries: ArrayLike | None = None
) -> dict[str, Cost]:
    """The cost of each ablation of a map, of `right` and `log_prob` [N] or [D, N], corrected for the map.

    The accuracy has McNemar's exact test, corrected by Holm's method. The log-probability has an interval of the mean;
    those of the map hold together (Bonferroni). queries [N]: prompts that share one are one unit to both, and the
    log-probability is a mean of queries.
    """
    measured = {}
    corrected = holm([mcnemar(whole["right"], row["right"], queries) for row in ablated.values()])
    for (name, row), p in zip(ablated.items(), corrected, strict=True):
        lost = by_query(whole["log_prob"] - row["log_prob"], queries)
        measured[name] = Cost(
            float(whole["right"].mean() - row["right"].mean()),
            p,
            *mean_interval(lost, comparisons=len(ablated)),
        )
    return measured


def by_query(values: Floats, queries: ArrayLike | None = None) -> NDArray[np.float64]:
    """The means of values [N] or [D, N] over the prompts of each query."""
    sums, sizes = _sums([values, np.ones(np.shape(values))], queries)
    return sums / sizes


def score(
    circuit: Floats, full: Floats, none: Floats, queries: NDArray | None = None, draws: int = 2000, seed: int = 0
) -> Interval:
    """(acc(C) - acc(NONE)) / (acc(FULL) - acc(NONE)) of right or any measure [N] or [D, N].

    The 95 % interval resamples prompts for all three together; queries [N]: those that share one, together. Where they
    agree so well that it would have less width, it has that of `least_width`. NaN where the whole model is no better
    than NONE: there is nothing that a circuit could keep.
    """
    kept, whole, nothing = _sums([circuit, full, none], queries)
    worth = (whole - nothing).sum()
    if worth <= 0:
        return Interval(np.nan, np.nan, np.nan)
    weights = resampled(len(kept), draws, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = weights @ (kept - nothing) / (weights @ (whole - nothing))
    width = least_width(len(kept)) * np.atleast_2d(full).shape[1] / worth
    return _interval((kept - nothing).sum() / worth, ratios[np.isfinite(ratios)], width)


def ratio(circuit: Floats, full: Floats, queries: NDArray | None = None) -> Interval:
    """acc(C) / acc(FULL) of right answers [N] or [D, N], as in `score`: the share that a circuit explains."""
    return score(circuit, full, np.zeros_like(full), queries)


def deficit(
    circuit: Floats, full: Floats, queries: NDArray | None = None, draws: int = 2000, seed: int = 0
) -> Interval:
    """acc(FULL) - acc(C) of right [N] or [D, N], the same way."""
    kept, whole, counts = _sums([circuit, full, np.ones(np.shape(full))], queries)
    weights = resampled(len(kept), draws, seed)
    lost = weights @ (whole - kept) / (weights @ counts)
    return _interval((whole - kept).sum() / counts.sum(), lost, least_width(len(kept)))


def sure_losses(pairs: Mapping[str, tuple[Row, Row]], error: float = ERROR) -> dict[str, Interval]:
    """The ablations that surely lose accuracy, of all that are asked together, and how much each loses.

    pairs: by name, the rows of the whole and of the ablated model. A one-sided test of paired differences by query, see
    `stats.tests.paired_p`, corrected by Holm's method; the interval is that test's, without correction.
    """
    lost = {
        name: by_query(np.subtract(whole["right"], ablated["right"], dtype=float), whole["query"])
        for name, (whole, ablated) in pairs.items()
    }
    corrected = holm([paired_p(values) for values in lost.values()])
    return {
        name: paired_interval(values) for (name, values), p in zip(lost.items(), corrected, strict=True) if p <= error
    }


def without_context(losses: Mapping[str, Interval], margin: float, model: str) -> str:
    """Whether a model can tell what contextualisation is for: acc(FULL) - acc(AGG-ONLY) by task, in a sentence.

    It cannot where every interval is below the margin: demonstrations read alone then serve as well as those that read
    each other. It can where an interval is above 0; else the prompts are too few to say.
    """
    losing = [task for task, loss in losses.items() if loss.low > 0]
    task, largest = max(losses.items(), key=lambda item: item[1].value)
    most = f"in {task}: {largest}"
    if losing:
        return (
            f"{model} loses accuracy without contextualisation in {len(losing)} of {len(losses)} tasks (most {most})."
        )
    if all(loss.high < margin for loss in losses.values()):
        return (
            f"{model} answers every task with {names.AGG_ONLY} as well as with everything (largest loss, {most}): what "
            "contextualisation is for cannot be tested on it."
        )
    return f"Whether {model} needs contextualisation is undecided with these prompts (largest loss, {most})."


def query_alone(accuracy: Mapping[str, Mapping[str, Interval]], model: str) -> str:
    """How much of each task needs no demonstration: accuracies of QUERY-ONLY and without demonstrations, by task."""
    by_task = ", ".join(
        f"{task} {row[names.QUERY_ONLY].value:.2f} ({row[names.ALONE].value:.2f})" for task, row in accuracy.items()
    )
    return f"{model}, accuracy where no demonstration is read, by {names.QUERY_ONLY} (by the bare query): {by_task}."


def least_width(n: int) -> float:
    """How common something can be that none of n prompts shows (exact 95 % bound): 1 - 0.025^(1/n)."""
    return 1 - 0.025 ** (1 / n)


def _sums(parts: Sequence[Floats], queries: ArrayLike | None) -> list[NDArray[np.float64]]:
    """Sums over the prompts of each query, of the means over draws of donors."""
    means = [np.atleast_2d(part).mean(axis=0, dtype=np.float64) for part in parts]
    which = np.arange(len(means[0])) if queries is None else np.unique(queries, return_inverse=True)[1]
    return [np.bincount(which, part).astype(np.float64) for part in means]


def _interval(value: float, drawn: NDArray[np.float64], width: float) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(value), float(min(low, value - width)), float(max(high, value + width)))
