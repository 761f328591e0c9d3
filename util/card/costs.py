"""What a model loses without the heads that a card has found: in-context learning, and plain text.

Heads are ablated by their mean output. The controls are as many other heads, which have no role and do not count in
IOI, of the same layers; where a layer has too few, of a like norm. What is reported is the loss beyond that of the
controls. Only tasks that the model does are asked: it shows that on other prompts than those that measure the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.card.results import COPIES, PATTERNS, PLAIN_TEXT, Loss, Losses, word_pair_name
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.function_vector_study import CopiesStudy, WordPairsStudy
from util.figures.induction_scores.task_study import TaskStudy, check_task
from util.roles.function_vectors import TASKS
from util.roles.pair_task import task_checks
from util.stats.answers import TERMS
from util.stats.controls import layer_matched, norm_matched, shortage
from util.stats.heads import Head
from util.stats.intervals import Interval, accuracy, mean_interval
from util.study.checked import AtLeastFour, Count, Natural, checked
from util.study.model import AsModel

PRIMARY = "wordseq1"  # of the pattern tasks of Crosbie & Shutova: the one that small models do
COPIED = 0.1  # of tokens: a model that copies no more does not copy
LENGTH = 50  # of random sequences, as Crosbie & Shutova have
OTHER_COPIES = 2000  # is added to the seed for the sequences that say whether the model copies at all
DEMONSTRATION_SEED = 42
EVERY = "all heads with a role"
RIGHT_OR_WRONG = (PATTERNS, word_pair_name(""))  # outcomes that are one answer for each prompt


@dataclass(frozen=True)
class Ablation:
    """A set of heads, the sets that it is compared with, and how these were drawn ("" where there are none)."""

    name: str
    heads: tuple[Head, ...]
    controls: tuple[tuple[Head, ...], ...]
    matched: str


@checked
class CostStudy:
    """Sets of heads knocked out of a model.

    queries: of the pattern task, and half as many of each word-pair task; sequences: repeated random ones; texts:
    plain ones; control_sets: of each set.
    """

    model: AsModel
    queries: AtLeastFour = 40
    seed: Natural = 0
    _: KW_ONLY
    sequences: AtLeastFour = 32
    texts: AtLeastFour = 64
    control_sets: Count = 10
    places: Mapping[str, Any] | None = None  # folder and redo of the studies

    @property
    def _places(self) -> Mapping[str, Any]:
        return self.places or {}

    @cached_property
    def pattern_task(self) -> TaskStudy:
        """The pattern task, and the plain texts."""
        seed = DEMONSTRATION_SEED + self.seed
        return TaskStudy(self.model, PRIMARY, 10, self.queries, seed, reference_prompts=self.texts, **self._places)

    @cached_property
    def word_pairs(self) -> WordPairsStudy:
        """The word-pair tasks."""
        return WordPairsStudy(self.model, TASKS, 10, self.queries // 2, self.seed, **self._places)

    @cached_property
    def copies(self) -> CopiesStudy:
        """The repeated random sequences; others than those on which roles are tested."""
        return CopiesStudy(self.model, LENGTH, 2, self.sequences, self.seed + 500, **self._places)

    def ablations(
        self, sets: Mapping[str, list[Head]], shape: tuple[int, int], others: Sequence[Head] = ()
    ) -> list[Ablation]:
        """Returns what is ablated: each set of heads that is not empty, with its controls.

        sets: by name. others: heads that, like those of all sets, serve as no control. shape: (L, H) of the model.
        """
        eligible = np.ones(shape, bool)
        for head in [*others, *(head for heads in sets.values() for head in heads)]:
            eligible[head] = False
        return [self._ablation(name, heads, eligible) for name, heads in sets.items() if heads]

    def _ablation(self, name: str, heads: list[Head], eligible: NDArray[np.bool_]) -> Ablation:
        if not shortage(heads, eligible):
            drawn, matched = layer_matched(heads, eligible, self.control_sets, self.seed), "of the same layers"
        elif eligible.sum() >= len(heads):
            norms = self.pattern_task.means().norms
            drawn, matched = norm_matched(heads, eligible, norms, self.control_sets, self.seed), "of a like norm"
        else:
            drawn, matched = [], ""
        return Ablation(name, tuple(heads), tuple(map(tuple, drawn)), matched)

    def losses(self, sets: Mapping[str, list[Head]], shape: tuple[int, int], others: Sequence[Head] = ()) -> Losses:
        """Returns what is lost without each set of heads, see `ablations`. Its intervals hold together."""
        ablations = self.ablations(sets, shape, others)
        edits: dict[tuple[str, int], Edit] = {("", 0): WHOLE}
        for one in ablations:
            for number, heads in enumerate((one.heads, *one.controls)):
                edits[one.name, number] = Edit.ablate(heads)
        whole, measured, terms = self._measured(edits)
        comparisons = max(1, len(ablations) * len(measured))
        found = []
        for one in ablations:
            for outcome, values in measured.items():
                lost = values["", 0] - values[one.name, 0]
                controls = [values["", 0] - values[one.name, number + 1] for number in range(len(one.controls))]
                beyond = None
                if controls:
                    beyond = beyond_controls(lost - np.mean(controls, axis=0), comparisons, outcome in RIGHT_OR_WRONG)
                found.append(
                    Loss(
                        one.name, len(one.heads), outcome, float(values["", 0].mean()), float(lost.mean()),
                        tuple(float(control.mean()) for control in controls), one.matched, beyond,
                    )
                )  # fmt: skip
        of_labels = {
            one.name: dict(zip(TERMS, map(mean_interval, (terms["", 0] - terms[one.name, 0]).T), strict=True))
            for one in ablations
            if terms
        }
        return Losses(whole, tuple(found), of_labels)

    def _measured(
        self, edits: Mapping[tuple[str, int], Edit]
    ) -> tuple[
        dict[str, tuple[float, float, float, bool]],
        dict[str, dict[tuple[str, int], NDArray[np.float64]]],
        dict[tuple[str, int], NDArray[np.floating]],
    ]:
        """The whole model's results, and what each edit leaves: by outcome and edit, the higher the better, [N].

        Whether the model does a task is decided on other sequences and queries. Last by edit which label and label mass
        of the pattern task, [N, 2] in nats, where the model does it.
        """
        intact = {("", 0): WHOLE}
        measured = {}
        copies = _copies(self.copies.replace(seed=self.copies.seed + OTHER_COPIES).copied(intact)["", 0]).low > COPIED
        copied = self.copies.copied(edits if copies else intact)
        whole = {COPIES: (*_copies(copied["", 0]), copies)}
        if copies:
            measured[COPIES] = {name: np.asarray(values, np.float64) for name, values in copied.items()}
        does = check_task(self.pattern_task.other_queries).done
        answers = self.pattern_task.answers(edits if does else intact)
        whole[PATTERNS] = (*accuracy(answers["", 0].right), does)
        if does:
            measured[PATTERNS] = {name: one.right.astype(np.float64) for name, one in answers.items()}
        terms = {name: one.terms for name, one in answers.items()} if does else {}
        checks = task_checks(self.model, self.seed, **self._places)
        done = [task for task, check in checks.items() if check.done]
        right = self.word_pairs.answers(edits if done else intact)
        for task, answered in right["", 0].items():
            whole[word_pair_name(task)] = (*accuracy(answered), task in done)
        if done:
            measured[word_pair_name("")] = {
                name: np.concatenate([answered[task] for task in done]).astype(np.float64)
                for name, answered in right.items()
            }
        losses = self.pattern_task.losses(edits)
        plain = mean_interval(losses["", 0])
        whole[PLAIN_TEXT] = (*plain, True)
        measured[PLAIN_TEXT] = {name: -np.asarray(values, np.float64) for name, values in losses.items()}
        return whole, measured, terms


def _copies(copied: NDArray[np.floating]) -> Interval:
    """The share of copied tokens, of sequences [N]."""
    return mean_interval(copied, within=(0, 1))


def beyond_controls(differences: NDArray[np.float64], comparisons: int, of_answers: bool) -> Interval:
    """The mean of differences [N] to the mean of the controls, with its interval; control sets are taken as they are.

    comparisons: how many such intervals are to hold together. of_answers: whether they are of answers, right or wrong.
    Then the interval is at least so wide that it allows for what none of N prompts shows, because Student's has no
    width where all differences are equal.
    """
    found = mean_interval(differences, comparisons=comparisons)
    if not of_answers:
        return found
    unseen = 1 - (0.025 / comparisons) ** (1 / len(differences))
    low, high = min(found.low, found.value - unseen), max(found.high, found.value + unseen)
    return Interval(found.value, max(low, -1.0), min(high, 1.0))
