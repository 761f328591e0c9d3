"""The five claims about edges, measured with more queries than notebook 04 asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, circuit_ablations, halves
from util.edges.edge import CIRCUITS, FAMILIES
from util.edges.splicing import Store
from util.figures.edge_ablation.claims import ADDED, AMBIGUOUS, MARGINS, REMOVED, judge, matters_most
from util.figures.edge_ablation.measures import Rows
from util.figures.edge_ablation.plan import TASKS
from util.figures.edge_ablation.study import STEM, Split, Study
from util.prompts import word_pairs
from util.roles.pair_task import PairTask
from util.show import files
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS

COUNTS = (0, 7)  # ambiguous of 10 demonstrations
RANDOM = 20  # circuits with as many pairs as the one found
CONTRASTED: Mapping[str, Ablation] = {
    names.FULL: WHOLE,
    **{name: Ablation(kept=CIRCUITS[name]) for name in ADDED},
    names.AGG_TOQUERY: Ablation(kept=CIRCUITS[names.AGG_ONLY] + FAMILIES["TOQUERY"]),
    REMOVED[1]: Ablation(removed=FAMILIES["CONTEXT"]),
}
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31


def claims(study: Study, tasks: Sequence[str] = TASKS, *, search_prompts: int = 64) -> dict[str, Any]:
    """The verdicts on the claims, and what they are about, for `files.save_claims`.

    study: of 10 demonstrations. Its task is that of claim 1; its prompts are those of each task, each with a query of
    its own, or as many as the list has. tasks: of claims 2, 3 and 5. search_prompts: a circuit is searched on them
    with each draw of donors. Claim 1 is about the first circuit, asked with its draw, as random circuits are.
    Each ablation of a task and draw of donors is a cached record, so that an interrupted run goes on where it stopped.
    """
    places: dict[str, Any] = {"folder": study.folder, "redo": study.redo}
    asked = dict.fromkeys((*tasks, study.task), None) | {AMBIGUOUS: 0}
    checks = {
        task: PairTask(study.model, task, study.k, seed=study.seed, ambiguous=count, **places).check(len(asked))
        for task, count in asked.items()
    }
    done = [task for task, check in checks.items() if check.done]
    by_task = {task: task_study(study, task) for task in tasks if task in done}
    rows = {task: answered(one, CONTRASTED) for task, one in tqdm(by_task.items(), "tasks")}
    ambiguous = {
        count: answered(task_study(study, AMBIGUOUS, ambiguous=count), {name: CONTRASTED[name] for name in REMOVED})
        for count in (COUNTS if AMBIGUOUS in done else ())
    }
    circuit: Rows = {}
    kept: list[list[str]] = []
    primary = task_study(study, study.task)
    if study.task in done:
        searching = task_study(study, study.task, search_prompts, "search")
        search, *others = (searching.replace(donor_seeds=(draw,)).search() for draw in study.donor_seeds)
        kept = [list(map(str, one.pairs)) for one in (search, *others)]
        drawn = circuit_ablations({names.FOUND: search.kept}, RANDOM, study.seed, like=names.FOUND)
        wanted = {name: drawn[name] for name in (names.FULL, names.FOUND, *names.random_names(drawn))}
        circuit = answered(primary.replace(donor_seeds=study.donor_seeds[:1]), wanted)
    whole = {one.task: one.answers({names.FULL: WHOLE})[names.FULL] for one in (primary, *by_task.values())}
    layers = int(whole[study.task]["layers"])
    of_halves = answered(by_task[matters_most(rows)], {names.FULL: WHOLE, **halves(layers)}) if rows else {}
    explained = next(row["value"] for row in files.published(STEM)["values"] if row["id"] == "explained")
    lost = 1 - explained  # by the paper's circuits, at most
    askable = {task: data["askable"] for task, data in whole.items()}
    if AMBIGUOUS in done:
        fewest = task_study(study, AMBIGUOUS, ambiguous=COUNTS[0])
        askable[AMBIGUOUS] = fewest.answers({names.FULL: WHOLE})[names.FULL]["askable"]
    return {
        "model": study.model.shown_name,
        "setting": f"{study.k} demonstrations, donors {', '.join(map(str, study.donor_seeds))}",
        "settings": {
            "prompts": study.prompts,
            "k": study.k,
            "donor_seeds": list(study.donor_seeds),
            "primary": study.task,
            "search_prompts": search_prompts,
            "random_circuits": RANDOM,
        },
        "published": {"1": {"value": lost, "verdict": HOLDS if lost < MARGINS[1] else DOES_NOT_HOLD}},
        "margins": {str(number): margin for number, margin in MARGINS.items()},
        "checks": checks,
        "kept by draw": kept,
        "claims": judge(
            rows,
            done=done,
            primary=study.task,
            circuit=circuit,
            ambiguous=ambiguous,
            halves=of_halves,
            layers=layers,
            available=askable,
        ).claims,
    }


def task_study(
    study: Study, task: str, prompts: int | None = None, split: Split = "test", ambiguous: int | None = None
) -> Study:
    """The study of one task, of as many prompts as there are queries, or fewer."""
    there = len(word_pairs.find(task, trained=word_pairs.is_trained(study.model.name)).queries(split))
    return study.replace(
        task=task,
        prompts=min(study.prompts if prompts is None else prompts, there),
        split=split,
        ambiguous=ambiguous,
        two_pass=True,
        in_turn=True,
    )


def answered(study: Study, ablations: Mapping[str, Ablation]) -> Rows:
    """The answers under some ablations and all draws of donors, which share the runs of the prompts."""
    return study.over_donors(ablations, store=Store(ROOM))
