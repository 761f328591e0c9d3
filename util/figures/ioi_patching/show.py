"""The figure of head patching in indirect object identification (Cohen, project 41; Wang et al. 2022).

Here are its settings, and the sentences and tables that are made of its numbers; `pictures` has the panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from util.figures import by_head, stored_atlas, why_no_role
from util.figures.ioi_patching import numbers, pictures
from util.figures.ioi_patching.numbers import CARRIES, CHANNELS, EXACT, KEPT, METHODS, carriers, intervals
from util.prompts.ioi import Corruption, pair_from_texts
from util.show.circuit_diagram import LABELLED, LOGITS, Edge, Node, circuit_grid
from util.show.draw import Grid
from util.show.part import Figure, Part, Values, interval_at, listed, say, title, written
from util.stats.heads import Head, head_name, heads_where, top
from util.stats.intervals import Interval
from util.study.checked import AsList, Count, Natural, Text, checked

EXAMPLE = (
    "When Mike and Emma went to the cafe, Emma gave a coffee to",
    "When Mike and Emma went to the cafe, Mike gave a coffee to",
)
NAMES = ("Mike", "Emma")
TWO = Annotated[tuple[Text, Text], AsList]
SPOKEN = 6  # heads that carry most
HEADS = 8  # in the table


@checked
class Settings:
    """What is measured, see notebook 03.

    corruption: how a source differs from its base; prompts: how many pairs are drawn, by `seed`. Sets of heads and
    paths are measured on fresh pairs. texts: base and source of the project's example; names: the answer of the base,
    and the name that it repeats; shown_layer: whose activations are shown, by default that of the strongest head.
    random_sets: of each size, which the strongest heads are compared with. path_heads: between how many heads paths are
    patched. edge_pairs: on how many pairs edges are scored, and on how many fresh ones they are judged; exact_edges: of
    how many edges exact effects are measured. untrained_control: whether the untrained twin is measured too. held_out:
    whether frames and names are those that the embedded model was not trained on; None: for the embedded model.
    """

    corruption: Corruption = "s2_swap"
    prompts: Annotated[Count, Field(ge=8)] = 128  # a half of them chooses heads, the other half needs intervals
    seed: Natural = 0
    texts: TWO = EXAMPLE
    names: TWO = NAMES
    shown_layer: Natural | None = None
    random_sets: Count = 5
    path_heads: Count = 16
    edge_pairs: Annotated[Count, Field(ge=2)] = 32
    exact_edges: Annotated[Count, Field(ge=numbers.BANDS)] = 2000
    untrained_control: bool = True
    held_out: bool | None = None

    def __post_init__(self) -> None:
        try:
            pair_from_texts(*self.texts, *self.names)
        except ValueError as error:
            raise ValueError(f"texts and names: {error}") from None
        if self.corruption == "names_swap":
            raise ValueError(
                "corruption = 'names_swap': the answer stays, so that there is no effect; choose another one"
            )


# ------------------------------------------------------------------------------------------------ one pair


def _largest(effects: Any) -> tuple[str, float]:
    effects = np.array(effects, dtype=float)
    [head] = top(np.abs(effects), 1)
    return head_name(head), float(effects[head])


def predictions_say(values: Values) -> Iterator[str]:
    names = values["request"]["names"]
    puts = [f"{' above '.join(names if score > 0 else names[::-1])} by {abs(score):.1f}" for score in values["scores"]]
    yield f"After the base the model puts {puts[0]} logits, after the source {puts[1]}"
    yield values["model"]
    prompts = zip(values["request"]["texts"], values["scores"], values["example"]["words"], strict=True)
    for text, score, words in prompts:
        yield f"{text} ...{', '.join(map(repr, words))}; logit difference {score:+.3f}"


def permutation_says(values: Values) -> Iterator[str]:
    head, change = _largest(values["permuted"])
    yield f"Of single heads, shuffling {head} changes the logit difference most: {change:+.1f}"


def activations_say(values: Values) -> Iterator[str]:
    norms = np.array(values["example"]["lengths"]).mean(axis=1)
    rest = f"{norms.mean():.2g} over all layers"
    yield f"Head outputs are longest in layer {norms.argmax()}: mean norm {norms.max():.2g}, {rest}"


def differences_say(values: Values) -> Iterator[str]:
    ratio, name = np.array(values["selectivity"], dtype=float), values["request"]["names"][0]
    layer = numbers.most_unequal(ratio)
    yield f'Heads tell the two "{name}" apart most unequally in layer {layer}: by a factor of {ratio[layer]:.0f}'


def patching_says(values: Values) -> Iterator[str]:
    (head, change), (base, source) = _largest(values["patched"]), values["scores"]
    moves = f"moves the logit difference by {change:+.1f}, all together by {source - base:+.1f}"
    yield f"{head} alone from the source {moves}"


def streams_say(values: Values) -> Iterator[str]:
    """Where the stream carries the effect, early and late, and which outputs move it there."""
    streams = values["streams"]
    if "refused" in streams:
        yield f"Streams: not measured, {streams['refused']}"
        return
    tokens, (stream, attention, _) = streams["tokens"], np.array(streams["shares"], dtype=float)
    layer, place = np.unravel_index(np.abs(attention).argmax(), attention.shape)
    share = attention[layer, place]
    brings = "brings most to" if share > 0 else "takes most from"
    yield f'Attention in layer {layer} {brings} "{tokens[place]}", {share:.2f} of the effect'
    first, last = (stream[:, place] > 0.5 for place in (0, -1))
    if first[0] and last[-1] and not (first.all() or last.all()):
        gone, came = first.argmin() - 1, len(last) - last[::-1].argmin()  # states before these layers
        yield (
            f'More than half of it stands at "{tokens[0]}" up to layer {gone}, at "{tokens[-1]}" from layer {came} on.'
        )


# ------------------------------------------------------------------------------------------------ many pairs


def _strongest(population: Values) -> list[Head]:
    """All heads, those of the largest effect on the half that chooses first."""
    chosen = np.abs(np.array(population["chosen"]))
    return top(chosen, chosen.size)


def _certain(population: Values) -> list[Head]:
    """The heads that carry significantly more than a hundredth, strongest first."""
    certain = carriers(intervals(population["noised"]))
    return [head for head in _strongest(population) if certain[head]]


def population_says(values: Values) -> Iterator[str]:
    """How many heads carry the effect, the primary endpoint, and which heads these are."""
    population, heads = values["population"], _strongest(values["population"])
    certain, first = _certain(population), heads[0]
    many = "{n:none} of {number} heads {n:carries or opposes|carry or oppose} over 0.01 of the effect"
    yield say(many, n=len(certain), number=len(heads))
    share = interval_at(population["measured"], *first)
    carries = "opposes" if share.high < 0 else "carries" if share.low > 0 else "has"
    yield (
        f"Primary endpoint: {head_name(first)}, the strongest head on one half of the pairs, {carries} on the other: "
        f"{share} of the effect."
    )
    yield f"The answer is above the other name in {written(population['accuracy'])} of {population['pairs']} pairs."
    shares = {head_name(head): interval_at(population["measured"], *head) for head in certain[:SPOKEN]}
    if carry := [f"{head} {share}" for head, share in shares.items() if share.low > CARRIES]:
        yield f"The strongest, on the other half of the pairs: {listed(carry)}."
    if oppose := [f"{head} {share}" for head, share in shares.items() if share.high < -CARRIES]:
        yield f"Against the effect work {listed(oppose)}."
    if values["untrained"]:
        twin = intervals(values["untrained"]["heads"])
        chance = int(((twin.low > 0) | (twin.high < 0)).sum())
        yield say(
            "with fresh weights {n:none} of {number} heads {n:has|have} a significant effect.",
            n=chance,
            number=len(heads),
        )


def heads_say(values: Values) -> Iterator[str]:
    """The same, and why the strongest heads have no role, by the values of the role atlas that are stored."""
    yield from population_says(values)
    population = values["population"]
    whole, direct = population["noised"]["value"], population["direct"]
    parts = {head_name((a, b)): (whole[a][b], direct[a][b]) for a, b in _certain(population)[:SPOKEN]}
    yield " ".join(why_no_role(parts, values["request"]))


def heads_table(values: Values) -> pd.DataFrame:
    """The strongest heads, a row each: what all pairs say of them."""
    population = values["population"]
    direct = np.array(population["direct"], dtype=float)  # not what a path to the output is: MLPs take part in that
    rows = {
        head_name(head): {
            "lost without it": str(interval_at(population["noised"], *head)),
            "restored by it alone": str(interval_at(population["denoised"], *head)),
            "direct (all frozen)": f"{direct[head]:+z.2f}" if np.isfinite(direct[head]) else "",
        }
        for head in _strongest(population)[:HEADS]
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("head")


# ------------------------------------------------------------------------------------------------ sets of heads


def kept_alone(values: Values) -> dict[int, Interval]:
    """The faithfulness of the strongest heads alone, by their number; empty where the model does not do the task."""
    circuit = values["circuit"]
    shares = circuit["faithfulness"].items() if circuit["whole"][1] > 0 else ()
    return {int(size): Interval(*share) for size, share in shares}


def telling_sizes(kept: Mapping[int, Interval], heads: int) -> list[int]:
    """The sizes of the sets that tell how many heads are enough. kept: see `kept_alone`.

    That is the least of up to half of the heads that keeps nine tenths, or the best. But where a larger set
    keeps significantly less than a smaller one, there are three: the best before the dip, the least of all, the next
    above the best.
    """
    for low in sorted(kept, key=lambda size: kept[size].value):
        best = max((size for size in kept if size < low), key=lambda size: kept[size].value, default=low)
        if kept[low].high < kept[best].low:
            return [best, low, *[size for size in kept if size > low and kept[size].value > kept[best].value][:1]]
    small = [size for size in kept if size <= heads / 2]
    enough = [size for size in small if kept[size].value >= KEPT]
    return enough[:1] or [max(small, key=lambda size: kept[size].value)]


def circuit_says(values: Values) -> Iterator[str]:
    """How many heads are enough."""
    circuit, heads, kept = values["circuit"], np.size(values["population"]["chosen"]), kept_alone(values)
    if not kept:
        yield "The task is not shown to be done: no circuit to look for"
        return
    few, *more = sizes = telling_sizes(kept, heads)
    larger = "".join(f", {size} keep {kept[size].value:.2f}" for size in more)
    alone = "{few} of {heads} heads alone {few:keeps|keep} {kept}{larger} of the logit difference"
    yield say(alone, few=few, heads=heads, kept=kept[few], larger=larger)
    yield f"The logit difference on fresh pairs is {written(circuit['whole'])}; other heads are ablated to their means."
    random = [max(sets) / circuit["whole"][0] for size in sizes if (sets := circuit["random"].get(str(size)))]
    if random:
        yield f"As many random heads keep at most {listed([f'{share:z.2f}' for share in random])}."
    if more:
        yield "Mean ablation of other heads breaks the model, so this curve does not count the circuit."


# ------------------------------------------------------------------------------------------------ paths


def certain_paths(paths: Values) -> list[Edge]:
    """The paths between heads, and from heads to the logits, that carry significantly more than a hundredth.

    The largest stands first. The channel of a path between heads is that which carries most, its share is that of all
    three together; paths to the logits have no channel.
    """
    names = [head_name((layer, head)) for layer, head in paths["heads"]]
    between, output = intervals(paths["edges"]), intervals(paths["direct"])
    parts = {name: np.abs(intervals(paths[name]).value) for name in CHANNELS}
    edges = [Edge(names[one], LOGITS, output.value[one], "", output[one]) for one in np.flatnonzero(carriers(output))]
    for place in heads_where(carriers(between)):
        channel = max(CHANNELS, key=lambda name: parts[name][place])
        edges.append(Edge(names[place[0]], names[place[1]], between.value[place], channel, between[place]))
    return sorted(edges, key=lambda edge: -abs(edge.weight))


def paths_say(values: Values) -> Iterator[str]:
    """Which paths between heads carry the effect, and which heads write to the output."""
    paths = values["paths"]
    if "refused" in paths:
        yield f"Paths: not measured, {paths['refused']}"
        return
    edges, count = certain_paths(paths), int(np.isfinite(intervals(paths["edges"]).value).sum())
    between = [f"{edge.sender} to {edge.reader}'s {edge.channel} {edge.interval}" for edge in edges if edge.channel]
    last = [f"{edge.sender} {edge.interval}" for edge in edges if not edge.channel]
    many = "{n:none} of {count} paths {n:carries or opposes|carry or oppose} over 0.01 of the effect"
    yield say(many, n=len(between), count=count)
    if between:
        yield f"The strongest: {listed(between[:4])}."
    yield f"Heads that write to the output, through MLPs: {listed(last[:4]) or 'none'}."


def diagram(values: Values) -> Grid | None:
    """The circuit in the manner of Wang et al. 2022, Fig. 2: heads that have a path of `certain_paths`."""
    if "refused" in values["paths"]:
        return None
    atlas = stored_atlas(values["request"])
    roles = by_head(atlas or {})
    edges = certain_paths(values["paths"])
    drawn = {name for edge in edges for name in (edge.sender, edge.reader)}
    heads = {head_name((layer, head)): layer for layer, head in values["paths"]["heads"]}
    nodes = [Node(name, layer, roles.get(name, ())) for name, layer in heads.items() if name in drawn]
    return circuit_grid(nodes, edges, no_role="roles not measured" if atlas is None else "no role")


# ------------------------------------------------------------------------------------------------ edges


def few_edges(graph: Values) -> str:
    """How many edges keep nine tenths of the effect, by the estimate that needs the fewest; "" if none does.

    graph: the stored values of the component graph. Edges are ranked by absolute scores; sizes are those that were run.
    """
    curves = {name: curve["CMD"] for name, curve in graph["curves"].items()}
    kept = {name: intervals(curve["faithfulness"]) for name, curve in curves.items()}
    enough = [
        (curves[method]["sizes"][at], at, method)
        for method in METHODS
        for at in np.flatnonzero(kept[method].value >= KEPT)[:1]
    ]
    if not enough:
        return ""
    size, at, method = min(enough)
    number, random = curves[method]["sizes"][-1], max(kept[name].value[at] for name in kept if "random" in name)
    return (
        f"By {method} {size:,} of {number:,} edges ({100 * size / number:.1f} %) keep {kept[method][at]} of the "
        f"effect, where all others read the corrupted prompt. Random rankings keep at most {random:.2f}."
    )


def edges_say(values: Values) -> Iterator[str]:
    """How many edges are enough, how many carry the effect, which is the largest, and how faithful circuits are."""
    graph = values["component graph"]
    if "refused" in graph:
        yield f"Edges: not measured, {graph['refused']}"
        return
    yield few_edges(graph)
    many = (
        "{n:none} of {drawn} edges measured {n:carries or opposes|carry or oppose} significantly more than a hundredth "
        "of the effect."
    )
    yield say(many, n=graph["matter"], drawn=graph["drawn"])
    if graph["matter"]:
        name, largest = max(graph["strongest"].items(), key=lambda edge: abs(edge[1][EXACT][0]))
        estimates = listed([f"{method} {largest[method]:.2f}" for method in METHODS])
        yield f"The largest, `{name}`, carries {written(largest[EXACT])}; estimates are {estimates}."
        for area in ("CPR", "CMD"):
            areas = [f"{written(curve[area][area])} by {name}" for name, curve in graph["curves"].items()]
            yield f"{area}: {listed(areas)}."


def edges_table(values: Values) -> pd.DataFrame:
    """The strongest edges with their estimates; nothing where no edge matters."""
    graph = values["component graph"]
    strongest = graph["strongest"] if graph.get("matter") else {}
    edges = sorted(strongest.items(), key=lambda edge: -abs(edge[1][EXACT][0]))
    rows = {name: {EXACT: written(edge[EXACT]), **{by: f"{edge[by]:.3f}" for by in METHODS}} for name, edge in edges}
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------ the figure


def _about(text: str, part: str = "example") -> Callable[[Values], str]:
    """The setting, below titles: what the values of a part, the request and these say."""

    def about(values: Values) -> str:
        known = {**values["request"], **values[part], "model": title(values)}
        return text.format(**known, count=len(known.get("tokens", ())))

    return about


def _one_pair(says: Callable[[Values], Iterable[str]], panels: Callable[[Values], Grid], more: str = "") -> Part:
    """A part of the project's pair of prompts."""
    setting = _about("{model}, one pair of prompts of {count} tokens" + more)
    return Part(numbers.example, "example", says, setting, panels)


