"""Edge ablation, from arrays alone: accuracies, what edges cost, how well a circuit stands for the whole model.

Verdicts on the paper's claims are made here, too; data/published/VERDICTS.md has the rules.

Bakalova et al., COLM 2025; right [N] or, with several draws of donors, [D, N] says which prompts are answered right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from util.edges.edge import (
    AGG_ONLY,
    AGGREGATING,
    ALONE,
    CTX_AGG,
    FAMILIES,
    FOUND,
    FULL,
    INSIDE,
    NONE,
    QUERY_ONLY,
    WINDOWS,
    at_layer,
    random_names,
    read_from,
    without,
)
from util.show.part import Arrays
from util.stats.heads import Floats
from util.stats.intervals import (
    ERROR,
    Interval,
    accuracy,
    holm,
    mcnemar,
    mean_interval,
    paired_interval,
    paired_p,
    ratio_of_means,
    resampled,
)
from util.stats.verdicts import NO_PREMISE, Claim, Effect, Part, all_of, any_of, judged, weakest

Numbers = dict[str, Any]
Row = Mapping[str, NDArray]  # of one ablation: query [N], and measures [D, N] over draws of donors
Rows = Mapping[str, Row]  # by the name of the ablation
MEASURES = ("right", "log_prob", "kl", "agrees", "line_right", "prefix_right")
SHARE = 0.9  # of the accuracy, that a search or a pruning has to keep
PROBED = (*FAMILIES["CONTEXT_IO"], *(edge for edge in FAMILIES["AGG"] if edge.source in ("x", "y")))


def aligned(draws: Sequence[Arrays]) -> Rows:
    """The rows of several draws of donors. draws: of each draw, the data of a record by the name of its ablation."""
    return {name: row_of([draw[name] for draw in draws]) for name in draws[0]}


def row_of(draws: Sequence[Arrays]) -> Row:
    """Answers under one ablation with several draws of donors as one: those of MEASURES that all draws have, [D, N].

    draws: of each draw, the data of a record. The row has the prompts that all draws have, and query [N], a number for
    the query of each prompt: prompts that ask the same are not independent.
    """
    common = reduce(np.intersect1d, [draw["index"] for draw in draws])
    places = [np.searchsorted(draw["index"], common) for draw in draws]
    row = {"query": np.unique(np.array(draws[0]["queries"])[places[0]], return_inverse=True)[1]}
    for measure in MEASURES:
        if all(measure in draw for draw in draws):
            row[measure] = np.stack([draw[measure][place] for draw, place in zip(draws, places, strict=True)])
    return row


def queries_of(row: Row) -> int:
    """How many distinct queries a row has: so many prompts are independent."""
    return len(set(row["query"].tolist()))


def line_right(written: str, answer: str) -> bool:
    """Whether the first line that was written is the answer (acc_line)."""
    return written.strip().partition("\n")[0].strip() == answer


def prefix_right(written: str, answer: str) -> bool:
    """Whether it begins with the answer, as the reference code counts (acc_prefix), even as "running" for "run"."""
    return written.strip().startswith(answer)


# ------------------------------------------------------------------------------------------------ measures


def right_of(row: Row, what: str = "right") -> Interval:
    """Accuracy of the first token, or the share of another measure, with Wilson's interval over distinct queries."""
    return accuracy(row[what], queries_of(row))


def costs(whole: Row, ablated: Rows) -> dict[str, dict[str, float]]:
    """What each ablation of a map costs, of `right` and `log_prob` [N] or [D, N], corrected for the map.

    accuracy has p by McNemar's exact test, corrected by Holm's method. log_prob, nats of the answer, has an interval of
    the mean, low to high; those of the map hold together (Bonferroni). Queries are the units of both.
    """
    measured, queries = {}, whole["query"]
    corrected = holm([mcnemar(whole["right"], row["right"], queries) for row in ablated.values()])
    for (name, row), p in zip(ablated.items(), corrected, strict=True):
        lost = mean_interval(by_query(whole["log_prob"] - row["log_prob"], queries), comparisons=len(ablated))
        right = float(whole["right"].mean() - row["right"].mean())
        measured[name] = {"accuracy": right, "p": p, "log_prob": lost.value, "low": lost.low, "high": lost.high}
    return measured


def by_query(values: Floats, queries: ArrayLike) -> Floats:
    """The means of values [N] or [D, N] over the prompts of each query."""
    sums, sizes = _sums([values, np.ones(np.shape(values))], queries)
    return sums / sizes


