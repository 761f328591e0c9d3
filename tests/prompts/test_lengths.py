"""The lengths of typical prompts, beside those of real ones as the embedded tokenizer reads them."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from util.edges.splicing import groups_of
from util.load_model_and_data import DATASETS, load_text_task, staicc_prompts
from util.models import embedded
from util.prompts import classification, lengths, word_pair_prompts, word_pairs
from util.prompts.prompt import with_bos

NEAR = 1.25


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded.path())


def near(told, prompts, tokenizer):
    found = np.mean([len(with_bos(prompt.text, tokenizer).ids) for prompt in prompts])
    assert 1 / NEAR < told / found < NEAR, (told, found)


def test_every_data_set_has_a_length():
    assert tuple(lengths.STAICC) == DATASETS and {*lengths.PATTERNS} == {*classification.NAMES}


@pytest.mark.parametrize("dataset", ["trec", "financial_phrasebank"])
def test_prompts_of_staicc(dataset, tokenizer):
    for k in (0, 4):
        near(lengths.staicc(dataset, k, few=True), staicc_prompts(dataset, k)[:64], tokenizer)


@pytest.mark.parametrize("task", [*lengths.PATTERNS, *lengths.TEXTS])
def test_prompts_of_classification_tasks(task, tokenizer):
    chosen = load_text_task(task) if task in lengths.TEXTS else classification.task(task)
    for k in (0, 5, 10):
        near(lengths.classification(task, k, few=True), classification.prompts(chosen, k, 42, 20), tokenizer)


@pytest.mark.parametrize("task", lengths.PAIRS)
def test_prompts_of_word_pairs(task, tokenizer):
    items = word_pair_prompts.prompts(word_pairs.find(task, trained=True), tokenizer, 8, k=10).items
    found = np.mean([group.length for group in groups_of(items, tokenizer)])
    told = lengths.word_pairs(task, 10, few=True)
    assert 1 / 1.5 < told / found < 1.5, (told, found)
