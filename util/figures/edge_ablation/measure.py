"""Edge ablation: what is measured for each part of the figure (Bakalova et al., COLM 2025)."""

from __future__ import annotations

from typing import Any

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, circuit_ablations, cuts, probes, single_edges, windows
from util.edges.edge import ALWAYS, CIRCUITS, Edge, type_pairs
from util.edges.states import Store
from util.figures.edge_ablation.numbers import PROBED, Rows, aligned
from util.figures.edge_ablation.pruning import curves
from util.figures.edge_ablation.runs import LookUp, Run, answers, draws
from util.figures.edge_ablation.settings import Draw
from util.figures.planted_controls import planted_control
from util.models import planted
from util.show.claims import judged_of
from util.study.study import Study

KEPT = {name: Ablation(kept=edges) for name, edges in CIRCUITS.items()}


def circuits(study: Study) -> dict[str, Any]:
    """By task: rows of the circuits, see `numbers.aligned`; alone, a row: the answers to bare queries; chance.

    written: with the first draw of donors, by circuit, the shares of prompts whose first line is the answer, and that
    begin with it. untrained: rows of this model's untrained twin in the primary task, None without that control.
    """
    settings, compared = study.settings, {}
    for task in settings.tasks:
        store = Store()
        first, *others = (Run(study, draw, store) for draw in draws(study, task=task))
        written = first.answers(KEPT, generate=True)
        compared[task] = {
            "rows": aligned([written, *(run.answers(KEPT) for run in others)]),
            "alone": aligned([{names.ALONE: first.alone()}])[names.ALONE],
            "chance": 1 / len(first.task.outputs),
            "written": {
                name: [float(data[way].mean()) for way in ("line_right", "prefix_right")]
                for name, data in written.items()
            },
        }
    twin = answers(study.twin(), KEPT, task=settings.primary_task) if settings.untrained_control else None
    return {"tasks": compared, "untrained": twin}


def single(study: Study) -> Rows:
    """The whole model, and each type pair removed alone, on the split "search": queries that no other part has."""
    return answers(study, {names.FULL: WHOLE, **single_edges()}, split="search")


def verified(study: Study) -> dict[str, Any]:
    """A circuit of the primary task, searched, and measured on other prompts; and the same search where it is known.

    kept: its type pairs; rows: of FULL, NONE, the circuit, the model without it, random circuits; planted: see
    `planted_search`.
    """
    pairs, settings = Run(study, draws(study, split="search")[0]).search(), study.settings
    circuit = {names.FOUND: (*ALWAYS, *pairs)}
    tried = circuit_ablations(circuit, settings.random_circuits, settings.seed, like=names.FOUND)
    return {"kept": [*map(str, pairs)], "rows": answers(study, tried), "planted": planted_search(study)}


def by_layer(study: Study) -> dict[str, Any]:
    """Contextualisation taken out from a layer on, aggregation below it, `at` the layers of `cuts`; rows."""
    full = KEPT[names.FULL]  # as circuits are compared
    layers = int(Run(study, draws(study)[0]).answer(full)["layers"])
    at = cuts(layers)
    return {"at": at, "rows": answers(study, {names.FULL: full, **windows(layers, at)})}


def probed(study: Study) -> Rows:
    """Inside CTX+AGG, each edge of PROBED read from each corruption."""
    numbers = study.settings.corruptions
    return answers(study, probes(CIRCUITS[names.CTX_AGG], PROBED, numbers), corruptions=(0, *numbers))


def pruned(study: Study) -> dict[str, Any]:
    """What pruning leaves in each of pruned_tasks, see `pruning.curves`; donors' states are kept for one at a time."""
    return {task: curves(study, task) for task in study.settings.pruned_tasks}


def planted_search(study: Study) -> dict[str, list[str]]:
    """What a search keeps of a known circuit, `planted.lookup` on the embedded model's tokenizer, and what is true."""
    model, truth = planted_control(planted.lookup, {})
    known = study.replace(model=model, redo=False, untrained_control=False)
    pairs = LookUp(known, Draw(k=6, prompts=12)).search()
    return {"kept": [*map(str, pairs)], "true": sorted(map(str, type_pairs([Edge(*edge) for edge in truth.edges])))}


def claims(study: Study) -> dict[str, Any]:
    """The verdicts that `make claims` has stored of the model."""
    return judged_of(study.figure.stem, study.model.name)
