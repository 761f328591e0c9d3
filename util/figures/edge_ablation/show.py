"""The figure of edge ablation: sentences, tables and pictures, made of its numbers (Bakalova et al., COLM 2025).

The figures of the paper were not available to us: none of these has an arrangement of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from util.edges import names
from util.edges.edge import TYPE_PAIRS
from util.figures.edge_ablation import numbers, panels
from util.figures.edge_ablation.settings import Settings
from util.prompts.word_pairs import CORRUPTIONS
from util.show.claims import CLAIMS
from util.show.conclusions import title
from util.show.part import Figure, Part, Values
from util.show.words import in_words, listed, say, written


def known(number: float | None) -> bool:
    """Whether a number is one: neither NaN nor, in a values file, null."""
    return number is not None and number == number


def in_text(edge: str) -> str:
    """The name of an edge in a sentence: y → last separator."""
    return edge.replace("->", " → ").replace("_", " ")


def setting(values: Values, task: str = "") -> str:
    """What titles say of prompts: model, task (the primary one by default), demonstrations, prompts, donors."""
    request = values["request"]
    donors = ", ".join(map(str, request["donor_seeds"]))
    extent = f"{request['k']} demonstrations, {request['prompts']} prompts, donors {donors}"
    return f"{title(values)}, {task or request['primary_task']}, {extent}"


# ------------------------------------------------------------------------------------------------ circuits


def circuits_say(values: Values) -> Iterator[str]:
    """Where accuracy surely falls, by paired tests, and the primary endpoint.

    Of other tasks nothing is said: so few queries do not show small losses. The claims have more.
    """
    falls = []
    for circuit, what in (
        (names.QUERY_ONLY, "demonstrations"),
        (names.AGG_ONLY, "those read by each other or the query"),
    ):
        if lost := values["sure losses"][circuit]:
            most = max(lost, key=lambda task: lost[task][0])
            tasks = f"{len(lost)} of {len(values['accuracy'])} tasks"
            falls.append(f"without {what} ({circuit}) in {tasks}, by up to {written(lost[most])} in {most}")
    yield f"Accuracy surely falls {'; '.join(falls)}" if falls else ""
    for name in (names.CTX_AGG, names.AGG_ONLY):
        scores = [f"{row[name][0]:.2f} in `{task}`" for task, row in values["scores"].items() if known(row[name][0])]
        none = "none, since the whole model is no better than without any edges"
        yield f"Primary endpoint, the score of `{name}`: {listed(scores) or none}."


def circuits_table(values: Values) -> pd.DataFrame:
    """One line for each task and circuit: accuracies, divergence and score."""
    lines = {}
    for task, row in values["accuracy"].items():
        for name, right in row.items():
            lines[task, name] = {"first token": written(right)}
            if name != names.ALONE:
                line, begins = (f"{share:.2f}" for share in values["written"][task][name])
                kl, score = (written(values[what][task][name]) for what in ("kl", "scores"))
                lines[task, name] |= {"line": line, "begins": begins, "KL": kl, "score": score}
    return pd.DataFrame.from_dict(lines, orient="index").fillna("").rename_axis(["task", "circuit"])


def twin_says(values: Values) -> Iterator[str]:
    for rows in values["models"].values():
        best = max(rows, key=lambda name: rows[name][0])
        task = values["request"]["primary_task"]
        yield f"Untrained twin, {task}: accuracy {written(rows[best])} at most (in {best})."


# ------------------------------------------------------------------------------------------------ edges and circuits


def map_say(values: Values) -> Iterator[str]:
    """How many edges lose accuracy beyond chance, and which costs most nats."""
    costs = values["costs"]
    dear = sorted((name for name in costs if costs[name]["p"] < 0.05), key=lambda name: -costs[name]["log_prob"])
    cost = [costs[dear[0]][name] for name in ("log_prob", "low", "high")] if dear else []
    text = "ablated alone, {n} of {of} type pairs {n:costs|cost} accuracy beyond chance, most {most}: {cost} nats"
    yield say(text, n=len(dear), of=len(costs), most=in_text(dear[0]), cost=cost) if dear else ""


def circuit_say(values: Values) -> Iterator[str]:
    """The score of the circuit beside random ones, its pairs, and how far the search can be trusted."""
    search, planted, task = values["search"], values["planted"], values["request"]["primary_task"]
    kept, random = search["kept"], search["random"]
    score, without = (search["scores"][name] for name in (names.FOUND, names.without(names.FOUND)))
    if known(score[0]):
        beside = f"; of {len(random)} random circuits as large the best keeps {max(random):.2f}" if random else ""
        text = "{n} of {of} type pairs {n:keeps|keep} {score} of the performance{beside}"
        yield say(text, n=len(kept), of=len(TYPE_PAIRS), score=score, beside=beside)
        pairs = listed([f"`{edge}`" for edge in kept]) or "nothing"
        yield f"For `{task}` the search keeps {pairs}; all pairs but these score {written(without)}."
        if by_draw := values.get("claims", {}).get("kept by draw"):
            always = listed([f"`{edge}`" for edge in kept if all(edge in pairs for pairs in by_draw)])
            yield (
                f"On other prompts, with {in_words(len(by_draw))} draws of donors, the search always keeps "
                f"{always or 'none of these'}."
            )
    else:
        yield ""
        yield f"No circuit of `{task}` was looked for: no edges make the whole model answer better."
    found = len({*planted["kept"]} & {*planted["true"]})
    yield (
        f"On a model whose circuit is known the search finds {found} of {len(planted['true'])} pairs, and "
        f"{len(planted['kept']) - found} others."
    )


def windows_say(values: Values) -> Iterator[str]:
    """From which layer on accuracy surely falls."""
    at, lost, falls = values["windows"]["at"], values["windows"]["lost"], []
    for text, name, layers in (
        ("aggregation is removed below layer {}", names.aggregation_below, at),
        ("contextualisation is removed from layer {} on", names.context_from, at[::-1]),
    ):
        sure = [layer for layer in layers if name(layer) in lost]
        falls += [f"{text.format(layer)} (by {written(lost[name(layer)])})" for layer in sure[:1]]
    yield f"Accuracy surely falls where {', '.join(falls)}" if falls else ""


def probes_say(values: Values) -> Iterator[str]:
    """Which edges carry what donors change, and how exact the cells are."""
    probes = values["probes"]
    cells, lower = np.array(probes["intervals"], dtype=float), np.array(probes["lower"])
    carry = [in_text(edge) for edge, cell in zip(probes["edges"], lower, strict=True) if cell.any()]
    row, column = np.unravel_index(np.argmin(np.where(lower, cells[..., 0], np.inf)), lower.shape)
    text = "{n} of {of} edges {n:carries|carry} what donors change ({carry}): accuracy falls to {cell} ({donor})"
    donor, cell = CORRUPTIONS[probes["corruptions"][column]].replace("_", " "), cells[row, column].tolist()
    yield say(text, n=len(carry), of=len(lower), carry=carry, cell=cell, donor=donor) if carry else ""
    yield f"95 % intervals of the cells (Wilson): +- {np.max(cells[..., 2] - cells[..., 1]) / 2:.2f} or less."


# ------------------------------------------------------------------------------------------------ pruning


def pruning_say(values: Values) -> Iterator[str]:
    """What few units keep, where that is more than any random ones do, and how many of them lead to the answer."""
    curves = panels.curves_of(values)
    random = [max(curve["random"], default=1.0) for curve in curves.values()]
    explained, low = (
        [curve[what][str(curve["result"])][end] for curve in curves.values()]
        for what, end in (("explained", 0), ("accuracy", 1))
    )
    if np.greater(low, random).all():
        share = max(100 * curve["result"] / curve["units"] for curve in curves.values())
        yield (
            f"At most {share:.0f} % of the units keep {min(explained):.2f} to {max(explained):.2f} of the accuracy; as "
            f"many random units answer {max(random):.2f} right at most"
        )
    else:
        yield ""
    edges = Counter[str]()
    for (_, sort), curve in curves.items():
        edges.update(curve["survivors"] if sort == "edge" else {})
    last = sum(count for kind, count in edges.items() if kind.endswith("->last_separator"))
    if edges:
        yield f"{last} of the {edges.total()} edge units that are left lead to the last separator."


def pruning_about(values: Values) -> str:
    request = values["request"]
    return f"{setting(values, listed(request['pruned_tasks']))}; pruned on {request['search_prompts']} others"


def probes_about(values: Values) -> str:
    inside = written(values["probes"]["inside"])
    return f"accuracy inside {names.CTX_AGG} (nothing exchanged: {inside}); {setting(values)}"


FIGURE = Figure(
    "edge_ablation",
    Settings,
    {
        "circuits": Part(
            numbers.circuits, "circuits", circuits_say, lambda values: setting(values, "each task"), panels.circuits,
            circuits_table,
        ),
        "map": Part(
            numbers.single, "single", map_say, lambda values: f"{setting(values)}, search split", panels.edge_map
        ),
        "circuit": Part(numbers.verified, "verified", circuit_say, setting, panels.circuit),
        "windows": Part(numbers.windows, "by_layer", windows_say, setting, panels.windows, needs=("circuits",)),
        "pruning": Part(numbers.pruning, "pruned", pruning_say, pruning_about, panels.pruning),
        "probes": Part(numbers.probes, "probed", probes_say, probes_about, panels.probes),
        "models": Part(numbers.models, "models", twin_says),
        "claims": CLAIMS,
    },
)  # fmt: skip