def score(circuit: Row, full: Row, none: Row | None = None) -> Interval:
    """(acc(C) - acc(NONE)) / (acc(FULL) - acc(NONE)) of a circuit, or acc(C) / acc(FULL), the share that it explains.

    The 95 % interval resamples queries for all three together. Where they agree so well that it would have less width,
    it has that of what no query shows. NaN where the whole model is no better than NONE: there is nothing that a
    circuit could keep.
    """
    nothing = np.zeros_like(full["right"]) if none is None else none["right"]
    kept, whole, nothing = _sums([circuit["right"], full["right"], nothing], full["query"])
    worth = (whole - nothing).sum()
    if worth <= 0:
        return Interval(np.nan, np.nan, np.nan)
    weights = resampled(len(kept), 2000)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = weights @ (kept - nothing) / (weights @ (whole - nothing))
    low, high = np.quantile(ratios[np.isfinite(ratios)], [0.025, 0.975])
    unseen = 1 - 0.025 ** (1 / len(kept))  # how common something can be that no query shows (exact 95 % bound)
    value, width = (kept - nothing).sum() / worth, unseen * len(full["query"]) / worth
    return Interval(float(value), float(min(low, value - width)), float(max(high, value + width)))


def sure_losses(whole_and_ablated: Mapping[str, tuple[Row, Row]]) -> dict[str, Interval]:
    """The ablations, by name, that significantly lower accuracy, of all tested together, and how much each loses.

    A one-sided test of paired differences by query, see `stats.intervals.paired_p`, corrected by Holm's method; the
    interval is that test's, without correction.
    """
    lost = {
        name: by_query(np.subtract(whole["right"], ablated["right"], dtype=float), whole["query"])
        for name, (whole, ablated) in whole_and_ablated.items()
    }
    corrected = holm([*map(paired_p, lost.values())])
    return {name: paired_interval(lost[name]) for name, p in zip(lost, corrected, strict=True) if p <= ERROR}


def _sums(parts: Sequence[Floats], queries: ArrayLike) -> list[Floats]:
    """Sums over the prompts of each query, of the means over draws of donors."""
    means = [np.atleast_2d(part).mean(axis=0, dtype=np.float64) for part in parts]
    which = np.unique(queries, return_inverse=True)[1]
    return [np.bincount(which, part).astype(np.float64) for part in means]


# ------------------------------------------------------------------------------------------------ parts


def accuracies(rows: Rows) -> dict[str, Interval]:
    """The accuracy of each row, see `right_of`."""
    return {name: right_of(row) for name, row in rows.items()}


def scores_of(rows: Rows) -> dict[str, Interval]:
    """The score of each row, see `score`."""
    return {name: score(row, rows[FULL], rows[NONE]) for name, row in rows.items()}


def circuits(arrays: Arrays, settings: Any) -> Numbers:
    """By task and circuit: accuracy, also after bare queries; score; models: accuracy of the untrained twin.

    And "sure losses": where accuracy falls significantly without demonstrations and without contextualisation, see
    `sure_losses`; chance in each task; what was written out, see `measure.circuits`.
    """
    compared, untrained = arrays["tasks"], arrays["untrained"]
    rows = {task: one["rows"] for task, one in compared.items()}
    return {
        "accuracy": {task: accuracies({**one["rows"], ALONE: one["alone"]}) for task, one in compared.items()},
        "sure losses": {
            circuit: sure_losses({task: (of_task[FULL], of_task[circuit]) for task, of_task in rows.items()})
            for circuit in (QUERY_ONLY, AGG_ONLY)
        },
        "scores": {task: scores_of(of_task) for task, of_task in rows.items()},
        **{name: {task: one[name] for task, one in compared.items()} for name in ("chance", "written")},
        **({"left out": arrays["left out"]} if arrays["left out"] else {}),
        "models": {"untrained": accuracies(untrained)} if untrained else {},
    }


def single(rows: Rows, settings: Any) -> Numbers:
    """What each type pair costs alone on the search split, see `costs`."""
    return {"costs": costs(rows[FULL], {name: row for name, row in rows.items() if name != FULL})}


