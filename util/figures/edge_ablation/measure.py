"""Edge ablation: what is measured for each part of the figure (Bakalova et al., COLM 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from util.edges.edge import (
    ALWAYS,
    CIRCUITS,
    CTX_AGG,
    FAMILIES,
    FOUND,
    FULL,
    HALVES,
    INSIDE,
    WHOLE,
    Ablation,
    Edge,
    circuit_ablations,
    cuts,
    random_names,
    read_from,
    single_edges,
    type_pairs,
    windows,
)
from util.edges.states import Store
from util.figures.controls import planted_control
from util.figures.edge_ablation.numbers import (
    ADDED,
    AMBIGUOUS,
    MARGINS,
    PROBED,
    REMOVED,
    TEXTS,
    Rows,
    aligned,
    brings_back,
    differs,
    explained,
    first_then,
    matters_most,
    more_if_ambiguous,
    row_of,
)
from util.figures.edge_ablation.runs import Data, LookUp, Run, answers, check_tokens, draws, units_left
from util.models import planted
from util.prompts import word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.roles.pair_task import PairTask
from util.show import files
from util.show.part import judged_of
from util.stats.answers import TaskCheck
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS, NOT_DONE, Claim
from util.study.study import Study

KEPT = {name: Ablation(kept=edges) for name, edges in CIRCUITS.items()}
CONTRASTED: Mapping[str, Ablation] = {
    FULL: WHOLE,
    **{name: KEPT[name] for name in ADDED},
    REMOVED[1]: Ablation(removed=FAMILIES["CONTEXT"]),
}
COUNTS = (0, 7)  # ambiguous of 10 demonstrations
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31


def check(study: Study) -> None:
    """Raises ValueError for what a part would refuse, such as more demonstrations than a task has.

    And UnsupportedTokenizer for a task from a file that the tokenizer cannot carry; no weights are read.
    """
    draws(study, corruptions=(0, *study.settings.corruptions))
    for task in dict.fromkeys((*study.settings.tasks, *study.settings.pruned_tasks)):
        for split in ("test", "search"):
            check_tokens(draws(study, task=task, split=split)[0], study.model)


def circuits(study: Study) -> Data:
    """By task: rows of the circuits, see `numbers.aligned`; alone, a row: the answers to bare queries; chance.

    chance: the share of the most frequent first token of outputs. left out: by task that the tokenizer does not carry,
    why. written: with the first draw of donors, by circuit, the shares of prompts whose first line is the answer, and
    that begin with it. untrained: rows of this model's untrained twin in the primary task, None without that control.
    """
    settings, compared, left_out = study.settings, {}, {}
    for task in settings.tasks:
        drawn, store = draws(study, task=task), Store()
        first, *others = (Run(study, draw, store) for draw in drawn)
        try:
            written = first.answers(KEPT, generate=True)
        except UnsupportedTokenizer as error:
            left_out[task] = str(error)
            if len(left_out) == len(settings.tasks):
                raise
            continue
        compared[task] = {
            "rows": aligned([written, *(run.answers(KEPT) for run in others)]),
            "alone": row_of([first.alone()]),
            "chance": first.chance(drawn[0].pairs),
            "written": {
                name: [float(data[way].mean()) for way in ("line_right", "prefix_right")]
                for name, data in written.items()
            },
        }
    twin = answers(study.twin(), KEPT) if settings.untrained_control else None
    return {"tasks": compared, "left out": left_out, "untrained": twin}


def single(study: Study) -> Rows:
    """The whole model, and each type pair removed alone, on the split "search", whose queries only searches have."""
    return answers(study, {FULL: WHOLE, **single_edges()}, split="search")


def verified(study: Study) -> Data:
    """A circuit of the primary task, searched, and measured on other prompts; and the same search where it is known.

    kept: its type pairs; rows: of FULL, NONE, the circuit, the model without it, random circuits; planted: see
    `planted_search`.
    """
    pairs, settings = Run(study, draws(study, split="search")[0]).search(), study.settings
    tried = circuit_ablations((*ALWAYS, *pairs), settings.random_circuits, settings.seed)
    return {"kept": [*map(str, pairs)], "rows": answers(study, tried), "planted": planted_search(study)}


def by_layer(study: Study) -> Data:
    """Contextualisation taken out from a layer on, aggregation below it, `at` the layers of `cuts`; rows."""
    full = KEPT[FULL]  # as circuits are compared
    layers = Run(study, draws(study)[0]).answer(full)["layers"]
    at = cuts(layers)
    return {"at": at, "rows": answers(study, {FULL: full, **windows(layers, at)})}


def probed(study: Study) -> Rows:
    """Inside CTX+AGG, each edge of PROBED read from each corruption."""
    kept, numbers = CIRCUITS[CTX_AGG], study.settings.corruptions
    ablations = {INSIDE: Ablation(kept=kept)}
    for number in numbers:  # the donors of one corruption serve all edges
        for edge in PROBED:
            ablations[read_from(edge, number)] = Ablation(kept=kept, probed=((edge, number),))
    return answers(study, ablations, corruptions=(0, *numbers))


def pruned(study: Study) -> Data:
    """What pruning leaves in each of pruned_tasks, see `units_left`; donors' states are kept for one at a time."""
    return {task: units_left(study, draws(study, task=task)) for task in study.settings.pruned_tasks}


