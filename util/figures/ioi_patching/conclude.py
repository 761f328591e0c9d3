"""What is concluded of sets of heads and of edges, in sentences that are made of stored values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from util.figures.ioi_patching.numbers import KEPT, METHODS
from util.show.part import Values
from util.show.words import interval_at, listed, written
from util.stats.intervals import Interval


def kept_alone(values: Values) -> dict[int, Interval]:
    """The faithfulness of the strongest heads alone, by their number; empty where the model does not do the task."""
    circuit = values["circuit"]
    shares = circuit["faithfulness"].items() if circuit["whole"][1] > 0 else ()
    return {int(size): Interval(*share) for size, share in shares}


def dip(kept: Mapping[int, Interval]) -> tuple[int, int] | None:
    """The sizes of two sets of which the larger surely keeps less than the smaller; None without such sets.

    The larger is the one that keeps least; the smaller is, of those before it, the one that keeps most.
    """
    for low in sorted(kept, key=lambda size: kept[size].value):
        best = max((size for size in kept if size < low), key=lambda size: kept[size].value, default=low)
        if kept[low].high < kept[best].low:
            return best, low
    return None


def told_sizes(kept: Mapping[int, Interval], heads: int) -> list[int]:
    """The sizes of the sets that are told: the least of up to half of the heads that keeps nine tenths, or the best.

    Where there is a dip, those of its sets instead, and of the next that keeps more again. kept: see `kept_alone`.
    """
    if sizes := dip(kept):
        recovers = [size for size in kept if size > sizes[1] and kept[size].value > kept[sizes[0]].value]
        return [*sizes, *recovers[:1]]
    small = [size for size in kept if size <= heads / 2]
    best = max(small, key=lambda size: kept[size].value)
    return [next((size for size in small if kept[size].value >= KEPT), best)]


def circuit_concludes(values: Values) -> str:
    """How many heads are enough."""
    circuit, number, kept = values["circuit"], np.size(values["population"]["chosen"]), kept_alone(values)
    if not kept:
        return "The model does not do the task, so there is no circuit to look for."
    sizes = told_sizes(kept, number)
    random = [f"{max(circuit['random'][str(size)]) / circuit['whole'][0]:.2f}" for size in sizes]
    said = [
        f"The logit difference on fresh pairs is {written(circuit['whole'])}.",
        f"With all others ablated to their means, {sizes[0]} of {number} heads keep {kept[sizes[0]]} of it.",
        f"As many random heads keep at most {listed(random)}.",
    ]
    if len(sizes) > 1:
        larger = listed([f"{size} keep {kept[size].value:.2f}" for size in sizes[1:]])
        said[1] += f" The strongest {larger}."
        said.append("Mean ablation of most heads breaks the model, so this curve does not count the circuit.")
    return " ".join(said)


def few_edges(graph: Values) -> str:
    """How many edges keep nine tenths of the effect, by the estimate that needs the fewest; "" if none does.

    graph: the stored values of the component graph. Edges are ranked by absolute scores; sizes are those that were run.
    """
    curves = {name: found["CMD"] for name, found in graph["curves"].items()}
    enough = [
        (int(curves[method]["sizes"][at]), at, method)
        for method in METHODS
        for at, kept in enumerate(curves[method]["faithfulness"]["value"])
        if (kept or 0) >= KEPT
    ]
    if not enough:
        return ""
    size, at, method = min(enough)
    number, kept = int(curves[method]["sizes"][-1]), interval_at(curves[method]["faithfulness"], at)
    random = [curve["faithfulness"]["value"][at] for name, curve in curves.items() if "random" in name]
    return (
        f"By {method} {size:,} of {number:,} edges ({100 * size / number:.1f} %) keep {kept} of the effect, "
        f"where all others read the corrupted prompt. Random rankings keep at most {max(random):.2f}."
    )