def verified(arrays: Arrays, settings: Any) -> Numbers:
    """A circuit that was searched: its pairs; scores of it and of the model without it; random: of circuits as large.

    aggregating: scores of circuits with its reads of the last token, by their other pairs. explained: acc(circuit) /
    acc(FULL). planted: what the search keeps where the circuit is known, and what is true.
    """
    rows, scores = arrays["rows"], scores_of(arrays["rows"])
    return {
        "search": {
            "kept": arrays["kept"],
            "scores": {name: scores[name] for name in (FOUND, without(FOUND))},
            "random": [scores[name].value for name in random_names(rows)],
            "aggregating": {
                name.removeprefix(AGGREGATING): value.value
                for name, value in scores.items()
                if name.startswith(AGGREGATING)
            },
            "explained": score(rows[FOUND], rows[FULL]),
        },
        "planted": arrays["planted"],
    }


def windows(arrays: Arrays, settings: Any) -> Numbers:
    """Accuracy without contextualisation from each layer on, and without aggregation below it.

    lost: where accuracy falls significantly, all windows tested together, by the name of the ablation.
    """
    rows, at = arrays["rows"], arrays["at"]
    ablated = {window: [at_layer(window, layer) for layer in at] for window in WINDOWS}
    return {
        "windows": {
            "at": at,
            **{window: [right_of(rows[name]) for name in by_layer] for window, by_layer in ablated.items()},
            "lost": sure_losses({name: (rows[FULL], rows[name]) for by_layer in ablated.values() for name in by_layer}),
        }
    }


def probes(rows: Rows, settings: Any) -> Numbers:
    """Accuracy inside a circuit by edge and corruption (intervals), and where nothing is exchanged (inside).

    lower [E, C]: where it is lower than inside, McNemar over queries, corrected by Holm.
    """
    inside, edges = rows[INSIDE], [*map(str, PROBED)]
    cells = [rows[read_from(edge, number)] for edge in edges for number in settings.corruptions]
    p = holm([mcnemar(inside["right"], cell["right"], inside["query"]) for cell in cells])
    right = np.reshape([right_of(cell) for cell in cells], (len(edges), -1, 3))
    return {
        "probes": {
            "edges": edges,
            "corruptions": settings.corruptions,
            "intervals": right,
            "inside": right_of(inside),
            "lower": (right[..., 0] < inside["right"].mean()) & (np.reshape(p, (len(edges), -1)) < 0.05),
        }
    }


def pruning(by_task: Arrays, settings: Any) -> Numbers:
    """What pruning leaves, by task and sort of units, see `pruned`."""
    return {"pruning": {"by_task": {task: {sort: pruned(one[sort]) for sort in one} for task, one in by_task.items()}}}


def pruned(left: Arrays) -> Numbers:
    """What is left of the units of one sort, see `runs.units_left`.

    accuracy, and explained, its share of the whole model's, on the test split by units left; random: of random prunings
    as large as the result, with the first draw of donors.
    """
    result = left["result"]
    return {
        "units": left["units"],
        "whole": right_of(left["whole"]),
        "accuracy": {str(result): right_of(left["pruned"])},
        "explained": {str(result): score(left["pruned"], left["whole"])},
        "result": result,
        "random": [float(row["right"].mean()) for row in left["random"]],
    }


AMBIGUOUS = "ambiguous_present_past"  # the task of claim 4
TEXTS = {
    1: "circuits explain most of the performance",
    2: "how much contextualisation matters differs between tasks",
    3: "links between inputs and outputs contextualise the demonstrations",
    4: "contextualisation matters more with ambiguous demonstrations",
    5: "lower layers contextualise, higher layers aggregate",
}
MARGINS = {1: 0.15, 2: 0.15, 3: 0.05, 4: 0.25, 5: 0.15}  # by `make bench NAME=verdicts`; of claim 4 in nats
Contrast = tuple[str, str]  # two ablations, of which the first keeps or removes more than the second
ADDED: Contrast = (CTX_AGG, AGG_ONLY)  # contextualisation added to aggregation
REMOVED: Contrast = (FULL, without("CONTEXT"))  # contextualisation removed from the whole model
Available = Mapping[str, int]  # queries that there are, by task


def right(rows: Rows, name: str) -> Floats:
    """How often each query is answered right, over draws of donors, [N]."""
    return by_query(rows[name]["right"], rows[name]["query"])


def share(rows: Rows, contrast: Contrast) -> tuple[Floats, Floats]:
    """What one ablation has more than the other, and what the whole model has, by query: [N] each."""
    more, less = contrast
    return right(rows, more) - right(rows, less), right(rows, FULL)


