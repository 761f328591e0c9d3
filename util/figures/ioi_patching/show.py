"""The figure of head patching in indirect object identification (Cohen, project 41; Wang et al. 2022).

Here are its settings, and the sentences and tables that are made of its numbers; `pictures` has the panels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import networkx as nx
import numpy as np
import pandas as pd
from pydantic import Field

from util.figures.ioi_patching import numbers, pictures
from util.figures.ioi_patching.conclude import carry_and_oppose, circuit_concludes, dip, edges_conclude, kept_alone
from util.figures.ioi_patching.numbers import CHANNELS, EXACT, KEPT, LISTED, METHODS, carriers, intervals
from util.figures.stored_roles import stored_roles, why_no_role
from util.prompts.ioi import Corruption, pair_from_texts
from util.roles.rules import Role
from util.show.circuit_diagram import LABELLED, LOGITS, Edge, Node, circuit_graph, circuit_grid
from util.show.conclusions import title
from util.show.draw import Grid
from util.show.part import Figure, Part, Values
from util.show.words import counted, interval_at, listed, none_or, say, written
from util.stats.heads import Head, head_name, top
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
    if "example" in values:
        prompts = zip(values["request"]["texts"], values["scores"], values["example"]["words"], strict=True)
        yield values["model"]
        yield from (f"{text} ...{words[0]!r}; logit difference {score:+.3f}" for text, score, words in prompts)


def words_table(values: Values) -> pd.DataFrame:
    columns = {}
    shown = values["example"]
    for run, words, chances in zip(("base", "source"), shown["words"], shown["log_softmax"], strict=True):
        probability = np.exp(np.sort(np.asarray(chances))[::-1][: len(words)])
        columns[f"after the {run}"] = [repr(word) for word in words]
        columns[f"probability, {run}"] = [f"{value:.3g}" for value in probability]
    return pd.DataFrame(columns, index=pd.RangeIndex(1, len(shown["words"][0]) + 1, name="rank"))


def permutation_says(values: Values) -> Iterator[str]:
    head, change = _largest(values["permuted"])
    yield f"Of single heads, shuffling {head} changes the logit difference most: {change:+.1f}" if change else ""


def activations_say(values: Values) -> Iterator[str]:
    if "example" in values:
        norms = np.array(values["example"]["lengths"]).mean(axis=1)
        rest = f"{norms.mean():.2g} over all layers"
        yield f"Head outputs are longest in layer {norms.argmax()}: mean norm {norms.max():.2g}, {rest}"


def differences_say(values: Values) -> Iterator[str]:
    ratio = np.array(values["selectivity"], dtype=float)
    if not np.isfinite(ratio).any():
        yield ""
        return
    layer, name = int(np.nanargmax(ratio)), values["request"]["names"][0]
    yield f'Heads tell the two "{name}" apart most unequally in layer {layer}: by a factor of {ratio[layer]:.0f}'


def patching_says(values: Values) -> Iterator[str]:
    (head, change), (base, source) = _largest(values["patched"]), values["scores"]
    moves = f"moves the logit difference by {change:+.1f}, all together by {source - base:+.1f}"
    yield f"{head} alone from the source {moves}" if change else ""


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
    sure, (first, *others) = _carry(found), _strongest(found)
    number, share = len(others) + 1, interval_at(found["measured"], *first)
    hundredth = "more than a hundredth of the effect for certain"
    if not np.isfinite(intervals(found["noised"]).value).all():
        yield ""
    elif not sure:
        yield f"None of {number} heads carries {hundredth}"
    else:
        yield f"{len(sure)} of {number} heads carry {hundredth}; {head_name(first)} carries {share}"


def no_role(values: Values) -> list[str]:
    """Why heads that carry most have no role, in words."""
    found = values["population"]
    whole, direct = found["noised"]["value"], found["direct"]
    heads = _carry(found)[:SPOKEN]
    return why_no_role({head_name((a, b)): (whole[a][b], direct[a][b]) for a, b in heads}, values["request"])


def heads_conclude(values: Values) -> Iterator[str]:
    """The primary endpoint, and which heads carry the effect."""
    found, sure = values["population"], _carry(values["population"])
    first, number = _strongest(found)[0], np.size(found["chosen"])
    yield (
        f"Primary endpoint: {head_name(first)}, the strongest head on one half of the pairs, carries "
        f"{interval_at(found['measured'], *first)} of the effect on the other half."
    )
    yield f"The answer is above the other name in {written(found['accuracy'])} of {found['pairs']} pairs."
    measured = {head_name(head): interval_at(found["measured"], *head) for head in sure[:SPOKEN]}
    carry, oppose = carry_and_oppose(measured, measured)
    said = f"{none_or(len(sure)).capitalize()} of {number} heads {'carries' if len(sure) < 2 else 'carry'} more than a "
    said += "hundredth of the effect for certain."
    said += f" The strongest, on the other half of the pairs: {listed(carry)}." if carry else ""
    yield said + (f" Against the answer work {listed(oppose)}." if oppose else "")
    yield " ".join(no_role(values))
    if values.get("untrained"):
        blind = intervals(values["untrained"]["heads"])
        beyond = int(((blind.low > 0) | (blind.high < 0)).sum())
        are = "are" if beyond > 1 else "is"
        yield f"With fresh weights {none_or(beyond)} of {number} heads {are} beyond chance."


def heads_table(values: Values, count: int = HEADS) -> pd.DataFrame:
    """The strongest heads, a row each: their share on the other half, and what all pairs say."""
    found = values["population"]
    heads = _strongest(found)[:count]
    columns = {
        "lost without it": found["noised"]["value"],
        "restored by it alone": found["denoised"]["value"],
        "first-order estimate": found["estimate"],
        pictures.ALL_FROZEN: found["direct"],
    }
    table = pd.DataFrame({"head": [head_name(head) for head in heads]})
    table["share, other half"] = [str(interval_at(found["measured"], *head)) for head in heads]
    for name, effects in columns.items():
        shown = np.array(effects, dtype=float)
        table[name] = [f"{round(shown[head], 2) + 0.0:+.2f}" for head in heads]
    return table.set_index("head")


def planted_says(values: Values) -> Iterator[str]:
    if "planted heads" in values:
        yield f"Planted heads that carry anything: {', '.join(values['planted heads'])}"


# ------------------------------------------------------------------------------------------------ sets of heads


def circuit_says(values: Values) -> Iterator[str]:
    kept, heads = kept_alone(values), np.size(values["population"]["chosen"])
    small = {str(size): share for size, share in kept.items() if size <= heads / 2}
    enough = numbers.reached(small, KEPT)
    if few_more := dip(kept):
        few, more = few_more
        alone = f"{few} of {heads} keep {kept[few]}, {more} keep {kept[more].value:.2f}"
        yield f"Mean ablation of most heads breaks the model: {alone}"
    elif not small:
        yield ""
    elif enough is None:
        best = max(small, key=lambda size: small[size].value)
        best_of = f"the best, {best} of {heads}, keeps {small[best]}"
        yield f"No set of up to half of the heads keeps nine tenths of the logit difference: {best_of}"
    else:
        yield f"{enough} of {heads} heads alone keep {kept[enough]} of the logit difference"


# ------------------------------------------------------------------------------------------------ paths


def path_name(paths: Values, edge: tuple[int, int]) -> str:
    """A path as text, such as L0H1 to L2H2. edge: the places of sender and receiver."""
    return " to ".join(head_name(tuple(paths["heads"][place])) for place in edge)


def certain_paths(paths: Values) -> list[tuple[int, int]]:
    """The places of the paths between heads that carry more than a hundredth for certain, largest first."""
    effect = intervals(paths["edges"])
    sure = [(int(sender), int(receiver)) for sender, receiver in np.argwhere(carriers(effect))]
    return sorted(sure, key=lambda edge: -abs(effect.value[edge]))


def paths_say(values: Values) -> Iterator[str]:
    paths = values["paths"]
    if "refused" in paths:
        yield f"paths: not measured, {paths['refused']}"
        return
    parts = pictures.path_parts(paths)
    count, sure = int(np.isfinite(parts["edges"].value).sum()), certain_paths(paths)
    if not sure:
        yield f"None of {count} paths between heads carries more than a hundredth of the effect for certain"
    else:
        channel = pictures.channel(parts, sure[0])
        by = f" (mostly by {channel})" if channel else ""
        strongest = f"the strongest, {path_name(paths, sure[0])}{by}: {parts['edges'][sure[0]]}"
        counting = "count for certain (beyond a hundredth of the effect)"
        yield f"{len(sure)} of {count} paths between heads {counting}; {strongest}"


def paths_conclude(values: Values) -> Iterator[str]:
    """Which heads write to the output, and which paths between heads carry the effect."""
    paths = values["paths"]
    if "refused" in paths:
        return
    parts, output = pictures.path_parts(paths), intervals(paths["direct"])
    names = [head_name((layer, head)) for layer, head in paths["heads"]]
    writers = sorted(np.flatnonzero(carriers(output)), key=lambda place: -abs(output.value[place]))
    written_by = listed([f"{names[place]} {output[place]}" for place in writers[:4]])
    if writers:
        yield f"Heads that write to the output, through MLPs: {written_by}."
    else:
        yield "None of the strongest heads writes to the output."
    sure = certain_paths(paths)
    if not sure:
        yield "Between them no path carries more than a hundredth for certain."
        return
    strongest = []
    for edge in sure[:4]:
        by = max(CHANNELS, key=lambda name: abs(parts[name].value[edge]))
        strongest.append(f"{path_name(paths, edge)}'s {by} {parts['edges'][edge]}")
    which = "The strongest" if len(sure) > len(strongest) else "They are" if len(sure) > 1 else "It is"
    matter = "matters" if len(sure) == 1 else "matter"
    yield f"Between heads {counted(len(sure), 'path')} {matter} for certain. {which}: {listed(strongest)}."


def circuit_of(paths: Values, roles: Mapping[Head, Sequence[Role]] | None = None) -> nx.MultiDiGraph:
    """Returns the circuit: heads, the logits, and the paths that carry more than a hundredth for certain.

    A path between heads is an edge for each channel that does so alone; where only all three together do, it is one
    edge without a channel. Heads that have no edge are left out. roles: by head.
    """
    parts, output, heads = (
        pictures.path_parts(paths),
        intervals(paths["direct"]),
        [tuple(head) for head in paths["heads"]],
    )
    edges = list[Edge]()
    for row, column in np.argwhere(np.isfinite(parts["edges"].value)).tolist():
        sure = {name: part[row, column] for name, part in parts.items() if carriers(part)[row, column]}
        together = {"": sure.pop("edges")} if "edges" in sure else {}
        ends = head_name(heads[row]), head_name(heads[column])
        for channel, share in (sure or together).items():
            edges.append(Edge(*ends, share.value, channel, share))
    for row in np.flatnonzero(carriers(output)).tolist():
        edges.append(Edge(head_name(heads[row]), LOGITS, output[row].value, "", output[row]))
    drawn = {name for edge in edges for name in (edge.sender, edge.reader)}
    nodes = [Node(head_name(head), head[0], (roles or {}).get(head, ())) for head in heads if head_name(head) in drawn]
    last = [Node(LOGITS, 1 + max(layer for layer, _ in heads))] if LOGITS in drawn else []
    return circuit_graph([*nodes, *last], edges)


def diagram_says(values: Values) -> Iterator[str]:
    if "refused" in values["paths"]:
        return
    graph = circuit_of(values["paths"])
    if not graph.size():
        yield "No path carries more than a hundredth of the effect for certain"
    else:
        sender, reader, shares = max(graph.edges(data=True), key=lambda edge: abs(edge[2]["weight"]))
        share, heads = Interval(shares["weight"], shares["low"], shares["high"]), sum(name != LOGITS for name in graph)
        paths = "{n} {n:path|paths} of {heads} {heads:head|heads} count for certain, most of all {ends}: {share}"
        ends = f"{sender} to {'the ' * (reader == LOGITS)}{reader}"
        yield say(paths, n=graph.size(), heads=heads, share=str(share), ends=ends)
    yield from no_role(values)


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
    graph = values["component graph"]
    if "refused" in graph:
        yield f"edges: {graph['refused']}"
        return
    edges = f"{graph['matter']} edges that carry" if graph["matter"] > 1 else "one edge that carries"
    if not graph["matter"]:
        defined = any(_shown(edge[EXACT]) for edge in graph["strongest"].values())
        yield "No edge carries more than a hundredth of the effect for certain" if defined else ""
    else:
        shares = ", ".join(f"{method} {written(graph['found'][method])}" for method in METHODS)
        yield f"Share found of the {edges} more than a hundredth: {shares}"
    pairs = f"effects as measured on {graph['pairs']} pairs" if "pairs" in graph else "effects as measured"
    for method, by_kind in graph["agreement"].items():  # in no check: rounding can move the last digit
        kinds = ", ".join(f"{kind} {_shown(share)}" for kind, share in by_kind.items() if _shown(share))
        yield f"{method}: rank correlation with {pairs}, by what reads: {kinds}"


def edges_table(values: Values) -> pd.DataFrame:
    graph = values["component graph"]
    listed_edges = sorted(graph.get("strongest", {}).items(), key=lambda edge: -abs(edge[1][EXACT][0] or 0))[:LISTED]
    columns = {EXACT: [_shown(edge[EXACT]) for _, edge in listed_edges]}
    columns |= {
        method: [f"{np.array(edge[method], dtype=float):.3f}" for _, edge in listed_edges] for method in METHODS
    }
    return pd.DataFrame(columns, index=[name for name, _ in listed_edges])


def edge_circuits_say(values: Values) -> Iterator[str]:
    curves = values["component graph"].get("curves", {})
    fewest = {}
    for method in values["component graph"].get("found", {}):
        curve = curves[method]["CMD"]
        kept = np.array(curve["faithfulness"]["value"], dtype=float)
        enough = np.flatnonzero(kept >= KEPT)
        fewest[method] = f"{100 * curve['shares'][enough[0]]:g} %" if len(enough) else "none of the sizes"
        if np.isnan(kept).any():
            fewest.clear()
            break
    if not fewest:
        yield ""
    elif len({*fewest.values()}) == 1:
        yield f"Nine tenths of the effect pass through {fewest[METHODS[0]]} of the edges, by any absolute score"
    else:
        shares = ", ".join(f"{share} ({method})" for method, share in fewest.items())
        yield f"Nine tenths of the effect pass through {shares} of the edges, by absolute scores"


def edge_circuits_table(values: Values) -> pd.DataFrame:
    graph, rows = values["component graph"], {}
    for name, curves in graph.get("curves", {}).items():
        estimate = name in graph["found"]
        rows[name] = {
            "rank correlation": _shown(graph["agreement"][name]["all"]) if estimate else "",
            "edges found": _shown(graph["found"][name]) if estimate else "",
            **{measure: _shown(curve[measure]) for measure, curve in curves.items()},
        }
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------ the figure


def conclude(values: Values) -> Iterator[str]:
    """The primary endpoint, which heads carry the effect, which paths, how many are enough, which edges scores see."""
    parts: tuple[Iterable[str], ...] = (
        heads_conclude(values), paths_conclude(values), [circuit_concludes(values)], edges_conclude(values)
    )  # fmt: skip
    return (text for part in parts for text in part if text)


def _about(text: str, part: str = "example") -> Callable[[Values], str]:
    """The setting, below titles: what the values of a part, the request and these say; nothing for what is not kept."""

    def about(values: Values) -> str:
        known = {**values["request"], **values[part], "model": title(values)}
        known["count"] = len(known.get("tokens", ()))
        return text.format_map(defaultdict(str, known)).replace("  ", " ")

    return about


def _one_pair(says: Callable[[Values], Iterable[str]], panels: Callable[[Values], Grid], more: str = "") -> Part:
    """A part of the project's pair of prompts: no picture of values that do not have what is drawn."""

    def grid(values: Values) -> Grid | None:
        return panels(values) if "example" in values else None

    return Part(numbers.example, "example", says, _about("{model}, one pair of prompts of {count} tokens" + more), grid)


