"""The role atlas: which roles every head of a model has, tested on four kinds of prompts, see `roles.rules`.

Function-vector heads stand beside induction heads (Yin & Steinhardt 2025, "Which Attention Heads Matter for In-Context
Learning?"). Their mean output on word pairs is taken over prompts of all tasks together, so that it does not tell which
task it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from util.edges.splicing import Group, groups_of
from util.engine.batches import TOKEN_BUDGET, Row
from util.engine.call import UnsupportedModel
from util.engine.label_scores import next_token_logits
from util.engine.replay import BaseRuns
from util.figures.controls import first_tokens, name_tokens, planted_control
from util.figures.edits import INTACT, PAPER_SHARES, Edit, how_many
from util.figures.role_atlas.numbers import ablations, head_sets
from util.figures.task_study import (
    SKIPPED_POSITIONS,
    mean_patches,
    means_over,
    task_studies,
    under_edits,
)
from util.load_model_and_data import staicc_prompts
from util.models import planted as circuits
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.prompts.word_pairs import TASKS
from util.roles.function_vectors import (
    Corruption,
    FunctionVectorStudy,
    TaskNames,
    VectorRoles,
    check_queries,
    function_vector_heads,
)
from util.roles.label_roles import LabelRoles
from util.roles.name_roles import NameRoles
from util.roles.pair_task import words_digest
from util.roles.rules import ROOM, Evidence, Role
from util.roles.sequences_study import SequenceRoles
from util.study.checked import Count, Natural, checked
from util.study.records import Fields, Measurement
from util.study.study import Study

PLANTED_TASK = "glue_sst2"  # two labels, so that of six demonstrations some show the right one
PLANTED: Fields = {
    "datasets": PLANTED_TASK, "ks": 6, "prompts": 32, "pairs": 64, "word_prompts": 8, "intact": 8,
    "untrained_control": False,
}  # fmt: skip
UNTRAINED_PROMPTS = 8  # of each word-pair task: no answer is probable, so that the effects are next to nothing


def kinds(study: Study, held_out: bool | None = None) -> tuple[SequenceRoles, NameRoles, LabelRoles, VectorRoles]:
    """The studies of the four kinds of prompts. Raises ValueError for settings that one of them refuses.

    held_out: see `NamePairs`.
    """
    s, places = study.settings, study.places
    return (
        SequenceRoles(study.model, sequences=s.sequences, seed=s.seed, **places),
        NameRoles(study.model, prompts=s.pairs, seed=s.seed, held_out=held_out, **places),
        LabelRoles(study.model, s.datasets, s.ks, s.prompts, s.seed, **places),
        VectorRoles(study.model, prompts=s.word_prompts, intact=s.intact, seed=s.seed, **places),
    )


check = kinds  # before anything is loaded


def atlas(study: Study) -> Fields:
    """The evidence on the roles of all heads, in the order of roles, and what is left out, a line for each.

    Word-pair tasks that the tokenizer has no prompts of, and prompts that do not fit the model, are left out; random
    sequences have to fit. label task: the data set and k of the roles about labels; None where none fits the model.
    """
    left_out: list[str] = []
    sequences, names, labels, words = kinds(study)
    evidence = list(sequences.evidence())
    named = {"IOI": names, "labels": labels, "word pairs": words}
    for name, kind in tqdm(named.items(), desc="roles", unit="kind of prompts", leave=False):
        try:
            more, lines = _evidence(kind)
        except (UnsupportedModel, UnsupportedTokenizer) as error:
            more, lines = (), [f"no role is tested, {error}"]
        evidence += more
        left_out += [f"{name}: {line}" for line in lines]
    task = None
    with suppress(UnsupportedModel, UnsupportedTokenizer):
        task = {"dataset": labels.task.name, "k": labels.task.k}
    return {
        "evidence": sorted(evidence, key=lambda one: list(Role).index(one.role)),
        "left out": left_out,
        "label task": task,
        "description": sequences.scores().description,
    }


def _evidence(kind: NameRoles | LabelRoles | VectorRoles) -> tuple[Sequence[Evidence], list[str]]:
    """The evidence on a kind of prompts, and what is left out of it, in words."""
    try:
        return kind.evidence(), kind.notes if isinstance(kind, LabelRoles) else []
    except UnsupportedTokenizer:
        if not isinstance(kind, VectorRoles):
            raise
        rest, left_out = kind.with_prompts()
        return rest.evidence(), left_out


def untrained(study: Study) -> Fields:
    """The atlas of the untrained twin, the negative control, on the data set of this model's; {} if it is off."""
    if not study.settings.untrained_control:
        return {}
    changes: Fields = {"word_prompts": min(UNTRAINED_PROMPTS, study.settings.word_prompts)}
    if task := study.arrays("atlas")["label task"]:
        changes |= {"datasets": task["dataset"], "ks": task["k"]}
    return dict(study.twin(**changes).arrays("atlas"))