def planted_search(study: Study) -> dict[str, list[str]]:
    """What a search keeps of a known circuit, `planted.lookup` on the embedded model's tokenizer, and what is true."""
    model, truth = planted_control(planted.lookup, {})
    known = study.replace(model=model, redo=False, untrained_control=False)
    pairs = Run(known, LookUp()).search()
    return {"kept": [*map(str, pairs)], "true": sorted(map(str, type_pairs([Edge(*edge) for edge in truth.edges])))}


def claims(study: Study) -> Data:
    """The verdicts that `make claims` has stored of the model."""
    return judged_of(study.figure.stem, study.model.name)


# ------------------------------------------------------------------------------------------------ claims


def judge(study: Study) -> Data:
    """The verdicts on the claims, and what they are about, for `files.save_claims`.

    study: of 10 demonstrations; its prompts are those of each task, each with a query of its own, or as many as the
    list has. Claim 1 is about its primary task, claims 2, 3 and 5 about its tasks; those of which no task is done have
    no answers. A circuit is searched with each draw of donors; claim 1 is about the first, measured with its draw, as
    random circuits are. Each ablation of a task and draw of donors is a record, so that an interrupted run goes on
    where it stopped.
    """
    settings, primary, checks = study.settings, study.settings.primary_task, checked_tasks(study)
    verdicts = {number: Claim(number, text, NOT_DONE) for number, text in TEXTS.items()}
    fields = {task: own_queries(study, task) for task, check in checks.items() if check.done}
    if AMBIGUOUS in fields:
        fields[AMBIGUOUS]["ambiguous"] = COUNTS[0]
    whole = {task: Run(study, draws(study, **of_task)[0]).answer(WHOLE) for task, of_task in fields.items()}
    available = {task: data["askable"] for task, data in whole.items()}
    tasks = {task: answers(study, CONTRASTED, ROOM, **fields[task]) for task in settings.tasks if task in fields}
    if tasks:
        verdicts[2] = differs(tasks, available, MARGINS[2])
        verdicts[3] = brings_back(tasks, available, MARGINS[3])
        most = matters_most(tasks)
        layers = whole[most]["layers"]
        of_halves = answers(study, {FULL: WHOLE, **windows(layers, [layers // 2], HALVES)}, ROOM, **fields[most])
        verdicts[5] = first_then(most, tasks[most], of_halves, layers, len(tasks), available[most], MARGINS)
    if AMBIGUOUS in fields:
        removed = {name: CONTRASTED[name] for name in REMOVED}
        counts = {count: answers(study, removed, ROOM, **fields[AMBIGUOUS] | {"ambiguous": count}) for count in COUNTS}
        verdicts[4] = more_if_ambiguous(counts, available[AMBIGUOUS], MARGINS[4])
    kept = []
    if primary in fields:
        search = own_queries(study, primary, settings.search_prompts, "search")
        kept = [Run(study, draw).search() for draw in draws(study, **search)]
        ablations = circuit_ablations((*ALWAYS, *kept[0]), settings.random_circuits, settings.seed)
        wanted = {name: ablations[name] for name in (FULL, FOUND, *random_names(ablations))}
        first = study.replace(donor_seeds=settings.donor_seeds[:1])
        verdicts[1] = explained(answers(first, wanted, ROOM, **fields[primary]), available[primary], MARGINS[1])
    shown = ("prompts", "k", "donor_seeds", "search_prompts", "random_circuits")
    published = next(row["value"] for row in files.published("edge_ablation")["values"] if row["id"] == "explained")
    lost = 1 - published  # by the paper's circuits, at most
    return {
        "model": study.model.shown_name,
        "setting": f"{settings.k} demonstrations, donors {', '.join(map(str, settings.donor_seeds))}",
        "settings": {"primary": primary, **{name: getattr(settings, name) for name in shown}},
        "published": {"1": {"value": lost, "verdict": HOLDS if lost < MARGINS[1] else DOES_NOT_HOLD}},
        "margins": {str(number): margin for number, margin in MARGINS.items()},
        "checks": checks,
        "kept by draw": [[*map(str, pairs)] for pairs in kept],
        "claims": [*verdicts.values()],
    }


def checked_tasks(study: Study) -> dict[str, TaskCheck]:
    """Whether the model does each task that its tokenizer carries, and the ambiguous one, from its demonstrations."""
    s, ambiguous, checks = study.settings, dict.fromkeys(study.settings.tasks) | {AMBIGUOUS: 0}, dict[str, TaskCheck]()
    for task, count in ambiguous.items():
        pair_task = PairTask(study.model, task, s.k, seed=s.seed, ambiguous=count, layout=s.layout, **study.places)
        with suppress(UnsupportedTokenizer):
            checks[task] = pair_task.check(len(ambiguous))
    return checks


def own_queries(study: Study, task: str, prompts: int | None = None, split: str = "test") -> Data:
    """Fields of `Draw`: as many prompts of a task as there are queries, or fewer, each with a query of its own."""
    queries = len(word_pairs.find(task, trained=word_pairs.is_trained(study.model.name)).queries(split))
    return {"task": task, "prompts": min(prompts or study.settings.prompts, queries), "split": split, "in_turn": True}