FRESH = "{model}, {corruption}, {pairs} fresh pairs"
DIAGRAM = f"{FRESH}; numbers: on cards to the {LOGITS}, on lines the {LABELLED} strongest"
CIRCUIT = "{model}, {pairs} fresh pairs; all other heads ablated"
OUTPUTS = "; outputs on the source in layer {layer}, each token in its own colours"
MINUS = '; first minus second "{names[0]}" of the source'
EDGES = numbers.edges, "edges"
BESIDE: dict[str, Any] = {"needs": ["population"]}
FIGURE = Figure(
    "ioi_patching",
    Settings,
    {
        "p1": replace(_one_pair(predictions_say, pictures.predictions), table=words_table),
        "p2": _one_pair(permutation_says, pictures.permutation, "; one head of the base shuffled"),
        "p3": _one_pair(activations_say, pictures.activations, OUTPUTS),
        "p4": _one_pair(differences_say, pictures.differences, MINUS),
        "p5": _one_pair(patching_says, pictures.patching),
        "population": Part(
            numbers.population, "population", population_says,
            _about("{model}, {corruption}, {pairs} pairs", "population"), pictures.population, heads_table,
        ),
        "circuit": Part(
            numbers.circuit, "circuit", circuit_says, _about(CIRCUIT, "circuit"), pictures.circuit, **BESIDE
        ),
        "paths": Part(numbers.paths, "paths", paths_say, _about(FRESH, "paths"), pictures.paths, **BESIDE),
        "diagram": Part(numbers.paths, "paths", diagram_says, _about(DIAGRAM, "paths"), diagram, **BESIDE),
        "edges": Part(*EDGES, edges_say, _about(FRESH, "component graph"), pictures.edges, edges_table),
        "edge_circuits": Part(
            *EDGES, edge_circuits_say, _about(FRESH, "component graph"), pictures.edge_circuits, edge_circuits_table
        ),
        "planted": Part(numbers.planted, "planted_circuit", planted_says),
    },
    conclude,
)  # fmt: skip
