"""Prompts of word-pair tasks, and whether a model does a task from its demonstrations.

That is asked on the split "search", which no verdict on a claim uses.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator
from scipy.special import log_softmax

from util.engine import batches
from util.engine.label_scores import next_token_logits
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.own_tasks import table
from util.prompts.prompt import Prompt, with_bos
from util.stats.answers import TaskCheck, majority_right, task_check, which_label
from util.study.checked import Count, Natural, Text, checked
from util.study.model import digest
from util.study.records import Fields, Measurement

SPLIT = "search"


TaskName = Annotated[Text, AfterValidator(lambda name: word_pairs.find(name).name)]  # raises for an unknown one


def words_digest(task: word_pairs.WordPairTask) -> str:
    """A digest of all words that the prompts of a task and their donors are made of."""
    words = (task.pairs, task.balanced, task.list_name, task.layout, *task.words)
    return digest([repr(words), *(repr(table(n)) for n in task.lists)])


@checked
class WordPairs(Measurement):
    """What is measured on prompts of a word-pair task.

    k: demonstrations; prompts: how many, no two of them with the same query. Raises ValueError, before a model is
    loaded, for an unknown task.
    """

    task: TaskName = "capitalization"
    k: Count = 10
    prompts: Count = 64
    seed: Natural = 0

    @cached_property
    def _task(self) -> word_pairs.WordPairTask:
        return word_pairs.find(self.task, trained=word_pairs.is_trained(self.model.name))

    @property
    def pairs_request(self) -> Fields:
        """What of a request the task and its prompts decide."""
        return {
            "schema": 1,
            "method_version": 1,
            "dataset": self.task,
            "words": words_digest(self._task),
            "k": self.k,
            "prompts": self.prompts,
            "seed": self.seed,
            "token_budget": batches.TOKEN_BUDGET,
        }


@checked
class PairTask(WordPairs):
    """A model's answers to queries of a word-pair task, behind BOS.

    k: demonstrations; prompts: queries, at most as many as there are, none of them twice; ambiguous: how many of the
    demonstrations fit two rules, see `word_pair_prompts.prompts`; layout: fields of `Layout`, None for the task's own.
    Raises ValueError, before a model is loaded, for an unknown task and for more demonstrations than the task has.
    """

    ambiguous: Natural | None = None
    layout: dict[str, Any] | None = None

    stem = "pair_task"

    @cached_property
    def _task(self) -> word_pairs.WordPairTask:
        return super()._task.in_layout(self.layout)

    def __post_init__(self) -> None:
        word_pair_prompts.marked_demonstrations(self._task, self.prompts, self.k, (), SPLIT, self.ambiguous)

    @property
    def own_request(self) -> Fields:
        return {**self.pairs_request, "method_version": 2, "ambiguous": self.ambiguous}

    @property
    def texts(self) -> list[str]:
        return [prompt.text for prompts in self.asked.values() for prompt in prompts]

    @cached_property
    def items(self) -> list[Prompt]:
        """The prompts with demonstrations. Raises what `word_pair_prompts.prompts` raises."""
        prompts = min(self.prompts, len(self._task.queries(SPLIT)))
        drawn = word_pair_prompts.prompts(
            self._task,
            self.pair[1],
            prompts,
            self.k,
            self.seed,
            corruptions=(),
            split=SPLIT,
            ambiguous=self.ambiguous,
            in_turn=True,
        )
        return [item.clean for item in drawn.items if item.index < drawn.askable]  # later ones repeat a query

    @cached_property
    def asked(self) -> dict[str, list[Prompt]]:
        """The prompts with demonstrations, without, and with the outputs of the demonstrations permuted among them."""
        bare = [self._task.layout.prompt((), prompt.texts("x")[-1], prompt.label()) for prompt in self.items]
        permuted = [prompt.permuted(number) for number, prompt in enumerate(self.items)]
        return {"shown": self.items, "bare": bare, "permuted": permuted}

    def answers(self) -> Fields:
        """Returns what follows each prompt of `asked`.

        shown, bare, permuted [N, C]: the log-probabilities of the first tokens of the task's outputs, in nats; gold
        [N]: the index of the right one; right [N]: whether this is the most probable token of all after `shown`.
        """
        return self.measured(self._measure).data

    def _measure(self) -> Fields:
        model, tokenizer = self.pair
        begins = word_pair_prompts.first_tokens(self._task, tokenizer)
        tokens = np.unique([*begins.values()])
        right = np.array([begins[prompt.label()] for prompt in self.items])
        data: Fields = {"gold": np.searchsorted(tokens, right)}
        for name, prompts in self.asked.items():
            texts = [with_bos(prompt.text, tokenizer, bos=True).ids for prompt in prompts]  # as edges are measured
            logits = next_token_logits(model, texts)
            data[name] = log_softmax(logits, axis=1)[:, tokens]
            if name == "shown":
                data["right"] = logits.argmax(axis=1) == right
        return data

    def check(self, candidates: int = 1) -> TaskCheck:
        """Returns whether the model does the task, by first tokens. candidates: how many may be tried."""
        data = self.answers()
        shown, bare, permuted = (which_label(data[name], data["gold"]) for name in ("shown", "bare", "permuted"))
        baseline = majority_right(data["gold"]).mean()  # not below chance: the answers are among the outputs
        return task_check(self.task, self.k, data["right"], shown, bare, permuted, baseline, candidates)