# ------------------------------------------------------------------------------------------------ function vectors


REFERENCE_PROMPTS = 20  # of each word-pair task, with queries of the split "search", that means are taken over
Edits = Mapping[str, Edit]  # ablations by the mean, by name


@checked
class WordPairs(Measurement):
    """Word-pair tasks to answer under ablations: `prompts` queries of each, none twice, of the split "test"."""

    tasks: TaskNames = TASKS
    k: Count = 10
    prompts: Count = 20
    seed: Natural = 0

    stem = "induction_scores"

    @cached_property
    def found(self) -> list[word_pairs.WordPairTask]:
        """The tasks, with the words that the model was trained on."""
        return [word_pairs.find(task, trained=word_pairs.is_trained(self.model.name)) for task in self.tasks]

    @property
    def own_request(self) -> Fields:
        return {
            "schema": 1,
            "method_version": 1,
            "dataset": "word_pairs",
            "tasks": list(self.tasks),
            "words": list(map(words_digest, self.found)),
            "prompts": self.prompts,
            "k": self.k,
            "seed": self.seed,
            "reference_prompts": REFERENCE_PROMPTS,
            "skipped_positions": SKIPPED_POSITIONS,
            "token_budget": TOKEN_BUDGET,
        }

    @cached_property
    def drawn(self) -> dict[str, list[word_pair_prompts.WordPairPrompts]]:
        """The prompts of each task by split. Raises UnsupportedTokenizer where it leaves fewer queries than asked."""
        drawn = {
            split: [
                word_pair_prompts.prompts(task, self.pair[1], n, self.k, self.seed, (), split, in_turn=True)
                for task in self.found
            ]
            for split, n in (("test", self.prompts), ("search", REFERENCE_PROMPTS))
        }
        for task, prompts in zip(self.found, drawn["test"], strict=True):
            check_queries(self.prompts, task.name, prompts.askable, UnsupportedTokenizer)
        return drawn

    @property
    def texts(self) -> list[str]:
        return [item.clean.text for split in self.drawn.values() for prompts in split for item in prompts.items]

    def _groups(self, split: str) -> list[Group]:
        return [group for prompts in self.drawn[split] for group in groups_of(prompts.items, self.pair[1])]

    def means(self) -> Fields:
        """The mean outputs of all heads over prompts of all tasks with other queries, see `means_over`."""

        def rows() -> list[Row]:
            return [Row(group.prompt) for group in self._groups("search")]

        return means_over(self, self.measured, rows)

    def answers(self, edits: Edits) -> dict[str, dict[str, NDArray[np.bool_]]]:
        """Which prompts are answered right under each ablation, [N] by the edit's name and the task.

        Right is an answer whose first token is the most probable one.
        """

        def compute(edit: Edit, runs: BaseRuns) -> Fields:
            model, groups = self.pair[0], self._groups("test")
            ids = [group.prompt for group in groups]
            patches = mean_patches(model, edit.heads, self.means()["mean"])
            logits = next_token_logits(model, ids, *patches, token_budget=TOKEN_BUDGET, runs=runs)
            right = logits.argmax(axis=1) == [group.target[0] for group in groups]
            ends = np.cumsum([len(prompts.items) for prompts in self.drawn["test"]])
            return dict(zip(self.tasks, np.split(right, ends[:-1]), strict=True))

        return under_edits(self, "answers", "answers", edits, compute)


