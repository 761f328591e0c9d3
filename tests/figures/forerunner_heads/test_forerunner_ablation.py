"""Disconnected attention and induction heads of the forerunner figure: cell lists, controls, scoring, caching."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests import toys
from util.engine import label_scores
from util.engine.attention import instrument, support
from util.engine.instruments import CaptureRows, Knockout, PatchHeads
from util.figures.forerunner_heads import ablation, measures
from util.figures.forerunner_heads import study as forerunner
from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.prompts.prompt import LabelledTokens, tokenize
from util.records import cache
from util.records.runs import LazyModel
from util.stats import answers

# BOS, x x, s, y, newline, x x, s... as in the toy of the authors' layout: labels at 3 and 7, forerunners before them
TOY = LabelledTokens(tuple(range(12)), forerunners=(2, 6, 11), labels=(3, 7, 12), label_lengths=(1, 1, 1), n_t=13)


def pairs(cut, tokens=TOY, **options):
    return [tuple(cell) for cell in ablation.cells(cut, tokens, **options).tolist()]


# ------------------------------------------------------------------------------------------------ cells


def test_reference_cells_are_those_of_the_authors_code():
    reference = {cut: pairs(cut, variant="reference") for cut in ablation.CUTS}
    assert reference == {
        "xi_to_si": [(2, 0), (2, 1), (6, 4), (6, 5), (11, 8), (11, 9), (11, 10)],
        "xq_to_sq": [(11, 8), (11, 9), (11, 10), (11, 11)],
        "si_to_yi": [(3, 2), (7, 6)],
        "yi_to_sq": [(11, 3), (11, 7)],
        "si_to_si": [(2, 2), (6, 2), (6, 6), (11, 2), (11, 6), (11, 11)],
        "si_to_yj": [(3, 2), (7, 2), (7, 6)],
    }


def test_corrected_cells_spare_bos_the_query_and_the_diagonal():
    assert {cut: pairs(cut) for cut in ablation.CUTS} == {
        "xi_to_si": [(2, 1), (6, 4), (6, 5)],
        "xq_to_sq": [(11, 8), (11, 9), (11, 10)],
        "si_to_yi": [(3, 2), (7, 6)],
        "yi_to_sq": [(11, 3), (11, 7)],
        "si_to_si": [(6, 2), (11, 2), (11, 6)],
        "si_to_yj": [(3, 2), (7, 2), (7, 6)],
    }
    assert pairs("xi_to_si", special=0)[0] == (2, 0)  # a tokenizer without BOS has text in front


def test_labels_of_several_tokens_are_cut_whole():
    tokens = LabelledTokens(tuple(range(10)), (2, 9), (3, 10), (3, 1), 11)
    assert pairs("si_to_yi", tokens) == [(3, 2), (4, 2), (5, 2)]
    assert pairs("yi_to_sq", tokens) == [(9, 3), (9, 4), (9, 5)]
    assert pairs("xq_to_sq", tokens) == [(9, 6), (9, 7), (9, 8)]
    assert pairs("yi_to_sq", tokens, variant="reference") == [(9, 3)]


@pytest.mark.parametrize("variant", ablation.VARIANTS)
@pytest.mark.parametrize("k", [0, 1, 4])
def test_cells_of_real_prompts_look_back_and_leave_every_token_something(variant, k):
    for tokens in tokenize(staicc_prompts("trec", k)[:20], toys.tokenizer()):
        length = len(tokens.ids) - 1
        for cut in ablation.CUTS:
            if (cut, k, variant) == ("xq_to_sq", 0, "reference"):
                with pytest.raises(ValueError, match="nothing to attend to"):
                    ablation.cells(cut, tokens, variant)
                continue
            found = ablation.cells(cut, tokens, variant)
            visible = np.tri(length, dtype=bool)
            assert visible[tuple(found.T)].all() and len({tuple(cell) for cell in found.tolist()}) == len(found)
            visible[tuple(found.T)] = False
            assert visible.any(axis=1).all()
            if variant == "corrected":
                assert not (found[:, 1] == 0).any() and not (found[:, 0] == found[:, 1]).any()
        sizes = [len(ablation.cells(cut, tokens)) for cut in ("si_to_yi", "yi_to_sq", "si_to_yj", "si_to_si")]
        assert sizes == [k, k, k * (k + 1) // 2, k * (k + 1) // 2]
        assert k == 0 or len(ablation.cells("si_to_si", tokens, "reference")) == (k + 1) * (k + 2) // 2


def test_controls_match_are_seeded_and_share_nothing():
    cut = ablation.cells("xi_to_si", TOY)
    drawn = ablation.control_cells(cut, 12, 5, (0, 1))
    everything = [tuple(cell) for one in [cut, *drawn] for cell in one.tolist()]
    assert [len(one) for one in drawn] == [len(cut)] * 5 and len(set(everything)) == len(everything)
    assert all(key < query for query, key in everything)  # so no row is emptied, and row 0 has none
    again, other = ablation.control_cells(cut, 12, 5, (0, 1)), ablation.control_cells(cut, 12, 5, (0, 2))
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(drawn, other, strict=True))
    with pytest.raises(ValueError, match="fewer draws"):
        ablation.control_cells(cut, 12, 40, (0,))
    assert [len(one) for one in ablation.control_cells(ablation.cells("si_to_yi", TOY)[:0], 12, 5, (0,))] == [0] * 5


@pytest.mark.parametrize("layers", [3, 4, 32, 80])
def test_quarters_partition_the_layers(layers):
    numbers = list(range(layers))
    parts = [ablation.layer_range(numbers, part) for part in ablation.QUARTERS]
    assert [layer for part in parts for layer in part] == numbers == ablation.layer_range(numbers, (0.0, 1.0))
    assert ablation.layer_range(numbers, (0.5, 0.5)) == []


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="xi_to_si"):
        ablation.cells("x_to_y", TOY)
    with pytest.raises(ValueError, match="corrected"):
        ablation.cells("xi_to_si", TOY, "published")
    with pytest.raises(ValueError, match="variant"):
        ablation.request(variant="published")


# ------------------------------------------------------------------------------------------------ in a model


@pytest.fixture(scope="module")
def pair():
    return load_ICL_model((toys.model("gpt2").double(), toys.tokenizer()), verbose=False)


@pytest.fixture(scope="module")
def plan(pair):
    return label_scores.scoring(pair[0], pair[1], staicc_prompts("trec", 2)[:6])


def test_cut_cells_have_no_weight_and_what_stands_before_is_untouched(pair, plan):
    tokens, ids = plan.tokens[0], torch.tensor([plan.ids[0]])
    cut = ablation.cells("si_to_yi", tokens)
    every = torch.arange(len(plan.ids[0]))
    with torch.no_grad(), instrument(pair[0], before := CaptureRows(every)):
        whole = pair[0](ids).logits[0]
    with torch.no_grad(), instrument(pair[0], Knockout(torch.from_numpy(cut)), after := CaptureRows(every)):
        ablated = pair[0](ids).logits[0]
    for layer, weights in after.weights.items():
        assert (weights[0][:, cut[:, 0], cut[:, 1]] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
        rows = np.setdiff1d(every, cut[:, 0])
        if layer == 0:
            assert torch.equal(weights[0][:, rows], before.weights[0][0][:, rows])
            kept = before.weights[0][0][:, cut[0, 0]].clone()
            kept[:, cut[0, 1]] = 0
            torch.testing.assert_close(weights[0][:, cut[0, 0]], kept / kept.sum(-1, keepdim=True))
    first = tokens.labels[0]
    assert torch.equal(whole[:first], ablated[:first]) and not torch.allclose(whole[first:], ablated[first:])


@pytest.mark.parametrize("cut", ["yi_to_sq", "xq_to_sq"])
def test_cutting_what_the_query_reads_changes_the_query_alone(pair, plan, cut):
    ids = torch.tensor([plan.ids[0]])
    with torch.no_grad():
        whole = pair[0](ids).logits[0]
        with instrument(pair[0], Knockout(torch.from_numpy(ablation.cells(cut, plan.tokens[0])))):
            ablated = pair[0](ids).logits[0]
    assert torch.equal(whole[:-1], ablated[:-1]) and not torch.allclose(whole[-1], ablated[-1])


def test_the_query_label_cannot_change_its_forerunner(pair, plan):
    """By causality the cell (y_q, s_q), where copy magnitude is read, is worth exactly nothing at s_q."""
    tokens = plan.tokens[0]
    ids = torch.tensor([tokens.ids])
    with torch.no_grad():
        whole = pair[0](ids).logits[0]
        with instrument(pair[0], Knockout(torch.tensor([[tokens.labels[-1], tokens.forerunners[-1]]]))):
            ablated = pair[0](ids).logits[0]
    assert torch.equal(whole[tokens.forerunners[-1]], ablated[tokens.forerunners[-1]])
    assert not torch.allclose(whole[-1], ablated[-1])


@pytest.mark.parametrize("kind", toys.KINDS)
def test_labels_are_scored_by_the_tokens_that_follow(kind):
    model, tokenizer = load_ICL_model((toys.model("llama"), toys.tokenizer(kind)), verbose=False)
    prompts = staicc_prompts("financial_phrasebank", 2)[:8]
    plan = label_scores.scoring(model, tokenizer, prompts)
    found = label_scores.label_log_probs(model, plan)
    for number, prompt in enumerate(prompts):
        ids = tokenizer(prompt.text)["input_ids"]
        assert list(plan.ids[number]) == ids and prompt.gold == plan.gold[number]
        follow = [tokenizer(f"{prompt.text} {label}")["input_ids"][len(ids)] for label in prompt.labels]
        assert plan.answers[number].tolist() == follow
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        np.testing.assert_allclose(found["log_prob"][number], logits.log_softmax(-1)[follow], atol=1e-4)
    assert len({tuple(row) for row in plan.answers.tolist()}) == 1


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_loss_on_the_text_is_that_of_the_model_under_the_same_knockout(family):
    """Against the loss by hand of each prompt alone; labels are no part of it, and what follows the cut is."""
    model, tokenizer = load_ICL_model((toys.model(family).double(), toys.tokenizer()), verbose=False)
    plan = label_scores.scoring(model, tokenizer, staicc_prompts("sst5", 2)[:5])
    cuts = [ablation.cells("si_to_yi", tokens) for tokens in plan.tokens]
    whole = label_scores.label_log_probs(model, plan, text=True)
    attach = label_scores.knockouts(cuts, dict.fromkeys(support(model).layers))
    cut = label_scores.label_log_probs(model, plan, attach, token_budget=150, text=True)
    for found, cells in ((whole, None), (cut, cuts)):
        plain = label_scores.label_log_probs(model, plan, label_scores.nothing if cells is None else attach)
        np.testing.assert_allclose(found["log_prob"], plain["log_prob"], atol=1e-9)
        for number, tokens in enumerate(plan.tokens):
            knockouts = [] if cells is None else [Knockout(torch.from_numpy(cells[number]))]
            with torch.no_grad(), instrument(model, *knockouts):
                logits = model(torch.tensor([plan.ids[number]])).logits[0].log_softmax(-1)
            spans = zip(tokens.labels, tokens.label_lengths, strict=True)
            labels = [t for start, length in spans for t in range(start, start + length)]
            scored = [t for t in range(1, len(plan.ids[number])) if t not in labels]
            losses = [-logits[t - 1, plan.ids[number][t]].item() for t in scored]
            assert len(losses) == len(plan.ids[number]) - 1 - sum(tokens.label_lengths[:-1])
            assert found["text_loss"][number] == pytest.approx(np.mean(losses), abs=1e-6)
    assert np.abs(whole["text_loss"] - cut["text_loss"]).min() > 1e-5


def test_no_cells_and_no_layers_are_the_whole_model(pair, plan):
    whole = label_scores.label_log_probs(pair[0], plan)
    nothing = [np.empty((0, 2), np.int64)] * 6
    full = [ablation.cells("yi_to_sq", tokens) for tokens in plan.tokens]
    every = dict.fromkeys(support(pair[0]).layers)
    for cells, layers in ((nothing, every), (full, {})):
        again = label_scores.label_log_probs(pair[0], plan, label_scores.knockouts(cells, layers))
        np.testing.assert_array_equal(again["log_prob"], whole["log_prob"])
    cut = label_scores.label_log_probs(pair[0], plan, label_scores.knockouts(full, every), token_budget=100)
    assert np.abs(cut["log_prob"] - whole["log_prob"]).max() > 1e-3
    for number in range(6):  # each prompt got its own cells, whatever batch it ran in
        ids = torch.tensor([plan.ids[number]])
        with torch.no_grad(), instrument(pair[0], Knockout(torch.from_numpy(full[number]))):
            scores = pair[0](ids).logits[0, -1].log_softmax(-1)
        np.testing.assert_allclose(cut["log_prob"][number], scores[plan.answers[number]], atol=1e-9)


@pytest.mark.parametrize("family", toys.FAMILIES)
def test_next_token_logits_are_the_models_own(family):
    model, tokenizer = toys.model(family).double(), toys.tokenizer()
    ids = [tokenizer(prompt.text)["input_ids"] for prompt in staicc_prompts(0, 2)[:6]]
    whole = label_scores.next_token_logits(model, ids)
    layer = model.config.num_hidden_layers - 1
    patch = PatchHeads(layer, [0, 1], 0.0)
    patched = label_scores.next_token_logits(model, ids, patch, token_budget=200)
    assert whole.dtype == np.float64 and whole.shape == (6, model.config.vocab_size)
    for number, row in enumerate(ids):
        with torch.no_grad():
            np.testing.assert_allclose(whole[number], model(torch.tensor([row])).logits[0, -1], atol=1e-6)
            with instrument(model, patch):
                np.testing.assert_allclose(patched[number], model(torch.tensor([row])).logits[0, -1], atol=1e-6)
    assert np.abs(whole - patched).max() > 1e-3
    with pytest.raises(ValueError, match="longest prompt"):
        label_scores.next_token_logits(toys.model("gpt2"), [[1] * 5000])


# ------------------------------------------------------------------------------------------------ induction heads


def test_reads_and_similarities_are_the_models_own(pair, plan):
    found = label_scores.label_reads(pair[0], plan)
    eager = toys.model("gpt2").double()
    eager.set_attn_implementation("eager")
    for number, tokens in enumerate(plan.tokens):
        with torch.no_grad():
            out = eager(torch.tensor([plan.ids[number]]), output_attentions=True, output_hidden_states=True)
        labels, last = list(tokens.labels[:-1]), tokens.forerunners[-1]
        attention = np.stack([a[0, :, last][:, labels].numpy() for a in out.attentions])
        np.testing.assert_allclose(found["reads"][number], attention, atol=1e-6)
        for layer, state in enumerate(out.hidden_states[:-1]):
            s = state[0, list(tokens.forerunners)]
            cosine = torch.cosine_similarity(s[:-1], s[-1:], dim=-1)
            np.testing.assert_allclose(found["similarity"][number, layer], cosine, atol=1e-5)
    with pytest.raises(ValueError, match="k of 1 or more"):
        label_scores.label_reads(pair[0], label_scores.scoring(pair[0], pair[1], staicc_prompts("trec", 0)[:2]))


def test_induction_by_hand():
    reads = np.array([[[[0.5, 0.1, 0.1], [0.0, 0.3, 0.0]]], [[[0.2, 0.0, 0.0], [0.1, 0.1, 0.1]]]])  # [2, 1, 2, 3]
    gold, shown = np.array([0, 1]), np.array([[0, 1, 0], [1, 1, 1]])
    found = measures.induction(reads, gold, shown)
    np.testing.assert_allclose(found.magnitude[:, 0], [[0.7, 0.3], [0.2, 0.3]])
    np.testing.assert_allclose(found.correctness[:, 0], [[0.5, -0.3], [0.2, 0.3]])
    np.testing.assert_allclose(found.likelihood[:, 0], [[0.6 / 0.7, 0], [1, 1]], atol=1e-4)
    heads, correct = measures.induction_counts(found, np.array([10, 10]), classes=2, k=3)
    assert heads[:, 0].tolist() == [[True, False], [False, False]]
    assert correct[:, 0].tolist() == [[True, False], [False, True]]
    scaled = measures.induction_counts(found, np.array([30, 30]), 2, 3, scaled=True)
    unscaled = measures.induction_counts(found, np.array([10, 10]), 2, 3)
    assert all(np.array_equal(a, b) for a, b in zip(scaled, unscaled, strict=True))


def test_induction_of_random_reads_keeps_its_bounds():
    rng = np.random.default_rng(0)
    reads, gold = rng.dirichlet(np.ones(9), (50, 2, 3))[..., :4], rng.integers(3, size=50)
    shown = rng.integers(3, size=(50, 4))
    found = measures.induction(reads, gold, shown)
    none, every = ~(shown == gold[:, None]).any(1), (shown == gold[:, None]).all(1)
    assert (found.magnitude + 1e-12 >= np.abs(found.correctness)).all()
    np.testing.assert_allclose(found.correctness[none], -found.magnitude[none])
    np.testing.assert_allclose(found.correctness[every], found.magnitude[every])
    assert none.any() and (found.likelihood[none] == 0).all() and (found.likelihood <= 1).all()
    assert (found.likelihood.max(2) >= found.likelihood.mean(2)).all()
    assert found.likelihood.max(2).mean() <= (~none).mean()
    similar = measures.similarity_likelihood(np.where(rng.random((50, 2, 4)) < 0.3, -1.0, 1.0), gold, shown)
    assert ((similar >= 0) & (similar <= 1)).all() and (similar[none] == 0).all()


@pytest.mark.parametrize(
    ("data", "majority", "vote", "uniform", "ceiling"),
    [
        ("glue_sst2", 0.551, 0.504, 0.506, 0.928),
        ("rotten_tomatoes", 0.514, 0.502, 0.496, 0.930),
        ("financial_phrasebank", 0.654, 0.514, 0.462, 0.861),
        ("sst5", 0.287, 0.224, 0.227, 0.639),
        ("trec", 0.256, 0.193, 0.190, 0.559),
        ("agnews", 0.271, 0.273, 0.259, 0.688),
    ],
)
def test_null_levels_of_staicc(data, majority, vote, uniform, ceiling):
    prompts = staicc_prompts(data, 4)
    gold, shown = np.array([p.gold for p in prompts]), np.array([p.demonstrations for p in prompts])
    reads = np.full((512, 1, 1, 4), 0.01)
    found = measures.induction(reads, gold, shown).likelihood
    assert answers.majority_right(gold).mean() == pytest.approx(majority, abs=6e-4)
    assert answers.vote_right(gold, shown, len(prompts[0].labels)).mean() == pytest.approx(vote, abs=6e-4)
    assert found.mean() == pytest.approx(uniform, abs=1e-3)
    assert (found > 0).mean() == pytest.approx(ceiling, abs=6e-4)
    assert measures.uniform_likelihood(gold, shown) == pytest.approx((found.mean(), (found > 0).mean()), abs=1e-3)


# ------------------------------------------------------------------------------------------------ records


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return toys.save(tmp_path_factory.mktemp("models") / "tiny")


def never():
    raise AssertionError("a cached record must not load a model")


def test_tables_and_effects_are_cached_piece_by_piece(model_folder, tmp_path):
    asked = ablation.request(str(model_folder), prompts=5, k=2)
    conditions = ablation.grid(("si_to_yi", "yi_to_sq"), parts=((0.0, 1.0), (0.0, 0.25)), draws=2)
    assert len(conditions) == 1 + 4 + 4
    source = LazyModel(str(model_folder), verbose=False)
    found = ablation.run(asked, conditions, source, tmp_path)
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    effects = ablation.head_effects(asked, heads, source, tmp_path)
    files = sorted(tmp_path.glob("*.pickle"))
    assert len(files) == 9 + 1
    again = ablation.run(asked, conditions, never, tmp_path)
    for condition, record in found.items():
        np.testing.assert_array_equal(record.data["log_prob"], again[condition].data["log_prob"])
    turned = ablation.head_effects(asked, heads[::-1], never, tmp_path)  # the order of heads is no other record
    assert all(np.array_equal(effects[name], turned[name][:, ::-1]) for name in ("cut", "control"))
    np.testing.assert_array_equal(turned["whole"], effects["whole"])
    few = ablation.head_effects(asked, [(1, 2), (0, 1)], source, tmp_path / "few")
    np.testing.assert_allclose(few["cut"], effects["cut"][:, [6, 1]], atol=1e-5)
    with pytest.raises(ValueError, match="each head once"):
        ablation.head_effects(asked, [(0, 1), (0, 1)], never, tmp_path)
    whole, nothing, cut = found[ablation.WHOLE], found[conditions[2]], found[conditions[1]]
    np.testing.assert_array_equal(whole.data["log_prob"], nothing.data["log_prob"])  # a quarter of three layers is none
    assert np.abs(whole.data["log_prob"] - cut.data["log_prob"]).max() > 1e-4
    scores = np.stack([found[c].data["log_prob"] for c in conditions[5:]])
    assert len(np.unique(scores[:, 0, 0])) == 4  # every control is another one
    more = ablation.grid(("si_to_yi",), parts=(), draws=ablation.DRAWS + 1)
    again = ablation.run(asked, more, source, tmp_path / "more")
    assert len(again) == ablation.DRAWS + 2
    for draw in range(2):  # the first draws are those of fewer
        control = ablation.Condition("si_to_yi", draw=draw)
        np.testing.assert_array_equal(again[control].data["log_prob"], found[control].data["log_prob"])
    with_text = {condition for condition, record in found.items() if "text_loss" in record.data}
    assert with_text == {c for c in conditions if c.part == ablation.WHOLE.part and c.draw is None}
    assert effects["cut"].shape == effects["control"].shape == (5, 12)
    assert np.abs(effects["cut"] - effects["whole"][:, None])[:, :8].max() > 1e-5
    assert np.abs(effects["cut"][:, 8:] - effects["whole"][:, None]).max() < 1e-5  # read by no later layer
    reads = ablation.induction_reads(asked, source, tmp_path).data
    assert reads["reads"].shape == (5, 3, 4, 2) and reads["similarity"].shape == (5, 3, 2) and reads["classes"] == 3
    assert reads["demonstrations"].shape == (5, 2) and (reads["n_t"] > 50).all()
    asked["variant"] = "reference"
    assert (
        ablation.run(asked, conditions[:1], source, tmp_path)
        and len([*tmp_path.glob("*.pickle")]) == len(files) + 2  # with the induction reads
    )


def test_changes_are_paired_by_prompt():
    """Against differences computed by hand; the interval of a change that is the same for all prompts has no width."""

    def record(score):
        data = {"log_prob": np.stack([np.array(score, float), np.full(4, -9.0)], axis=1), "gold": np.zeros(4, int)}
        return cache.Record({}, {}, data)

    part, quarter = (0.0, 1.0), (0.0, 0.25)
    records = {
        ablation.WHOLE: record([1, 2, 3, 4]),
        ablation.Condition("si_to_yi", part): record([0, 1, 2, 3]),
        ablation.Condition("si_to_yi", quarter): record([1, 2, 3, 0]),
        ablation.Condition("si_to_yi", part, 0): record([1, 2, 3, 4]),
        ablation.Condition("si_to_yi", part, 1): record([1, 2, 3, 2]),
        ablation.Condition("si_to_yi", quarter, 0): record([2, 3, 4, 5]),
    }
    cut, controls = ablation.changes(records)
    assert cut[part]["si_to_yi"] == pytest.approx((-1, -1, -1))
    value, low, high = cut[quarter]["si_to_yi"]
    width = 3.182446 * np.std([0, 0, 0, -4], ddof=1) / 2
    assert (value, low, high) == pytest.approx((-1, -1 - width, -1 + width), rel=1e-5)
    assert controls[part]["si_to_yi"][0] == pytest.approx(-0.25)
    assert controls[quarter]["si_to_yi"] == pytest.approx((1, 1, 1))  # the controls of one part are not another's
    accuracy, _ = ablation.changes(records, "accuracy")
    assert accuracy[part]["si_to_yi"] == (0, 0, 0)
    for number, name in enumerate((ablation.WHOLE, ablation.Condition("si_to_yi", part))):
        records[name].data["text_loss"] = np.full(4, number + 0.5)
    losses, none = ablation.changes(records, "text loss")
    assert losses == {part: {"si_to_yi": (1, 1, 1)}} and none == {}


def test_other_keys_keep_the_readers():
    cut = ablation.cells("si_to_yi", TOY)
    drawn = {tuple(map(tuple, ablation.other_keys(cut, 1, (0, n)).tolist())) for n in range(40)}
    assert {query for cells in drawn for query, _ in cells} == {3, 7}
    assert {key for cells in drawn for query, key in cells if query == 7} == {1, 2, 3, 4, 5}
    assert {key for cells in drawn for query, key in cells if query == 3} == {1}
    assert ablation.other_keys(np.array([[1, 0]]), 1, (0,)).shape == (0, 2)


def test_a_task_is_chosen_on_the_last_prompts_and_the_first_that_is_done_is_taken(model_folder, tmp_path, monkeypatch):
    asked = forerunner.request(str(model_folder), k=2, prompts=16)
    source = LazyModel(str(model_folder), verbose=False)
    checks = ablation.choose_task(asked, ["sst5", 4], measured=16, prompts=6, model=source, folder=tmp_path)
    assert [check.dataset for check in checks] == ["sst5", "trec"] and not any(check.done for check in checks)
    again = ablation.choose_task(asked, ["sst5", 4], measured=16, prompts=6, model=never, folder=tmp_path)
    assert again == checks
    records = [cache.load(json.loads(json.dumps(one)), tmp_path) for one in requests_in(tmp_path)]
    gold = {r.request["dataset"]: r.data["gold"].tolist() for r in records if r is not None}
    assert gold["trec"] == [p.gold for p in staicc_prompts("trec", 2)[-6:]]
    prompts = staicc_prompts("trec", 2)
    majority = answers.majority_right(np.array([p.gold for p in prompts])).mean()
    assert checks[1].majority == pytest.approx(majority) and checks[1].n == 6

    monkeypatch.setattr(ablation, "task_check", lambda name, *rest: measures.TaskCheck(name, 1.0, 0.9, 0.5, 0.5, 6))
    first = ablation.choose_task(asked, ["sst5", "trec"], 16, 6, never, tmp_path)
    assert [check.dataset for check in first] == ["sst5"] and first[0].done  # the others are not tried


def requests_in(folder):
    return [cache.restricted_load(file.open("rb"))["request"] for file in sorted(folder.glob("*.pickle"))]


def test_prompts_that_are_measured_choose_no_task(model_folder):
    asked = forerunner.request(str(model_folder), k=2)
    with pytest.raises(ValueError, match="385 prompts to be measured and 128 to choose"):
        ablation.choose_task(asked, ["trec"], measured=385, model=never)
    with pytest.raises(ValueError, match="demonstrations"):
        ablation.choose_task({**asked, "k": 0}, ["trec"], measured=1, model=never)
    with pytest.raises(ValueError, match="at least one data set"):
        ablation.choose_task(asked, [], measured=1, model=never)
    with pytest.raises(ValueError, match="unknown data set"):
        ablation.choose_task(asked, ["imdb"], measured=1, model=never)


def test_a_table_request_is_like_the_forerunner_request(model_folder):
    asked = forerunner.request(str(model_folder), k=2, prompts=16, seed=3, dtype="float32")
    like = ablation.like(asked, "reference", dataset=4, prompts=5)
    options = {"k": 2, "seed": 3, "dtype": "float32", "dataset": "trec"}
    assert like == ablation.request(str(model_folder), 5, "reference", **options)


@pytest.mark.parametrize(
    ("change", "random", "done", "said"),
    [
        ((-1.0, -1.2, -0.8), (0.0, -0.1, 0.1), True, "the copying is used"),
        ((-1.0, -2.2, 0.2), (0.0, -0.1, 0.1), True, "a causal null"),
        ((-0.3, -0.4, -0.2), (-0.3, -0.5, -0.1), True, "a causal null"),  # random cells cost as much
        ((0.5, 0.4, 0.6), (0.0, -0.1, 0.1), True, "label is likelier"),
        ((-1.0, -1.2, -0.8), (0.0, -0.1, 0.1), False, "task not done"),
    ],
)
def test_the_causal_finding_is_what_the_intervals_say(change, random, done, said):
    part = ablation.WHOLE.part
    finding = ablation.causal_finding({part: {"si_to_yi": change}}, {part: {"si_to_yi": random}}, done)
    assert said in finding and f"{change[0]:+.3f} [{change[1]:+.3f}, {change[2]:+.3f}]" in finding


def test_the_table_and_what_demonstrations_are_worth_are_paired(model_folder, tmp_path):
    source = LazyModel(str(model_folder), verbose=False)
    asked = ablation.request(str(model_folder), prompts=5, k=2)
    cut = ablation.run(asked, ablation.grid(parts=[(0.0, 1.0)], draws=1), source, tmp_path)
    bare = ablation.request(str(model_folder), prompts=5, k=0)
    alone = ablation.run(bare, ablation.grid(parts=[(0.0, 1.0)], controlled=()), source, tmp_path)
    lines = ablation.table(cut, alone).splitlines()
    assert len(lines) == 6 and lines[3].startswith("s_i -> y_i") and max(map(len, lines)) <= 160
    score = ablation.SCORES["log-probability"]
    difference = score(cut[ablation.WHOLE].data).astype(float) - score(alone[ablation.WHOLE].data).astype(float)
    worth = ablation.worth_of_demonstrations(cut, alone)
    assert f"log-probability by {difference.mean():+.3f} [" in worth and "of 5 prompts" in worth
    wide = ablation.changes(cut, comparisons=20)[0][(0.0, 1.0)]["si_to_yi"]
    narrow = ablation.changes(cut)[0][(0.0, 1.0)]["si_to_yi"]
    assert wide[0] == narrow[0] and wide[1] < narrow[1] and wide[2] > narrow[2]
