"""The recipe of the embedded model: its texts, its streams, growing, training, and the card's table."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import AutoTokenizer

from data.embedded_models.recipe import corpus as corpora
from data.embedded_models.recipe import evaluate, texts, train, words
from data.embedded_models.recipe.words import LABEL_WORDS
from util.load_model_and_data import load_ICL_model
from util.models.table import embedded_home, embedded_path
from util.prompts.ioi import HELD_OUT_FRAMES, HELD_OUT_NAMES, word_lists

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded_path())


@pytest.fixture(scope="module")
def corpus(tokenizer):
    return corpora.Corpus(tokenizer, names=("financial_phrasebank", "trec"))


# --- texts -----------------------------------------------------------------------------------------------------------


def test_label_words_are_staicc_s():
    assert {word for name in texts.DATA_SETS for word in texts.load(name).labels} == set(LABEL_WORDS)


def test_planted_duplicates_share_a_fragment():
    known = texts.fragments("The cat, sat!") | texts.fragments("one two three four five six seven eight nine")
    assert texts.fragments("the CAT sat") & known
    assert texts.fragments("so: two three four, five six seven eight NINE") & known
    assert not texts.fragments("two three four five six seven eight") & known
    assert not texts.fragments("the cat sat down") & known


def word_runs(text):
    """A text's words in one, and every eight of them in a row."""
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words), *(" ".join(words[i : i + 8]) for i in range(len(words) - 7))]


def test_clean_pools_share_nothing_with_any_query_and_the_card_has_their_sizes():
    queries = [text for name in texts.DATA_SETS for text, _ in texts.load(name).queries]
    assert len(queries) == 5120
    forbidden = {run for text in queries for run in word_runs(text)}
    card = (embedded_home() / "README.md").read_text()
    for name in texts.DATA_SETS:
        pool, use = texts.clean_pool(name), "yes" if name in texts.TRAINED_ON else "tokenizer only"
        assert f"| {name} | {len(texts.load(name).pool)} | {len(pool)} | {use} |" in card
        assert not any(run in forbidden for text, _ in pool[::4] for run in word_runs(text))


# --- the corpus ------------------------------------------------------------------------------------------------------


def test_word_pairs_are_one_task_a_row_and_none_is_held_out(corpus, tokenizer):
    tokens, weights = corpus.pairs(np.random.default_rng(0), 40, 120)
    seen = set()
    for row, weight in zip(tokens, weights, strict=True):
        lines = [tuple(line.split("\t")) for line in tokenizer.decode(row[1:]).split("\n")[:-1]]
        tasks = [task for task, pairs in words.PAIR_TASKS.items() if {*lines} <= {*pairs}]
        assert tasks
        seen.update(tasks)
        assert not {x for x, _ in lines} & words.held_out_inputs()
        first = len(tokenizer("\t".join(lines[0]) + "\n").input_ids)
        assert not weight[:first].any() and weight[first:].any()
    assert seen == {*words.PAIR_TASKS}


def test_ioi_answers_are_right_and_held_out_names_never_meet(corpus, tokenizer, monkeypatch):
    monkeypatch.setattr(corpora, "NOISE", 0.0)
    tokens, weights = corpus.ioi(np.random.default_rng(0), 20, 200)
    names = {texts.single_ids(tokenizer, [f" {name}"])[0]: name for name in word_lists()["names"]}
    newline, met = texts.single_ids(tokenizer, ["\n"])[0], set()
    for row, weight in zip(tokens, weights, strict=True):
        ends = np.flatnonzero(row == newline)
        for start, end in zip([0, *ends], ends, strict=False):
            x, y, s, answer = (names[i] for i in row[start:end].tolist() if i in names)
            assert {x, y} == {s, answer} and x != y
            assert row[end - 2] in names and weight[end - 2] > 10 * weight[end - 3] > 0
            met.add(frozenset((x, y)))
    assert len(met) > 50 and not any(pair <= HELD_OUT_NAMES for pair in met)
    openings = [frame.split("{X}")[0].split("{PLACE}")[0] for frame in HELD_OUT_FRAMES]
    assert not any(opening in text for text in tokenizer.batch_decode(tokens) for opening in openings)


