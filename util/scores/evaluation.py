"""How good scores of edges are: how faithful the circuits are that they choose, and how they rank.

Faithfulness, CPR and CMD are those of the MIB circuit track (Mueller et al. 2025, circuit localisation). CPR ranks
edges by signed scores and CMD by absolute ones; numbers of one ranking have been published as the other's.

Shapes: circuit [K, N], the metric, such as a logit difference, of every circuit on every prompt; full, empty [N], those
of the whole model, and with all edges corrupted; clusters [N]: prompts of one cluster are one sampled unit together,
without it each prompt is one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from util.scores.graph import Bools, ComponentGraph, Floats
from util.stats.intervals import Interval, Intervals, mean_interval, mean_intervals, ratio_of_means

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of all edges, in the MIB circuit track


def circuits_of(graph: ComponentGraph, scores: ArrayLike, *, absolute: bool) -> Bools:
    """The circuits [K, U, V] of int(share * number of edges) edges for each of SHARES, less those on no path.

    scores: [U, V]; absolute: ranked by absolute scores, for CMD; else by signed ones, for CPR. See
    `ComponentGraph.top`.
    """
    return np.stack([graph.top(scores, int(share * graph.size), absolute=absolute) for share in SHARES])


def faithfulness(circuit: Floats, full: Floats, empty: Floats, clusters: ArrayLike | None = None) -> Intervals:
    """f(k) of every circuit [K]; the intervals over prompts hold together for the curve (Bonferroni).

    f(k) = (m_circuit - m_empty) / (m_full - m_empty), of means over prompts: 0 is the model with all edges corrupted, 1
    the whole model. Beyond 1, and below 0, are possible. All of it is NaN where the whole model has no higher mean than
    the empty one: there is nothing to be faithful to.
    """
    linear = _linearised(circuit, full, empty, clusters)
    if linear is None:
        return Intervals(*np.full((3, len(circuit)), np.nan))
    around = mean_intervals(linear[1], comparisons=len(circuit))
    return Intervals(linear[0], around.low, around.high)


def area(
    circuit: Floats, full: Floats, empty: Floats, clusters: ArrayLike | None = None, *, absolute: bool
) -> Interval:
    """CPR, the integral of f [K] over k, or CMD (absolute), that of |1 - f|, with its 95 % interval over prompts.

    The circuits are those of SHARES. The integral is that of straight lines between the nominal shares, so a circuit
    that is always faithful (f = 1) has a CPR of .999 and a CMD of 0. CPR has no upper bound.

    The interval of CPR is that of a ratio of means. CMD is a sum of distances that cannot be below 0, which a bootstrap
    overstates near 0: there it never covers. So distances whose sign is certain, because the interval of f excludes 1,
    are summed with their interval; each other distance adds nothing to the lower end, and all that the interval of f
    allows to the upper one.
    """
    linear = _linearised(circuit, full, empty, clusters)
    if linear is None:
        return Interval(np.nan, np.nan, np.nan)
    (value, linearised), steps = linear, np.diff(SHARES)
    weights = (np.r_[0, steps] + np.r_[steps, 0]) / 2  # of trapezoids
    if not absolute:
        around = mean_interval(linearised @ weights)
        return Interval(float(value @ weights), around.low, around.high)
    together, alone = faithfulness(circuit, full, empty, clusters), mean_intervals(linearised)
    certain = (together.low > 1) | (together.high < 1)
    signs = np.where(certain, np.sign(1 - value), 0.0)
    around = mean_interval((1 - linearised) @ (weights * signs), within=(0, np.inf))
    farthest = np.where(certain, 0.0, np.maximum(np.abs(1 - alone.low), np.abs(1 - alone.high)))
    return Interval(float(np.abs(1 - value) @ weights), around.low, around.high + float(farthest @ weights))


def _linearised(
    circuit: Floats, full: Floats, empty: Floats, clusters: ArrayLike | None
) -> tuple[Floats, Floats] | None:
    """f [K], and its linearised values [C, K], see `ratio_of_means`; None where f is not defined."""
    if not full.mean(dtype=np.float64) > empty.mean(dtype=np.float64):
        return None
    full, empty = full.astype(np.float64), empty.astype(np.float64)
    return ratio_of_means((circuit - empty).T, full - empty, clusters)
