"""The committed embedded model: its tokenizer's promises, its files, and what to do where it is missing."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from data.embedded_models.recipe.words import LABEL_WORDS, LETTERS, TOY_LABELS, promised
from util.models import table


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(table.embedded_path())


def test_promised_words_are_single_tokens(tokenizer):
    assert {f" {w}" for w in (*LABEL_WORDS, *TOY_LABELS, *LETTERS)} | set(TOY_LABELS) <= set(promised())
    ids = [tuple(tokenizer.encode(word, add_special_tokens=False)) for word in promised()]
    assert {len(one) for one in ids} == {1} and len(set(ids)) == len(promised())


@pytest.mark.parametrize("mark", [":", "\t", "\n"])
def test_separators_are_tokens_of_their_own(tokenizer, mark):
    (own,) = tokenizer.encode(mark, add_special_tokens=False)
    containing = [i for i in range(len(tokenizer)) if mark in tokenizer.decode([i])]
    assert containing == [own]
    text = f"a{mark}b{mark}{mark} {mark}c {mark} positive{mark}"
    assert tokenizer(text).input_ids.count(own) == text.count(mark)


def test_missing_model_names_the_cure(monkeypatch):
    monkeypatch.setattr(table, "embedded_home", lambda: Path("no-such-folder"))
    with pytest.raises(FileNotFoundError, match="data.embedded_models.recipe.train"):
        table.embedded_path()
    assert table.embedded_names() == []
