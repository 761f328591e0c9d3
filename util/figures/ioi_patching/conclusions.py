"""What the stored values of head patching on the IOI task say."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from util.figures.ioi_patching import measures
from util.figures.stored_roles import why_no_role
from util.show.conclusions import Conclusions, Values, counted, interval_at, listed, none_or, told, written
from util.stats.heads import Head, head_name
from util.stats.intervals import Interval

MATTERS = 0.01  # of the whole effect: what carries less is not spoken of
CHANNELS = ("query", "key", "value")
FAITHFUL = 0.9  # the share of the logit difference that a circuit should keep


def of(model: str) -> Conclusions:
    """What was found, of the committed models and of `model`."""
    return told("ioi_patching", sentences, model)


def sentences(values: Values) -> list[str]:
    """The primary endpoint, which heads carry the effect, which paths, how many are enough, and which edges scores see.

    values: of data/values/ioi_patching.json.
    """
    return [*_heads(values), *_paths(values), _circuit(values), *_edges(values)]


def _certain(interval: Interval) -> bool:
    """Whether an effect is larger than what matters, in either direction, by its interval."""
    return interval.low > MATTERS or interval.high < -MATTERS


def _each(arrays: Values) -> Iterator[tuple[Head, Interval]]:
    layers, heads = np.shape(arrays["value"])
    for layer in range(layers):
        for head in range(heads):
            yield (layer, head), interval_at(arrays, layer, head)


def carry_and_oppose(certain: Collection[str], measured: Mapping[str, Sequence[float]]) -> tuple[list[str], list[str]]:
    """The heads that carry the effect and those that work against the answer, each with its effect, in words.

    certain: heads that count for certain on all pairs; no other is named. measured: effects of heads on the half of
    the pairs that did not choose them (value, low, high), in the order in which they are named.
    """
    sure = {head: effect for head, effect in measured.items() if head in certain}
    carry = [f"{head} {written(effect)}" for head, effect in sure.items() if effect[1] > MATTERS]
    return carry, [f"{head} {written(effect)}" for head, effect in sure.items() if effect[2] < -MATTERS]


def _heads(values: Values) -> list[str]:
    found, number = values["population"], np.size(values["population"]["chosen"])
    certain = [head for head, effect in _each(found["noised"]) if _certain(effect)]
    first = max(np.ndindex(np.shape(found["chosen"])), key=lambda head: abs(found["chosen"][head[0]][head[1]]))
    said = [
        f"Primary endpoint: {head_name((first[0], first[1]))}, the strongest head on one half of the pairs, carries "
        f"{written(interval_at(found['measured'], *first))} of the effect on the other half.",
        f"The answer is above the other name in {written(found['accuracy'])} of {found['pairs']} pairs.",
        f"{none_or(len(certain)).capitalize()} of {number} heads {'carries' if len(certain) < 2 else 'carry'} more "
        "than a hundredth of the effect for certain.",
    ]
    strongest = sorted(certain, key=lambda head: -abs(found["chosen"][head[0]][head[1]]))[:6]
    measured = {head_name(head): interval_at(found["measured"], *head) for head in strongest}
    carry, oppose = carry_and_oppose(measured, measured)
    if carry:
        said[-1] += f" The strongest, on the other half of the pairs: {listed(carry)}."
    if oppose:
        said[-1] += f" Against the answer work {listed(oppose)}."
    parts = {
        head_name(head): (found["noised"]["value"][head[0]][head[1]], found["direct"][head[0]][head[1]])
        for head in strongest
    }
    without = why_no_role(parts, values["request"])
    said += [" ".join(without)] if without else []
    if values.get("untrained"):
        blind = [head for head, effect in _each(values["untrained"]["heads"]) if effect.low > 0 or effect.high < 0]
        are = "are" if len(blind) > 1 else "is"
        said.append(f"With fresh weights {none_or(len(blind))} of {number} heads {are} beyond chance.")
    return said


def _paths(values: Values) -> list[str]:
    paths = values["paths"]
    if None in paths["direct"]["value"]:  # the class has no paths
        return []
    heads = [(int(layer), int(head)) for layer, head in paths["heads"]]
    writers = {
        head: interval_at(paths["direct"], place)
        for place, head in enumerate(heads)
        if _certain(interval_at(paths["direct"], place))
    }
    named = sorted(writers, key=lambda head: -abs(writers[head].value))
    written_by = listed([f"{head_name(head)} {writers[head]}" for head in named[:4]])
    said = [
        f"Heads that write to the output, through MLPs: {written_by}."
        if named
        else "None of the strongest heads writes to the output."
    ]
    told = []
    for sender, first in enumerate(heads):
        for receiver, second in enumerate(heads):
            if paths["edges"]["value"][sender][receiver] is None:
                continue
            effect = interval_at(paths["edges"], sender, receiver)
            if _certain(effect):
                by = max(CHANNELS, key=lambda name: abs(paths[name]["value"][sender][receiver]))
                told.append((abs(effect.value), f"{head_name(first)} to {head_name(second)}'s {by} {effect}"))
    if not told:
        return [*said, "Between them no path carries more than a hundredth for certain."]
    strongest = [text for _, text in sorted(told, reverse=True)[:4]]
    matter = "matters" if len(told) == 1 else "matter"
    which = "The strongest" if len(told) > len(strongest) else "They are" if len(told) > 1 else "It is"
    return [*said, f"Between heads {counted(len(told), 'path')} {matter} for certain. {which}: {listed(strongest)}."]


def _circuit(values: Values) -> str:
    circuit, number = values["circuit"], np.size(values["population"]["chosen"])
    kept = {int(size): Interval(*share) for size, share in circuit["faithfulness"].items() if share[0] is not None}
    if not kept:
        return "The model does not do the task, so there is no circuit to look for."
    dip = measures.dip(kept)
    first = dip[0] if dip else circuit["reached"][str(FAITHFUL)] or max(kept, key=lambda size: kept[size].value)
    recovers = [size for size in kept if dip and size > dip[1] and kept[size].value > kept[first].value]
    sizes = [first, *([dip[1], *recovers[:1]] if dip else [])]
    random = [f"{max(circuit['random'][str(size)]) / circuit['whole'][0]:.2f}" for size in sizes]
    said = [
        f"The logit difference on fresh pairs is {written(circuit['whole'])}.",
        f"With all others ablated to their means, {first} of {number} heads keep {kept[first]} of it.",
        f"As many random heads keep at most {listed(random)}.",
    ]
    if dip:
        larger = listed([f"{size} keep {kept[size].value:.2f}" for size in sizes[1:]])
        said[1] += f" The strongest {larger}."
        said.append("Mean ablation of most heads breaks the model, so this curve does not count the circuit.")
    return " ".join(said)


def _edges(values: Values) -> list[str]:
    graph = values["component graph"]
    if "refused" in graph:
        return []
    said = [
        f"Of {graph['drawn']:,} edges that were measured {counted(graph['matter'], 'carries', 'carry')} more than a "
        "hundredth of the effect for certain."
    ]
    if not graph["matter"]:
        return said
    shares = [f"{written(share)} by {method}" for method, share in graph["found"].items()]
    said.append(f"Among as many edges with the highest scores is this share of them: {listed(shares)}.")
    name, largest = max(graph["strongest"].items(), key=lambda edge: abs(edge[1]["exact"][0]))
    estimates = listed([f"{method} {largest[method]:.2f}" for method in _estimates(graph)])
    said.append(f"The largest, `{name}`, carries {written(largest['exact'])}; estimates are {estimates}.")
    return [" ".join(said), *few_edges(graph), *_areas(graph)]


def _estimates(graph: Values) -> list[str]:
    return [method for method in graph["found"] if method != "exact"]


def few_edges(graph: Values) -> list[str]:
    """How many edges keep nine tenths of the effect, by the estimate that needs the fewest; none if none does.

    graph: the stored values of the component graph. Edges are ranked by absolute scores; sizes are those that were run.
    """
    enough = []
    for method in _estimates(graph):
        curve = graph["curves"][method]["CMD"]
        share = next((at for at, kept in enumerate(curve["faithfulness"]["value"]) if (kept or 0) >= FAITHFUL), None)
        if share is not None:
            enough.append((curve["sizes"][share], share, method))
    if not enough:
        return []
    size, share, method = min(enough)
    curves = graph["curves"]
    number, kept = curves[method]["CMD"]["sizes"][-1], interval_at(curves[method]["CMD"]["faithfulness"], share)
    random = [curve["CMD"]["faithfulness"]["value"][share] for name, curve in curves.items() if "random" in name]
    beside = f" Random rankings keep at most {max(random):.2f}." if random else ""
    return [
        f"By {method} {size:,} of {number:,} edges ({100 * size / number:.1g} %) keep {kept} of the effect, "
        f"where all others read the corrupted prompt.{beside}"
    ]


def _areas(graph: Values) -> list[str]:
    """CPR and CMD of every score."""
    said = []
    for measure, best in (("CPR", 1), ("CMD", 0)):
        areas = {method: curve[measure][measure] for method, curve in graph["curves"].items()}
        if any(area[0] is None for area in areas.values()):
            continue
        random = [area[0] for method, area in areas.items() if method.startswith("random")]
        overshoot = "; values above 1 are overshoot" if measure == "CPR" else ""
        told = [f"{measure} is {best} where every circuit is faithful{overshoot}."]
        told += [f"By {method} it is {written(areas[method])}." for method in graph["found"]]
        told.append(f"By random rankings it is {min(random):.3f} to {max(random):.3f}.")
        if measure == "CPR":
            told += [text for method in _estimates(graph) for text in deciding_edge(graph, method)]
        said.append(" ".join(told))
    return said


def deciding_edge(graph: Values, method: str) -> list[str]:
    """Whether the wrong sign of one edge decides the CPR of a score, in words; nothing if none does, or several do.

    graph: as in `few_edges`. Signed rankings put edges with negative scores last. So an edge that carries more than
    half of the effect and has a negative score is missing from every circuit but the whole. It decides the CPR where
    none of these circuits keeps more than the model does without this edge.
    """
    wrong = {name: edge for name, edge in graph["strongest"].items() if edge[method] < 0 and edge["exact"][1] > 0.5}
    best = max(graph["curves"][method]["CPR"]["faithfulness"]["value"][:-1])
    if len(wrong) != 1 or best > 1 - next(iter(wrong.values()))["exact"][1]:
        return []
    [(name, edge)] = wrong.items()
    return [
        f"One edge decides the CPR of {method}: `{name}` carries {written(edge['exact'])} and scores "
        f"{edge[method]:.2f}.",
        f"Signed rankings leave it out until last; without it no circuit keeps more than {best:.2f}.",
    ]
