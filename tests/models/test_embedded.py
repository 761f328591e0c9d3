"""The committed embedded model: its tokenizer's promises, its files, and what to do where it is missing."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from util.models import embedded
from util.models import embedded_words as words
from util.models.embedded_words import LABEL_WORDS, LETTERS, TOY_LABELS, promised


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded.path())


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


@pytest.mark.parametrize(
    "text", ["sentence: a  b . sentiment: neutral\n", " \t\n\n x", "naïve café 東京 🙂 \u200b", "it's 3%\r\n"]
)
def test_encoding_is_lossless_with_exact_offsets(tokenizer, text):
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert encoded.input_ids[0] == tokenizer.bos_token_id == 0
    assert tokenizer.bos_token_id not in encoded.input_ids[1:]
    assert tokenizer.decode(encoded.input_ids[1:]) == text
    covered = {place for start, end in encoded.offset_mapping[1:] for place in range(start, end)}
    assert covered == set(range(len(text)))
    for token, (start, end) in zip(encoded.input_ids[1:], encoded.offset_mapping[1:], strict=True):
        decoded = tokenizer.decode([token])
        assert decoded == text[start:end] or "\ufffd" in decoded


def test_tokenizer_settings(tokenizer):
    assert len(tokenizer) == 5120
    assert tokenizer.pad_token_id == 1
    assert tokenizer.model_max_length == 2048
    assert tokenizer.padding_side == "right"


def test_held_out_words_are_a_fixed_choice():
    assert len(words.HELD_OUT_NAMES) == 15 and len(words.HELD_OUT_FRAMES) == 3 and len(words.HELD_OUT_LABELS) == 10
    inputs = words.held_out_inputs()
    for task in ("copying", "present_past", "country_capital"):
        own = {x for x, _ in words.PAIR_TASKS[task]}
        assert len(inputs & own) >= len(own) // 10
    assert words.held_out(["b", "a", "c"], 2) == words.held_out(["c", "b", "a", "a"], 2)


def test_folder_loads_offline_and_is_small():
    folder = embedded.path()
    assert "generalist" in embedded.names()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5e6
    config = AutoModelForCausalLM.from_pretrained(folder).config
    assert (config.bos_token_id, config.pad_token_id) == (0, 1)
    assert config.tie_word_embeddings
    assert config.num_hidden_layers == 4


def test_missing_model_names_the_cure(monkeypatch):
    monkeypatch.setattr(embedded, "home", lambda: Path("no-such-folder"))
    with pytest.raises(FileNotFoundError, match="data.embedded_models.recipe.train"):
        embedded.path()
    assert embedded.names() == []