def indirect_effects(study: Study) -> Fields:
    """The indirect effects of all heads on five word-pair tasks, see `roles.function_vectors`.

    study: of induction heads.

    25 corrupted prompts of each task, and mean outputs over 100 intact ones, as Todd et al. have; from 100 heads on 10
    and 25. Demonstrations are corrupted as theirs, by shuffled outputs; but where the answer is hardly more probable
    after intact ones (by less than ROOM), so that there is nothing to give back, by outputs of other lists.
    """
    small, s = study.arrays("scores")["heads"].mean().size < 100, study.settings
    prompts, intact = (25, 100) if small else (10, 25)
    for corruption in get_args(Corruption):
        of = {"intact": intact, "corruption": corruption, **study.places}
        heads = function_vector_heads(
            [FunctionVectorStudy(study.model, task, s.k, prompts, s.seed, **of) for task in TASKS]
        )
        if heads["room"] >= ROOM:
            break
    return heads


def function_vectors(study: Study) -> Fields:
    """Function-vector heads beside induction heads, and what the model does without either.

    pairs: which word pairs are answered right, [N] by ablation and task; classified: which queries of notebook 02's
    primary task are, [N]. What heads are chosen by is not measured again: other queries are asked. Each set has 4
    heads, or a third of all where that is less, and 20 control sets; from 100 heads on 3 % of them and 10. All heads
    are ablated by their mean output.
    """
    study = Study("induction_scores", study.model, seed=study.settings.seed, **study.places, untrained_control=False)
    s, matching = study.settings, study.arrays("scores")["heads"].mean()
    small = matching.size < 100
    queries, draws = (20, 20) if small else (8, 10)
    size = max(1, min(4, matching.size // 3)) if small else how_many(PAPER_SHARES[1], matching.size)
    classified = task_studies(study, s.primary_task, prompts=2 * queries)[0]
    heads = indirect_effects(study)
    tasks = tuple(task for task in TASKS if task not in heads["left out"])
    pairs = WordPairs(study.model, tasks, s.k, queries, s.seed, **study.places)
    sets = head_sets(matching, heads["effects"].mean(axis=0), pairs.means()["norms"], size, draws, s.seed)
    edits = {name: Edit.ablate(chosen) if chosen else INTACT for name, chosen in ablations(sets).items()}
    return {
        "prefix matching": matching,
        "effects": heads,
        "sets": sets,
        "pairs": pairs.answers(edits),
        "task": s.primary_task,
        "chance": 1 / len(classified.classes.labels),
        "classified": {name: answers["right"] for name, answers in classified.answers(edits).items()},
    }


# ------------------------------------------------------------------------------------------------ planted circuits


def planted(study: Study, **options: Any) -> Fields:
    """The evidence on all nine roles in three models with planted circuits, and their heads' roles.

    The models have the embedded model's tokenizer, which reads all prompts. options: of the circuits (family,
    seed), see `models.planted`.
    """
    shown = staicc_prompts(PLANTED_TASK, 1)[0].labels
    models = {
        "induction circuit": planted_control(circuits.induction, options),
        "name movers": planted_control(circuits.names, options, name_tokens),
        "label readers": planted_control(
            circuits.labels, options, lambda tokenizer: sorted({*first_tokens(shown, tokenizer)})
        ),
    }
    planted = {}
    for name, (model, truth) in models.items():
        roles = {Role(role): {*heads} for kind, heads in truth.heads.items() for role in circuits.ROLES[kind]}
        known = Study("role_atlas", model, **study.places, **PLANTED)
        evidence = [one for kind in kinds(known, held_out=True) for one in kind.evidence()]
        planted[name] = {"evidence": evidence, "roles": roles}
    return planted
