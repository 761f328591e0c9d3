"""The figure of edge ablation: sentences, tables and pictures, made of its numbers (Bakalova et al., COLM 2025).

The figures of the paper were not available to us: none of these has an arrangement of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import pandas as pd

from util.edges import names
from util.figures.edge_ablation import numbers, panels
from util.figures.edge_ablation.claims import AMBIGUOUS
from util.figures.edge_ablation.numbers import COMPLETENESS
from util.figures.edge_ablation.settings import Settings
from util.prompts.word_pairs import CORRUPTIONS
from util.show.claims import CLAIMS
from util.show.conclusions import title
from util.show.part import Figure, Part, Values
from util.show.words import in_words, listed, say, written
from util.stats.tests import rank_p

MARGIN = 0.1  # of accuracy: the loss that counts as one
OUTPUTS = "y->last_separator"  # the last separator reads the outputs of the demonstrations
READ_BY_OTHERS = "demonstrations that are read by each other or the query"
KINDS = {"head": "heads", "edge": "edges"}
DONORS = {
    1: "other pairs of the task",
    2: "the same words in other pairs",
    3: "pairs with other inputs",
    4: "pairs with other outputs",
    5: "pairs of another rule",
}
assert {*DONORS} <= {*CORRUPTIONS}


def known(number: float | None) -> bool:
    """Whether a number is one: neither NaN nor, in a values file, null."""
    return number is not None and bool(np.isfinite(number))


def in_text(edge: str) -> str:
    """The name of an edge in a sentence: y → last separator."""
    return edge.replace("->", " → ").replace("_", " ")


def task_of(values: Values) -> str:
    """The primary task; values from before the settings were stored name it otherwise."""
    request = values["request"]
    return str(request.get("primary_task") or request["dataset"])


def setting(values: Values, task: str | None = "", between: str = ", ") -> str:
    """What titles say of prompts: model, task (that of `task_of` by default), demonstrations, prompts, donors."""
    request = values["request"]
    donors = request.get("donor_seeds")
    extent = f"{request['prompts']} prompts" + (f", donors {', '.join(map(str, donors))}" if donors else "")
    where = "" if task is None else f"{task or task_of(values)}, "
    return f"{title(values)}, {where}{request['k']} demonstrations{between}{extent}"


# ------------------------------------------------------------------------------------------------ circuits


def circuits_say(values: Values) -> Iterator[str]:
    """The primary endpoint, and where accuracy surely falls, by the paired tests that the title is made of.

    Of other tasks nothing is said: so few queries do not show small losses. The claims have more.
    """
    accuracy, lost = values["accuracy"], values["sure losses"]
    (bare, without), falls = (lost[name] for name in (names.QUERY_ONLY, names.AGG_ONLY)), "accuracy surely falls "
    parts = [f"without demonstrations (QUERY-ONLY) {falls}in {len(bare)} of {len(accuracy)} tasks"] if bare else []
    if without:
        name, loss = max(without.items(), key=lambda item: item[1][0])
        read = f"without those read by each other or the query (AGG-ONLY) {'' if bare else falls}in {len(without)}"
        parts.append(f"{read}{', most in' if len(without) > 1 else ','} {name}, by {written(loss)}")
    yield say(", ".join(parts))
    kept = {}
    for name in (names.CTX_AGG, names.AGG_ONLY):
        scores = {task: row[name][0] for task, row in values["scores"].items()}
        kept[name] = listed([f"{score:.2f} in `{task}`" for task, score in scores.items() if known(score)])
    if all(kept.values()):
        keep = "; ".join(f"`{name}` keeps {tasks}" for name, tasks in kept.items())
        yield f"Primary endpoint, the score of circuits: {keep}."
    else:
        yield "Primary endpoint: the whole model is no better than without any edges, so that circuits have no score."
    for circuit, what in ((names.QUERY_ONLY, "reading the demonstrations"), (names.AGG_ONLY, READ_BY_OTHERS)):
        tasks = []
        for task, loss in lost[circuit].items():
            whole, left = (accuracy[task][name][0] for name in (names.FULL, circuit))
            tasks.append(f"`{task}` (by {written(loss)}, from {whole:.2f} to {left:.2f})")
        if tasks:
            yield f"Without {what} ({circuit}) accuracy surely falls in {listed(tasks)}."
    if "uncontextualised" in values:
        yield without_context(values["uncontextualised"], MARGIN, title(values))
        yield f"Distinct queries: {', '.join(f'{task} {count}' for task, count in values['queries'].items())}."


def without_context(losses: Mapping[str, Any], margin: float, model: str) -> str:
    """Whether a model can tell what contextualisation is for: acc(FULL) - acc(AGG-ONLY) by task, in a sentence.

    It cannot where every interval is below the margin: demonstrations read alone then serve as well as those that read
    each other. It can where an interval is above 0; else the prompts are too few to say.
    """
    losing = [task for task, loss in losses.items() if loss[1] > 0]
    task, largest = max(losses.items(), key=lambda item: item[1][0])
    most = f"in {task}: {written(largest)}"
    if losing:
        return (
            f"{model} loses accuracy without contextualisation in {len(losing)} of {len(losses)} tasks (most {most})."
        )
    if all(loss[2] < margin for loss in losses.values()):
        return (
            f"{model} answers every task with {names.AGG_ONLY} as well as with everything (largest loss, {most}): what "
            "contextualisation is for cannot be tested on it."
        )
    return f"Whether {model} needs contextualisation is undecided with these prompts (largest loss, {most})."


def circuits_about(values: Values) -> str:
    return setting(values, None, ", of each task ")


def circuits_table(values: Values) -> pd.DataFrame:
    """One line for each task and circuit: accuracies, divergence, agreement and score."""
    lines = {}
    for task, row in values["accuracy"].items():
        for name, right in row.items():
            line = {"first token": written(right)} | dict.fromkeys(("line", "begins", "KL", "same", "score"), "")
            if name in values["kl"][task]:
                shares = (*values["written"][task][name], values["same"][task][name])
                line |= dict(zip(("line", "begins", "same"), (f"{share:.2f}" for share in shares), strict=True))
                line |= {"KL": written(values["kl"][task][name]), "score": written(values["scores"][task][name])}
            lines[task, name] = line
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis(["task", "circuit"])


def twin_says(values: Values) -> Iterator[str]:
    if "untrained" in values["models"]:
        best, right = max(values["models"]["untrained"].items(), key=lambda item: item[1][0])
        yield f"Untrained twin, {task_of(values)}: accuracy {written(right)} at most (in {best})."


# ------------------------------------------------------------------------------------------------ edges and circuits


def map_say(values: Values) -> Iterator[str]:
    costs, dear = values["costs"], beyond_chance(values["costs"])
    cost = [costs[dear[0]][name] for name in ("log_prob", "low", "high")] if dear else []
    text = "ablated alone, {n} of {of} type pairs {n:costs|cost} accuracy beyond chance, most {most}: {cost} nats"
    yield say(text, n=len(dear), of=len(costs), most=in_text(dear[0]), cost=cost) if dear else ""


def beyond_chance(costs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The edges whose loss of accuracy is beyond chance, those that cost most nats first."""
    return sorted((name for name in costs if costs[name]["p"] < 0.05), key=lambda name: -costs[name]["log_prob"])


