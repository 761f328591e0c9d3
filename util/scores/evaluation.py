"""How good scores of edges are: how faithful the circuits are that they choose, and how they rank.

Faithfulness, CPR and CMD are those of the MIB circuit track (Mueller et al. 2025, circuit localisation). CPR ranks
edges by signed scores and CMD by absolute ones; numbers of one ranking have been published as the other's. So
`Circuits` are told once how they rank, and what is measured of them, a `Curve`, has one area: CPR, or CMD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from util.scores.graph import Bools, ComponentGraph, Floats
from util.stats.intervals import Interval, Intervals, mean_interval, mean_intervals, ratio_of_means

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of all edges, in the MIB circuit track


@dataclass(frozen=True)
class Circuits:
    """Circuits of growing size, chosen by one ranking of all edges.

    shares [K]: nominal sizes, ascending, as shares of all edges. edges [K, U, V]: which are in each circuit. absolute:
    ranked by absolute scores, for CMD; else by signed ones, for CPR.
    """

    graph: ComponentGraph
    shares: tuple[float, ...]
    edges: Bools
    absolute: bool

    @classmethod
    def of(
        cls, graph: ComponentGraph, scores: ArrayLike, *, absolute: bool, shares: tuple[float, ...] = SHARES
    ) -> Circuits:
        """The circuits of int(share * number of edges) edges each, less those on no path, see `ComponentGraph.top`.

        scores: [U, V]. Raises ValueError for scores that the graph refuses, and for shares as in `Curve`.
        """
        check_shares(shares)
        chosen = [graph.top(scores, int(share * graph.size), absolute=absolute) for share in shares]
        return cls(graph, tuple(shares), np.stack(chosen), absolute)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many edges each circuit has [K]: fewer than int(share * number of edges) where some are on no path."""
        return self.edges.sum(axis=(1, 2))

    def measured(
        self, circuit: ArrayLike, full: ArrayLike, empty: ArrayLike, clusters: ArrayLike | None = None
    ) -> Curve:
        """What was measured of these circuits, see `Curve`: circuit [K, N], full [N], empty [N], clusters [N]."""
        run, whole, nothing = np.asarray(circuit), np.asarray(full), np.asarray(empty)
        return Curve(self.shares, self.sizes, self.absolute, run, whole, nothing, clusters)


def check_shares(shares: tuple[float, ...]) -> None:
    """Raises ValueError unless there are at least two shares, ascending, above 0 and at most 1."""
    if len(shares) < 2 or not shares[0] > 0 or shares[-1] > 1 or not all(np.diff(shares) > 0):
        raise ValueError(f"shares = {shares}: give at least two, in ascending order, above 0 and at most 1")


