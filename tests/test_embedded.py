"""The embedded models: tokenizer promises, corpus, growing, exact resumption, and what the committed model can do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from util import embedded
from util.embedded import corpus as corpora
from util.embedded import evaluate, sources, training
from util.embedded import tokenizer as tokenizers
from util.embedded.words import LABEL_WORDS, LETTERS, TOY_LABELS, promised

TINY = (
    training.Stage(2 * 2 * 48, 2, 48, {"repeats": 1.0}, (4, 9), (1e-3, 1e-3)),
    training.Stage(2 * 2 * 48, 2, 48, {"maps": 0.5, "words": 0.5}, (4, 9), (1e-3, 1e-4), keep=(0, 2), layers=4),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded.path())


@pytest.fixture(scope="module")
def model():
    return evaluate.load("generalist")[0]


@pytest.fixture(scope="module")
def corpus(tokenizer):
    return corpora.Corpus(tokenizer, names=("financial_phrasebank", "trec"))


# --- the tokenizer ---------------------------------------------------------------------------------------------------


def test_promised_words_are_single_tokens(tokenizer):
    assert {f" {w}" for w in (*LABEL_WORDS, *TOY_LABELS, *LETTERS)} | set(TOY_LABELS) <= set(promised())
    ids = tokenizers.single_ids(tokenizer, promised())
    assert len(set(ids)) == len(promised())
    with pytest.raises(ValueError, match="one token"):
        tokenizers.single_ids(tokenizer, [" incomprehensibilities"])


def test_label_words_are_staicc_s():
    assert {word for name in sources.DATA_SETS for word in sources.load(name).label_space} == set(LABEL_WORDS)


@pytest.mark.parametrize("mark", [":", "\t", "\n"])
def test_separators_are_tokens_of_their_own(tokenizer, mark):
    (own,) = tokenizers.single_ids(tokenizer, [mark])
    containing = [i for i in range(len(tokenizer)) if mark in tokenizer.decode([i])]
    assert containing == [own]
    text = f"a{mark}b{mark}{mark} {mark}c {mark} positive{mark}"
    assert tokenizer(text).input_ids.count(own) == text.count(mark)


@pytest.mark.parametrize(
    "text", ["sentence: a  b . sentiment: neutral\n", " \t\n\n x", "naïve café 東京 🙂 \u200b", "it's 3%\r\n"]
)
def test_encoding_is_lossless_with_exact_offsets(tokenizer, text):
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert encoded.input_ids[0] == tokenizer.bos_token_id == tokenizers.BOS_ID
    assert tokenizer.bos_token_id not in encoded.input_ids[1:]
    assert tokenizer.decode(encoded.input_ids[1:]) == text
    covered = {place for start, end in encoded.offset_mapping[1:] for place in range(start, end)}
    assert covered == set(range(len(text)))
    for token, (start, end) in zip(encoded.input_ids[1:], encoded.offset_mapping[1:], strict=True):
        decoded = tokenizer.decode([token])
        assert decoded == text[start:end] or "\ufffd" in decoded


def test_tokenizer_settings(tokenizer):
    assert len(tokenizer) == tokenizers.VOCABULARY
    assert tokenizer.pad_token_id == tokenizers.PAD_ID
    assert tokenizer.model_max_length == tokenizers.MAX_LENGTH
    assert tokenizer.padding_side == "right"


# --- leakage ---------------------------------------------------------------------------------------------------------


def test_filter_catches_planted_duplicates():
    filtered = sources.LeakageFilter(["The cat, sat!", "one two three four five six seven eight nine"])
    assert filtered.reason("the CAT sat") == "same text"
    assert filtered.reason("so: two three four, five six seven eight NINE") == "8-word span"
    assert filtered.reason("two three four five six seven eight") is None
    assert filtered.reason("the cat sat down") is None


def test_clean_pools_share_no_span_with_any_query():
    queries = [text for name in sources.DATA_SETS for text, _ in sources.load(name).queries]
    assert len(queries) == 5120
    texts = {" ".join(sources.normalised(text)) for text in queries}
    forbidden = {run for text in texts for run in _word_runs(text)}
    for name in sources.TRAINED_ON:
        pool = [" ".join(sources.normalised(text)) for text, _ in sources.clean_pool(name)]
        assert 0.9 * len(sources.load(name).pool) < len(pool) < len(sources.load(name).pool)
        assert not texts & set(pool)
        assert not any(run in forbidden for text in pool[::4] for run in _word_runs(text))


def _word_runs(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[i : i + 8]) for i in range(len(words) - 7)]


# --- the corpus ------------------------------------------------------------------------------------------------------


def test_corpus_is_determined_by_the_seed(corpus):
    streams = ("repeats", "maps", "long_maps", "words", "recurring", "episodes")
    shares = dict.fromkeys(streams, 1 / len(streams))
    one, again, other = (corpus.batch(np.random.default_rng(seed), shares, 12, 96) for seed in (5, 5, 6))
    assert one[0].shape == one[1].shape == (12, 96)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])
    assert one[1].sum() == pytest.approx(1, abs=1e-5)
    assert (one[0][:, 0] == tokenizers.BOS_ID).all()
    assert not (one[0][:, 1:] == tokenizers.BOS_ID).any()


def test_repeats_have_weight_on_copies_only(corpus):
    tokens, weights = corpus.repeats(np.random.default_rng(0), 4, 33, (8, 8))
    assert np.array_equal(tokens[:, 9:], tokens[:, 1:-8])
    assert (weights[:, 9:] > 0).all()
    assert not weights[:, :9].any()


@pytest.mark.parametrize("stream", ["maps", "words"])
def test_weighted_labels_can_be_known(corpus, tokenizer, stream):
    """In every map, a label with weight follows from an earlier line; in word rows it has at least been shown."""
    for seed in range(12):
        tokens, weights = getattr(corpus, stream)(np.random.default_rng(seed), 2, 80)
        for row, weight in zip(tokens, weights, strict=True):
            for place in np.flatnonzero(weight > 0.5 * weights.max()):
                before = row[:place].tolist()
                if stream == "words":
                    assert row[place] in before
                else:
                    context, answer = before[-2:], row[place]
                    assert any(before[i : i + 2] == context and row[i + 2] == answer for i in range(place - 2))


def test_episodes_are_tokenised_as_prompts_are(corpus, tokenizer):
    tokens, weights = corpus.episodes(np.random.default_rng(0), 6, 300)
    colon, newline = tokenizers.single_ids(tokenizer, [":", "\n"])
    labels = set(tokenizers.single_ids(tokenizer, [f" {w}" for w in (*LABEL_WORDS, *TOY_LABELS, *LETTERS)]))
    for row, weight in zip(tokens, weights, strict=True):
        whole = row[: np.flatnonzero(row == newline)[-1] + 1]
        assert tokenizer(tokenizer.decode(whole[1:])).input_ids == whole.tolist()
        for place in np.flatnonzero(weight > 0.5 * weights.max()):
            assert row[place - 1] == colon
            assert int(row[place]) in labels


def test_recurring_lines_keep_their_label(corpus, tokenizer):
    tokens, weights = corpus.recurring(np.random.default_rng(0), 4, 300)
    assert (weights > 0).any()
    for row, weight in zip(tokens, weights, strict=True):
        lines = tokenizer.decode(row[1:]).split("\n")[:-1]
        assert 2 <= len(set(lines)) <= 5
        assert len({line.rsplit(":", 1)[0] for line in lines}) == len(set(lines))
        repeated = len(lines) - len(set(lines))
        assert repeated <= np.count_nonzero(weight) <= repeated + 1  # the row may end between a label and its newline


# --- growing and training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [(0, 2), (2, 3), (0, 1)])
def test_growing_leaves_logits_bit_equal(keep):
    small = training.new_model(2, seed=1).eval()
    grown = training.grow(small, 4, keep, seed=2).eval()
    tokens = torch.randint(2, 4096, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(small(tokens).logits, grown(tokens).logits)
    assert len(grown.model.layers) == 4
    new = grown.model.layers[next(i for i in range(4) if i not in keep)]
    assert new.self_attn.q_proj.weight.abs().sum() > 0


@pytest.mark.parametrize("keep", [(0,), (1, 0), (0, 4), (1, 1)])
def test_growing_refuses_impossible_places(keep):
    with pytest.raises(ValueError, match="does not place"):
        training.grow(training.new_model(2, seed=1), 4, keep, seed=2)


def test_training_resumes_bit_identically(corpus, tmp_path):
    """Two steps, stop, two steps more (with a growth between) end where four steps end; also within a stage."""
    straight = training.Trainer(TINY, corpus, tmp_path / "straight", seed=3)
    straight.run()
    for stop in (1, 2, 3):
        folder = tmp_path / str(stop)
        first = training.Trainer(TINY, corpus, folder, seed=3)
        for _ in range(stop):
            first.train_step()
        first.save()
        second = training.Trainer(TINY, corpus, folder, seed=3)
        assert second.tokens == stop * 96
        second.run()
        assert second.done
        states = straight.model.state_dict(), second.model.state_dict()
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert straight.tokens == 4 * 96
    with pytest.raises(ValueError, match="seed"):
        training.Trainer(TINY, corpus, tmp_path / "straight", seed=4)


def test_loss_is_the_weighted_cross_entropy(corpus):
    model = training.new_model(2, seed=0)
    tokens, weights = corpus.maps(np.random.default_rng(1), 2, 40)
    with torch.no_grad():
        loss = training.loss_of(model, (tokens, weights))
        log_probabilities = model(torch.from_numpy(tokens)).logits.log_softmax(-1)[:, :-1]
    each = -log_probabilities.gather(2, torch.from_numpy(tokens)[:, 1:, None])[..., 0].numpy()
    assert loss.item() == pytest.approx((each * weights[:, 1:]).sum(), rel=2e-3)


# --- the measurements, on attention with a known answer --------------------------------------------------------------


@pytest.mark.parametrize("everywhere", [False, True])
def test_forerunner_measure_on_planted_attention(tokenizer, everywhere):
    """A head that reads ':' from labels only has specificity 1; a previous-token head has share 1, specificity 0."""
    colon, newline = tokenizers.single_ids(tokenizer, [":", "\n"])

    def planted(tokens, output_attentions):
        row = tokens[0].tolist()
        attention = torch.zeros(1, 1, len(row), len(row))
        for place in range(len(row)):
            is_label = place > 0 and row[place - 1] == colon and (row + [newline])[place + 1] == newline
            attention[0, 0, place, place - 1 if place and (is_label or everywhere) else 0] = 1
        return SimpleNamespace(attentions=(attention,))

    found = evaluate.forerunner(planted, tokenizer, prompts=4)
    assert found["share"] == 1
    assert found["label"] == 1
    assert found["specificity"] == pytest.approx(0 if everywhere else 1)


# --- the committed model ---------------------------------------------------------------------------------------------


def test_folder_loads_offline_and_is_small():
    folder = embedded.path()
    assert "generalist" in embedded.names()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5e6
    config = AutoModelForCausalLM.from_pretrained(folder).config
    assert (config.bos_token_id, config.pad_token_id) == (tokenizers.BOS_ID, tokenizers.PAD_ID)
    assert config.tie_word_embeddings
    assert config.num_hidden_layers == 4


def test_missing_model_names_the_cure(monkeypatch):
    monkeypatch.setattr(embedded, "home", lambda: Path("no-such-folder"))
    with pytest.raises(FileNotFoundError, match="util.embedded train"):
        embedded.path()
    assert embedded.names() == []


def test_committed_model_does_induction(model, corpus):
    for period, length in ((20, 81), (60, 241)):
        drawn = corpus.repeats(np.random.default_rng(evaluate.SEED), 8, length, (period, period))
        right, asked = evaluate.accuracy(model, drawn)
        assert asked == 8 * (length - 1 - period)
        assert right / asked >= 0.8
    scores = evaluate.prefix_matching(model, corpus, period=20, rows=8)
    assert scores.max() > 0.3
    assert np.median(scores) < 0.25


def test_committed_model_has_heads_that_read_the_forerunner_and_heads_that_do_not(model, tokenizer):
    found = evaluate.forerunner(model, tokenizer, prompts=32)
    reads = found["share"] >= 0.75
    assert (reads & (found["specificity"] > 0.3)).any()
    assert (~reads).mean() >= 0.5