def circuit_say(values: Values) -> Iterator[str]:
    search, task, pairs = values["search"], task_of(values), len(values["costs"])
    kept, random, scores = search["kept"], search["random"], search["scores"]
    score, without = (scores[name] for name in (names.FOUND, names.without(names.FOUND)))
    if not known(score[0]):
        yield ""
        whole, prompts = written(panels.whole_of(values)), values["request"]["prompts"]
        yield f"No circuit of `{task}` was looked for: accuracy is {whole} ({prompts} prompts)."
        return
    best = max(random, default=0)
    beside = f"; of {len(random)} random circuits as large the best keeps {best:.2f}" * bool(random)
    text = "{n} of {of} type pairs {n:keeps|keep} {score} of the performance{beside}"
    yield say(text, n=len(kept), of=pairs, score=score, beside=beside) if kept else ""
    yield say(
        "for `{task}` {n:words} of {of} pairs of token types {n:is|are} kept: {kept}. On other prompts the circuit "
        "scores {score}, all pairs but these {without}{beside}.",
        task=task, n=len(kept), of=pairs, kept=listed([f"`{edge}`" for edge in kept]) or "none", score=score,
        without=without,
        beside=f", the best of {len(random)} random circuits of its size {best:.2f}" * bool(random),
    )  # fmt: skip
    yield from _other_circuits(values)
    p, draws = rank_p(score[0], random, tail="high").p, ", ".join(f"{drawn:.2f}" for drawn in search["by_draw"])
    least = 1 / (1 + len(random))
    yield f"By draw of donors it scores {draws}; among random circuits p = {p:.3f}, {least:.3f} at least."
    gaps = {
        family: scores[names.without(family, names.FOUND)][0] - scores[names.without(family)][0]
        for family in COMPLETENESS
    }
    complete = ", ".join(f"{family} {gap:.2f}" for family, gap in gaps.items())
    yield f"Completeness, score without a family, in the circuit minus in the model: {complete}."


