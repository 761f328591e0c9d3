"""The pools and prompts of StaICC, and a filter that keeps test queries out of the training text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from util.load_model_and_data import DATASETS as DATA_SETS
from util.load_model_and_data import staicc_experimentor

TRAINED_ON = DATA_SETS[:6]
SPAN = 8  # words; a pool text that shares a run of so many with a test query is left out


@dataclass(frozen=True)
class Source:
    """One StaICC data set with the template of its prompts.

    pool: (text, label word) of the demonstration and calibration examples. queries: the same of the test examples.
    prompts: the prompts with k = 4 demonstrations; prompt i asks query i and ends with the space of the label prefix.
    """

    name: str
    label_space: tuple[str, ...]
    input_prefix: str
    input_affix: str
    label_prefix: str
    label_affix: str
    pool: tuple[tuple[str, str], ...]
    queries: tuple[tuple[str, str], ...]
    prompts: tuple[str, ...]

    def line(self, text: str) -> str:
        """A text in the template of its data set, up to and including the forerunner token ':'."""
        return f"{self.input_prefix}{text}{self.input_affix}{self.label_prefix}".removesuffix(" ")


@cache
def load(name: str) -> Source:
    """One data set of the StaICC package, by its name in DATA_SETS."""
    experiment = staicc_experimentor(name, 4)
    template = experiment.prompt_former.get_config_dict()

    def examples(part: Any) -> tuple[tuple[str, str], ...]:
        return tuple((part[i][0][0], part[i][1]) for i in range(len(part)))

    queries = examples(experiment.test_set())
    return Source(
        name=name,
        label_space=tuple(template["label_space"]),
        input_prefix=template["instruction"] + template["query_prefix"] + template["input_text_prefixes"][0],
        input_affix=template["input_text_affixes"][0],
        label_prefix=template["label_prefix"],
        label_affix=template["label_affix"],
        pool=examples(experiment.demonstration_set()) + examples(experiment.calibration_set()),
        queries=queries,
        prompts=tuple(experiment.prompt_set()[: len(queries)]),
    )


def normalised(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without punctuation."""
    return tuple(re.findall(r"\w+", text.lower()))


def spans(words: Sequence[str]) -> set[tuple[str, ...]]:
    """All runs of SPAN consecutive words."""
    return {tuple(words[i : i + SPAN]) for i in range(len(words) - SPAN + 1)}


class LeakageFilter:
    """Finds pool texts that may not be used for training, because they are too similar to a test query."""

    def __init__(self, queries: Iterable[str]) -> None:
        words = [normalised(query) for query in queries]
        self._texts = set(words)
        self._spans = set().union(*(spans(query) for query in words))

    def reason(self, text: str) -> str | None:
        """Why a text may not be used for training; None if it may."""
        words = normalised(text)
        if words in self._texts:
            return "same text"
        if not self._spans.isdisjoint(spans(words)):
            return f"{SPAN}-word span"
        return None


@cache
def leakage_filter() -> LeakageFilter:
    """A filter that knows all test queries of all ten data sets."""
    return LeakageFilter(text for name in DATA_SETS for text, _ in load(name).queries)


@cache
def clean_pool(name: str) -> tuple[tuple[str, str], ...]:
    """The pool of one data set, without the examples that the leakage filter finds."""
    return tuple(example for example in load(name).pool if leakage_filter().reason(example[0]) is None)


def leakage_counts() -> list[dict[str, str | int]]:
    """For each data set: the size of its pool, how many texts each rule leaves out, and how many are kept."""
    rows: list[dict[str, str | int]] = []
    for name in DATA_SETS:
        reasons = [leakage_filter().reason(text) for text, _ in load(name).pool]
        same, span = reasons.count("same text"), reasons.count(f"{SPAN}-word span")
        rows.append({"data set": name, "pool": len(reasons), "same text": same, "span": span,
                     "kept": len(reasons) - same - span})  # fmt: skip
    return rows
