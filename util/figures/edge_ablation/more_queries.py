"""The five claims about edges, measured with more queries than notebook 04 asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, circuit_ablations, halves
from util.edges.edge import ALWAYS, CIRCUITS, FAMILIES, Edge
from util.figures.edge_ablation.claims import ADDED, AMBIGUOUS, MARGINS, REMOVED, judge, matters_most
from util.figures.edge_ablation.numbers import Rows
from util.figures.edge_ablation.runs import Run, answers, draws
from util.prompts import word_pairs
from util.roles.pair_task import PairTask
from util.show import files
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS
from util.study.study import Study

COUNTS = (0, 7)  # ambiguous of 10 demonstrations
CONTRASTED: Mapping[str, Ablation] = {
    names.FULL: WHOLE,
    **{name: Ablation(kept=CIRCUITS[name]) for name in ADDED},
    names.AGG_TOQUERY: Ablation(kept=CIRCUITS[names.AGG_ONLY] + FAMILIES["TOQUERY"]),
    REMOVED[1]: Ablation(removed=FAMILIES["CONTEXT"]),
}
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31


def claims(study: Study) -> dict[str, Any]:
    """The verdicts on the claims, and what they are about, for `files.save_claims`.

    study: of 10 demonstrations; its prompts are those of each task, each with a query of its own, or as many as the
    list has. Claim 1 is about its primary task, claims 2, 3 and 5 about its tasks. A circuit is searched with each draw
    of donors; claim 1 is about the first, measured with its draw, as random circuits are. Each ablation of a task and
    draw of donors is a record, so that an interrupted run goes on where it stopped.
    """
    settings, primary = study.settings, study.settings.primary_task
    given = {"seed": settings.seed, "folder": study.folder, "redo": study.redo}
    candidates = dict.fromkeys(settings.tasks) | {AMBIGUOUS: 0}
    checks = {
        task: PairTask(study.model, task, settings.k, ambiguous=count, **given).check(len(candidates))
        for task, count in candidates.items()
    }
    asked = {task: own_queries(study, task) for task, check in checks.items() if check.done}
    if AMBIGUOUS in asked:
        asked[AMBIGUOUS]["ambiguous"] = COUNTS[0]
    whole = {
        task: Run(study, draws(study, **fields)[0]).answers({names.FULL: WHOLE})[names.FULL]
        for task, fields in asked.items()
    }
    tasks = [task for task in settings.tasks if task in asked]
    rows = {task: answers(study, CONTRASTED, ROOM, **asked[task]) for task in tqdm(tasks, "tasks")}
    contrasted = {name: CONTRASTED[name] for name in REMOVED}
    ambiguous = {
        count: answers(study, contrasted, ROOM, **asked[AMBIGUOUS] | {"ambiguous": count})
        for count in (COUNTS if AMBIGUOUS in asked else ())
    }
    circuit: Rows = {}
    circuits: list[tuple[Edge, ...]] = []
    if primary in asked:
        searching = own_queries(study, primary, settings.search_prompts, "search")
        circuits = [Run(study, draw).search() for draw in draws(study, **searching)]
        drawn = circuit_ablations(
            {names.FOUND: (*ALWAYS, *circuits[0])}, settings.random_circuits, settings.seed, like=names.FOUND
        )
        wanted = {name: drawn[name] for name in (names.FULL, names.FOUND, *names.random_names(drawn))}
        first = study.replace(donor_seeds=settings.donor_seeds[:1])
        circuit = answers(first, wanted, ROOM, **asked[primary])
    layers = next((int(data["layers"]) for data in whole.values()), 0)
    halves_of = {names.FULL: WHOLE, **halves(layers)}
    of_halves = answers(study, halves_of, ROOM, **asked[matters_most(rows)]) if rows else {}
    explained = next(row["value"] for row in files.published("edge_ablation")["values"] if row["id"] == "explained")
    lost = 1 - explained  # by the paper's circuits, at most
    return {
        "model": study.model.shown_name,
        "setting": f"{settings.k} demonstrations, donors {', '.join(map(str, settings.donor_seeds))}",
        "settings": {
            "primary": primary,
            **{
                name: getattr(settings, name)
                for name in ("prompts", "k", "donor_seeds", "search_prompts", "random_circuits")
            },
        },
        "published": {"1": {"value": lost, "verdict": HOLDS if lost < MARGINS[1] else DOES_NOT_HOLD}},
        "margins": {str(number): margin for number, margin in MARGINS.items()},
        "checks": checks,
        "kept by draw": [[*map(str, pairs)] for pairs in circuits],
        "claims": judge(
            rows,
            primary=primary,
            circuit=circuit,
            ambiguous=ambiguous,
            halves=of_halves,
            layers=layers,
            available={task: data["askable"] for task, data in whole.items()},
        ).claims,
    }


def own_queries(study: Study, task: str, prompts: int | None = None, split: str = "test") -> dict[str, Any]:
    """Fields of `Draw`: as many prompts of a task as there are queries, or fewer, each with a query of its own."""
    there = len(word_pairs.find(task, trained=word_pairs.is_trained(study.model.name)).queries(split))
    return {"task": task, "prompts": min(prompts or study.settings.prompts, there), "split": split, "in_turn": True}
