"""The five claims about edges, measured with more queries than notebook 04 asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, circuit_ablations, halves
from util.edges.edge import ALWAYS, CIRCUITS, FAMILIES, Edge
from util.figures.edge_ablation import claims as rules
from util.figures.edge_ablation.claims import ADDED, AMBIGUOUS, MARGINS, REMOVED, TEXTS
from util.figures.edge_ablation.numbers import Rows
from util.figures.edge_ablation.runs import Run, answers, draws
from util.prompts import word_pairs
from util.roles.pair_task import PairTask
from util.show import files
from util.stats.answers import TaskCheck
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS, NOT_DONE, Claim
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
    list has. Claim 1 is about its primary task, claims 2, 3 and 5 about its tasks; those of which no task is done have
    no answers. A circuit is searched with each draw of donors; claim 1 is about the first, measured with its draw, as
    random circuits are. Each ablation of a task and draw of donors is a record, so that an interrupted run goes on
    where it stopped.
    """
    settings, primary = study.settings, study.settings.primary_task
    judged = {number: Claim(number, text, NOT_DONE) for number, text in TEXTS.items()}
    checks = checked_tasks(study)
    fields = {task: own_queries(study, task) for task, check in checks.items() if check.done}
    if AMBIGUOUS in fields:
        fields[AMBIGUOUS]["ambiguous"] = COUNTS[0]
    whole = {task: Run(study, draws(study, **of_task)[0]).answer(WHOLE) for task, of_task in fields.items()}
    available = {task: data["askable"] for task, data in whole.items()}
    tasks = {task: answers(study, CONTRASTED, ROOM, **fields[task]) for task in settings.tasks if task in fields}
    if tasks:
        judged[2] = rules.differs(tasks, available, MARGINS[2])
        judged[3] = rules.brings_back(tasks, available, MARGINS[3])
        most = rules.matters_most(tasks)
        layers = int(whole[most]["layers"])
        of_halves = answers(study, {names.FULL: WHOLE, **halves(layers)}, ROOM, **fields[most])
        judged[5] = rules.first_then(most, tasks[most], of_halves, layers, len(tasks), available[most], MARGINS)
    if AMBIGUOUS in fields:
        contrasted = {name: CONTRASTED[name] for name in REMOVED}
        counts = {
            count: answers(study, contrasted, ROOM, **fields[AMBIGUOUS] | {"ambiguous": count}) for count in COUNTS
        }
        judged[4] = rules.more_if_ambiguous(counts, available[AMBIGUOUS], MARGINS[4])
    circuits = searched(study) if primary in fields else []
    if circuits:
        circuit = beside_random(study, circuits[0], fields[primary])
        judged[1] = rules.explained(circuit, available[primary], MARGINS[1])
    shown = ("prompts", "k", "donor_seeds", "search_prompts", "random_circuits")
    explained = next(row["value"] for row in files.published("edge_ablation")["values"] if row["id"] == "explained")
    lost = 1 - explained  # by the paper's circuits, at most
    return {
        "model": study.model.shown_name,
        "setting": f"{settings.k} demonstrations, donors {', '.join(map(str, settings.donor_seeds))}",
        "settings": {"primary": primary, **{name: getattr(settings, name) for name in shown}},
        "published": {"1": {"value": lost, "verdict": HOLDS if lost < MARGINS[1] else DOES_NOT_HOLD}},
        "margins": {str(number): margin for number, margin in MARGINS.items()},
        "checks": checks,
        "kept by draw": [[*map(str, pairs)] for pairs in circuits],
        "claims": [*judged.values()],
    }


def checked_tasks(study: Study) -> dict[str, TaskCheck]:
    """Whether the model does each task, and the ambiguous one, from its demonstrations."""
    given = {"seed": study.settings.seed, "folder": study.folder, "redo": study.redo}
    ambiguous = dict.fromkeys(study.settings.tasks) | {AMBIGUOUS: 0}
    return {
        task: PairTask(study.model, task, study.settings.k, ambiguous=count, **given).check(len(ambiguous))
        for task, count in ambiguous.items()
    }


def searched(study: Study) -> list[tuple[Edge, ...]]:
    """The circuit of the primary task that is found with each draw of donors."""
    fields = own_queries(study, study.settings.primary_task, study.settings.search_prompts, "search")
    return [Run(study, draw).search() for draw in draws(study, **fields)]


def beside_random(study: Study, pairs: tuple[Edge, ...], fields: Mapping[str, Any]) -> Rows:
    """The whole model, a circuit and random ones as large, with the first draw of donors."""
    settings, circuit = study.settings, {names.FOUND: (*ALWAYS, *pairs)}
    ablations = circuit_ablations(circuit, settings.random_circuits, settings.seed, like=names.FOUND)
    wanted = {name: ablations[name] for name in (names.FULL, names.FOUND, *names.random_names(ablations))}
    return answers(study.replace(donor_seeds=settings.donor_seeds[:1]), wanted, ROOM, **fields)


def own_queries(study: Study, task: str, prompts: int | None = None, split: str = "test") -> dict[str, Any]:
    """Fields of `Draw`: as many prompts of a task as there are queries, or fewer, each with a query of its own."""
    queries = len(word_pairs.find(task, trained=word_pairs.is_trained(study.model.name)).queries(split))
    return {"task": task, "prompts": min(prompts or study.settings.prompts, queries), "split": split, "in_turn": True}
