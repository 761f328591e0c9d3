"""Function-vector heads: heads whose mean output at the last token tells the model what the task is.

The mean output of a head is taken over prompts with intact demonstrations. It is patched into the same head, at the
last token of a prompt whose demonstrations do not show the task. What this adds to the probability of the answer is the
head's causal indirect effect; its mean over prompts and tasks is the average indirect effect (AIE). Source: Todd et al.
2024, "Function Vectors in Large Language Models", section 2.3, equations 3 to 5. Their a is W_O z, so that patching the
head's output z, before the output projection, is their patch. The prompts are the suite's, not theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator
from scipy.special import softmax
from transformers import PreTrainedModel

from util.edges.splicing import Group, groups_of
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward, run_rows
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads
from util.engine.label_scores import next_token_logits
from util.engine.means import check_widths
from util.engine.replay import path, replay
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.prompts.words import table
from util.roles.cuts import last_write
from util.roles.results import FunctionVectorHeads, IndirectEffects
from util.study.checked import AsList, Count, Distinct, Natural, Text, checked
from util.study.model import digest
from util.study.records import Measurement, joined

# The suite's word-pair tasks, but for the one that has most of its pairs from another and cannot be told from copying.
TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")
CORRUPTED = {"shuffled": 2, "other_outputs": 4}  # numbers of `word_pairs.CORRUPTIONS`
OTHER_PROMPTS = 1000  # is added to the seed for the prompts that means are taken over
BLOCK = 8  # prompts that are measured before what was measured is kept

Corruption = Literal["shuffled", "other_outputs"]
Split = Literal["all", "search", "test"]


def known_task(name: str) -> str:
    """The name of a word-pair task. Raises ValueError, with all names, for a task that there is not."""
    word_pairs.find(name)
    return name


TaskName = Annotated[Text, AfterValidator(known_task)]
TaskNames = Annotated[tuple[TaskName, ...], AsList, Distinct]


# ------------------------------------------------------------------------------------------------ measures


def last_outputs(
    model: PreTrainedModel, ids: Sequence[Sequence[int]], token_budget: int = TOKEN_BUDGET
) -> NDArray[np.floating]:
    """The mean output of every head at the last token of N prompts, [L, H, dv].

    float32, or float64 with a float64 model. Raises ValueError, before any forward pass, for a prompt that is longer
    than the context.
    """
    outputs = each_last_output(model, ids, token_budget)
    return outputs.mean(axis=0).astype(np.float64 if model.dtype == torch.float64 else np.float32)


def each_last_output(
    model: PreTrainedModel, ids: Sequence[Sequence[int]], token_budget: int = TOKEN_BUDGET
) -> NDArray[np.float64]:
    """The output of every head at the last token of each of N prompts, [N, L, H, dv].

    Raises ValueError, before any forward pass, for a prompt that is longer than the context; UnsupportedModel for heads
    of different widths in different layers.
    """
    support = prepare(model)
    check_context(model, list(map(len, ids)))
    outputs: list[np.ndarray] = [np.empty(0)] * len(ids)

    def visit(batch: Batch) -> None:
        heads = CaptureHeads(batch.lengths[:, None] - 1)
        forward(model, batch, heads)
        check_widths(model, heads.z)
        z = np.stack([heads.z[layer][:, 0].double().cpu().numpy() for layer in support.layers], axis=1)
        for place, number in enumerate(batch.numbers):
            outputs[number] = z[place]

    run_rows(model, [Row(tuple(tokens)) for tokens in ids], visit, token_budget)
    return np.stack(outputs)


def patched_probabilities(
    model: PreTrainedModel, ids: Sequence[Sequence[int]], answers: Sequence[int], mean: np.ndarray
) -> dict[str, np.ndarray]:
    """The probability of each prompt's answer, one head patched at a time.

    ids: P prompts; answers [P]: the token of each answer; mean [L, H, dv]: what is written into a head at the last
    token. Gives corrupted [P], nothing patched, and patched [P, L, H]; float32 (float64 in a float64 model).
    """
    support = prepare(model)
    check_context(model, list(map(len, ids)))
    values = torch.from_numpy(mean)
    places = list(np.ndindex(*mean.shape[:2]))
    corrupted, patched = np.empty(len(ids), mean.dtype), np.empty((len(ids), *mean.shape[:2]), mean.dtype)
    for length in sorted({len(tokens) for tokens in ids}):
        numbers = [number for number, tokens in enumerate(ids) if len(tokens) == length]
        edits = [last_write(support.layers[at], head, values[at, head].expand(len(numbers), -1)) for at, head in places]
        prompts, wanted = torch.tensor([ids[i] for i in numbers]), torch.tensor([[answers[i]] for i in numbers])
        runs = replay(model, prompts, edits, wanted, length - 1, log_probabilities=True)
        corrupted[numbers] = runs.base[:, 0].exp().numpy()
        patched[numbers] = runs.logits[..., 0].exp().T.reshape(len(numbers), *mean.shape[:2]).numpy()
    return {"corrupted": corrupted, "patched": patched}


# ------------------------------------------------------------------------------------------------ study


def check_queries(prompts: int, task: str, queries: int, error: type[ValueError] = ValueError) -> None:
    """Raises an error for more prompts than a task has queries."""
    if prompts > queries:
        raise error(
            f"prompts = {prompts}: {task} has {queries} queries to ask, and none is asked twice; give {queries} or "
            "fewer"
        )


@checked
class FunctionVectorStudy(Measurement):
    """The indirect effects of all heads of a model on one word-pair task.

    k: demonstrations; prompts: corrupted prompts, no two of them with the same query; intact: prompts that the mean
    outputs are taken over, others than the corrupted ones. corruption: "shuffled", the outputs of the demonstrations
    are permuted, as Todd et al. do; "other_outputs", they are words of other lists, for models that do the task all the
    same when outputs are permuted. split: of the queries, see `WordPairTask.queries`.
    Raises ValueError, before a model is loaded, for a task or number that there is not, and for more prompts than
    queries.
    """

    task: TaskName = "capitalization"
    k: Count = 10
    prompts: Count = 25
    seed: Natural = 0
    _: KW_ONLY
    intact: Count = 100
    corruption: Corruption = "shuffled"
    split: Split = "search"
    token_budget: Count = TOKEN_BUDGET

    stem = "induction_scores"

    def __post_init__(self) -> None:
        try:
            word_pair_prompts.marked_demonstrations(self._task, self.prompts, self.k, [self._number], self.split)
        except ValueError as error:
            raise ValueError(f"k = {self.k}, corruption = {self.corruption!r}: {error}") from error
        check_queries(self.prompts, self.task, len(self._task.queries(self.split)))

    @cached_property
    def _task(self) -> word_pairs.WordPairTask:
        return word_pairs.find(self.task, trained=word_pairs.is_trained(self.model.name))

    @property
    def _number(self) -> int:
        return CORRUPTED[self.corruption]

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 1,
            "dataset": word_pairs.shown_task(self.task),
            "words": words_digest(self._task),
            "prompts": self.prompts,
            "k": self.k,
            "seed": self.seed,
            "intact": self.intact,
            "corruption": self.corruption,
            "split": self.split,
            "token_budget": self.token_budget,
        }

    @property
    def texts(self) -> list[str]:
        donors = [item.donors[self._number].text for item in self.corrupted.items]
        return [*(item.clean.text for item in self.intact_prompts.items), *donors]

    def _drawn(self, prompts: int, seed: int) -> word_pair_prompts.WordPairPrompts:
        corruptions, split = [self._number], self.split
        return word_pair_prompts.prompts(
            self._task, self.pair[1], prompts, self.k, seed, corruptions, split, in_turn=True
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
    def intact_groups(self) -> list[Group]:
        """The same as tokens."""
        return groups_of(self.intact_prompts.items, self.pair[1])

    def effects(self) -> IndirectEffects:
        """Returns what patching single heads does to the probability of the answer, see the head of this file."""
        data = self.measured_in_blocks(self._blocks, self._measure, _joined, part="indirect effects").data
        arrays = {name: data[name] for name in ("index", "intact", "corrupted", "patched")}
        return IndirectEffects(word_pairs.shown_task(self.task), self.corruption, **arrays)

    @cached_property
    def means(self) -> NDArray[np.floating]:
        """The mean output of every head after intact demonstrations, [L, H, dv]: float32, or float64 as the model."""

        def compute() -> dict[str, Any]:
            self.corrupted  # noqa: B018  # raises ValueError where there are too few queries
            ids = [group.base.ids[: group.length] for group in self.intact_groups]
            return {"mean": last_outputs(self.pair[0], ids, self.token_budget)}

        return self.measured(compute, part="last outputs").data["mean"]

    @cached_property
    def _corrupted_groups(self) -> list[Group]:
        return groups_of(self.corrupted.items, self.pair[1])

    def _blocks(self) -> list[list[int]]:
        """Prompts of like lengths together, as those of one length are run in one batch."""
        order = sorted(range(len(self._corrupted_groups)), key=lambda number: self._corrupted_groups[number].length)
        return [order[start : start + BLOCK] for start in range(0, len(order), BLOCK)]

    def _measure(self, numbers: Sequence[int]) -> dict[str, Any]:
        groups = [self._corrupted_groups[number] for number in numbers]
        ids = [group.donors[self._number].ids[: group.length] for group in groups]
        answers = [group.target[0] for group in groups]
        found = patched_probabilities(self.pair[0], ids, answers, self.means)
        clean = next_token_logits(self.pair[0], [group.base.ids[: group.length] for group in groups])
        intact = softmax(clean, axis=1)[np.arange(len(answers)), answers]
        index = np.array([self.corrupted.items[number].index for number in numbers])
        return {**found, "intact": intact, "index": index, "path": path(self.pair[0])}


def _joined(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The blocks as one, prompts in the order of their index."""
    return {**joined("intact", "corrupted", "patched", "index", by="index")(blocks), "path": blocks[0]["path"]}


