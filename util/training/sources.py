"""StaICC's pools and prompts, and the filter that keeps the test queries out of the training text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from util.load_model_and_data import DATASETS as DATA_SETS
from util.load_model_and_data import staicc_experimentor

TRAINED_ON = DATA_SETS[:6]
SPAN = 8


@dataclass(frozen=True)
class Source:
    """One StaICC data set: pool = demonstration + calibration examples, queries = test examples; (text, label word)."""

    name: str
    label_space: tuple[str, ...]
    input_prefix: str
    input_affix: str
    label_prefix: str
    label_affix: str
    pool: tuple[tuple[str, str], ...]
    queries: tuple[tuple[str, str], ...]
    prompts: tuple[str, ...]  # k = 4; prompt i asks query i and ends with the label prefix's space

    def line(self, text: str) -> str:
        """The template around `text` up to and including the forerunner token ':'."""
        return f"{self.input_prefix}{text}{self.input_affix}{self.label_prefix}".removesuffix(" ")


@cache
def load(name: str) -> Source:
    """Read one data set of the StaICC package (names: DATA_SETS)."""
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
    """Lower-case words without punctuation."""
    return tuple(re.findall(r"\w+", text.lower()))


def spans(words: Sequence[str]) -> set[tuple[str, ...]]:
    """All runs of SPAN words."""
    return {tuple(words[i : i + SPAN]) for i in range(len(words) - SPAN + 1)}


class LeakageFilter:
    """Knows the test queries; `reason(text)` says why a pool text must not be trained on, or None."""

    def __init__(self, queries: Iterable[str]) -> None:
        words = [normalised(query) for query in queries]
        self._texts = set(words)
        self._spans = set().union(*(spans(query) for query in words))

    def reason(self, text: str) -> str | None:
        """Why a text must not be trained on; None where it may."""
        words = normalised(text)
        if words in self._texts:
            return "same text"
        if not self._spans.isdisjoint(spans(words)):
            return f"{SPAN}-word span"
        return None


@cache
def leakage_filter() -> LeakageFilter:
    """The filter against all test queries of all ten data sets."""
    return LeakageFilter(text for name in DATA_SETS for text, _ in load(name).queries)


@cache
def clean_pool(name: str) -> tuple[tuple[str, str], ...]:
    """The pool of one data set without the examples that leak a test query."""
    return tuple(example for example in load(name).pool if leakage_filter().reason(example[0]) is None)


def leakage_counts() -> list[dict[str, str | int]]:
    """Per data set: pool size, excluded by same text, excluded by span, kept."""
    rows: list[dict[str, str | int]] = []
    for name in DATA_SETS:
        reasons = [leakage_filter().reason(text) for text, _ in load(name).pool]
        same, span = reasons.count("same text"), reasons.count(f"{SPAN}-word span")
        rows.append({"data set": name, "pool": len(reasons), "same text": same, "span": span,
                     "kept": len(reasons) - same - span})  # fmt: skip
    return rows
