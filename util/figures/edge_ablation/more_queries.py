"""The five claims about edges, measured with more queries than notebook 04 asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, windows
from util.edges.edge import CIRCUITS
from util.edges.splicing import Store
from util.figures.edge_ablation.claims import AMBIGUOUS, RULE, judge
from util.figures.edge_ablation.measures import Rows
from util.figures.edge_ablation.plan import TASKS
from util.figures.edge_ablation.study import Split, Study
from util.prompts import word_pairs

COUNTS = (0, 4, 7, 9)  # ambiguous of 10 demonstrations; with 10 nothing asks for the past tense
THREE = (names.FULL, names.CTX_AGG, names.AGG_ONLY)  # circuits of every task
TWO = (names.FULL, names.AGG_ONLY)  # circuits of ambiguous demonstrations
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31


def claims(study: Study, tasks: Sequence[str] = TASKS, *, search_prompts: int = 64) -> dict[str, Any]:
    """The verdicts on the claims, and what they are about, for `report.save_claims`.

    study: of 10 demonstrations. Its task is that of claims 1 and 5; its prompts are those of each task, each with a
    query of its own, or as many as the list has. tasks: of claims 2 and 3. search_prompts: those that the circuit of
    claim 1 is searched on.
    Each ablation of a task and draw of donors is a cached record, so that an interrupted run goes on where it stopped.
    """
    primary = task_study(study, study.task)
    searching = task_study(study, study.task, search_prompts, "search")
    by_task = {task: task_study(study, task) for task in tasks}
    by_count = {count: task_study(study, AMBIGUOUS, ambiguous=count) for count in COUNTS}
    rows_by_task = {task: answered(one, THREE) for task, one in tqdm(by_task.items(), "tasks")}
    ambiguous = {count: answered(one, TWO) for count, one in tqdm(by_count.items(), "ambiguous demonstrations")}
    search = searching.search(RULE.share)
    whole = searching.records({names.FULL: WHOLE})[names.FULL]
    layers = int(whole.data["layers"])
    half = {name: ablation for name, ablation in windows(layers).items() if name in names.halves(layers)}
    found = {names.FULL: WHOLE, names.FOUND: Ablation(kept=search.kept)}
    rows = primary.over_donors(half | found, store=Store(ROOM))
    counting = (primary, *by_task.values(), by_count[0])
    whole_alone = {one.task: one.answers({names.FULL: WHOLE})[names.FULL] for one in counting}
    verdicts = judge(
        RULE,
        rows_by_task,
        primary=primary.task,
        circuit=rows,
        kept=len(search.pairs),
        ambiguous=ambiguous,
        halves=rows,
        layers=layers,
        askable={task: answers.get("askable") for task, answers in whole_alone.items()},
        trained=word_pairs.is_trained(primary.model.name),
        k=primary.k,
    )
    return {
        "model": study.model.shown_name,
        "about": whole.provenance["model"],
        "settings": {
            "prompts": study.prompts,
            "k": study.k,
            "donor_seeds": list(study.donor_seeds),
            "primary": study.task,
            "search_prompts": search_prompts,
        },
        "rule": RULE,
        "kept": [str(edge) for edge in search.pairs],
        "claims": verdicts.claims,
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


def answered(study: Study, circuits: Sequence[str]) -> Rows:
    """The answers with some circuits and all draws of donors, which share the runs of the prompts."""
    ablations = {name: WHOLE if name == names.FULL else Ablation(kept=CIRCUITS[name]) for name in circuits}
    return study.over_donors(ablations, store=Store(ROOM))
