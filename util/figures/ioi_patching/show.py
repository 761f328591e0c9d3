"""The figure of head patching in indirect object identification (Cohen, project 41; Wang et al. 2022).

Here are its settings, and the sentences and tables that are made of its numbers; `pictures` has the panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import networkx as nx
import numpy as np
import pandas as pd
from pydantic import Field

from util.figures.ioi_patching import numbers, pictures
from util.figures.ioi_patching.conclude import (
    circuit_concludes,
    few_edges,
    kept_alone,
    told_sizes,
)
from util.figures.ioi_patching.numbers import CARRIES, EXACT, METHODS, carriers, intervals
from util.figures.ioi_patching.pictures import channel, path_parts
from util.figures.stored_roles import stored_roles, why_no_role
from util.prompts.ioi import Corruption, pair_from_texts
from util.roles.rules import Role
from util.show.circuit_diagram import LABELLED, LOGITS, Edge, Node, circuit_graph, circuit_grid
from util.show.draw import Grid
from util.show.part import Figure, Part, Values, title
from util.show.words import interval_at, listed, say, written
from util.stats.heads import Head, head_name, top
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


# ------------------------------------------------------------------------------------------------ one pair


def _largest(effects: Any) -> tuple[str, float]:
    effects = np.array(effects, dtype=float)
    [head] = top(np.abs(effects), 1)
    return head_name(head), float(effects[head])


def predictions_say(values: Values) -> Iterator[str]:
    names, puts = list(values["request"]["names"]), []
    for score in values["scores"]:
        puts.append(" above ".join(names if score > 0 else names[::-1]) + f" by {abs(score):.1f}")
    yield f"After the base the model puts {puts[0]} logits, after the source {puts[1]}"
    yield values["model"]
    prompts = zip(values["request"]["texts"], values["scores"], values["example"]["words"], strict=True)
    yield from (
        f"{text} ...{', '.join(map(repr, words))}; logit difference {score:+.3f}" for text, score, words in prompts
    )


def permutation_says(values: Values) -> Iterator[str]:
    head, change = _largest(values["permuted"])
    yield f"Of single heads, shuffling {head} changes the logit difference most: {change:+.1f}"


def activations_say(values: Values) -> Iterator[str]:
    norms = np.array(values["example"]["lengths"]).mean(axis=1)
    rest = f"{norms.mean():.2g} over all layers"
    yield f"Head outputs are longest in layer {norms.argmax()}: mean norm {norms.max():.2g}, {rest}"


def differences_say(values: Values) -> Iterator[str]:
    ratio = np.array(values["selectivity"], dtype=float)
    layer, name = int(np.nanargmax(ratio)), values["request"]["names"][0]
    yield f'Heads tell the two "{name}" apart most unequally in layer {layer}: by a factor of {ratio[layer]:.0f}'


def patching_says(values: Values) -> Iterator[str]:
    (head, change), (base, source) = _largest(values["patched"]), values["scores"]
    moves = f"moves the logit difference by {change:+.1f}, all together by {source - base:+.1f}"
    yield f"{head} alone from the source {moves}"


# ------------------------------------------------------------------------------------------------ many pairs


def _strongest(found: Values) -> list[Head]:
    """All heads, those of the largest effect on the half that chooses first."""
    chosen = np.abs(np.array(found["chosen"]))
    return top(chosen, chosen.size)


def _carry(found: Values) -> list[Head]:
    """The heads that carry more than a hundredth for certain, strongest first."""
    certain = carriers(intervals(found["noised"]))
    return [head for head in _strongest(found) if certain[head]]


def population_says(values: Values) -> Iterator[str]:
    found = values["population"]
    sure, first, number = _carry(found), _strongest(found)[0], np.size(found["chosen"])
    share = interval_at(found["measured"], *first)
    if sure:
        carry = f"{len(sure)} of {number} heads carry"
        yield f"{carry} more than a hundredth of the effect for certain; {head_name(first)} carries {share}"
    else:
        yield f"None of {number} heads carries more than a hundredth of the effect for certain"


def heads_conclude(values: Values) -> Iterator[str]:
    """The primary endpoint, and which heads carry the effect."""
    found, sure = values["population"], _carry(values["population"])
    first, number = _strongest(found)[0], np.size(found["chosen"])
    yield (
        f"Primary endpoint: {head_name(first)}, the strongest head on one half of the pairs, carries "
        f"{interval_at(found['measured'], *first)} of the effect on the other half."
    )
    yield f"The answer is above the other name in {written(found['accuracy'])} of {found['pairs']} pairs."
    told = [(head_name(head), interval_at(found["measured"], *head)) for head in sure[:SPOKEN]]
    carry = listed([f"{head} {share}" for head, share in told if share.low > CARRIES])
    oppose = listed([f"{head} {share}" for head, share in told if share.high < -CARRIES])
    said = "{n:none} of {number} heads {n:carries|carry} more than a hundredth of the effect for certain."
    said += " The strongest, on the other half of the pairs: {carry}." if carry else ""
    said += " Against the answer work {oppose}." if oppose else ""
    yield say(said, n=len(sure), number=number, carry=carry, oppose=oppose)
    whole, direct = found["noised"]["value"], found["direct"]
    parts = {head_name((a, b)): (whole[a][b], direct[a][b]) for a, b in sure[:SPOKEN]}
    if why := why_no_role(parts, values["request"]):
        yield " ".join(why)
    if values["untrained"]:
        blind = intervals(values["untrained"]["heads"])
        beyond = int(((blind.low > 0) | (blind.high < 0)).sum())
        yield say("with fresh weights {n:none} of {number} heads {n:is|are} beyond chance.", n=beyond, number=number)


def heads_table(values: Values, count: int = HEADS) -> pd.DataFrame:
    """The strongest heads, a row each: their share on the other half, and what all pairs say."""
    found = values["population"]
    heads = _strongest(found)[:count]
    columns = {
        "lost without it": found["noised"]["value"],
        "restored by it alone": found["denoised"]["value"],
        "first-order estimate": found["estimate"],
        "direct (all frozen)": found["direct"],  # not what a path to the output is: MLPs take part in that
    }
    shares = {"share, other half": [str(interval_at(found["measured"], *head)) for head in heads]}
    for name, effects in columns.items():
        shares[name] = [f"{np.array(effects, dtype=float)[head]:+z.2f}" for head in heads]
    return pd.DataFrame(shares, index=pd.Index(map(head_name, heads), name="head"))


# ------------------------------------------------------------------------------------------------ sets of heads


def circuit_says(values: Values) -> Iterator[str]:
    if kept := kept_alone(values):
        heads = np.size(values["population"]["chosen"])
        few, *more = told_sizes(kept, heads)
        said = f"{few} of {heads} heads alone keep {kept[few]} of the logit difference"
        if more:
            said += f", {more[0]} keep {kept[more[0]].value:.2f}: mean ablation of most heads breaks the model"
        yield said


# ------------------------------------------------------------------------------------------------ paths


def certain_paths(paths: Values) -> list[Edge]:
    """The paths between heads, and from heads to the logits, that carry more than a hundredth for certain.

    The largest stands first. The channel of a path between heads is that which carries most, its share is that of all
    three together; paths to the logits have no channel.
    """
    parts, output = path_parts(paths), intervals(paths["direct"])
    names, effect = [head_name((layer, head)) for layer, head in paths["heads"]], parts["edges"]
    edges = [
        Edge(names[row], names[column], effect.value[row, column], channel(parts, (row, column)), effect[row, column])
        for row, column in np.argwhere(carriers(effect)).tolist()
    ]
    edges += [Edge(names[one], LOGITS, output.value[one], "", output[one]) for one in np.flatnonzero(carriers(output))]
    return sorted(edges, key=lambda edge: -abs(edge.weight))


def _heard(edge: Edge) -> str:
    """A path in words: L0H1 to L2H2's key 0.44 [0.31, 0.57]."""
    return f"{edge.sender} to {edge.reader}'s {edge.channel} {edge.interval}"


