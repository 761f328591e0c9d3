"""Which data set a model does from its demonstrations: asked on the last queries, which nothing else measures."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Any

import numpy as np

from util.engine import batches
from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.engine.label_scores import label_log_probs, scoring
from util.load_model_and_data import demonstration_pool, staicc_prompts, staicc_request
from util.prompts.prompt import Prompt
from util.stats.answers import TaskCheck, majority_right, right, task_check, which_label
from util.study.checked import QUERIES, Dataset, Natural, Prompts, checked
from util.study.model import Model
from util.study.records import Fields, Measurement

DATASETS, KS = ("trec", "subjective", "agnews"), (16, 4)  # to try, in order: all data sets with one k before the next k


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
        if self.k > (pool := demonstration_pool(self.dataset)):
            raise ValueError(f"k = {self.k}: {self.dataset} has a pool of {pool} demonstrations; choose a smaller k")

    @property
    def own_request(self) -> Fields:
        data = staicc_request(self.dataset, self.k, self.prompts, self.seed)
        return {"schema": 1, "method_version": 1, **data, "permuted": self.permuted}

    @property
    def texts(self) -> list[str]:
        return [prompt.with_label() for prompt in self.items]

    @cached_property
    def items(self) -> list[Prompt]:
        prompts = staicc_prompts(self.dataset, self.k, self.seed)[-self.prompts :]
        return [prompt.permuted(number) for number, prompt in enumerate(prompts)] if self.permuted else prompts

    def answers(self) -> Fields:
        """Returns log_prob [N, C], the log-probability of each label in nats, and gold [N]."""
        return self.measured(self._measure).data

    def _measure(self) -> Fields:
        model, tokenizer = self.pair
        plan = scoring(model, tokenizer, self.items)
        return {**label_log_probs(model, plan, token_budget=batches.TOKEN_BUDGET), "gold": plan.gold}

    def check(self, candidates: int = 1) -> TaskCheck:
        """Returns whether the model does the task. candidates: how many might be tried, see `task_check`."""
        every = [prompt.gold for prompt in staicc_prompts(self.dataset, self.k, self.seed)]
        baseline = max(majority_right(np.array(every)).mean(), 1 / len(self.items[0].labels))
        shown, *others = (one.answers() for one in (self, self.replace(k=0), self.replace(permuted=True)))
        with_them, bare, permuted = (which_label(one["log_prob"], shown["gold"]) for one in (shown, *others))
        answered = right(shown["log_prob"], shown["gold"])
        return task_check(self.dataset, self.k, answered, with_them, bare, permuted, baseline, candidates)


def candidates(
    model: Model, datasets: Sequence[str], ks: Sequence[int], prompts: int, seed: int, measured: int, **places: Any
) -> tuple[LabelTask, ...]:
    """Returns what to try, in order: the data sets with each k, on their last prompts. places: folder and redo.

    measured: how many prompts are to be measured. Raises ValueError where some of them would choose the task.
    """
    if measured + prompts > QUERIES:
        raise ValueError(
            f"{measured} prompts to be measured and {prompts} to choose the task on share some: there are {QUERIES} "
            "queries; take fewer of either"
        )
    return tuple(LabelTask(model, dataset, k, prompts, seed, **places) for k in ks for dataset in datasets)


def first_done(candidates: Sequence[LabelTask]) -> tuple[list[TaskCheck], dict[str, str]]:
    """Asks one after the other until the model does one: the checks, and why others could not be asked.

    Raises UnsupportedModel where none of them fits the model.
    """
    checks: list[TaskCheck] = []
    left_out: dict[str, str] = {}
    for study in candidates:
        try:
            checks.append(study.check(len(candidates)))
        except UnsupportedModel as error:
            left_out[f"{study.dataset}, k = {study.k}"] = too_long(error)
            if len(left_out) == len(candidates):
                raise
            continue
        if checks[-1].done:
            break
    return checks, left_out