STREAMS = "{model}, one pair of prompts; at one token of one layer from the source"
PAIRS = "{model}, {corruption}, {pairs} pairs; bars: 95 %"
FRESH = "{model}, {corruption}, {pairs} fresh pairs"
PATHS = f"{FRESH}; numbers: on cards to the {LOGITS}, on lines the {LABELLED} strongest"
CIRCUIT = "{model}, {pairs} fresh pairs; 1: the whole model; heads that are not kept are ablated; bands: 95 %"
OUTPUTS = "; above: outputs on the source in layer {layer}, each token from dark (low) to bright (high)"
FALLS = "; logit difference: {names[0]} - {names[1]}; red: falls if "
MINUS = '; first minus second "{names[0]}" of the source, red: above 0'
FIGURE = Figure(
    "ioi_patching",
    Settings,
    {
        "p1": _one_pair(predictions_say, pictures.predictions),
        "p2": _one_pair(permutation_says, pictures.permutation, FALLS + "shuffled"),
        "p3": _one_pair(activations_say, pictures.activations, OUTPUTS),
        "p4": _one_pair(differences_say, pictures.differences, MINUS),
        "p5": _one_pair(patching_says, pictures.patching, FALLS + "patched"),
        "streams": Part(numbers.streams, "streams", streams_say, _about(STREAMS, "streams"), pictures.streams),
        "population": Part(
            numbers.population, "population", heads_say, _about(PAIRS, "population"), pictures.population,
            heads_table,
        ),
        "circuit": Part(
            numbers.circuit, "circuit", circuit_says, _about(CIRCUIT, "circuit"), pictures.circuit, needs=["population"]
        ),
        "paths": Part(numbers.paths, "paths", paths_say, _about(PATHS, "paths"), diagram),
        "edges": Part(
            numbers.edges, "edges", edges_say, _about(FRESH + "; bands: 95 %", "component graph"), pictures.edges,
            edges_table,
        ),
    },
    ("population", "circuit", "paths", "edges"),
)  # fmt: skip