def words_digest(task: word_pairs.WordPairTask) -> str:
    """A digest of all words that the prompts of a task and their donors are made of."""
    return digest(
        [repr((task.pairs, task.balanced, task.list_name, task.layout)), *(repr(table(n)) for n in task.lists)]
    )


def without_prompts(studies: Iterable[FunctionVectorStudy]) -> dict[str, str]:
    """Returns the tasks that the tokenizer has no prompts of, each with the reason. The model is loaded."""
    found: dict[str, str] = {}
    for study in studies:
        try:
            study.corrupted, study.intact_prompts  # noqa: B018  # they raise it
        except UnsupportedTokenizer as error:
            found.setdefault(study.task, str(error).split(". ")[0])
    return found


def function_vector_heads(studies: Sequence[FunctionVectorStudy]) -> FunctionVectorHeads:
    """Returns the indirect effects of a model's heads on several tasks.

    Tasks that the tokenizer has no prompts of are left out. Raises UnsupportedTokenizer where it has none of any.
    """
    left_out: dict[str, str] = {}
    try:
        effects = list(map(FunctionVectorStudy.effects, studies))
    except UnsupportedTokenizer:
        left_out = without_prompts(studies)
        if len(left_out) in (0, len(studies)):
            raise
        effects = list(map(FunctionVectorStudy.effects, [one for one in studies if one.task not in left_out]))
    return FunctionVectorHeads(tuple(effects), studies[0].model.title, left_out)