def _other_circuits(values: Values) -> Iterator[str]:
    """The circuits that `make claims` found with other prompts and donors: what they share with the figure's."""
    by_draw = values.get("claims", {}).get("kept by draw", [])
    if not by_draw:
        return
    circuits = [set(values["search"]["kept"]), *map(set, by_draw)]
    overlaps = [len(one & other) / len(one | other) for one, other in combinations(circuits, 2)]
    always = listed([f"`{edge}`" for edge in sorted(set.intersection(*circuits))])
    kept = "; ".join(listed([f"`{edge}`" for edge in kept]) for kept in by_draw)
    yield (
        f"On other prompts, with {in_words(len(by_draw))} draws of donors, the search keeps {kept}. All "
        f"{in_words(len(circuits))} circuits have {always}; two of them share {min(overlaps):.2f} to "
        f"{max(overlaps):.2f} of their pairs."
    )


def windows_say(values: Values) -> Iterator[str]:
    windows = values["windows"]
    at, lost, falls = windows["at"], windows.get("lost", {}), []
    early = {layer: lost.get(names.aggregation_below(layer)) for layer in at}
    late = {layer: lost.get(names.context_from(layer)) for layer in at}
    if missed := [layer for layer in at if early[layer]]:
        falls.append(f"aggregation is removed below layer {missed[0]} (by {written(early[missed[0]])})")
    if missed := [layer for layer in at if late[layer]]:
        falls.append(f"contextualisation is removed from layer {missed[-1]} on (by {written(late[missed[-1]])})")
    yield f"Accuracy surely falls where {', '.join(falls)}" if falls else ""
    half = int(np.argmin(np.abs(np.array(at) - at[-1] / 2)))
    yield (
        f"Accuracy is {written(windows['AGG below'][half])} without aggregation below layer {at[half]}, and "
        f"{written(windows['CONTEXT from'][half])} without contextualisation from there on. The whole model has "
        f"{written(panels.whole_of(values))}."
    )