def paths_say(values: Values) -> Iterator[str]:
    paths = values["paths"]
    if "refused" in paths:
        yield f"paths: not measured, {paths['refused']}"
        return
    count = int(np.isfinite(intervals(paths["edges"]).value).sum())
    sure = [edge for edge in certain_paths(paths) if edge.channel]
    said = f"{len(sure)} of {count} paths between heads carry more than a hundredth of the effect for certain"
    yield said + (f", most of all {_heard(sure[0])}" if sure else "")


def paths_conclude(values: Values) -> Iterator[str]:
    """Which heads write to the output, and which paths between heads carry the effect."""
    paths = values["paths"]
    if "refused" in paths:
        return
    last = [edge for edge in certain_paths(paths) if not edge.channel]
    sure = [edge for edge in certain_paths(paths) if edge.channel]
    told = listed([f"{edge.sender} {edge.interval}" for edge in last[:4]]) or "none"
    yield f"Heads that write to the output, through MLPs: {told}."
    said = "between heads {n:words} {n:path matters|paths matter} for certain."
    if sure:
        said += " The strongest: {strongest}." if len(sure) > 4 else " {n:It is|They are}: {strongest}."
    yield say(said, n=len(sure), strongest=[*map(_heard, sure[:4])])


def circuit_of(paths: Values, roles: Mapping[Head, Sequence[Role]] | None = None) -> nx.MultiDiGraph:
    """Returns the circuit: heads, the logits, and the paths that carry more than a hundredth for certain.

    Heads that have no such path are left out. roles: by head.
    """
    edges = certain_paths(paths)
    drawn = {name for edge in edges for name in (edge.sender, edge.reader)}
    heads = [(layer, head) for layer, head in paths["heads"]]
    nodes = [Node(head_name(head), head[0], (roles or {}).get(head, ())) for head in heads if head_name(head) in drawn]
    last = [Node(LOGITS, 1 + max(heads)[0])] if LOGITS in drawn else []
    return circuit_graph([*nodes, *last], edges)


