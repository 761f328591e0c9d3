"""Edge ablation, from arrays alone: accuracies, what edges cost, how well a circuit stands for the whole model.

Bakalova et al., COLM 2025; right [N] or, with several draws of donors, [D, N] says which prompts are answered right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.measures.statistics import bootstrap_mean, mcnemar, t_interval

Floats = NDArray[np.floating]
Interval = tuple[float, float, float]  # value, low, high


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


def costs(whole: Mapping[str, NDArray], ablated: Mapping[str, Mapping[str, NDArray]]) -> dict[str, Cost]:
    """The cost of each ablation of a map, of `right` and `log_prob` [N], corrected for the whole map (Bonferroni).

    McNemar's exact test for the accuracy, Student's t for the log-probability.
    """
    found = {}
    for name, each in ablated.items():
        lost = whole["log_prob"] - each["log_prob"]
        found[name] = Cost(
            float(whole["right"].mean() - each["right"].mean()),
            min(1.0, len(ablated) * mcnemar(whole["right"], each["right"])),
            *map(float, t_interval(lost, comparisons=len(ablated))),
        )
    return found


def score(circuit: Floats, full: Floats, none: Floats, draws: int = 2000, seed: int = 0) -> Interval:
    """(acc(C) - acc(NONE)) / (acc(FULL) - acc(NONE)) of right or any measure [N] or [D, N], prompts resampled together.

    NaN where the whole model is no better than NONE: there is nothing that a circuit could keep.
    """
    parts = [np.atleast_2d(part).mean(axis=0, dtype=np.float64) for part in (circuit, full, none)]
    if parts[1].mean() <= parts[2].mean():
        return (np.nan,) * 3
    n = len(parts[0])
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    kept, whole, nothing = (weights @ part for part in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (kept - nothing) / (whole - nothing)
    low, high = np.quantile(ratios[np.isfinite(ratios)], [0.025, 0.975])
    value = (parts[0].mean() - parts[2].mean()) / (parts[1].mean() - parts[2].mean())
    return float(value), float(low), float(high)


def ratio(circuit: Floats, full: Floats) -> Interval:
    """acc(C) / acc(FULL), the same way: the share of the model's performance that a circuit explains."""
    return score(circuit, full, np.zeros_like(full))


def deficit(circuit: Floats, full: Floats) -> Interval:
    """acc(FULL) - acc(C) of right [N] or [D, N], prompts resampled together."""
    lost = np.atleast_2d(full).mean(axis=0, dtype=np.float64) - np.atleast_2d(circuit).mean(axis=0, dtype=np.float64)
    value, low, high = bootstrap_mean(lost)
    return float(value), float(low), float(high)


def growth(more: Interval, less: Interval) -> Interval:
    """How much larger one of two values is that were measured on different prompts; their errors add in squares."""
    value = more[0] - less[0]
    return (
        value,
        value - float(np.hypot(more[0] - more[1], less[2] - less[0])),
        value + float(np.hypot(more[2] - more[0], less[0] - less[1])),
    )


def verdict(found: Interval, bound: float, at_least: bool = True) -> str:
    """Whether a value is at least (or at most) a bound: "holds" and "refuted" where its whole interval says so."""
    value, low, high = found if at_least else (-found[0], -found[2], -found[1])
    bound = bound if at_least else -bound
    return "holds" if low >= bound else "refuted" if high < bound else "undecided"


def rank_p(value: float, controls: Sequence[float]) -> float:
    """How rare it is among random circuits to score as high, (1 + #{control >= value}) / (1 + n)."""
    return (1 + sum(control >= value for control in controls)) / (1 + len(controls))