# --- growing and training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [(0, 2), (2, 3), (0, 1)])
def test_growing_leaves_logits_bit_equal(keep):
    small = train.new_model(2, seed=1).eval()
    grown = train.grow(small, 4, keep, seed=2).eval()
    tokens = torch.randint(2, 4096, (2, 70), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(small(tokens).logits, grown(tokens).logits)
        wider = train.grow(small, 4, keep, seed=2, heads=8).eval()
        torch.testing.assert_close(wider.double()(tokens).logits, small.double()(tokens).logits, atol=1e-12, rtol=0)
    new = next(layer for number, layer in enumerate(grown.model.layers) if number not in keep)
    assert len(grown.model.layers) == 4 and wider.config.num_attention_heads == 8
    assert new.self_attn.q_proj.weight.abs().sum() > 0


@pytest.mark.parametrize("length", [5, 64, 150])
def test_attention_in_blocks_is_plain_attention(length):
    """Outputs and gradients, in float64 (as sdpa has them: the eager function takes its softmax in float32)."""
    tokens = torch.randint(2, 4096, (2, length), generator=torch.Generator().manual_seed(0))
    found = []
    for implementation in (train.BLOCKS, "sdpa"):
        model = train.new_model(2, seed=1, heads=8).double()
        model.set_attn_implementation(implementation)
        logits = model(tokens).logits
        logits.square().mean().backward()
        found.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-12, rtol=1e-9)


# of the committed weights, on an AMD EPYC (Zen 4)
FIRST_LOSSES = 8.681441, 8.552317, 8.293642


def test_twenty_steps_are_the_first_of_the_committed_weights(tokenizer):
    stage = train.RECIPE[0]
    short = replace(stage, tokens=20 * stage.rows * stage.length)
    model, losses = train.train(corpora.Corpus(tokenizer, names=()), recipe=(short,))
    assert len(losses) == 20 and len(model.model.layers) == 2
    assert_allclose([losses[0], losses[9], losses[19]], FIRST_LOSSES, rtol=1e-3)


def test_all_stages_train_and_the_seed_decides(corpus):
    recipe = [replace(stage, tokens=2 * 16 * 64, rows=16, length=64) for stage in train.RECIPE]
    (model, losses), (again, same), (_, other) = (train.train(corpus, seed, recipe) for seed in (3, 3, 4))
    assert len(losses) == 10 and np.isfinite(losses).all() and losses == same != other
    states = again.state_dict()
    assert all(torch.equal(states[key], weights) for key, weights in model.state_dict().items())
    assert len(model.model.layers) == 4 and model.config.num_attention_heads == 8


# --- the card --------------------------------------------------------------------------------------------------------


def test_the_card_is_of_the_committed_model():
    """The cheap rows, measured again as the card was; a model without a new card differs in most of them."""
    lines = (embedded_home() / "README.md").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(evaluate.HEADER.splitlines()[0]))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[start + 2 :] if line.startswith("| ")]
    card = {measure: others for measure, *others in cells}  # measure -> n, value, interval, bar, met
    verdicts = {measure: met for measure, (*_, met, _, _) in card.items() if met}
    missed = {f"StaICC, k = {k}, random label words: data sets above chance" for k in (4, 8)}
    assert len(verdicts) > 20 and {measure for measure, met in verdicts.items() if met != "yes"} == missed
    pair = load_ICL_model("embedded", device="cpu", verbose=False)
    measures = (evaluate.induction_rows, evaluate.ioi_rows, evaluate.word_pair_rows, evaluate.word_sequence_rows)
    rows = [row for measure in measures for row in measure(pair)]
    assert len(rows) == len(card) - 4
    for row in rows:
        measure, n, value, _, bar, met = (cell.strip() for cell in row.split("|")[1:-1])
        assert [n, bar, met] == [card[measure][place] for place in (0, 3, 4)]
        assert float(value) == pytest.approx(float(card[measure][1]), abs=0.01 * max(1, abs(float(value)))), measure
