"""What is concluded of sets of heads and of edges, in sentences that are made of stored values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from util.figures.ioi_patching.numbers import CARRIES, EXACT, KEPT, METHODS
from util.show.part import Values
from util.show.words import counted, interval_at, listed, written
from util.stats.intervals import Interval


def carry_and_oppose(certain: Collection[str], measured: Mapping[str, Sequence[float]]) -> tuple[list[str], list[str]]:
    """The heads that carry the effect and those that work against the answer, each with its effect, in words.

    certain: heads that count for certain on all pairs; no other is named. measured: effects of heads on the half of
    the pairs that did not choose them (value, low, high), in the order in which they are named.
    """
    sure = {head: effect for head, effect in measured.items() if head in certain}
    carry = [f"{head} {written(effect)}" for head, effect in sure.items() if effect[1] > CARRIES]
    return carry, [f"{head} {written(effect)}" for head, effect in sure.items() if effect[2] < -CARRIES]


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


def circuit_concludes(values: Values) -> str:
    """How many heads are enough."""
    circuit, number, kept = values["circuit"], np.size(values["population"]["chosen"]), kept_alone(values)
    if not kept:
        return "The model does not do the task, so there is no circuit to look for."
    low = dip(kept)
    first = low[0] if low else circuit["reached"][str(KEPT)] or max(kept, key=lambda size: kept[size].value)
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
    said = [
        f"Of {graph['drawn']:,} edges that were measured {counted(graph['matter'], 'carries', 'carry')} more than a "
        "hundredth of the effect for certain."
    ]
    if not graph["matter"]:
        yield said[0]
        return
    shares = [f"{written(share)} by {method}" for method, share in graph["found"].items()]
    said.append(f"Among as many edges with the highest scores is this share of them: {listed(shares)}.")
    name, largest = max(graph["strongest"].items(), key=lambda edge: abs(edge[1][EXACT][0]))
    estimates = listed([f"{method} {largest[method]:.2f}" for method in METHODS])
    said.append(f"The largest, `{name}`, carries {written(largest[EXACT])}; estimates are {estimates}.")
    yield " ".join(said)
    yield few_edges(graph)
    for measure, best in (("CPR", "1"), ("CMD", "0")):
        areas = {method: curve[measure][measure] for method, curve in graph["curves"].items()}
        if not np.isfinite(np.array([*areas.values()], dtype=float)).all():
            continue
        random = [area[0] for method, area in areas.items() if method.startswith("random")]
        overshoot = "; values above 1 are overshoot" if measure == "CPR" else ""
        told = [f"{measure} is {best} where every circuit is faithful{overshoot}."]
        told += [f"By {method} it is {written(areas[method])}." for method in graph["found"]]
        told.append(f"By random rankings it is {min(random):.3f} to {max(random):.3f}.")
        deciding = [text for method in METHODS if measure == "CPR" for text in deciding_edge(graph, method)]
        yield " ".join(told + deciding)


def few_edges(graph: Values) -> str:
    """How many edges keep nine tenths of the effect, by the estimate that needs the fewest; "" if none does.

    graph: the stored values of the component graph. Edges are ranked by absolute scores; sizes are those that were run.
    """
    enough = []
    for method in METHODS:
        curve = graph["curves"][method]["CMD"]
        share = next((at for at, kept in enumerate(curve["faithfulness"]["value"]) if (kept or 0) >= KEPT), None)
        if share is not None:
            enough.append((int(curve["sizes"][share]), share, method))
    if not enough:
        return ""
    size, share, method = min(enough)
    curves = graph["curves"]
    number, kept = int(curves[method]["CMD"]["sizes"][-1]), interval_at(curves[method]["CMD"]["faithfulness"], share)
    random = [curve["CMD"]["faithfulness"]["value"][share] for name, curve in curves.items() if "random" in name]
    return (
        f"By {method} {size:,} of {number:,} edges ({100 * size / number:.1g} %) keep {kept} of the effect, "
        f"where all others read the corrupted prompt. Random rankings keep at most {max(random):.2f}."
    )


def deciding_edge(graph: Values, method: str) -> list[str]:
    """Whether the wrong sign of one edge decides the CPR of a score, in words; nothing if none does, or several do.

    graph: as in `few_edges`. Signed rankings put edges with negative scores last. So an edge that carries more than
    half of the effect and has a negative score is missing from every circuit but the whole. It decides the CPR where
    none of these circuits keeps more than the model does without this edge.
    """
    wrong = {name: edge for name, edge in graph["strongest"].items() if edge[method] < 0 and edge[EXACT][1] > 0.5}
    best = max(graph["curves"][method]["CPR"]["faithfulness"]["value"][:-1])
    if len(wrong) != 1 or best > 1 - next(iter(wrong.values()))[EXACT][1]:
        return []
    [(name, edge)] = wrong.items()
    return [
        f"One edge decides the CPR of {method}: `{name}` carries {written(edge[EXACT])} and scores {edge[method]:.2f}.",
        f"Signed rankings leave it out until last; without it no circuit keeps more than {best:.2f}.",
    ]
