"""The figure of edge ablation: sentences, tables and pictures, made of its numbers (Bakalova et al., COLM 2025).

The figures of the paper were not available to us: none of these has an arrangement of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from util.edges import names
from util.figures.edge_ablation import numbers, panels
from util.figures.edge_ablation.claims import AMBIGUOUS
from util.figures.edge_ablation.settings import Settings
from util.prompts.word_pairs import CORRUPTIONS
from util.show.claims import CLAIMS
from util.show.part import Figure, Part, Values, title
from util.show.words import in_words, listed, say, written


def known(number: float | None) -> bool:
    """Whether a number is one: neither NaN nor, in a values file, null."""
    return number is not None and bool(np.isfinite(number))


def in_text(edge: str) -> str:
    """The name of an edge in a sentence: y → last separator."""
    return edge.replace("->", " → ").replace("_", " ")


def task_of(values: Values) -> str:
    """The primary task."""
    return str(values["request"]["primary_task"])


def setting(values: Values, task: str = "") -> str:
    """What titles say of prompts: model, task (that of `task_of` by default), demonstrations, prompts, donors."""
    request = values["request"]
    donors = ", ".join(map(str, request["donor_seeds"]))
    extent = f"{request['k']} demonstrations, {request['prompts']} prompts, donors {donors}"
    return f"{title(values)}, {task or task_of(values)}, {extent}"


# ------------------------------------------------------------------------------------------------ circuits


def circuits_say(values: Values) -> Iterator[str]:
    """Where accuracy surely falls, by paired tests, and the primary endpoint.

    Of other tasks nothing is said: so few queries do not show small losses. The claims have more.
    """
    lost, falls = values["sure losses"], []
    for circuit, what in (
        (names.QUERY_ONLY, "demonstrations"),
        (names.AGG_ONLY, "those read by each other or the query"),
    ):
        if lost[circuit]:
            task, loss = max(lost[circuit].items(), key=lambda item: item[1][0])
            tasks = f"{len(lost[circuit])} of {len(values['accuracy'])} tasks"
            falls.append(f"without {what} ({circuit}) in {tasks}, by up to {written(loss)} in {task}")
    yield f"Accuracy surely falls {'; '.join(falls)}" if falls else ""
    for name in (names.CTX_AGG, names.AGG_ONLY):
        scores = {task: row[name][0] for task, row in values["scores"].items()}
        kept = listed([f"{score:.2f} in `{task}`" for task, score in scores.items() if known(score)])
        none = "none, since the whole model is no better than without any edges"
        yield f"Primary endpoint, the score of `{name}`: {kept or none}."


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
        best, right = max(rows.items(), key=lambda item: item[1][0])
        yield f"Untrained twin, {task_of(values)}: accuracy {written(right)} at most (in {best})."


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
    search, planted = values["search"], values["planted"]
    kept, random = search["kept"], search["random"]
    score, without = (search["scores"][name] for name in (names.FOUND, names.without(names.FOUND)))
    if known(score[0]):
        beside = f"; of {len(random)} random circuits as large the best keeps {max(random):.2f}" if random else ""
        text = "{n} of {of} type pairs {n:keeps|keep} {score} of the performance{beside}"
        yield say(text, n=len(kept), of=len(values["costs"]), score=score, beside=beside) if kept else ""
        pairs = listed([f"`{edge}`" for edge in kept]) or "nothing"
        yield f"For `{task_of(values)}` the search keeps {pairs}; all pairs but these score {written(without)}."
        yield from _other_circuits(values)
    else:
        yield ""
        yield f"No circuit of `{task_of(values)}` was looked for: no edges make the whole model answer better."
    found = len({*planted["kept"]} & {*planted["true"]})
    yield (
        f"On a model whose circuit is known the search finds {found} of {len(planted['true'])} pairs, and "
        f"{len(planted['kept']) - found} others."
    )


def _other_circuits(values: Values) -> Iterator[str]:
    """The circuits that `make claims` found with other prompts and donors: what they share with the figure's."""
    by_draw = values.get("claims", {}).get("kept by draw", [])
    if by_draw:
        circuits = [set(values["search"]["kept"]), *map(set, by_draw)]
        overlaps = [len(one & other) / len(one | other) for one, other in combinations(circuits, 2)]
        always = listed([f"`{edge}`" for edge in sorted(set.intersection(*circuits))]) or "none of these"
        yield (
            f"On other prompts, with {in_words(len(by_draw))} draws of donors, the search always keeps {always}; "
            f"two circuits share {min(overlaps):.2f} to {max(overlaps):.2f} of their pairs."
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
    carry = [in_text(edge) for edge, found in zip(probes["edges"], lower, strict=True) if found.any()]
    row, column = np.unravel_index(np.argmin(np.where(lower, cells[..., 0], np.inf)), lower.shape)
    text = "{n} of {of} edges {n:carries|carry} what donors change ({carry}): accuracy falls to {cell} ({donor})"
    donor = CORRUPTIONS[probes["corruptions"][column]].replace("_", " ")
    cell = probes["intervals"][row][column]
    yield say(text, n=len(carry), of=len(lower), carry=carry, cell=cell, donor=donor) if carry else ""
    yield f"95 % intervals of the cells (Wilson): +- {np.max(cells[..., 2] - cells[..., 1]) / 2:.2f} or less."


def ambiguous_say(values: Values) -> Iterator[str]:
    """How far the whole model's past tenses fall, if their interval is below that of the fewest ambiguous ones."""
    found = values["ambiguous"]
    past, copied = (found[what][names.FULL] for what in ("past", "copied"))
    least = min(range(len(past)), key=lambda place: past[place][0])
    yield (
        f"With {found['counts'][least]} of {values['request']['k']} demonstrations ambiguous, past tenses fall from "
        f"{written(past[0])} to {written(past[least])}; the query is said again in {written(copied[least])}"
        if past[least][2] < past[0][1]
        else ""
    )


# ------------------------------------------------------------------------------------------------ pruning


def at_result(curve: Mapping[str, Any], what: str) -> Any:
    """The accuracy of the units that are left, or the share of the whole model's that is explained by them."""
    return curve[what][str(curve["result"])]


def pruning_say(values: Values) -> Iterator[str]:
    """What few units keep, where that is more than any random ones do, and how many of them lead to the answer."""
    curves = panels.curves_of(values)
    best = [max(one["random"], default=1.0) for one in curves.values()]
    if all(at_result(one, "accuracy")[1] > right for one, right in zip(curves.values(), best, strict=True)):
        share = max(100 * one["result"] / one["units"] for one in curves.values())
        kept = sorted(f"{at_result(one, 'explained')[0]:.2f}" for one in curves.values())
        yield (
            f"At most {share:.0f} % of the units keep {kept[0]} to {kept[-1]} of the accuracy; as many random units "
            f"answer {max(best):.2f} right at most"
        )
    else:
        yield ""
    kinds = [kind for (_, sort), one in curves.items() if sort == "edge" for kind in one["survivors"].items()]
    last = sum(count for kind, count in kinds if kind.endswith("->last_separator"))
    if kinds:
        total = sum(count for _, count in kinds)
        yield f"{last} of the {total} edge units that are left lead to the last separator."


def pruning_table(values: Values) -> pd.DataFrame:
    """A line for each task and sort of units: the result, and random prunings of that size."""
    lines = {}
    for (task, sort), curve in panels.curves_of(values).items():
        drawn = curve["random"]
        lines[task, f"{sort} units"] = {
            "at first": curve["units"],
            "left": f"{curve['result']} ({curve['result'] / max(1, curve['units']):.1%})",
            "accuracy, test": written(at_result(curve, "accuracy")),
            "of the whole": written(at_result(curve, "explained")),
            "random": f"{np.mean(drawn):.2f}, at most {max(drawn):.2f}" if drawn else "",
        }
    return pd.DataFrame.from_dict(lines, orient="index")


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
        "circuit": Part(numbers.verified, "verified", circuit_say, setting, panels.circuit, needs=("map",)),
        "windows": Part(numbers.windows, "by_layer", windows_say, setting, panels.windows, needs=("circuits",)),
        "pruning": Part(numbers.pruning, "pruned", pruning_say, pruning_about, panels.pruning, pruning_table),
        "probes": Part(numbers.probes, "probed", probes_say, probes_about, panels.probes),
        "ambiguous": Part(
            numbers.ambiguous, "ambiguity", ambiguous_say, lambda values: setting(values, AMBIGUOUS), panels.ambiguous
        ),
        "models": Part(numbers.models, "models", twin_says),
        "claims": CLAIMS,
    },
)  # fmt: skip
