"""What models do without function-vector heads and without induction heads: word pairs, and copies of sequences.

Heads are ablated by their mean output. Of word pairs the mean is taken over prompts of all tasks together, so that it
does not tell which task it is. Source: Yin & Steinhardt 2025, "Which Attention Heads Matter for In-Context Learning?".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import KW_ONLY
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from util.edges.splicing import Group, groups_of
from util.engine.batches import TOKEN_BUDGET, Batch, Row, all_logits, check_context, logits_at, run_rows
from util.engine.finite import check_finite
from util.engine.handshake import prepare
from util.engine.instruments import PatchHeads
from util.engine.label_scores import next_token_logits
from util.engine.means import mean_outputs
from util.engine.replay import BaseRuns
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.task_study import SKIPPED_POSITIONS, Means, base_runs, under_edits
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.prompts.sequences import repeated_sequences
from util.roles.function_vectors import TASKS, TaskNames, check_queries, words_digest
from util.roles.head_scores import heads_by_layer
from util.roles.sequences_study import SequenceStudy
from util.stats.heads import Head
from util.study.checked import Count, Natural, checked
from util.study.records import Measurement

OTHER_SEQUENCES = 1000  # is added to the seeds for the sequences that means are taken over
Name = TypeVar("Name", bound=Hashable)


def ablated(study: Measurement, heads: tuple[Head, ...], mean: NDArray[np.floating]) -> list[PatchHeads]:
    """Returns what replaces the outputs of heads by their mean [L, H, dv] at all tokens.

    Raises ValueError for heads that the model does not have.
    """
    prepared = prepare(study.pair[0])
    values = torch.from_numpy(mean)
    return [
        PatchHeads(layer, chosen, values[prepared.layers.index(layer)][chosen])
        for layer, chosen in heads_by_layer(prepared, heads).items()
    ]


def check_ablations(edits: Mapping[Name, Edit]) -> None:
    """Raises ValueError for edits that are no ablations by the mean."""
    wrong = [edit for edit in edits.values() if edit.heads and edit.mode != "mean"]
    if wrong:
        raise ValueError(f"edits: {wrong[0]!r} is no ablation by the mean; build it with Edit.ablate, or give WHOLE")


@checked
class WordPairsStudy(Measurement):
    """Word-pair tasks to answer under ablations.

    k: demonstrations; prompts: queries of each task, none of them twice, of the split "test"; reference_prompts: of
    each task, with queries of the split "search", for the mean outputs of heads.
    Raises ValueError, before a model is loaded, for a task or number that there is not, and for more prompts than
    queries.
    """

    tasks: TaskNames = TASKS
    k: Count = 10
    prompts: Count = 40
    seed: Natural = 0
    _: KW_ONLY
    reference_prompts: Count = 20
    token_budget: Count = TOKEN_BUDGET

    stem = "induction_scores"

    def __post_init__(self) -> None:
        for task in self._tasks:
            try:
                word_pair_prompts.marked_demonstrations(task, self.prompts, self.k, (), "test")
            except ValueError as error:
                raise ValueError(f"k = {self.k}: {error}") from error
            check_queries(self.prompts, task.name, len(task.queries("test")))

    @cached_property
    def _tasks(self) -> list[word_pairs.WordPairTask]:
        trained = word_pairs.is_trained(self.model.name)
        return [word_pairs.find(task, trained=trained) for task in self.tasks]

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 1,
            "dataset": "word_pairs",
            "tasks": [word_pairs.shown_task(task) for task in self.tasks],
            "words": list(map(words_digest, self._tasks)),
            "prompts": self.prompts,
            "k": self.k,
            "seed": self.seed,
            "reference_prompts": self.reference_prompts,
            "skipped_positions": SKIPPED_POSITIONS,
            "token_budget": self.token_budget,
        }

    @property
    def texts(self) -> list[str]:
        return [item.clean.text for drawn in (*self.drawn, *self._reference) for item in drawn.items]

    @cached_property
    def drawn(self) -> list[word_pair_prompts.WordPairPrompts]:
        """The prompts of each task.

        Raises UnsupportedTokenizer where it leaves fewer queries than prompts, and what `word_pair_prompts.prompts`
        raises.
        """
        drawn = []
        for task in self._tasks:
            drawn.append(self._draw(task, self.prompts, "test"))
            check_queries(self.prompts, task.name, drawn[-1].askable, UnsupportedTokenizer)
        return drawn

    @cached_property
    def _reference(self) -> list[word_pair_prompts.WordPairPrompts]:
        return [self._draw(task, self.reference_prompts, "search") for task in self._tasks]

    def _draw(self, task: word_pairs.WordPairTask, prompts: int, split: str) -> word_pair_prompts.WordPairPrompts:
        return word_pair_prompts.prompts(
            task, self.pair[1], prompts, self.k, self.seed, corruptions=(), split=split, in_turn=True
        )

    @cached_property
    def groups(self) -> list[list[Group]]:
        """The prompts of each task as tokens."""
        return [groups_of(drawn.items, self.pair[1]) for drawn in self.drawn]

    def means(self) -> Means:
        """Returns the mean outputs of all heads over the tokens of the reference, without its prompts' first tokens."""

        def compute() -> dict[str, Any]:
            groups = [group for drawn in self._reference for group in groups_of(drawn.items, self.pair[1])]
            rows = [Row(group.base.ids[: group.length]) for group in groups]
            check_context(self.pair[0], list(map(len, rows)))
            return mean_outputs(self.pair[0], rows, SKIPPED_POSITIONS, self.token_budget)

        return Means(**self.measured(compute, part="means", mode="mean", heads=None).data)

    def answers(self, edits: Mapping[Name, Edit]) -> dict[Name, dict[str, NDArray[np.bool_]]]:
        """Returns which prompts are answered right under each ablation, [N] by the edit's name and the task.

        Right is an answer whose first token is the most probable one. Each edit is a record of its own. Raises
        ValueError, before any forward pass, for what is no ablation by the mean and for heads that there are not.
        """
        check_ablations(edits)
        runs = cache(lambda: base_runs(self.pair[0], edits))

        def compute(edit: Edit) -> dict[str, Any]:
            starts, groups = runs(), [group for task in self.groups for group in task]
            attached = ablated(self, edit.heads, self.means().mean) if edit.heads else []
            ids = [group.base.ids[: group.length] for group in groups]
            logits = next_token_logits(self.pair[0], ids, *attached, token_budget=self.token_budget, runs=starts)
            right = logits.argmax(axis=1) == [group.target[0] for group in groups]
            parts = np.split(right, np.cumsum([len(task) for task in self.groups])[:-1])
            return dict(zip(map(word_pairs.shown_task, self.tasks), parts, strict=True))

        return under_edits(self, "answers", "word pairs", edits, compute)


