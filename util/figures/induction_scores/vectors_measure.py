"""Function-vector heads beside induction heads, and what is answered without either: word pairs, and one more task.

Heads are ablated by their mean output. Of word pairs the mean is taken over prompts of all tasks together, so that it
does not tell which task it is. Source: Yin & Steinhardt 2025, "Which Attention Heads Matter for In-Context Learning?".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from util.edges.splicing import groups_of
from util.engine.batches import TOKEN_BUDGET, Row
from util.engine.label_scores import next_token_logits
from util.engine.replay import BaseRuns
from util.figures.induction_scores.edits import WHOLE as NOTHING
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.plan import PAPER_SHARES, how_many
from util.figures.induction_scores.task_study import (
    SKIPPED_POSITIONS,
    mean_patches,
    means_over,
    task_studies,
    under_edits,
)
from util.figures.induction_scores.vectors import ROOM, ablations, head_sets
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.roles.function_vectors import (
    TASKS,
    Corruption,
    FunctionVectorHeads,
    FunctionVectorStudy,
    TaskNames,
    check_queries,
    function_vector_heads,
)
from util.roles.pair_task import words_digest
from util.study.checked import Count, Natural, checked
from util.study.records import Measurement
from util.study.study import Study

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
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 1,
            "dataset": "word_pairs",
            "tasks": list(map(word_pairs.shown_task, self.tasks)),
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
        options: dict[str, Any] = {"k": self.k, "seed": self.seed, "corruptions": (), "in_turn": True}
        drawn = {
            split: [word_pair_prompts.prompts(task, self.pair[1], n, split=split, **options) for task in self.found]
            for split, n in (("test", self.prompts), ("search", REFERENCE_PROMPTS))
        }
        for prompts in drawn["test"]:
            check_queries(self.prompts, prompts.task.name, prompts.askable, UnsupportedTokenizer)
        return drawn

    @property
    def texts(self) -> list[str]:
        return [item.clean.text for split in self.drawn.values() for prompts in split for item in prompts.items]

    def _rows(self, split: str) -> list[Row]:
        groups = (group for prompts in self.drawn[split] for group in groups_of(prompts.items, self.pair[1]))
        return [Row(group.base.ids[: group.length]) for group in groups]

    def means(self) -> dict[str, Any]:
        """The mean outputs of all heads over prompts of all tasks with other queries, see `means_over`."""
        return means_over(self, self.measured, lambda: self._rows("search"))

    def answers(self, edits: Edits) -> dict[str, dict[str, NDArray[np.bool_]]]:
        """Which prompts are answered right under each ablation, [N] by the edit's name and the task.

        Right is an answer whose first token is the most probable one.
        """

        def compute(edit: Edit, runs: BaseRuns) -> dict[str, Any]:
            model, ids = self.pair[0], [row.ids for row in self._rows("test")]
            patches = mean_patches(model, edit.heads, self.means()["mean"])
            logits = next_token_logits(model, ids, *patches, token_budget=TOKEN_BUDGET, runs=runs)
            groups = [groups_of(prompts.items, self.pair[1]) for prompts in self.drawn["test"]]
            right = logits.argmax(axis=1) == [group.target[0] for of_task in groups for group in of_task]
            parts = np.split(right, np.cumsum(list(map(len, groups)))[:-1])
            return dict(zip(map(word_pairs.shown_task, self.tasks), parts, strict=True))

        return under_edits(self, self.measured, "answers", "answers", edits, compute)


def indirect_effects(study: Study) -> FunctionVectorHeads:
    """The indirect effects of all heads on five word-pair tasks, see `roles.function_vectors`.

    25 corrupted prompts of each task, and mean outputs over 100 intact ones, as Todd et al. have; from 100 heads on 10
    and 25. Demonstrations are corrupted as theirs, by shuffled outputs; but where the answer is hardly more probable
    after intact ones (by less than ROOM), so that there is nothing to give back, by outputs of other lists.
    """
    small, s = study.arrays("scores")["heads"].mean().size < 100, study.settings
    prompts, intact = (25, 100) if small else (10, 25)
    for corruption in get_args(Corruption):
        of: dict[str, Any] = {"intact": intact, "corruption": corruption, "folder": study.folder, "redo": study.redo}
        heads = function_vector_heads(
            [FunctionVectorStudy(study.model, task, s.k, prompts, s.seed, **of) for task in TASKS]
        )
        if heads.room >= ROOM:
            break
    return heads


def function_vectors(study: Study) -> dict[str, Any]:
    """Function-vector heads beside induction heads, and what the model does without either.

    pairs: which word pairs are answered right, [N] by ablation and task; classified: which queries of the primary task
    are, [N]. What heads are chosen by is not measured again: other queries are asked. Each set has 4 heads, or a third
    of all where that is less, and 20 control sets; from 100 heads on 3 % of them and 10. All heads are ablated by their
    mean output.
    """
    s, scores = study.settings, study.arrays("scores")
    matching = scores["heads"].mean()
    small = matching.size < 100
    queries, draws = (20, 20) if small else (8, 10)
    size = max(1, min(4, matching.size // 3)) if small else how_many(PAPER_SHARES[1], matching.size)
    places: dict[str, Any] = {"folder": study.folder, "redo": study.redo}
    classified = task_studies(study, s.primary_task, prompts=2 * queries)[0]
    heads = indirect_effects(study)
    tasks = tuple(task for task in TASKS if task not in heads.left_out)
    pairs = WordPairs(study.model, tasks, s.k, queries, s.seed, **places)
    sets = head_sets(matching, heads.mean(), pairs.means()["norms"], size, draws, s.seed)
    edits = {name: Edit.ablate(chosen) if chosen else NOTHING for name, chosen in ablations(sets).items()}
    return {
        "heads": scores["heads"],
        "effects": heads,
        "sets": sets,
        "pairs": pairs.answers(edits),
        "task": s.primary_task,
        "chance": 1 / len(classified.classes.labels),
        "classified": {name: answers.right for name, answers in classified.answers(edits).items()},
    }