def diagram_says(values: Values) -> Iterator[str]:
    if "refused" not in values["paths"]:
        graph = circuit_of(values["paths"])
        heads = sum(name != LOGITS for name in graph)
        said = "{n} {n:path|paths} of {heads} {heads:head|heads} {n:carries|carry} more than a hundredth for certain"
        yield say(said, n=graph.size(), heads=heads)


def diagram(values: Values) -> Grid | None:
    """The circuit in the manner of Wang et al. 2022, Fig. 2."""
    if "refused" in values["paths"]:
        return None
    roles = stored_roles(values["request"])
    return circuit_grid(
        circuit_of(values["paths"], roles), no_role="roles not measured" if roles is None else "no role"
    )


# ------------------------------------------------------------------------------------------------ edges


def _shown(share: Sequence[Any]) -> str:
    """A share with its interval; "" where it is not defined."""
    return written(share) if np.isfinite(np.array(share[0], dtype=float)) else ""


def edges_say(values: Values) -> Iterator[str]:
    """How many edges carry the effect, which share of them scores find, and which is the largest."""
    graph = values["component graph"]
    if "refused" in graph:
        yield f"edges: {graph['refused']}"
        return
    said = "{n:none} of {drawn} edges measured {n:carries|carry} more than a hundredth of the effect for certain."
    yield say(said, n=graph["matter"], drawn=graph["drawn"])
    if graph["matter"]:
        shares = listed([f"{written(share)} by {method}" for method, share in graph["found"].items()])
        yield f"Among as many edges with the highest scores is this share of them: {shares}."
        name, largest = max(graph["strongest"].items(), key=lambda edge: abs(edge[1][EXACT][0]))
        estimates = listed([f"{method} {largest[method]:.2f}" for method in METHODS])
        yield f"The largest, `{name}`, carries {written(largest[EXACT])}; estimates are {estimates}."


