"""Function-vector heads beside induction heads, and what models do without either: word pairs, copies of sequences.

Heads are ablated by their mean output. Of word pairs the mean is taken over prompts of all tasks together, so that it
does not tell which task it is. Source: Yin & Steinhardt 2025, "Which Attention Heads Matter for In-Context Learning?".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from util.edges.splicing import groups_of
from util.engine.batches import TOKEN_BUDGET, Batch, Row, all_logits, check_context, logits_at, run_rows
from util.engine.finite import check_finite
from util.engine.handshake import prepare
from util.engine.instruments import PatchHeads
from util.engine.label_scores import next_token_logits
from util.engine.means import mean_outputs
from util.engine.replay import BaseRuns
from util.figures.induction_scores.edits import WHOLE as NOTHING
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.plan import PAPER_SHARES, how_many
from util.figures.induction_scores.task_study import SKIPPED_POSITIONS, Means, base_runs, task_studies, under_edits
from util.figures.induction_scores.vectors import ROOM, ablations, head_sets
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.prompts.sequences import repeated_sequences
from util.roles.function_vectors import (
    TASKS,
    Corruption,
    FunctionVectorHeads,
    FunctionVectorStudy,
    check_queries,
    function_vector_heads,
)
from util.roles.head_scores import heads_by_layer
from util.roles.pair_task import words_digest
from util.roles.sequences_study import SequenceStudy
from util.study.records import Record, Records
from util.study.study import Study

OTHER_SEQUENCES = 1000  # is added to the seeds for the sequences that means are taken over
REFERENCE_PROMPTS = 20  # of each word-pair task, with queries of the split "search", that means are taken over
STEM = "induction_scores"
Edits = Mapping[str, Edit]  # ablations by the mean, by name
Patches = Sequence[PatchHeads]


class Ablations:
    """Measurements without some heads: their mean output over a reference stands for what they write at all tokens.

    measured: keeps a part as a record; reference: gives the tokens that means are taken over, without the first ones of
    each row.
    """

    def __init__(self, study: Records, measured: Callable[..., Record], reference: Callable[[], list[Row]]) -> None:
        self.study, self.measured, self.reference = study, measured, reference

    def means(self) -> Means:
        """The mean outputs of all heads."""

        def compute() -> dict[str, Any]:
            rows = self.reference()
            check_context(self.study.pair[0], list(map(len, rows)))
            return mean_outputs(self.study.pair[0], rows, SKIPPED_POSITIONS, TOKEN_BUDGET)

        return Means(**self.measured(compute, part="means", mode="mean", heads=None).data)

    def run(
        self, part: str, edits: Edits, compute: Callable[[Patches, BaseRuns], dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """What is measured under each edit. compute: measures, with what replaces outputs."""
        runs = cache(lambda: base_runs(self.study.pair[0], edits))

        def under(edit: Edit) -> dict[str, Any]:
            prepared, starts = prepare(self.study.pair[0]), runs()
            by_layer = heads_by_layer(prepared, edit.heads)
            mean = torch.from_numpy(self.means().mean) if by_layer else torch.empty(0)
            patches = [PatchHeads(at, heads, mean[prepared.layers.index(at)][heads]) for at, heads in by_layer.items()]
            return compute(patches, starts)

        return under_edits(self.study, self.measured, part, part, edits, under)


class WordPairs:
    """Word-pair tasks to answer under ablations: `prompts` queries of each, none twice, of the split "test"."""

    def __init__(self, study: Study, tasks: Sequence[str], prompts: int) -> None:
        self.study, self.names, self.prompts = study, tasks, prompts
        trained = word_pairs.is_trained(study.model.name)
        self.tasks = [word_pairs.find(task, trained=trained) for task in tasks]
        request = {
            "stem": STEM,
            "schema": 1,
            "method_version": 1,
            "dataset": "word_pairs",
            "tasks": list(map(word_pairs.shown_task, tasks)),
            "words": list(map(words_digest, self.tasks)),
            "prompts": prompts,
            "k": study.settings.k,
            "seed": study.settings.seed,
            "reference_prompts": REFERENCE_PROMPTS,
            "skipped_positions": SKIPPED_POSITIONS,
            "token_budget": TOKEN_BUDGET,
        }
        self.drawn = cache(self._drawn)
        measured = partial(study.record, STEM, texts=self.texts, **request)
        self.ablations = Ablations(study, measured, lambda: [row for rows, _ in self.rows("search") for row in rows])

    def _drawn(self, split: str) -> list[word_pair_prompts.WordPairPrompts]:
        """The prompts of each task. Raises UnsupportedTokenizer where it leaves fewer queries than are asked."""
        s, drawn = self.study.settings, []
        prompts = {"test": self.prompts, "search": REFERENCE_PROMPTS}[split]
        for task in self.tasks:
            drawn.append(
                word_pair_prompts.prompts(
                    task, self.study.pair[1], prompts, s.k, s.seed, corruptions=(), split=split, in_turn=True
                )
            )
            if split == "test":
                check_queries(prompts, task.name, drawn[-1].askable, UnsupportedTokenizer)
        return drawn

    def texts(self) -> list[str]:
        """All prompts."""
        return [item.clean.text for split in ("test", "search") for task in self.drawn(split) for item in task.items]

    def rows(self, split: str) -> list[tuple[list[Row], list[int]]]:
        """The prompts of each task as tokens, and the first tokens of their answers."""
        of_tasks = [groups_of(drawn.items, self.study.pair[1]) for drawn in self.drawn(split)]
        return [
            ([Row(group.base.ids[: group.length]) for group in groups], [group.target[0] for group in groups])
            for groups in of_tasks
        ]

    def answers(self, edits: Edits) -> dict[str, dict[str, NDArray[np.bool_]]]:
        """Which prompts are answered right under each ablation, [N] by the edit's name and the task.

        Right is an answer whose first token is the most probable one.
        """
        rows = cache(lambda: self.rows("test"))

        def compute(patches: Patches, runs: BaseRuns) -> dict[str, Any]:
            ids = [row.ids for of_task, _ in rows() for row in of_task]
            logits = next_token_logits(self.study.pair[0], ids, *patches, token_budget=TOKEN_BUDGET, runs=runs)
            right = logits.argmax(axis=1) == [answer for _, answers in rows() for answer in answers]
            parts = np.split(right, np.cumsum([len(answers) for _, answers in rows()])[:-1])
            return dict(zip(map(word_pairs.shown_task, self.names), parts, strict=True))

        return self.ablations.run("answers", edits, compute)


def copied(sequences: SequenceStudy, edits: Edits) -> dict[str, NDArray[np.floating]]:
    """The share of tokens that are copied in each sequence under each ablation, [N] by the edit's name.

    These are the tokens of the second and later copies whose predecessor is in such a copy, too. A token is copied
    where the model finds it most probable. Means are taken over as many other sequences.
    """

    def reference() -> list[Row]:
        seeds = [seed + OTHER_SEQUENCES for seed in sequences.seeds]
        others = repeated_sequences(sequences.pair[1], sequences.length, sequences.copies, seeds, sequences.bos)
        return [Row(tuple(ids)) for ids in others.ids.tolist()]

    def compute(patches: Patches, runs: BaseRuns) -> dict[str, Any]:
        model, ids = sequences.pair[0], torch.from_numpy(sequences.drawn.ids)
        check_context(model, [ids.shape[1]], "a smaller length or fewer copies")
        places = torch.arange(sequences.bos + sequences.length, ids.shape[1] - 1)
        shares = np.empty(len(ids))

        def visit(batch: Batch) -> None:
            with runs.run(tuple(batch.numbers.tolist()), patches), logits_at(model, places) as options:
                logits = all_logits(model, batch, *patches, **options)
            check_finite(logits, "the logits", model, batch.tokens, batch.prompts)
            right = logits.argmax(-1).cpu() == ids[batch.numbers][:, places + 1]
            shares[batch.numbers] = right.double().mean(1).numpy()

        run_rows(model, [Row(tuple(tokens)) for tokens in ids.tolist()], visit)
        return {"copied": shares}

    ablated = Ablations(sequences, sequences.measured, reference)
    return {name: one["copied"] for name, one in ablated.run("copied", edits, compute).items()}


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
    are, [N]; copied: the share of tokens that are copied in each repeated sequence, [N]. What heads are chosen by is
    not measured again: other queries are asked, and other sequences repeated. Each set has 4 heads, or a third of all
    where that is less, and 20 control sets; from 100 heads on 3 % of them and 10. All heads are ablated by their mean
    output.
    """
    s, scores = study.settings, study.arrays("scores")
    matching = scores["heads"].mean()
    small = matching.size < 100
    queries, draws = (20, 20) if small else (8, 10)
    size = max(1, min(4, matching.size // 3)) if small else how_many(PAPER_SHARES[1], matching.size)
    places: dict[str, Any] = {"folder": study.folder, "redo": study.redo}
    classified = task_studies(study, s.primary_task, prompts=2 * queries)[0]
    sequences = SequenceStudy(study.model, s.length, 2, s.sequences, s.seed + s.sequences, bos=s.bos, **places)
    heads = indirect_effects(study)
    pairs = WordPairs(study, [task for task in TASKS if task not in heads.left_out], queries)
    sets = head_sets(matching, heads.mean(), pairs.ablations.means().norms, size, draws, s.seed)
    edits = {name: Edit.ablate(chosen) if chosen else NOTHING for name, chosen in ablations(sets).items()}
    return {
        **scores,
        "effects": heads,
        "sets": sets,
        "pairs": pairs.answers(edits),
        "task": s.primary_task,
        "chance": 1 / len(classified.classes.labels),
        "classified": {name: one.right for name, one in classified.answers(edits).items()},
        "copied": copied(sequences, edits),
    }