def probes_say(values: Values) -> Iterator[str]:
    probes = values["probes"]
    edges, corruptions, right = probes["edges"], probes["corruptions"], np.array(probes["accuracy"], dtype=float)
    lower = np.array(probes.get("lower", np.zeros(right.shape)), dtype=bool)
    if lower.any():
        carry = [in_text(edge) for edge, cells in zip(edges, lower, strict=True) if cells.any()]
        row, column = np.unravel_index(np.argmin(np.where(lower, right, np.inf)), lower.shape)
        yield say(
            "{n} of {of} edges {n:carries|carry} what donors change ({carry}): accuracy falls to {cell} ({donor})",
            n=len(carry), of=len(edges), carry=carry, cell=probes["intervals"][row][column],
            donor=CORRUPTIONS[corruptions[column]].replace("_", " "),
        )  # fmt: skip
    else:
        yield ""
    if OUTPUTS in edges:
        row_of = dict(zip(corruptions, right[edges.index(OUTPUTS)], strict=True))
        by = [f"{row_of[number]:.2f} from {donor}" for number, donor in DONORS.items() if number in row_of]
        yield f"Accuracy where the outputs are read from a donor: {listed(by)}."
    if "intervals" in probes:
        cells = np.array([*chain.from_iterable(probes["intervals"]), probes["inside"]], dtype=float)
        yield f"95 % intervals of the cells (Wilson): +- {np.max(cells[:, 2] - cells[:, 1]) / 2:.2f} or less."


def ambiguous_say(values: Values) -> Iterator[str]:
    """How far the whole model's past tenses fall, and what it says instead, if they surely fall.

    Surely: the interval is below that of the fewest ambiguous demonstrations.
    """
    found = values["ambiguous"]
    past, copied, other = (found[what][names.FULL] for what in ("past", "copied", "other"))
    least = min(range(len(past)), key=lambda place: past[place][0])
    if not past[least][2] < past[0][1]:
        yield ""
        return
    instead = {"the query again": copied[least], "something else": other[least]}
    says, share = max(instead.items(), key=lambda item: item[1][0])
    yield (
        f"With {found['counts'][least]} of {values['request']['k']} demonstrations ambiguous, past tenses fall from "
        f"{written(past[0])} to {written(past[least])}: the model says {says} ({written(share)})"
    )


# ------------------------------------------------------------------------------------------------ pruning


def curves_of(values: Values) -> dict[tuple[str, str], Any]:
    """What pruning leaves, by task and sort of units."""
    by_task = values["pruning"]["by_task"]
    return {(task, sort): curve for task, curves in by_task.items() for sort, curve in curves.items()}


def pruning_say(values: Values) -> Iterator[str]:
    curves = list(curves_of(values).values())
    if all(curve["random"] and at_result(curve, "accuracy")[1] > max(curve["random"]) for curve in curves):
        shares = [100 * curve["result"] / curve["units"] for curve in curves]
        kept = [at_result(curve, "explained")[0] for curve in curves]
        yield (
            f"{_range(shares, '.0f')} % of the units keep {_range(kept, '.2f')} of the accuracy; as many random units "
            f"answer {max(max(curve['random']) for curve in curves):.2f} right at most"
        )
    else:
        yield ""
    for task, by_sort in values["pruning"]["by_task"].items():
        shares_kept = [
            f"{curve['result']:,} of {curve['units']:,} units of {KINDS[sort]} keep {written(share)}"
            for sort, curve in by_sort.items()
            if known((share := at_result(curve, "explained"))[0])
        ]
        if shares_kept:
            random = [accuracy for curve in by_sort.values() for accuracy in curve["random"]]
            beside = f"; random prunings have an accuracy of {max(random):.2f} at most" if random else ""
            yield f"`{task}`: {listed(shares_kept)} of the accuracy{beside}."
    for sort, by_pair in (values["pruning"].get("overlap") or {}).items():
        for tasks, both in by_pair.items():
            if known(both["shared"]):
                beside = f", random prunings {np.mean(both['random']):.2f}" if both["random"] else ""
                units = f"{both['shared']:.2f} of their units of {KINDS[sort]}"
                yield f"{tasks.replace(', ', ' and ').capitalize()} share {units}{beside}."


def at_result(curve: Mapping[str, Any], what: str) -> Sequence[float]:
    """The accuracy of the units that are left, or the share of the whole model's that is explained by them."""
    return curve[what][str(curve["result"])]


def _range(numbers_: Sequence[float], form: str) -> str:
    """The least and the largest of some numbers, as one where they are written alike."""
    low, high = format(min(numbers_), form), format(max(numbers_), form)
    return low if low == high else f"{low} to {high}"


