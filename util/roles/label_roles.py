"""Forerunner heads and label readers by score and effect, on prompts with demonstrations (Cho et al. 2025, section 3).

A demonstration is x s y: its forerunner s is the last visible character before the label y. The circuit of the paper:
labels copy from their forerunners (y_i -> s_i), and the query's forerunner finds the labels of demonstrations that are
like the query (s_q -> y_i). The effect is what is lost without these cells of attention in one head: of which label it
is, log P(gold | labels), on a task that the model does from its demonstrations; else of label mass, log P(any label).
Labels count by their first tokens. The task is looked for on the last queries, which nothing else measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from util.engine import batches
from util.engine.batches import Batch, Row, TooLong, forward, run_rows
from util.engine.instruments import CaptureRows
from util.engine.label_scores import Scoring, label_log_probs, scoring
from util.engine.replay import replay
from util.load_model_and_data import demonstration_pool, staicc_prompts, staicc_request
from util.prompts.prompt import LabelledTokens, Prompt, with_bos
from util.roles.effects import Cells, Numbers, cuts, evidence, other_cells, shape_of_scores, stacked
from util.roles.rules import FACTOR, Evidence, Role, Score
from util.stats.answers import (
    DATASETS,
    KS,
    TaskCheck,
    chosen,
    label_mass,
    majority_right,
    right,
    task_check,
    which_label,
)
from util.stats.heads import Floats
from util.study.checked import Counts, Dataset, Datasets, Natural, Prompts, TwoHalves, check_disjoint, checked
from util.study.records import Fields, Measurement, Records, chunks, joined


def check_pool(dataset: str, k: int) -> None:
    """Raises ValueError where a data set has fewer than k demonstrations."""
    if k > (pool := demonstration_pool(dataset)):
        raise ValueError(f"k = {k}: {dataset} has a pool of {pool} demonstrations; choose a smaller k")


@checked
class LabelTask(Measurement):
    """A model's answers to the last queries of a StaICC data set.

    dataset: a name or an index (0-9); k: demonstrations; prompts: of the 512 test queries; seed: of what is drawn at
    random, see `staicc_prompts`. permuted: whether the labels of the demonstrations are permuted among them, see
    `Prompt.permuted`.
    """

    dataset: Dataset = "trec"
    k: Natural = 4
    prompts: Prompts = 128
    seed: Natural = 0
    _: KW_ONLY
    permuted: bool = False

    stem = "label_task"

    def __post_init__(self) -> None:
        check_pool(self.dataset, self.k)

    @property
    def own_request(self) -> Fields:
        data = staicc_request(self.dataset, self.k, self.prompts, self.seed)
        return {"schema": 1, "method_version": 1, **data, "permuted": self.permuted}

    @property
    def texts(self) -> list[str]:
        return [prompt.with_label() for prompt in self.items]

    @cached_property
    def items(self) -> Sequence[Prompt]:
        prompts = staicc_prompts(self.dataset, self.k, self.seed)[-self.prompts :]
        return [prompt.permuted(number) for number, prompt in enumerate(prompts)] if self.permuted else prompts

    def answers(self) -> Fields:
        """Returns log_prob [N, C], the log-probability of each label in nats, and gold [N]."""

        def compute() -> Fields:
            plan = scoring(*self.pair, self.items)
            return {**label_log_probs(self.pair[0], plan, token_budget=batches.TOKEN_BUDGET), "gold": plan.gold}

        return self.measured(compute).data

    def check(self, candidates: int = 1) -> TaskCheck:
        """Returns whether the model does the task. candidates: how many might be tried, see `task_check`."""
        every = [prompt.gold for prompt in staicc_prompts(self.dataset, self.k, self.seed)]
        baseline = max(majority_right(np.array(every)).mean(), 1 / len(self.items[0].labels))
        shown, *others = (one.answers() for one in (self, self.replace(k=0), self.replace(permuted=True)))
        with_them, bare, permuted = (which_label(one["log_prob"], shown["gold"]) for one in (shown, *others))
        answered = right(shown["log_prob"], shown["gold"])
        return task_check(self.dataset, self.k, answered, with_them, bare, permuted, baseline, candidates)


def candidates(
    study: Records, datasets: Sequence[str], ks: Sequence[int], prompts: int, seed: int, measured: int
) -> tuple[LabelTask, ...]:
    """Returns what to try of a study's model, in order: the data sets with each k, on their last prompts.

    measured: how many prompts are to be measured. Raises ValueError where some of them would choose the task.
    """
    check_disjoint(measured, prompts)
    return tuple(LabelTask(study.model, dataset, k, prompts, seed, **study.places) for k in ks for dataset in datasets)


def first_done(candidates: Sequence[LabelTask]) -> tuple[list[TaskCheck], dict[str, str]]:
    """Asks one after the other until the model does one: the checks, and why others could not be asked.

    Raises TooLong where none of them fits the model.
    """
    checks: list[TaskCheck] = []
    left_out: dict[str, str] = {}
    for study in candidates:
        try:
            checks.append(study.check(len(candidates)))
        except TooLong as error:
            left_out[f"{study.dataset}, k = {study.k}"] = error.extent
            if len(left_out) == len(candidates):
                raise
            continue
        if checks[-1].done:
            break
    return checks, left_out


ROLES = (Role.FORERUNNER, Role.LABEL_READER)
TASK_PROMPTS = 128  # the last queries: they say whether the task is done
BLOCK = 4  # prompts that are measured before what was measured is kept


@checked
class LabelRoles(Measurement):
    """Which heads of a model read the tokens before labels, and which read labels for the query.

    datasets, ks: to try, all data sets with one k before the next k: the first that the model does from its
    demonstrations is measured; where it does none, the first that fits it. prompts: from the first one.
    forerunner: the score is the attention y_i -> s_i, the mean over demonstrations; its null is the attention of other
    tokens to the token before them, so that a previous-token head is none, or `rules.FACTOR` times that of uniform
    attention where that is more. label reader: the score is the attention s_q -> y_i, the sum over demonstrations; its
    null is that factor alone. All these cells of one head are cut; the control are as many other earlier keys of the
    same rows.
    """

    datasets: Datasets = DATASETS
    ks: Counts = KS
    prompts: TwoHalves = 64
    seed: Natural = 0

    stem = "role_atlas"

    def __post_init__(self) -> None:
        self._candidates  # noqa: B018  # checks every k on every data set

    @property
    def own_request(self) -> Fields:
        return {
            "schema": 1,
            "method_version": 1,
            **staicc_request(self.task.name, self.task.k, self.prompts, self.seed),
        }

    @property
    def texts(self) -> list[str]:
        return [prompt.with_label() for prompt in self.items]

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of both roles."""
        return tuple(map(self._evidence, ROLES))

    @cached_property
    def _candidates(self) -> tuple[LabelTask, ...]:
        return candidates(self, self.datasets, self.ks, TASK_PROMPTS, self.seed, self.prompts)

    @cached_property
    def _tried(self) -> tuple[list[TaskCheck], dict[str, str]]:
        return first_done(self._candidates)

    @cached_property
    def task(self) -> TaskCheck:
        """The data set and k that are measured, and whether the model does this task. It asks the candidates."""
        return chosen(self._tried[0])

    @property
    def notes(self) -> list[str]:
        """What does not fit the model, and that it does none of the tasks, a line for each."""
        lines, task = [f"{what}: {why}" for what, why in self._tried[1].items()], self.task
        if not task.done:
            lines.append(f"no data set passed, what is lost is label mass ({task.name}, k = {task.k})")
        return lines

    @property
    def items(self) -> Sequence[Prompt]:
        """The prompts that are measured."""
        return staicc_prompts(self.task.name, self.task.k, self.seed)[: self.prompts]

    @cached_property
    def _plan(self) -> Scoring:
        return scoring(*self.pair, self.items)

    # -------------------------------------------------------------------------------------------- scores

    @cached_property
    def _scores(self) -> dict[Role, Score]:
        data = self.measured(self._measure_scores, part="scores").data
        uniform = FACTOR * data["uniform"][:, :, None, None]  # [roles, N, 1, 1]
        nulls = np.maximum(uniform[0], data["elsewhere"]), uniform[1]
        return {role: Score(data[str(role)], null) for role, null in zip(ROLES, nulls, strict=True)}

    def _measure_scores(self) -> Fields:
        model, k = self.pair[0], self.task.k
        shape = shape_of_scores(model, len(self._plan.ids))
        before, elsewhere, read = (np.empty(shape, np.float32) for _ in range(3))
        labels = np.array([tokens.labels[:k] for tokens in self._plan.tokens])
        last = np.array([tokens.forerunners[-1] for tokens in self._plan.tokens])

        def visit(batch: Batch) -> None:
            width = batch.inputs["input_ids"].shape[1]
            previous = CaptureRows(torch.arange(1, width), torch.arange(width - 1)[:, None])
            to_labels = CaptureRows(batch.lengths[:, None] - 1, torch.from_numpy(labels[batch.numbers])[:, None])
            forward(model, batch, previous, to_labels)
            read[batch.numbers] = stacked({layer: row[:, :, 0].sum(-1) for layer, row in to_labels.weights.items()})
            to_previous = stacked(previous.weights)[..., 0].astype(np.float32)  # [B, L, H, T - 1]
            for rows, number in zip(to_previous, batch.numbers, strict=True):
                others = self._plan.tokens[number].others
                before[number] = [row[:, labels[number] - 1].mean(1) for row in rows]
                elsewhere[number] = [row[:, others - 1].mean(1) for row in rows]

        run_rows(model, [Row(ids) for ids in self._plan.ids], visit, batches.TOKEN_BUDGET)
        uniform = np.stack([(1 / (labels + 1)).mean(1), k / (last + 1)])
        return {str(ROLES[0]): before, str(ROLES[1]): read, "elsewhere": elsewhere, "uniform": uniform}

    # -------------------------------------------------------------------------------------------- effects

    def _evidence(self, role: Role) -> Evidence:
        score = self._scores[role]

        def measure(numbers: Numbers) -> Fields:
            lost = []
            for number in numbers:
                cut = _cells(role, self._plan.tokens[number])
                control = other_cells(cut, self._special, (self.seed, number))
                lost.append(
                    self._lost(number, cuts(self.pair[0], score.chosen, [cut], [control]), int(cut[:, 0].min()))
                )
            cut_and_control = np.stack(lost).reshape(len(numbers), 2, len(score.chosen), 2)
            return {"cut": cut_and_control[:, 0], "control": cut_and_control[:, 1]}

        def of_endpoint(lost: Fields) -> Iterator[Floats]:
            return (lost[name][..., 0 if self.task.done else 1] for name in ("cut", "control"))

        blocks, join = partial(chunks, score.halves[1].tolist(), BLOCK), joined("cut", "control")
        return evidence(self, role, score, measure, blocks, join, of_endpoint, "effects of labels")

    @cached_property
    def _special(self) -> int:
        """How many special tokens stand in front of a prompt."""
        return with_bos(self.items[0].text, self.pair[1]).spans.count(None)

    def _lost(self, number: int, edits: Sequence[Any], first: int) -> Floats:
        """What one prompt loses of which label, and of label mass, under each edit, [E, 2] in nats."""
        labels, gold = torch.from_numpy(self._plan.first_tokens[number]), self._plan.gold[[number]]
        logits, whole = replay(self.pair[0], torch.tensor([self._plan.ids[number]]), edits, labels[None], first, True)
        base, edited = whole.double().numpy(), logits[:, 0].double().numpy()  # [1, C], [E, C]
        which = which_label(base, gold) - which_label(edited, np.repeat(gold, len(edited)))
        return np.stack([which, label_mass(base) - label_mass(edited)], axis=1)


def _cells(role: Role, tokens: LabelledTokens) -> Cells:
    """The cells [C, 2] of a role in one prompt; of a label of several tokens all of them."""
    *shown, last = zip(tokens.forerunners, tokens.label_tokens, strict=True)
    cells = [(token, s) if role == Role.FORERUNNER else (last[0], token) for s, label in shown for token in label]
    return np.array(cells, np.int64)
