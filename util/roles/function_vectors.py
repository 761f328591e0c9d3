"""Function-vector heads: heads whose mean output at the last token tells the model what the task is.

The mean output of a head is taken over prompts with intact demonstrations. It is patched into the same head, at the
last token of a prompt whose demonstrations do not show the task. What this adds to the probability of the answer is the
head's causal indirect effect; its mean over prompts and tasks is the average indirect effect (AIE). Source: Todd et al.
2024, "Function Vectors in Large Language Models", section 2.3, equations 3 to 5. Their a is W_O z, so that patching the
head's output z, before the output projection, is their patch. The prompts are the suite's, not theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import cached_property, reduce
from itertools import chain
from typing import Annotated, Literal, get_args

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from transformers import PreTrainedModel

from util.edges.splicing import groups_of
from util.engine.batches import TOKEN_BUDGET, Batch, Row, array_type, check_context, forward, run_rows
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads
from util.engine.label_scores import next_token_logits
from util.engine.means import check_widths
from util.engine.replay import replay
from util.prompts import word_pair_prompts
from util.prompts.prompt import UnsupportedTokenizer
from util.prompts.word_pairs import TASKS
from util.roles.effects import Blocks, Numbers, evidence, last_write, stacked
from util.roles.pair_task import SPLIT, TaskName, WordPairs
from util.roles.rules import ROOM, Evidence, Role, Score
from util.stats.heads import Floats, Head
from util.study.checked import AsList, AtLeastFour, Count, Distinct, Natural, checked
from util.study.records import Fields, Measurement, chunks, joined

CORRUPTED = {"shuffled": 2, "other_outputs": 4}  # numbers of `word_pairs.CORRUPTIONS`
OTHER_PROMPTS = 1000  # is added to the seed for the prompts that means are taken over
BLOCK = 8  # prompts that are measured before what was measured is kept

Corruption = Literal["shuffled", "other_outputs"]
Ids = Sequence[Sequence[int]]  # prompts as tokens


TaskNames = Annotated[tuple[TaskName, ...], AsList, Distinct]


# ------------------------------------------------------------------------------------------------ measures


def last_outputs(model: PreTrainedModel, ids: Ids) -> Floats:
    """The mean output of every head at the last token of N prompts, [L, H, dv].

    float32, or float64 with a float64 model. Raises ValueError, before any forward pass, for a prompt that is longer
    than the context.
    """
    return each_last_output(model, ids).mean(axis=0).astype(array_type(model))


def each_last_output(model: PreTrainedModel, ids: Ids) -> Floats:
    """The output of every head at the last token of each of N prompts, [N, L, H, dv].

    Raises ValueError, before any forward pass, for a prompt that is longer than the context; UnsupportedModel for heads
    of different widths in different layers.
    """
    check_context(model, list(map(len, ids)))
    outputs: dict[int, Floats] = {}

    def visit(batch: Batch) -> None:
        heads = CaptureHeads(batch.lengths[:, None] - 1)
        forward(model, batch, heads)
        check_widths(model, heads.z)
        outputs.update(zip(batch.numbers, stacked(heads.z)[:, :, 0].astype(np.float64), strict=True))

    run_rows(model, [Row(tuple(tokens)) for tokens in ids], visit, TOKEN_BUDGET)
    return np.stack([outputs[number] for number in range(len(ids))])


def probabilities_under(
    model: PreTrainedModel,
    ids: Ids,
    answers: Numbers,
    writes: Sequence[tuple[Head, Floats]],
) -> tuple[Floats, Floats]:
    """The probability of each prompt's answer without any write [P], and under each of W alone [P, W].

    ids: P prompts; answers [P]: the token of each answer; writes: a head and what it writes at the last token of each
    prompt, [P, dv]. float32 (float64 in a float64 model).
    """
    layers, lengths, wanted = prepare(model).layers, np.array(list(map(len, ids))), torch.tensor(answers)
    check_context(model, lengths.tolist())
    probabilities = np.empty((len(ids), 1 + len(writes)), writes[0][1].dtype)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        edits = [last_write(layers[layer], head, torch.from_numpy(values[rows])) for (layer, head), values in writes]
        prompts = torch.tensor([ids[row] for row in rows.tolist()])
        patched, base = replay(model, prompts, edits, wanted[rows, None], length - 1, log_probabilities=True)
        probabilities[rows] = torch.cat([base, patched[..., 0].T], dim=1).exp()
    return probabilities[:, 0], probabilities[:, 1:]


def patched_probabilities(model: PreTrainedModel, ids: Ids, answers: Numbers, mean: np.ndarray) -> Fields:
    """The probability of each prompt's answer, one head patched at a time: corrupted [P], patched [P, L, H].

    mean [L, H, dv]: what is written into a head at the last token; else see `probabilities_under`.
    """
    shape = len(ids), *mean.shape
    writes = [(head, np.broadcast_to(mean[head], shape[::3])) for head in np.ndindex(*mean.shape[:2])]
    corrupted, patched = probabilities_under(model, ids, answers, writes)
    return {"corrupted": corrupted, "patched": patched.reshape(shape[:3])}


def answer_probabilities(model: PreTrainedModel, ids: Ids, answers: Numbers) -> Floats:
    """The probability [P] of the answer of each of P prompts."""
    return softmax(next_token_logits(model, ids), axis=1)[np.arange(len(answers)), answers]


# ------------------------------------------------------------------------------------------------ study


def check_queries(prompts: int, task: str, queries: int, error: type[ValueError] = ValueError) -> None:
    """Raises an error for more prompts than a task has queries."""
    if prompts > queries:
        raise error(
            f"prompts = {prompts}: {task} has {queries} queries to ask, and none is asked twice; give {queries} or "
            "fewer"
        )


@checked
class FunctionVectorStudy(WordPairs):
    """The indirect effects of all heads of a model on one word-pair task.

    k: demonstrations; prompts: corrupted prompts, no two of them with the same query; intact: prompts that the mean
    outputs are taken over, others than the corrupted ones. Most queries are asked in both: of the embedded model, means
    without the prompt's own query give effects that are at most 5 % smaller. corruption: "shuffled", the outputs of the
    demonstrations are permuted, as Todd et al. do; "other_outputs", they are words of other lists, for models that do
    the task all the same when outputs are permuted. Raises ValueError, before a model is loaded, for a task or number
    that there is not, and for more prompts than queries.
    """

    prompts: Count = 25
    _: KW_ONLY
    intact: Count = 100
    corruption: Corruption = "shuffled"

    stem = "induction_scores"

    def __post_init__(self) -> None:
        try:
            word_pair_prompts.marked_demonstrations(self._task, self.prompts, self.k, [self._number], SPLIT)
        except ValueError as error:
            raise ValueError(f"k = {self.k}, corruption = {self.corruption!r}: {error}") from error
        check_queries(self.prompts, self.task, len(self._task.queries(SPLIT)))

    @property
    def _number(self) -> int:
        return CORRUPTED[self.corruption]

    @property
    def own_request(self) -> Fields:
        return {**self.pairs_request, "intact": self.intact, "corruption": self.corruption, "split": SPLIT}

    @property
    def texts(self) -> list[str]:
        donors = [item.donors[self._number].text for item in self.corrupted.items]
        return [*(item.clean.text for item in self.intact_prompts.items), *donors]

    def _drawn(self, prompts: int, seed: int) -> word_pair_prompts.WordPairPrompts:
        return word_pair_prompts.prompts(
            self._task, self.pair[1], prompts, self.k, seed, [self._number], SPLIT, in_turn=True
        )

    @cached_property
    def corrupted(self) -> word_pair_prompts.WordPairPrompts:
        """The prompts that heads are patched in: the donors of these.

        Raises UnsupportedTokenizer where it leaves fewer queries than prompts, and what `word_pair_prompts.prompts`
        raises.
        """
        drawn = self._drawn(self.prompts, self.seed)
        check_queries(self.prompts, self.task, drawn.askable, UnsupportedTokenizer)
        return drawn

    @cached_property
    def intact_prompts(self) -> word_pair_prompts.WordPairPrompts:
        """The prompts that mean outputs are taken over. Raises what `word_pair_prompts.prompts` raises."""
        return self._drawn(self.intact, self.seed + OTHER_PROMPTS)

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """The corrupted prompts by number: tokens with intact and with corrupted demonstrations, first answer token."""
        groups = groups_of(self.corrupted.items, self.pair[1])
        rows = [(group.prompt, group.donors[self._number].ids[: group.length], group.target[0]) for group in groups]
        index = [item.index for item in self.corrupted.items]
        return pd.DataFrame(rows, index, columns=["intact", "corrupted", "answer"])

    def probabilities(self) -> Fields:
        """Returns what patching single heads does to the probability of the answer, see the head of this file.

        index [P]: the numbers of the prompts; intact, corrupted [P]: after intact demonstrations of a prompt and after
        corrupted ones; patched [P, L, H]: after corrupted ones, with one head patched.
        """
        join = joined("index", "intact", "corrupted", "patched", by="index")
        return self.measured_in_blocks(self._blocks, self._measure, join, part="indirect effects").data

    @cached_property
    def means(self) -> Floats:
        """The mean output of every head after intact demonstrations, [L, H, dv]: float32, or float64 as the model."""

        def compute() -> Fields:
            self.corrupted  # noqa: B018  # raises ValueError where there are too few queries
            groups = groups_of(self.intact_prompts.items, self.pair[1])
            return {"mean": last_outputs(self.pair[0], [group.prompt for group in groups])}

        return self.measured(compute, part="last outputs").data["mean"]

    def _blocks(self) -> Blocks:
        """Prompts of like lengths together, as those of one length are run in one batch."""
        return chunks(np.argsort(self.tokens["intact"].map(len), kind="stable").tolist(), BLOCK)

    def _measure(self, numbers: Numbers) -> Fields:
        prompts = self.tokens.iloc[numbers]
        intact, corrupted, answers = (prompts[name].tolist() for name in prompts)
        patched = patched_probabilities(self.pair[0], corrupted, answers, self.means)
        probable = answer_probabilities(self.pair[0], intact, answers)
        return {**patched, "intact": probable, "index": prompts.index.to_numpy()}


def why_no_prompts(error: UnsupportedTokenizer) -> str:
    """Why a tokenizer has no prompts of a task, without what could be done about it."""
    return str(error).split(". ")[0]


def function_vector_heads(studies: Sequence[FunctionVectorStudy]) -> Fields:
    """Returns the indirect effects of a model's heads on several tasks.

    effects [P, L, H]: of the P prompts whose number every task has, each the mean of one prompt of every task. Tasks
    are given and prompts are sampled within each. Such means are independent and spread as the mean over all prompts
    does, so that they are the units of its interval. room: how much more probable the answer is after intact
    demonstrations, the mean of the tasks: what patching could give back. corruption: what was done to the
    demonstrations. left out: by task why others have none: the tokenizer has no prompts of them. Raises
    UnsupportedTokenizer where it has none of any.
    """
    measured: list[Fields] = []
    left_out: dict[str, str] = {}
    for study in studies:
        try:
            measured.append(study.probabilities())
        except UnsupportedTokenizer as error:
            left_out[study.task] = why_no_prompts(error)
            if len(left_out) == len(studies):
                raise
    common, effects, room = reduce(np.intersect1d, [task["index"] for task in measured]), [], []
    for task in measured:
        gained = task["patched"].astype(np.float64) - task["corrupted"].astype(np.float64)[:, None, None]
        effects.append(gained[np.isin(task["index"], common)])
        room.append(float(task["intact"].mean(dtype=np.float64) - task["corrupted"].mean(dtype=np.float64)))
    return {
        "effects": np.stack(effects, axis=1).mean(axis=1),
        "room": float(np.mean(room)),
        "corruption": studies[0].corruption,
        "left out": left_out,
    }


# ------------------------------------------------------------------------------------------------ the role


@checked
class VectorRoles(Measurement):
    """Which heads of a model tell it the task, by score and effect.

    That the answer becomes more probable does not say that a head tells the task: what it writes after any
    demonstrations may help as much. So the control is the mean of another task, patched into the same head of the same
    prompts. The paper has no score either. Here it says that the task decides what the head writes, more than the
    single prompt does.

    tasks, k, prompts, intact: see `FunctionVectorStudy`; two tasks at least. The units are means over the tasks of one
    prompt each. The outputs of demonstrations are shuffled, or, where that leaves the answer as probable as it was (by
    less than ROOM), those of other lists.

    The score is the likeness (cosine) of what a head writes at the last token of an intact prompt to its mean over
    other prompts of the task. Its null lies midway between 1 and the likeness to the means of the other tasks: there
    the prompt decides as much of what the head writes as the task does. (By squared distances of unit vectors: the
    other means are twice as far away as the own one, so that between tasks there is as much variance as within.)

    The effect is how much more probable the answer becomes when the mean of the task is written into the head. The
    control is the mean of one other task, of each other task in turn (by the number of the prompt).

    Raises ValueError for one task alone, and what `FunctionVectorStudy` raises.
    """

    tasks: TaskNames = TASKS
    k: Count = 10
    prompts: AtLeastFour = 24
    seed: Natural = 0
    _: KW_ONLY
    intact: Count = 32

    stem = "role_atlas"

    def __post_init__(self) -> None:
        if len(self.tasks) < 2:
            raise ValueError(f"tasks = {list(self.tasks)}: give two or more; a task is told from the others")
        self._studies  # noqa: B018  # it checks all arguments

    @cached_property
    def _studies(self) -> dict[Corruption, list[FunctionVectorStudy]]:
        """The study of every task, by corruption: they draw the prompts and keep the mean outputs."""
        return {
            corruption: [
                FunctionVectorStudy(
                    self.model, task, self.k, self.prompts, self.seed,
                    intact=self.intact, corruption=corruption, **self.places,
                )
                for task in self.tasks
            ]
            for corruption in get_args(Corruption)
        }  # fmt: skip

    @property
    def own_request(self) -> Fields:
        return {
            "schema": 1,
            "method_version": 2,
            "tasks": [study.own_request for study in self._studies["shuffled"]],
        }

    @property
    def texts(self) -> list[str]:
        return [text for study in self._studies["shuffled"] for text in study.texts]

    def with_prompts(self) -> tuple[VectorRoles, list[str]]:
        """Returns the same of the tasks that the tokenizer has prompts of, and why others are left out.

        The model is loaded. Raises UnsupportedTokenizer where fewer than two tasks are left.
        """
        reasons: dict[str, UnsupportedTokenizer] = {}
        for study in chain(*self._studies.values()):
            try:
                study.corrupted, study.intact_prompts  # noqa: B018  # they raise it
            except UnsupportedTokenizer as error:
                reasons.setdefault(study.task, error)
                if len(self.tasks) - len(reasons) < 2:
                    raise
        rest = [task for task in self.tasks if task not in reasons]
        return self.replace(tasks=rest), [f"left out, {why_no_prompts(error)}" for error in reasons.values()]

    # -------------------------------------------------------------------------------------------- the prompts

    @cached_property
    def _corruption(self) -> Corruption:
        """How demonstrations are corrupted: the first way that leaves ROOM, else the last."""
        *first, last = get_args(Corruption)
        return next((corruption for corruption in first if self._room(corruption) >= ROOM), last)

    def _room(self, corruption: Corruption) -> float:
        """How much more probable the answer is after intact demonstrations, the mean of the tasks."""

        def measure() -> Fields:
            lost = []
            for prompts in self._drawn(corruption):
                answers = prompts["answer"].tolist()
                intact, corrupted = (
                    answer_probabilities(self.pair[0], prompts[name].tolist(), answers)
                    for name in ("intact", "corrupted")
                )
                lost.append((intact - corrupted).mean(dtype=np.float64))
            return {"room": np.array(lost)}

        return float(self.measured(measure, part="room", corruption=corruption).data["room"].mean())

    def _drawn(self, corruption: Corruption) -> list[pd.DataFrame]:
        """The prompts of every task: those whose number every task has."""
        tokens = [study.tokens for study in self._studies[corruption]]
        common = reduce(np.intersect1d, [of_task.index for of_task in tokens])
        return [of_task.loc[common] for of_task in tokens]

    @cached_property
    def _prompts(self) -> list[pd.DataFrame]:
        return self._drawn(self._corruption)

    @cached_property
    def _means(self) -> Floats:
        """What heads write, the mean over intact prompts of every task, [T, L, H, dv]."""
        return np.stack([study.means for study in self._studies[self._corruption]])

    # -------------------------------------------------------------------------------------------- score

    @cached_property
    def _score(self) -> Score:
        data = self.measured(self._measure_likeness, part="likeness", corruption=self._corruption).data
        return Score(data["own"], (1 + data["other"]) / 2)

    def _measure_likeness(self) -> Fields:
        """The likeness to the own task's mean and to those of the others, means over tasks [P, L, H] each."""
        means = self._means.astype(np.float64)
        means /= np.linalg.norm(means, axis=-1, keepdims=True)
        same, other = [], []
        for number, prompts in enumerate(self._prompts):
            z = each_last_output(self.pair[0], prompts["intact"].tolist())
            z /= np.linalg.norm(z, axis=-1, keepdims=True)
            likeness = np.einsum("nlhd,tlhd->tnlh", z, means)
            same.append(likeness[number])
            other.append(np.delete(likeness, number, axis=0).mean(axis=0))
        return {"own": np.mean(same, axis=0), "other": np.mean(other, axis=0)}

    # -------------------------------------------------------------------------------------------- effect

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of the role."""
        second = self._score.halves[1]
        count, tasks = len(second), len(self.tasks)

        def blocks() -> Blocks:
            """Prompts of one task together: prompt i of task t has the number t * count + i."""
            return [block for task in range(tasks) for block in chunks(range(task * count, (task + 1) * count), BLOCK)]

        def measure(numbers: Numbers) -> Fields:
            """What the own task's mean and another task's add to the answer's probability, [P, C] each."""
            task = numbers[0] // count
            prompts = self._prompts[task].iloc[second[np.array(numbers) % count]]
            # the control is one other task, each in turn
            others = (task + 1 + prompts.index.to_numpy() % (tasks - 1)) % tasks
            means_of = np.full(len(others), task), others
            writes = [(head, self._means[(of, *head)]) for of in means_of for head in self._score.chosen]
            ids, answers = prompts["corrupted"].tolist(), prompts["answer"].tolist()
            corrupted, patched = probabilities_under(self.pair[0], ids, answers, writes)
            same, other = np.split((patched - corrupted[:, None]).astype(np.float64), 2, axis=1)
            return {"own": same, "other": other}

        def mean_of_tasks(added: Fields) -> Iterator[Floats]:
            return (added[name].reshape(tasks, count, -1).mean(axis=0) for name in ("own", "other"))

        join, corruption = joined("own", "other"), self._corruption
        role = Role.FUNCTION_VECTOR
        return (evidence(self, role, self._score, measure, blocks, join, mean_of_tasks, corruption=corruption),)
