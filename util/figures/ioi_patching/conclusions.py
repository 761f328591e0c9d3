"""What the stored values of head patching on the IOI task say."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from util.figures.conclusions import Conclusions, Values, counted, in_words, interval_at, listed, none_or, told, written
from util.stats.heads import Head, head_name
from util.stats.intervals import Interval

MATTERS = 0.01  # of the whole effect: what carries less is not spoken of
CHANNELS = ("query", "key", "value")
FAITHFUL = 0.9  # the share of the logit difference that a circuit should keep


def of(model: str) -> Conclusions:
    """What was found, of the committed models and of `model`."""
    return told("ioi_patching", sentences, model)


def sentences(values: Values) -> list[str]:
    """Which heads carry the effect, which paths, how many are enough, and which edges scores see.

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
    said = [
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
    if values.get("untrained"):
        blind = [head for head, effect in _each(values["untrained"]["heads"]) if effect.low > 0 or effect.high < 0]
        are = "are" if len(blind) > 1 else "is"
        said.append(f"With fresh weights {none_or(len(blind))} of {number} heads {are} beyond chance.")
    return said


def _paths(values: Values) -> list[str]:
    paths = values["paths"]
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
    enough = circuit["reached"][str(FAITHFUL)]
    small = max((size for size in kept if size <= 4), default=min(kept))
    sizes = ", ".join(map(str, kept))
    said = [
        f"The logit difference on fresh pairs is {written(circuit['whole'])}; "
        f"{in_words(small)} heads alone keep {kept[small]} of it.",
        f"The strongest {sizes} of {number} heads keep {', '.join(f'{share.value:.2f}' for share in kept.values())}.",
    ]
    random = circuit["random"].get(str(enough))
    if random:
        best = max(random) / circuit["whole"][0]
        said.append(f"The best of {len(random)} random sets of {enough} keeps {best:.2f}.")
    return " ".join(said)


def _edges(values: Values) -> list[str]:
    graph = values["component graph"]
    said = [
        f"Of {graph['drawn']:,} edges that were measured {counted(graph['matter'], 'carries', 'carry')} more than a "
        "hundredth of the effect for certain."
    ]
    if not graph["matter"]:
        return said
    shares = [f"{written(share)} by {method}" for method, share in graph["found"].items()]
    said.append(f"Among as many edges with the highest scores is this share of them: {listed(shares)}.")
    name, largest = max(graph["strongest"].items(), key=lambda edge: abs(edge[1]["exact"][0]))
    estimates = listed([f"{method} {largest[method]:.2f}" for method in graph["found"] if method != "exact"])
    said.append(f"The largest, `{name}`, carries {written(largest['exact'])}; estimates are {estimates}.")
    circuits = []
    for measure, better in (("CPR", "more"), ("CMD", "less")):
        areas = {method: curve[measure][measure] for method, curve in graph["curves"].items()}
        if any(area[0] is None for area in areas.values()):
            continue
        random = [area[0] for method, area in areas.items() if method.startswith("random")]
        scored = listed([f"{method} {written(areas[method])}" for method in graph["found"]])
        circuits.append(
            f"Circuits by {measure} ({better} is better): {scored}; random rankings "
            f"{min(random):.3f} to {max(random):.3f}."
        )
    return [" ".join(said), *circuits]
