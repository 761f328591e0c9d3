"""Forerunner heads and label readers by score and effect, on prompts with demonstrations (Cho et al. 2025, section 3).

A demonstration is x s y: its forerunner s is the last visible character before the label y. The circuit of the paper:
labels copy from their forerunners (y_i -> s_i), and the query's forerunner finds the labels of demonstrations that are
like the query (s_q -> y_i). The effect is what is lost without these cells of attention in one head: of which label it
is, log P(gold | labels), on a task that the model does from its demonstrations; else of label mass, log P(any label).
Labels count by their first tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from util.engine import batches
from util.engine.attention import support
from util.engine.batches import Batch, Row, forward, run_rows
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows
from util.engine.label_scores import Scoring, scoring
from util.engine.replay import replay
from util.load_model_and_data import staicc_prompts
from util.prompts.prompt import LabelledTokens, Prompt, with_bos
from util.roles.cuts import Cells, head_cut, other_cells
from util.roles.heads import plain
from util.roles.label_task import DATASETS, KS, LabelTask, candidates, data_request, first_done
from util.roles.rules import FACTOR, Effect, Evidence, Role, Score
from util.stats.answers import TaskCheck, chosen, label_mass, which_label
from util.study.checked import Counts, Datasets, Natural, TwoHalves, checked
from util.study.records import Measurement, joined

ROLES = (Role.FORERUNNER, Role.LABEL_READER)
WHICH, MASS = "which label", "label mass"
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
    def own_request(self) -> dict[str, Any]:
        return {"schema": 1, "method_version": 1, **data_request(self.task.name, self.task.k, self.prompts, self.seed)}

    @property
    def texts(self) -> list[str]:
        return [prompt.with_label() for prompt in self.items]

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of both roles."""
        effects = list(map(self._effect, ROLES))
        return tuple(Evidence(role, self._scores[role], effect) for role, effect in zip(ROLES, effects, strict=True))

    @cached_property
    def _candidates(self) -> tuple[LabelTask, ...]:
        places: dict[str, Any] = {"folder": self.folder, "redo": self.redo}
        return candidates(self.model, self.datasets, self.ks, TASK_PROMPTS, self.seed, self.prompts, **places)

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
        lines = [f"left out, {what}: {why}" for what, why in self._tried[1].items()]
        of = f"{self.task.name}, k = {self.task.k}"
        return lines if self.task.done else [*lines, f"no data set passed, what is lost is label mass ({of})"]

    @property
    def items(self) -> list[Prompt]:
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
        return {role: Score(data[str(role)], null, "attention") for role, null in zip(ROLES, nulls, strict=True)}

    def _measure_scores(self) -> dict[str, Any]:
        model, found = self.pair[0], prepare(self.pair[0])
        shape = len(self._plan.ids), len(found.layers), found.heads
        before, elsewhere, read = (np.empty(shape, np.float32) for _ in range(3))
        uniform, k = np.empty((len(ROLES), len(self._plan.ids))), self.task.k
        for number, tokens in enumerate(self._plan.tokens):
            labels = np.array(tokens.labels[:k])
            uniform[:, number] = (1 / (labels + 1)).mean(), k / (tokens.forerunners[-1] + 1)

        def visit(batch: Batch) -> None:
            tokens = [self._plan.tokens[number] for number in batch.numbers]
            width = batch.inputs["input_ids"].shape[1]
            previous = CaptureRows(torch.arange(1, width), torch.arange(width - 1)[:, None])
            labels = torch.tensor([one.labels[:k] for one in tokens])
            last = CaptureRows(batch.lengths[:, None] - 1, labels[:, None])
            forward(model, batch, previous, last)
            for at, layer in enumerate(found.layers):
                to_previous = previous.weights[layer][..., 0].float().cpu().numpy()  # [B, H, T - 1]
                read[batch.numbers, at] = last.weights[layer][:, :, 0].sum(-1).float().cpu().numpy()
                for row, number in enumerate(batch.numbers):
                    before[number, at] = to_previous[row][:, labels[row].numpy() - 1].mean(1)
                    elsewhere[number, at] = to_previous[row][:, _others(tokens[row]) - 1].mean(1)

        run_rows(model, [Row(ids) for ids in self._plan.ids], visit, batches.TOKEN_BUDGET)
        return {str(ROLES[0]): before, str(ROLES[1]): read, "elsewhere": elsewhere, "uniform": uniform}

    # -------------------------------------------------------------------------------------------- effects

    def _effect(self, role: Role) -> Effect:
        score = self._scores[role]
        heads, second = score.chosen(), score.halves[1]
        if not heads:
            return score.no_effect("nats")
        endpoint = WHICH if self.task.done else MASS

        def blocks() -> list[list[int]]:
            return [second[start : start + BLOCK].tolist() for start in range(0, len(second), BLOCK)]

        def measure(numbers: Sequence[int]) -> dict[str, Any]:
            layers = support(self.pair[0]).layers
            lost = []
            for number in numbers:
                cut = _cells(role, self._plan.tokens[number])
                control = other_cells(cut, self._special, (self.seed, number))
                edits = [head_cut(layers[at], head, [cells]) for cells in (cut, control) for at, head in heads]
                lost.append(self._lost(number, edits, int(cut[:, 0].min())))
            cut_and_control = np.stack(lost).reshape(len(numbers), 2, len(heads), 2)
            return {"cut": cut_and_control[:, 0], "control": cut_and_control[:, 1]}

        part = {"part": "effects of labels", "role": str(role), "heads": plain(heads)}
        data = self.measured_in_blocks(blocks, measure, joined("cut", "control"), **part).data
        place = (WHICH, MASS).index(endpoint)
        return Effect(heads, data["cut"][..., place], data["control"][..., place], f"nats of {endpoint}")

    @cached_property
    def _special(self) -> int:
        """How many special tokens stand in front of a prompt."""
        return with_bos(self.items[0].text, self.pair[1]).spans.count(None)

    def _lost(self, number: int, edits: Sequence[Any], first: int) -> NDArray[np.float64]:
        """What one prompt loses of which label, and of label mass, under each edit, [E, 2] in nats."""
        labels, gold = torch.from_numpy(self._plan.first_tokens[number]), self._plan.gold[[number]]
        runs = replay(self.pair[0], torch.tensor([self._plan.ids[number]]), edits, labels[None], first, True)
        base, edited = runs.base.double().numpy(), runs.logits[:, 0].double().numpy()  # [1, C], [E, C]
        which = which_label(base, gold) - which_label(edited, np.repeat(gold, len(edited)))
        return np.stack([which, label_mass(base) - label_mass(edited)], axis=1)


def _cells(role: Role, tokens: LabelledTokens) -> Cells:
    """The cells [C, 2] of a role in one prompt; of a label of several tokens all of them."""
    k = len(tokens.labels) - 1
    spans = zip(tokens.labels[:k], tokens.label_lengths[:k], strict=True)
    labels = [(i, start + more) for i, (start, length) in enumerate(spans) for more in range(length)]
    if role == Role.FORERUNNER:
        return np.array([(token, tokens.forerunners[i]) for i, token in labels])
    return np.array([(tokens.forerunners[k], token) for _, token in labels])


def _others(tokens: LabelledTokens) -> NDArray[np.int64]:
    """The tokens of a prompt that are no part of a label, without the first two: their predecessor is no sink."""
    labels = {start + more for start, n in zip(tokens.labels, tokens.label_lengths, strict=True) for more in range(n)}
    return np.array([token for token in range(2, tokens.labels[-1]) if token not in labels])
