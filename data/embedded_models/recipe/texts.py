"""The texts of the recipe: StaICC's pools without anything like a test query, and the tokenizer made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from data.embedded_models.recipe.words import promised
from util.load_model_and_data import DATASETS as DATA_SETS
from util.load_model_and_data import staicc_experimentor

TRAINED_ON = DATA_SETS[:6]
RUN = 8  # words; a pool text that shares a run of so many with a test query is left out

BOS, PAD = "<|bos|>", "<|pad|>"
BOS_ID, PAD_ID = 0, 1
VOCABULARY = 5120
MAX_LENGTH = 2048
_COPIES = 4000  # of every promised word; the rarest learned merge occurs only about a hundred times

Example = tuple[str, str]  # a text and its label word


@dataclass(frozen=True)
class Source:
    """One StaICC data set: its labels, its template, its demonstration and calibration examples, and its test queries.

    before, after: what a prompt has in front of a text, and between a text and its label; end: what follows the label.
    """

    labels: tuple[str, ...]
    before: str
    after: str
    end: str
    pool: tuple[Example, ...]
    queries: tuple[Example, ...]

    def line(self, text: str) -> str:
        """A text in the template of its data set, up to and including the forerunner token ':'."""
        return f"{self.before}{text}{self.after}".removesuffix(" ")


@cache
def load(name: str) -> Source:
    """One data set of the StaICC package, by its name in DATA_SETS."""
    experiment = staicc_experimentor(name, 4)
    template = experiment.prompt_former.get_config_dict()

    def examples(part: Any) -> tuple[Example, ...]:
        return tuple((part[i][0][0], part[i][1]) for i in range(len(part)))

    return Source(
        labels=tuple(template["label_space"]),
        before=template["instruction"] + template["query_prefix"] + template["input_text_prefixes"][0],
        after=template["input_text_affixes"][0] + template["label_prefix"],
        end=template["label_affix"],
        pool=examples(experiment.demonstration_set()) + examples(experiment.calibration_set()),
        queries=examples(experiment.test_set()),
    )


def fragments(text: str) -> set[tuple[str, ...]]:
    """The whole text and all its runs of RUN words, in lower case and without punctuation."""
    words = tuple(re.findall(r"\w+", text.lower()))
    return {words, *(words[i : i + RUN] for i in range(len(words) - RUN + 1))}


@cache
def forbidden() -> frozenset[tuple[str, ...]]:
    """The fragments of all test queries of all ten data sets."""
    return frozenset().union(*(fragments(text) for name in DATA_SETS for text, _ in load(name).queries))


@cache
def clean_pool(name: str) -> tuple[Example, ...]:
    """The pool of one data set, without the examples that share a fragment with a test query."""
    return tuple(example for example in load(name).pool if fragments(example[0]).isdisjoint(forbidden()))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, trained on the clean pools of all ten data sets.

    Its post-processor puts BOS in front. Offsets cover the text without gaps or overlaps; a token's offsets include its
    leading space. Decoding is lossless. Raises ValueError if a promised word is not one token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[\t\n:]"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, BOS_ID)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )

    def lines() -> Iterator[str]:
        for name in DATA_SETS:
            yield from (load(name).line(text) for text, _ in clean_pool(name))
        for word in promised():
            yield f"\n{word}" * _COPIES

    tokenizer.train_from_iterator(lines(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        pad_token=PAD,
        padding_side="right",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    single_ids(fast, promised())
    return fast


def single_ids(tokenizer: PreTrainedTokenizerFast, words: Iterable[str]) -> list[int]:
    """The token ids of strings that are one token each. Raises ValueError, naming them, if some are not."""
    encoded = {word: tokenizer.encode(word, add_special_tokens=False) for word in words}
    broken = [word for word, ids in encoded.items() if len(ids) != 1]
    if broken:
        raise ValueError(f"not one token each: {broken}")
    return [ids[0] for ids in encoded.values()]
