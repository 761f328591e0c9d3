"""The embedded models: tokenizer promises, corpus, growing, exact resumption, and what the committed model can do."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.models import embedded
from util.models import embedded_words as words
from util.models.embedded_words import LABEL_WORDS, LETTERS, TOY_LABELS, promised
from util.prompts.ioi import word_lists
from util.prompts.prompt import Prompt
from util.stats.intervals import mean_interval
from util.training import corpus as corpora
from util.training import evaluate, sources, training
from util.training import tokenizer as tokenizers

TINY = (
    training.Stage(2 * 2 * 48, 2, 48, {"repeats": 1.0}, (4, 9), (1e-3, 1e-3)),
    training.Stage(
        2 * 2 * 48, 2, 48, {"maps": 0.5, "words": 0.5}, (4, 9), (1e-3, 1e-4), keep=(0, 2), layers=4, heads=8
    ),
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


@pytest.mark.slow
def test_the_card_says_what_was_left_out():
    card = (embedded.home() / "README.md").read_text()
    for row in sources.leakage_counts():
        use = "yes" if row["data set"] in sources.TRAINED_ON else "tokenizer only"
        assert "| {} | {} | {} | {} | {} | {} |".format(*row.values(), use) in card


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
    streams = ("repeats", "maps", "long_maps", "words", "pairs", "ioi", "recurring", "relabelled", "episodes")
    assert {stream for stage in training.RECIPES["generalist"] for stream in stage.shares} == {*streams}
    shares = dict.fromkeys(streams, 1 / len(streams))
    one, again, other = (corpus.batch(np.random.default_rng(seed), shares, 18, 96) for seed in (5, 5, 6))
    assert one[0].shape == one[1].shape == (18, 96)
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


def test_some_tokens_are_never_repeated(corpus, tokenizer):
    unseen = corpora.never_repeated(tokenizer)
    assert len(set(unseen)) == 200
    rng = np.random.default_rng(1)
    drawn = [corpus.repeats(rng, 64, 64, (4, 21)), *(corpus.maps(rng, 16, 96) for _ in range(8))]
    assert not any(np.isin(tokens, unseen).any() for tokens, _ in drawn)


def test_held_out_words_are_a_fixed_choice():
    assert len(words.HELD_OUT_NAMES) == 15 and len(words.HELD_OUT_FRAMES) == 3 and len(words.HELD_OUT_LABELS) == 10
    inputs = words.held_out_inputs()
    for task in ("copying", "present_past", "country_capital"):
        own = {x for x, _ in words.PAIR_TASKS[task]}
        assert len(inputs & own) >= len(own) // 10
    assert words.held_out(["b", "a", "c"], 2) == words.held_out(["c", "b", "a", "a"], 2)


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
    names = {tokenizers.single_ids(tokenizer, [f" {name}"])[0]: name for name in word_lists()["names"]}
    newline, met = tokenizers.single_ids(tokenizer, ["\n"])[0], set()
    for row, weight in zip(tokens, weights, strict=True):
        ends = np.flatnonzero(row == newline)
        for start, end in zip([0, *ends], ends, strict=False):
            x, y, s, answer = (names[i] for i in row[start:end].tolist() if i in names)
            assert {x, y} == {s, answer} and x != y
            assert row[end - 2] in names and weight[end - 2] > 10 * weight[end - 3] > 0
            met.add(frozenset((x, y)))
    assert len(met) > 50 and not any(pair <= words.HELD_OUT_NAMES for pair in met)
    openings = [frame.split("{X}")[0].split("{PLACE}")[0] for frame in words.HELD_OUT_FRAMES]
    assert not any(opening in text for text in tokenizer.batch_decode(tokens) for opening in openings)


def test_noise_spares_names_and_answers(corpus, tokenizer):
    clean_names = np.isin(corpus.ioi(np.random.default_rng(0), 8, 200)[0], corpus._names).sum()
    assert clean_names > 4 * 8 * 5  # four names a sentence, six or more sentences a row


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
    labels = set(tokenizers.single_ids(tokenizer, [f" {w}" for w in LABEL_WORDS]))
    for row, weight in zip(tokens, weights, strict=True):
        whole = row[: np.flatnonzero(row == newline)[-1] + 1]
        assert tokenizer(tokenizer.decode(whole[1:])).input_ids == whole.tolist()
        for place in np.flatnonzero(weight > 0.5 * weights.max()):
            assert row[place - 1] == colon
            assert int(row[place]) in labels


def test_relabelled_episodes_keep_one_word_a_class_and_ask_for_known_ones(corpus, tokenizer):
    tokens, weights = corpus.relabelled(np.random.default_rng(0), 20, 300)
    texts = {text: label for name in ("financial_phrasebank", "trec") for text, label in sources.clean_pool(name)}
    held_out, kept = set(), 0
    for row, weight in zip(tokens, weights, strict=True):
        classes: dict[str, str] = {}
        for line in tokenizer.decode(row[1:]).split("\n")[:-1]:
            inside, word = line.rsplit(": ", 1)
            text = inside.split(": ", 1)[1].rsplit(" ", 1)[0]
            assert classes.setdefault(texts[text], word) == word
            held_out.add(word)
            kept += 1
        known = np.flatnonzero(weight > 0.5 * weights.max())
        assert all(row[at] in row[:at] for at in known)
    assert kept > 50 and not held_out & words.HELD_OUT_LABELS


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
    before = copy.deepcopy(small.state_dict())
    grown = training.grow(small, 4, keep, seed=2).eval()
    tokens = torch.randint(2, 4096, (2, 70), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(small(tokens).logits, grown(tokens).logits)
        wider = training.grow(small, 4, keep, seed=2, heads=8).eval()
        torch.testing.assert_close(wider.double()(tokens).logits, small.double()(tokens).logits, atol=1e-12, rtol=0)
    assert len(grown.model.layers) == 4
    assert wider.config.num_attention_heads == 8
    new = grown.model.layers[next(i for i in range(4) if i not in keep)]
    assert new.self_attn.q_proj.weight.abs().sum() > 0
    assert all(torch.equal(before[name], value) for name, value in training.new_model(2, seed=1).state_dict().items())


@pytest.mark.parametrize("length", [5, 64, 150])
def test_attention_in_blocks_is_plain_attention(length):
    """Outputs and gradients, in float64 (as sdpa has them: the eager function takes its softmax in float32)."""
    tokens = torch.randint(2, 4096, (2, length), generator=torch.Generator().manual_seed(0))
    found = []
    for implementation in (training.BLOCKS, "sdpa"):
        model = training.new_model(2, seed=1, heads=8).double()
        model.set_attn_implementation(implementation)
        logits = model(tokens).logits
        logits.square().mean().backward()
        found.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-12, rtol=1e-9)


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
    with pytest.raises(FileNotFoundError, match="util.training train"):
        embedded.path()
    assert embedded.names() == []


@pytest.fixture(scope="module")
def pair():
    return load_ICL_model("embedded", device="cpu", verbose=False)


@pytest.fixture(scope="module")
def card():
    """The measured table of the model card: measure -> (n, value, met)."""
    text = (embedded.home() / "README.md").read_text().split("### Other seeds")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    table = cells[cells.index([cell.strip() for cell in evaluate.HEADER.splitlines()[0].split("|")[1:-1]]) :]
    return {measure: (n, float(value), met) for _, measure, n, value, _, _, met in table[1:] if n.isdigit()}


def test_hard_rows_of_the_card_are_met(card):
    text = (embedded.home() / "README.md").read_text().split("### Other seeds")[0]
    hard = [line for line in text.splitlines() if "| hard: " in line]
    assert len(hard) >= 19
    assert all(line.endswith("| yes |") for line in hard)


def test_the_card_is_of_the_committed_model(pair, card):
    """The cheap rows, measured again as the card was; a model without a new card differs in most of them."""
    scores = evaluate.prefix_matching(*pair)
    rows = [
        *evaluate.induction_rows(pair, scores, 512),
        *evaluate.ioi_rows(pair, 512),
        *evaluate.word_pair_rows(pair, 512),
        *evaluate.classification_rows(pair, 512),
    ]
    assert len(rows) > 20
    for row in rows:
        n, value, met = card[row.measure]
        assert (int(n), met.strip("*")) == (row.n, {True: "yes", False: "no", None: ""}[row.met]), row.measure
        assert value == pytest.approx(row.value, abs=0.01 * max(1, abs(row.value))), row.measure


def test_zeroing_induction_heads_destroys_what_they_are_for(pair):
    scores = evaluate.prefix_matching(pair[0], pair[1], 4).mean(0)
    found = [row for row in evaluate.causal_rows(pair, scores, 64, sets=3) if row.met is not None]
    assert len(found) == 2 and all(row.met for row in found)


def test_one_head_reads_the_forerunner_at_labels_only(pair):
    verdict, best, twin = evaluate.forerunner_rows(pair, 64)
    assert verdict.met and best.low > 0.2 and twin.value == 0


@pytest.mark.parametrize("data", ["trec", "financial_phrasebank"])
def test_staicc_labels_are_better_than_the_baselines(pair, card, data):
    prompts = staicc_prompts(data, 4)
    right, chance = evaluate.correct(pair, prompts), evaluate.baseline(prompts)
    assert mean_interval(right - chance).low > 0
    [measure] = [row for row in card if row.startswith(f"{data}, k = 4, true labels: accuracy")]
    assert card[measure][1] == pytest.approx((right - chance).mean(), abs=0.01)


def test_the_better_baseline_counts():
    def prompts(*both):
        return [Prompt("", {}, ("a", "b"), gold, shown) for gold, shown in both]

    majority = prompts((0, (1, 0)), (0, (1, 1)), (1, (0, 1)))
    assert evaluate.baseline(majority).tolist() == [1, 1, 0]
    vote = prompts((0, (0, 0)), (0, (0, 1)), (1, (1, 1)))
    assert evaluate.baseline(vote).tolist() == [1, 0.5, 1]


def test_random_label_words_keep_the_demonstrations():
    prompt = staicc_prompts("trec", 4)[0]
    found = evaluate.relabelled(prompt, 0)
    shown = [line.rsplit(" ", 1)[1] for line in found.text.split("\n")[:-1]]
    assert len(shown) == 4 and set(shown) == set(found.labels)
    assert [found.labels[sorted({*prompt.demonstrations}).index(c)] for c in prompt.demonstrations] == shown
    assert evaluate.relabelled(prompt, 1).labels != found.labels == evaluate.relabelled(prompt, 0).labels


def test_crossed_interval_knows_both_axes():
    rng = np.random.default_rng(0)
    sets, prompts = rng.normal(size=(10, 1)), rng.normal(size=(1, 400))
    low, high = evaluate._crossed_interval(sets + prompts)
    expected = 2 * 1.96 * np.sqrt(sets.var() / 10 + prompts.var() / 400)
    assert high - low == pytest.approx(expected, rel=0.1)