def explained(circuit: Rows, available: int | None, margin: float) -> Claim:
    """Claim 1: little is lost in the circuit, and it answers more than random circuits of as many pairs do.

    A circuit of all pairs has no other of its size.
    """
    kept, whole = right(circuit, FOUND), right(circuit, FULL)
    random = [kept - right(circuit, name) for name in random_names(circuit)]
    parts = [judged("lost in the circuit", Effect.of((whole - kept, whole)), margin, above=False, available=available)]
    if random:
        beyond = Effect.of((np.mean(random, axis=0), 1.0), sets=[(more.mean(), 1.0) for more in random])
        name = f"beyond {len(random)} random circuits"
        parts.append(judged(name, beyond, 0.0, above=True, available=available))
    return Claim(1, TEXTS[1], *all_of(parts))


def differs(tasks: Mapping[str, Rows], available: Available, margin: float) -> Claim:
    """Claim 2: in one task contextualisation brings more than in another, both added and removed."""
    ways = {"added": ADDED, "removed": REMOVED}
    linear = {(task, way): ratio_of_means(*share(rows, ways[way]))[1] for task, rows in tasks.items() for way in ways}

    def compared(first: str, second: str, way: str) -> Part:
        difference = Effect.of((linear[first, way], 1.0), (-linear[second, way], 0.0))
        least = min(available[first], available[second])
        return judged(f"{first} against {second}, {way}", difference, margin, above=True, available=least)

    pairs = [weakest([compared(*pair, way) for way in ways]) for pair in permutations(tasks, 2)]
    if not pairs:
        return Claim(2, TEXTS[2], NO_PREMISE, note="fewer than two tasks are done")
    verdict, parts = any_of(pairs)
    clearest = min(parts, key=lambda part: part.p[0])
    return Claim(2, TEXTS[2], verdict, (clearest,), f"the clearest of {len(parts)} ordered pairs of tasks")


def brings_back(tasks: Mapping[str, Rows], available: Available, margin: float) -> Claim:
    """Claim 3: contextualisation, added to aggregation, brings accuracy back."""
    added, least = Effect.of(*(share(rows, ADDED) for rows in tasks.values())), min(available[task] for task in tasks)
    part = judged(", ".join(tasks), added, margin, above=True, available=least)
    return Claim(3, TEXTS[3], part.verdict, (part,))


def more_if_ambiguous(counts: Mapping[int, Rows], available: int | None, margin: float) -> Claim:
    """Claim 4: without contextualisation more log-probability is lost with the most ambiguous demonstrations."""
    fewest, most = min(counts), max(counts)

    def lost(count: int) -> Floats:
        whole, ablated = (counts[count][name] for name in REMOVED)
        return by_query(whole["log_prob"] - ablated["log_prob"], whole["query"])

    difference = Effect.of((lost(most), 1.0), (-lost(fewest), 0.0))
    name = f"{most} against {fewest} ambiguous"
    part = judged(name, difference, margin, above=True, available=available)
    return Claim(4, TEXTS[4], part.verdict, (part,), "nats")


def matters_most(tasks: Mapping[str, Rows]) -> str:
    """The task in which contextualisation, added to aggregation, brings most."""
    return max(tasks, key=lambda task: Effect.of(share(tasks[task], ADDED)).interval().value)


def first_then(
    task: str,
    rows: Rows,
    of_halves: Rows,
    layers: int,
    candidates: int,
    available: int | None,
    margins: Mapping[int, float],
) -> Claim:
    """Claim 5, in the task where contextualisation matters most; premise: claim 3 there, corrected for all tasks."""
    premise = judged(task, Effect.of(share(rows, ADDED)), margins[3], above=True, available=available)
    if candidates * premise.p[0] > ERROR:
        return Claim(5, TEXTS[5], NO_PREMISE, note=f"that contextualisation matters in {task} is not shown")
    half = layers // 2
    contrasts = {  # what is removed in the half that should matter less, and in the other
        "CONTEXT, lower half": (at_layer("CONTEXT from", half), at_layer("CONTEXT below", half)),
        "AGG, upper half": (at_layer("AGG below", half), at_layer("AGG from", half)),
    }
    parts = [
        judged(f"{task}: {name}", Effect.of(share(of_halves, contrast)), margins[5], above=True, available=available)
        for name, contrast in contrasts.items()
    ]
    return Claim(5, TEXTS[5], *all_of(parts))