@dataclass(frozen=True)
class Curve:
    """The faithfulness of circuits of growing size, and the area under it or beside it.

    f(k) = (m_circuit - m_empty) / (m_full - m_empty), of means over prompts: 0 is the model with all edges corrupted, 1
    the whole model. Beyond 1, and below 0, are possible. All of it is NaN where the whole model has no higher mean than
    the empty one.

    shares [K]: nominal sizes of the circuits, as shares of all edges. sizes [K]: how many edges they have. absolute:
    how edges were ranked, see `Circuits`. circuit [K, N]: the metric, such as a logit difference, of every circuit on
    every prompt. full, empty [N]: those of the whole model, and with all edges corrupted. clusters [N]: prompts of one
    cluster are one sampled unit together; without it each prompt is one. Raises ValueError for shapes that do not
    fit, for shares that do not ascend within 0 and 1, for a metric that is not finite and for fewer than two units.
    """

    shares: tuple[float, ...]
    sizes: NDArray[np.integer]
    absolute: bool
    circuit: NDArray[np.floating]
    full: NDArray[np.floating]
    empty: NDArray[np.floating]
    clusters: ArrayLike | None = None

    def __post_init__(self) -> None:
        check_shares(self.shares)
        sizes, prompts = len(self.shares), np.shape(self.full)
        shapes = {"sizes": (sizes,), "circuit": (sizes, *prompts), "empty": prompts}
        if self.clusters is not None:
            shapes["clusters"] = prompts
        for name, shape in shapes.items():
            if np.shape(getattr(self, name)) != shape or len(prompts) != 1:
                raise ValueError(
                    f"{name} is {np.shape(getattr(self, name))}, for {sizes} shares and full {prompts}; "
                    "a curve needs sizes [K], circuit [K, N], full [N], empty [N]"
                )
        for name in ("circuit", "full", "empty"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} has entries that are not finite")
        units = prompts[0] if self.clusters is None else len(np.unique(self.clusters))
        if units < 2:
            raise ValueError(f"an interval needs at least two sampled units, got {units}")

    @property
    def measure(self) -> str:
        """The name of the area: "CMD" of absolute rankings, "CPR" of signed ones."""
        return "CMD" if self.absolute else "CPR"

    @property
    def defined(self) -> bool:
        """Whether the whole model has a higher mean than the empty one: else there is nothing to be faithful to."""
        return float(np.mean(self.full, dtype=np.float64)) > float(np.mean(self.empty, dtype=np.float64))

    def _linearised(self) -> tuple[Floats, Floats]:
        """f [K], and its linearised values [C, K], see `ratio_of_means`."""
        full, empty = self.full.astype(np.float64), self.empty.astype(np.float64)
        return ratio_of_means((self.circuit - empty).T, full - empty, self.clusters)

    @property
    def faithfulness(self) -> Intervals:
        """f(k) of every circuit [K]; the intervals over prompts hold together for the curve (Bonferroni)."""
        if not self.defined:
            return Intervals(*np.full((3, len(self.shares)), np.nan))
        value, linearised = self._linearised()
        around = mean_intervals(linearised, comparisons=len(value))
        return Intervals(value, around.low, around.high)

    @property
    def area(self) -> Interval:
        """CPR, the integral of f over k, or CMD, that of |1 - f|, with its 95 % interval over prompts.

        Which of them it is, `measure` says. The integral is that of straight lines between the nominal shares, so a
        circuit that is always faithful (f = 1) has a CPR of .999 and a CMD of 0. CPR has no upper bound.

        The interval of CPR is that of a ratio of means. CMD is a sum of distances that cannot be below 0, which a
        bootstrap overstates near 0: there it never covers. So distances whose sign is certain, because the interval
        of f excludes 1, are summed with their interval; each other distance adds nothing to the lower end, and all
        that the interval of f allows to the upper one.
        """
        if not self.defined:
            return Interval(np.nan, np.nan, np.nan)
        value, linearised = self._linearised()
        weights = trapezoid_weights(self.shares)
        if not self.absolute:
            around = mean_interval(linearised @ weights)
            return Interval(float(value @ weights), around.low, around.high)
        together, alone = self.faithfulness, mean_intervals(linearised)
        certain = (together.low > 1) | (together.high < 1)
        signs = np.where(certain, np.sign(1 - value), 0.0)
        around = mean_interval((1 - linearised) @ (weights * signs), within=(0, np.inf))
        farthest = np.where(certain, 0.0, np.maximum(np.abs(1 - alone.low), np.abs(1 - alone.high)))
        return Interval(float(np.abs(1 - value) @ weights), around.low, around.high + float(farthest @ weights))

    def table(self) -> pd.DataFrame:
        f = self.faithfulness
        rows = {"edges": self.sizes, "faithfulness": [str(f[place]) for place in range(len(self.shares))]}
        return pd.DataFrame(rows, pd.Index([f"{share:.1%}" for share in self.shares], name="nominal size"))

    def lines(self) -> list[str]:
        ranking = "absolute scores" if self.absolute else "signed scores"
        return [f"{self.measure} {self.area} (edges ranked by {ranking})"]

    def values(self) -> dict[str, Any]:
        return {
            self.measure: self.area,
            "faithfulness": self.faithfulness,
            "shares": list(self.shares),
            "sizes": self.sizes,
        }


def trapezoid_weights(shares: tuple[float, ...]) -> Floats:
    """What each value at the shares [K] counts in the integral of straight lines between them, [K]."""
    steps = np.diff(shares)
    return (np.r_[0, steps] + np.r_[steps, 0]) / 2


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's rank correlation of two scores of the same entries [E], such as scores[graph.edges].

    NaN where one of them has the same value everywhere. Raises ValueError for arrays that are not [E] both, for fewer
    than two entries, and for scores that are not finite.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise ValueError(f"scores {a.shape} and {b.shape}: give one dimension, such as scores[graph.edges]")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("some scores are not finite; give those entries that both have")
    return float(stats.spearmanr(a, b).statistic) if np.ptp(a) > 0 and np.ptp(b) > 0 else np.nan