def edges_table(values: Values) -> pd.DataFrame:
    strongest = values["component graph"].get("strongest", {})
    names = sorted(strongest, key=lambda name: -abs(strongest[name][EXACT][0] or 0))
    columns = {EXACT: [_shown(strongest[name][EXACT]) for name in names]}
    columns |= {
        method: [f"{np.array(strongest[name][method], dtype=float):.3f}" for name in names] for method in METHODS
    }
    return pd.DataFrame(columns, index=names)


def edge_circuits_say(values: Values) -> Iterator[str]:
    graph = values["component graph"]
    if "refused" not in graph and (few := few_edges(graph)):
        yield few


def edge_circuits_table(values: Values) -> pd.DataFrame:
    graph, rows = values["component graph"], {}
    for name, curves in graph.get("curves", {}).items():
        agreement, found = graph["agreement"].get(name), graph["found"].get(name)
        rows[name] = {
            "rank correlation": _shown(agreement["all"]) if agreement else "",
            "edges found": _shown(found) if found else "",
            **{measure: _shown(curve[measure]) for measure, curve in curves.items()},
        }
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------ the figure


def conclude(values: Values) -> Iterator[str]:
    """The primary endpoint, which heads carry the effect, which paths, how many are enough, which edges scores see."""
    yield from heads_conclude(values)
    yield from paths_conclude(values)
    yield circuit_concludes(values)
    if "refused" not in values["component graph"]:
        yield from edges_say(values)
        yield from edge_circuits_say(values)


def _about(text: str, part: str = "example") -> Callable[[Values], str]:
    """The setting, below titles: what the values of a part, the request and these say."""

    def about(values: Values) -> str:
        known = {**values["request"], **values[part], "model": title(values)}
        return text.format(**known, count=len(known.get("tokens", ())))

    return about


def _one_pair(says: Callable[[Values], Iterable[str]], panels: Callable[[Values], Grid], more: str = "") -> Part:
    """A part of the project's pair of prompts."""
    return Part(
        numbers.example, "example", says, _about("{model}, one pair of prompts of {count} tokens" + more), panels
    )


FRESH = "{model}, {corruption}, {pairs} fresh pairs"
DIAGRAM = f"{FRESH}; numbers: on cards to the {LOGITS}, on lines the {LABELLED} strongest"
CIRCUIT = "{model}, {pairs} fresh pairs; all other heads ablated"
OUTPUTS = "; outputs on the source in layer {layer}, each token in its own colours"
MINUS = '; first minus second "{names[0]}" of the source'
POPULATION = _about("{model}, {corruption}, {pairs} pairs", "population")
FIGURE = Figure(
    "ioi_patching",
    Settings,
    {
        "p1": _one_pair(predictions_say, pictures.predictions),
        "p2": _one_pair(permutation_says, pictures.permutation, "; one head of the base shuffled"),
        "p3": _one_pair(activations_say, pictures.activations, OUTPUTS),
        "p4": _one_pair(differences_say, pictures.differences, MINUS),
        "p5": _one_pair(patching_says, pictures.patching),
        "population": Part(
            numbers.population, "population", population_says, POPULATION, pictures.population, heads_table
        ),
        "circuit": Part(
            numbers.circuit, "circuit", circuit_says, _about(CIRCUIT, "circuit"), pictures.circuit, needs=["population"]
        ),
        "paths": Part(numbers.paths, "paths", paths_say, _about(FRESH, "paths"), pictures.paths),
        "diagram": Part(numbers.paths, "paths", diagram_says, _about(DIAGRAM, "paths"), diagram),
        "edges": Part(numbers.edges, "edges", edges_say, table=edges_table),
        "edge_circuits": Part(
            numbers.edges, "edges", edge_circuits_say, _about(FRESH, "component graph"), pictures.edge_circuits,
            edge_circuits_table,
        ),
    },
    conclude,
)  # fmt: skip