@checked
class CopiesStudy(SequenceStudy):
    """What the model copies of repeated random sequences under ablations. The mean outputs are of other sequences."""

    def copied(self, edits: Mapping[Name, Edit]) -> dict[Name, NDArray[np.floating]]:
        """Returns the share of tokens that are copied in each sequence, [N] by the edit's name.

        These are the tokens of the second and later copies whose predecessor is in such a copy, too. A token is copied
        where the model finds it most probable. Each edit is a record of its own. Raises ValueError, before any forward
        pass, for what is no ablation by the mean and for heads that there are not.
        """
        check_ablations(edits)
        runs = cache(lambda: base_runs(self.pair[0], edits))

        def compute(edit: Edit) -> dict[str, Any]:
            starts = runs()
            attached = ablated(self, edit.heads, self.means().mean) if edit.heads else []
            return {"copied": self._copied(attached, starts)}

        return {name: one["copied"] for name, one in under_edits(self, "copied", "copies", edits, compute).items()}

    def _copied(self, attached: list[PatchHeads], runs: BaseRuns) -> NDArray[np.float64]:
        model, ids = self.pair[0], torch.from_numpy(self.drawn.ids)
        check_context(model, [ids.shape[1]], "a smaller length or fewer copies")
        places = torch.arange(self.bos + self.length, ids.shape[1] - 1)
        copied = np.empty(len(ids))

        def visit(batch: Batch) -> None:
            with runs.run(tuple(batch.numbers.tolist()), attached), logits_at(model, places) as options:
                logits = all_logits(model, batch, *attached, **options)
            check_finite(logits, "the logits", model, batch.tokens, batch.prompts)
            right = logits.argmax(-1).cpu() == ids[batch.numbers][:, places + 1]
            copied[batch.numbers] = right.double().mean(1).numpy()

        run_rows(model, [Row(tuple(tokens)) for tokens in ids.tolist()], visit)
        return copied

    def means(self) -> Means:
        """Returns the mean outputs of all heads over the tokens of as many other sequences, without the first ones."""

        def compute() -> dict[str, Any]:
            seeds = [seed + OTHER_SEQUENCES for seed in self.seeds]
            others = repeated_sequences(self.pair[1], self.length, self.copies, seeds, self.bos)
            return mean_outputs(self.pair[0], [Row(tuple(ids)) for ids in others.ids.tolist()], SKIPPED_POSITIONS)

        return Means(**self.measured(compute, part="means", mode="mean", heads=None).data)