def pruning_table(values: Values) -> pd.DataFrame:
    """A line for each task and sort of units: the result, and random prunings of that size."""
    lines = {}
    for (task, sort), curve in curves_of(values).items():
        drawn = curve["random"]
        lines[task, f"{sort} units"] = {
            "at first": curve["units"],
            "left": f"{curve['result']} ({curve['result'] / max(1, curve['units']):.1%})",
            "accuracy, test": written(at_result(curve, "accuracy")),
            "of the whole": written(at_result(curve, "explained")),
            "nine tenths from": curve["fewest"] or "",
            "random": f"{np.mean(drawn):.2f}, at most {max(drawn):.2f}" if drawn else "",
            "p": f"{curve['p']:.3f}" if drawn else "",
        }
    return pd.DataFrame.from_dict(lines, orient="index")


def survivors_say(values: Values) -> Iterator[str]:
    """Which kind of edge units is most frequent among all that are left, and in which layers."""
    left: dict[str, dict[int, int]] = {}
    for (_, sort), curve in curves_of(values).items():
        for kind, by_layer in numbers.kinds(curve["kept"]).items() if sort == "edge" else ():
            for layer, count in by_layer.items():
                left.setdefault(kind, {})[layer] = left.get(kind, {}).get(layer, 0) + count
    totals = {kind: sum(by_layer.values()) for kind, by_layer in left.items()}
    if not left:
        yield ""
        return
    kind = max(totals, key=lambda kind: totals[kind])
    into = sum(count for name, count in totals.items() if name.endswith("->last_separator"))
    layers = f"layer{'s' * (len(left[kind]) > 1)} {_range(list(left[kind]), 'd')}"
    yield (
        f"{into} of the {sum(totals.values())} edge units that are left lead to the last separator; the most frequent "
        f"is {in_text(kind)} ({totals[kind]}, {layers})"
    )


def pruning_about(values: Values) -> str:
    by_task = values["pruning"]["by_task"]
    others = next(iter(curves_of(values).values()))["settings"]["search_prompts"]
    return f"{setting(values, listed(list(by_task)), '; tested on ')}; pruned on {others} others"


def conclusions(values: Values) -> Iterator[str]:
    """What the parts say, but for the titles of their pictures."""
    for part in FIGURE.parts.values():
        yield from filter(None, list(part.says(values))[bool(part.panels) :])


FIGURE = Figure(
    "edge_ablation",
    Settings,
    {
        "circuits": Part(
            numbers.circuits, "circuits", circuits_say, panels=panels.circuits, table=circuits_table,
            about=circuits_about,
        ),
        "map": Part(
            numbers.single, "single", map_say, panels=panels.edge_map,
            about=lambda values: f"{setting(values)}, search split",
        ),
        "circuit": Part(
            numbers.verified, "verified", circuit_say, setting, panels.circuit, needs=("circuits", "map"),
        ),
        "windows": Part(numbers.windows, "by_layer", windows_say, setting, panels.windows, needs=("circuits",)),
        "pruning": Part(numbers.pruning, "pruned", pruning_say, pruning_about, panels.pruning, pruning_table),
        "survivors": Part(
            lambda arrays, settings: {}, "pruned", survivors_say, pruning_about, panels.survivors,
            needs=("windows", "pruning"),
        ),
        "probes": Part(
            numbers.probes, "probed", probes_say, panels=panels.probes,
            about=lambda values: (
                f"accuracy inside {names.CTX_AGG} (nothing exchanged: {written(values['probes']['inside'])}); "
                f"{setting(values)}"
            ),
        ),
        "ambiguous": Part(
            numbers.ambiguous, "ambiguity", ambiguous_say, panels=panels.ambiguous,
            about=lambda values: setting(values, AMBIGUOUS),
        ),
        "models": Part(numbers.models, "models", twin_says),
        "claims": CLAIMS,
    },
    conclusions,
)  # fmt: skip
