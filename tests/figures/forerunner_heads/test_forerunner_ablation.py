"""Disconnected attention and induction heads of the forerunner figure: cell lists, controls, scoring, caching."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from tests import toys
from tests.figures.forerunner_heads.made_up import label_reads
from tests.figures.induction_scores.made_up_shots import GAIN
from tests.tiers import quick
from tests.unloaded import unloaded
from util.engine import label_scores
from util.engine.attention import instrument, support
from util.engine.instruments import Knockout
from util.figures.forerunner_heads import measure, numbers, show
from util.figures.forerunner_heads.measure import Data
from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.prompts.prompt import LabelledTokens
from util.roles import label_roles
from util.stats.answers import TaskCheck
from util.stats.intervals import mean_interval
from util.study.model import Model
from util.study.study import Study

EVERYWHERE = numbers.EVERYWHERE
# BOS, x x, s, y, newline, x x, s... as in the toy of the authors' layout: labels at 3 and 7, forerunners before them
TOY = LabelledTokens(tuple(range(12)), forerunners=(2, 6, 11), labels=(3, 7, 12), label_lengths=(1, 1, 1), n_t=13)


def pairs(cut, tokens=TOY, **options):
    return [tuple(cell) for cell in numbers.cells(cut, tokens, **options).tolist()]


# ------------------------------------------------------------------------------------------------ cells


def test_cells_spare_bos_the_query_and_the_diagonal():
    assert {cut: pairs(cut) for cut in numbers.CUTS} == {
        "xi_to_si": [(2, 1), (6, 4), (6, 5)],
        "xq_to_sq": [(11, 8), (11, 9), (11, 10)],
        "si_to_yi": [(3, 2), (7, 6)],
        "yi_to_sq": [(11, 3), (11, 7)],
        "si_to_si": [(6, 2), (11, 2), (11, 6)],
    }
    assert pairs("xi_to_si", special=0)[0] == (2, 0)  # a tokenizer without BOS has text in front


def test_labels_of_several_tokens_are_cut_whole():
    tokens = LabelledTokens(tuple(range(10)), (2, 9), (3, 10), (3, 1), 11)
    assert pairs("si_to_yi", tokens) == [(3, 2), (4, 2), (5, 2)]
    assert pairs("yi_to_sq", tokens) == [(9, 3), (9, 4), (9, 5)]
    assert pairs("xq_to_sq", tokens) == [(9, 6), (9, 7), (9, 8)]


def test_controls_match_are_seeded_and_share_nothing_with_the_cut():
    cut = numbers.cells("xi_to_si", TOY)
    drawn = numbers.control_cells(cut, 12, (0, 1))
    everything = [tuple(cell) for one in (cut, drawn) for cell in one.tolist()]
    assert len(drawn) == len(cut) and len(set(everything)) == len(everything)
    assert all(key < query for query, key in everything)  # so no row is emptied, and row 0 has none
    assert not np.array_equal(drawn, numbers.control_cells(cut, 12, (0, 2)))
    assert len(numbers.control_cells(cut[:0], 12, (0,))) == 0


# ------------------------------------------------------------------------------------------------ in a model


@pytest.fixture(scope="module")
def pair():
    return load_ICL_model((toys.model("gpt2").double(), toys.tokenizer()), verbose=False)


@pytest.fixture(scope="module")
def plan(pair):
    return label_scores.scoring(pair[0], pair[1], staicc_prompts("trec", 2)[:6])


@pytest.mark.parametrize("family", quick(["llama"], ["gpt2"]))
def test_the_loss_on_the_text_is_that_of_the_model_under_the_same_knockout(family, monkeypatch):
    """Against the loss by hand of each prompt alone; labels are no part of it, and what follows the cut is.

    The logits of all tokens are made in parts.
    """
    model, tokenizer = load_ICL_model((toys.model(family).double(), toys.tokenizer()), verbose=False)
    monkeypatch.setattr(label_scores, "LOGITS", 150 * model.config.vocab_size)
    plan = label_scores.scoring(model, tokenizer, staicc_prompts("sst5", 2)[:5])
    blocked = [numbers.cells("si_to_yi", tokens) for tokens in plan.tokens]
    edits = label_scores.nothing, label_scores.knockouts(blocked, dict.fromkeys(support(model).layers))
    whole, cut = (label_scores.label_log_probs(model, plan, edit, text=True)["text_loss"] for edit in edits)
    for number, tokens in enumerate(plan.tokens):
        spans = zip(tokens.labels, tokens.label_lengths, strict=True)
        labels = [t for start, length in spans for t in range(start, start + length)]
        scored = np.setdiff1d(np.arange(1, len(plan.ids[number])), labels)
        ids = torch.tensor([plan.ids[number]])
        for found, knockouts in ((whole, []), (cut, [Knockout(torch.from_numpy(blocked[number]))])):
            with instrument(model, *knockouts):
                logits = model(ids).logits[0].log_softmax(-1)
            assert found[number] == pytest.approx(-logits[scored - 1, ids[0, scored]].mean().item(), abs=1e-6)
    assert np.abs(whole - cut).min() > 1e-5


# ------------------------------------------------------------------------------------------------ induction heads


def test_reads_and_similarities_are_the_models_own(pair, plan):
    found = label_scores.label_reads(pair[0], plan)
    eager = toys.model("gpt2").double()
    eager.set_attn_implementation("eager")
    for number, tokens in enumerate(plan.tokens):
        out = eager(torch.tensor([plan.ids[number]]), output_attentions=True, output_hidden_states=True)
        labels, last = list(tokens.labels[:-1]), tokens.forerunners[-1]
        attention = np.stack([a[0, :, last][:, labels].numpy() for a in out.attentions])
        assert_allclose(found["reads"][number], attention, atol=1e-6)
        for layer, state in enumerate(out.hidden_states[:-1]):
            s = state[0, list(tokens.forerunners)]
            cosine = torch.cosine_similarity(s[:-1], s[-1:], dim=-1)
            assert_allclose(found["similarity"][number, layer], cosine, atol=1e-5)
    with pytest.raises(ValueError, match="k of 1 or more"):
        label_scores.label_reads(pair[0], label_scores.scoring(pair[0], pair[1], staicc_prompts("trec", 0)[:2]))


def test_induction_by_hand():
    reads = np.array([[[[0.5, 0.1, 0.1], [0.0, 0.3, 0.0]]], [[[0.2, 0.0, 0.0], [0.1, 0.1, 0.1]]]])  # [2, 1, 2, 3]
    found = label_reads(reads, np.array([0, 1]), np.array([[0, 1, 0], [1, 1, 1]]))
    total, more, share = numbers.reads(found)
    assert_allclose(total[:, 0], [[0.7, 0.3], [0.2, 0.3]])
    assert_allclose(more[:, 0], [[0.5, -0.3], [0.2, 0.3]])
    assert_allclose(share[:, 0], [[0.6 / 0.7, 0], [1, 1]], atol=1e-4)


# ------------------------------------------------------------------------------------------------ records


@pytest.fixture
def study(toy_folder, tmp_path):
    sizes = {"prompts": 6, "k": 2, "ablated": 5, "grid_prompts": 4, "choice_prompts": 6, "untrained_control": False}
    tasks = {"causal_datasets": ["sst5", 4], "causal_k": [2]}
    model = Model(str(toy_folder), verbose=False)
    return Study("forerunner_heads", model, **sizes, **tasks, folder=tmp_path)


FIVE = Data("financial_phrasebank", 2, 5, 0)
DONE = TaskCheck("sst5", 2, 1.0, 0.9, 0.5, GAIN, GAIN, 0.01, 6)


def test_cuts_are_kept_one_by_one(study):
    some = {"cut": (None, "si_to_yi", "yi_to_sq"), "part": (EVERYWHERE, (0.0, 0.25))}
    conditions = [one for one in numbers.conditions() if one.cut in some["cut"] and one.part in some["part"]]
    found = measure.answers(study, FIVE, conditions)
    again = measure.answers(unloaded(study), FIVE, conditions)
    for condition, answers in found.items():
        assert_array_equal(answers["log_prob"], again[condition]["log_prob"])
        text = condition.part == EVERYWHERE and condition.draw is None
        assert ("text_loss" in answers) == text
    whole, cut, nothing, *_, first, second = (answers["log_prob"] for answers in found.values())
    assert_array_equal(whole, nothing)  # a quarter of three layers is none
    assert np.abs(whole - cut).max() > 1e-4 and first[0, 0] != second[0, 0]  # every control is another one


def test_changes_are_paired_by_prompt():
    """Against differences by hand; the interval of a change that is the same for all prompts has no width."""

    def given(score, **losses):  # log-probabilities of the right label, and of another that has next to nothing
        log_prob = np.stack([np.array(score, float), np.full(4, -9.0)], axis=1)
        return {"log_prob": log_prob, "gold": np.zeros(4, int), **losses}

    step, quarter = "si_to_yi", (0.0, 0.25)
    records = {
        numbers.WHOLE: given([1, 2, 3, 4], text_loss=np.full(4, 0.5)),
        numbers.Condition(step): given([0, 1, 2, 3], text_loss=np.full(4, 1.5)),
        numbers.Condition(step, quarter): given([1, 2, 3, 0]),
        numbers.Condition(step, draw=0): given([1, 2, 3, 3]),
    }
    cut, controls = numbers.changes(records, "label mass")
    assert cut["(0.0, 1.0)"][step] == pytest.approx((-1, -1, -1), abs=1e-3)
    assert cut["(0.0, 0.25)"][step] == pytest.approx(mean_interval([0, 0, 0, -4]), abs=1e-3)
    assert controls["(0.0, 1.0)"][step][0] == pytest.approx(-0.25, abs=1e-3)
    assert numbers.changes(records, "accuracy")[0]["(0.0, 1.0)"][step] == (0, 0, 0)
    assert numbers.changes(records, "text loss") == ({"(0.0, 1.0)": {step: (1, 1, 1)}}, {})
    value, low, high = numbers.changes(records, "label mass", comparisons=20)[0]["(0.0, 0.25)"][step]
    narrow = cut["(0.0, 0.25)"][step]
    assert value == narrow[0] and low < narrow[1] and high > narrow[2]


def test_a_task_is_chosen_on_the_last_prompts_and_the_first_that_is_done_is_taken(study, monkeypatch):
    checks, values = study.arrays("task")["checks"], study.numbers("task")
    assert [check.name for check in checks] == ["sst5", "trec"] and not any(check.done for check in checks)
    assert values["chosen"] == {"ablation": {"dataset": "sst5", "k": 2, "done": False}}  # measured all the same
    assert next(show.task_say(values)).startswith("sst5,")
    assert [*show.task_table(values).index] == [("sst5", 2), ("trec", 2)]
    assert unloaded(study).arrays("task")["checks"] == checks
    monkeypatch.setattr(label_roles, "task_check", lambda *_: DONE)
    first = unloaded(study)
    assert first.arrays("task")["checks"] == [DONE]  # the others are not tried
    assert first.numbers("task")["chosen"]["ablation"]["done"]


@pytest.mark.parametrize(
    "change, random, said",
    [
        ((-1.0, -1.2, -0.8), (0.0, -0.1, 0.1), "costs it 1.00 [0.80, 1.20] nats"),
        ((-1.0, -2.2, 0.2), (0.0, -0.1, 0.1), "is not shown to cost it more than random cells"),
        ((-0.3, -0.4, -0.2), (-0.3, -0.5, -0.1), "is not shown to cost it"),  # random cells cost as much
        ((0.5, 0.4, 0.6), (0.0, -0.1, 0.1), "gains it 0.50 [0.40, 0.60] nats"),
    ],
)
def test_what_is_told_of_a_cut_is_what_the_intervals_say(change, random, said):
    ablation = {"which label": {"(0.0, 1.0)": {"si_to_yi": change}}, "random": {"which label": random}}
    assert show.cut_says(ablation, "which label", "it").startswith(f"cutting the labels' reads of forerunners {said}")


def test_a_part_of_the_layers_whose_cut_costs_is_named():
    """By intervals of all cuts together, beside random cells: in Gemma a quarter costs, all layers are not shown to."""
    changes = {
        "(0.0, 1.0)": (-0.2, -0.7, 0.6),
        "(0.25, 0.5)": (-0.25, -0.46, -0.05),
        "(0.5, 0.75)": (-0.1, -0.2, -0.01),
    }
    cuts = {"cut": {part: {"si_to_yi": change} for part, change in changes.items()}}
    random = {"random": {"(0.0, 1.0)": {"si_to_yi": (0.0, -0.02, 0.04)}}}
    named = show._costly_parts({"together": {"which label": cuts | random}})
    assert [*named] == [("25% to 50%", "0.25 [0.05, 0.46]")]


def test_the_two_terms_of_the_gold_label_are_told_apart():
    """Cutting takes the mass of labels and leaves which of them is right; then the other way round."""

    def answers(mass, which):
        log_prob = np.log(np.stack([which, 1 - which], axis=1)) + mass[:, None]
        return {"log_prob": log_prob, "gold": np.zeros(8, int)}

    random = np.random.default_rng(0)
    which, mass = random.uniform(0.5, 0.8, 8), random.uniform(-0.5, -0.1, 8)
    whole, bare = answers(mass, which), answers(mass - 3 + 0.1 * random.random(8), which)
    step, control = numbers.Condition("si_to_yi"), numbers.Condition("si_to_yi", draw=0)
    for cut, costs in ((answers(mass - 2, which), "label mass"), (answers(mass, which / 2), "which label")):
        records = {numbers.WHOLE: whole, step: cut, control: whole}
        arrays = {"cut": records, "alone": bare, "done": True}
        found = numbers.ablation(arrays, None)["ablation"]
        for score in ("which label", "label mass"):
            lost = found[score]["(0.0, 1.0)"]["si_to_yi"]
            assert lost.high < -0.5 if score == costs else np.abs(lost).max() < 1e-9
    for changed, told in (({"done": False}, ["label mass"]), ({"done": False, "alone": whole}, [])):
        found = numbers.ablation(arrays | changed, None)["ablation"]
        assert [*found["random"]] == told  # demonstrations that raise no mass teach nothing
