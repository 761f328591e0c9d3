"""What is concluded of sets of heads and of edges, in sentences that are made of stored values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from util.figures.ioi_patching.numbers import EXACT, KEPT, METHODS
from util.show.part import Values
from util.show.words import counted, interval_at, listed, written
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


def few_heads(kept: Mapping[int, Interval], heads: int) -> int:
    """The size of the set that is told: before a dip the best; else the least of up to half of the heads that keeps
    nine tenths, or of these the best.

    kept: as `kept_alone` has it.
    """
    if low := dip(kept):
        return low[0]
    small = [size for size in kept if size <= heads / 2]
    best = max(small, key=lambda size: kept[size].value)
    return next((size for size in small if kept[size].value >= KEPT), best)


def circuit_concludes(values: Values) -> str:
    """How many heads are enough."""
    circuit, number, kept = values["circuit"], np.size(values["population"]["chosen"]), kept_alone(values)
    if not kept:
        return "The model does not do the task, so there is no circuit to look for."
    low, first = dip(kept), few_heads(kept, number)
    recovers = [size for size in kept if low and size > low[1] and kept[size].value > kept[first].value]
    sizes = [first, *([low[1], *recovers[:1]] if low else [])]
    random = [f"{max(circuit['random'][str(size)]) / circuit['whole'][0]:.2f}" for size in sizes]
    said = [
        f"The logit difference on fresh pairs is {written(circuit['whole'])}.",
        f"With all others ablated to their means, {first} of {number} heads keep {kept[first]} of it.",
        f"As many random heads keep at most {listed(random)}.",
    ]
    if low:
        larger = listed([f"{size} keep {kept[size].value:.2f}" for size in sizes[1:]])
        said[1] += f" The strongest {larger}."
        said.append("Mean ablation of most heads breaks the model, so this curve does not count the circuit.")
    return " ".join(said)


def edges_conclude(values: Values) -> Iterator[str]:
    """How many edges carry the effect, which share of them scores find, and how good circuits of edges are."""
    graph = values["component graph"]
    if "refused" in graph:
        return
    carry = counted(graph["matter"], "carries", "carry")
    said = f"Of {graph['drawn']:,} edges that were measured {carry} more than a hundredth of the effect for certain."
    if not graph["matter"]:
        yield said
        return
    shares = listed([f"{written(share)} by {method}" for method, share in graph["found"].items()])
    name, largest = max(graph["strongest"].items(), key=lambda edge: abs(edge[1][EXACT][0]))
    estimates = listed([f"{method} {largest[method]:.2f}" for method in METHODS])
    yield (
        f"{said} Among as many edges with the highest scores is this share of them: {shares}. "
        f"The largest, `{name}`, carries {written(largest[EXACT])}; estimates are {estimates}."
    )
    yield few_edges(graph)
    areas = {
        measure: listed([f"{written(graph['curves'][method][measure][measure])} by {method}" for method in METHODS])
        for measure in ("CPR", "CMD")
    }
    yield (
        f"CPR is 1 where every circuit is faithful; values above 1 are overshoot. It is {areas['CPR']}. "
        f"CMD is 0 where every circuit is faithful. It is {areas['CMD']}."
    )


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
