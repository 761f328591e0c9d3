"""The toy induction heads: by hand, in models, in training, and their figures."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn.functional import cross_entropy

from tests import eager_runs
from tests.clone import text
from tests.tiny_models import tiny_model
from util.figures.edits import WHOLE
from util.figures.toy_induction_head import measure, numbers, show
from util.figures.toy_induction_head.numbers import formed_at
from util.prompts.induction_pattern import excerpts, repeated_sequences
from util.stats.intervals import Interval
from util.study.model import Model
from util.study.study import Study


def test_in_the_stored_log_the_loss_falls_when_the_heads_form():
    log = json.loads(text("data/phase_change.json"))
    for found in log["seeds"].values():
        moment = found["tokens"].index(formed_at(found))
        assert found["later_copies"][moment] < 2 < 2.7 < found["later_copies"][moment - 15]  # not guessing any more


def patterns(previous=(0.96, 0.90, 0.97), matching=(0.94, 0.90, 0.96)):
    """The numbers of two heads with these scores."""
    scores = {"previous_token": Interval(*previous), "prefix_matching": Interval(*matching)}
    best = {role: ((layer, 5), scores) for layer, role in enumerate(scores, start=22)}
    attention = {role: np.eye(25, k=-back) for role, back in zip(scores, (1, 5), strict=True)}
    settings = show.Settings(length=6, copies=4, vocabulary=20)
    return numbers.patterns({"title": "a model", "best": best, "attention": attention}, settings)


def title(part, values):
    return next(iter(show.FIGURE.parts[part].says(values)))


# ------------------------------------------------------------------------------------------------ what titles say


@pytest.mark.parametrize(
    "scores, said",
    [
        (
            {},
            "L22H5 reads the previous token (0.96 [0.90, 0.97] of its attention) and L23H5 reads what followed earlier "
            "occurrences (0.94 [0.90, 0.96] of its attention)",
        ),
        ({"matching": (0.5, 0.4, 0.6)}, "L22H5 reads the previous token (0.96 [0.90, 0.97] of its attention)"),
        (
            {"previous": (0.5, 0.4, 0.6), "matching": (0.01, 0.0, 0.02)},
            "No head is seen to give half of its attention to either",
        ),
    ],
)
def test_the_title_of_the_patterns_names_heads_that_give_a_role_most_of_their_attention(scores, said):
    assert title("patterns", patterns(**scores)) == said


def test_a_run_without_an_induction_head_is_not_counted():
    never = {"phase_change": {"tokens at a score of 0.5": {"seed 0": None}}}
    assert list(show.training_says(never)) == ["An induction head forms in 0 of 1 runs of training", ""]


# ------------------------------------------------------------------------------------------------ by hand


def test_the_lectures_head_is_a_previous_token_head():
    repeated = np.eye(4 * 50, k=-1)
    assert numbers.role_scores(repeated, 50, 4, bos=False) == {"prefix matching": 0, "previous token": 1}


def test_the_construction_continues_every_repeated_token():
    made = numbers.construction(9)
    assert (made["qk"] == np.eye(9)).all() and (made["ov"] == np.eye(9)).all()
    ids = np.r_[0, np.tile([3, 1, 7, 5], 3)]
    layer_0, layer_1, logits = numbers.run(ids, 9, 60.0)
    assert logits.shape == (13, 9) and (logits.argmax(1)[5:-1] == ids[6:]).all()
    assert numbers.role_scores(layer_0, 4, 3)["previous token"] == pytest.approx(1)
    assert numbers.role_scores(layer_1, 4, 3)["prefix matching"] == pytest.approx(1)


def test_the_likeliest_letters_after_a_text():
    shares = numbers.texts({}, show.Settings())["texts"]
    assert {text: list(letters) for text, letters in shares.items()} == {
        "the cat and the c": ["a"], "abcdef": ["^", "a", "b"], "abaca": ["b", "c"], "p=f r=i p=": ["f", "i"],
    }  # fmt: skip
    assert shares["abaca"]["b"] == pytest.approx(0.5) and shares["abcdef"]["^"] == pytest.approx(1 / 7)


# ------------------------------------------------------------------------------------------------ models


SIZES = {"length": 10, "copies": 3, "sequences": 4}


@pytest.fixture(scope="module")
def study(embedded, tmp_path_factory):
    return Study("toy_induction_head", embedded, **SIZES, folder=tmp_path_factory.mktemp("material"))


def test_heads_of_every_origin_are_shown_with_their_scores(study):
    found = study.numbers("heads")
    whose = ["planted GPT-2", "planted GPT-2", "embedded", "embedded", "untrained twin", "untrained twin"]
    assert [name.split(",")[0] for name in found["heads"]] == whose
    assert [*found["heads"]][:2] == ["planted GPT-2, L0H4: previous token", "planted GPT-2, L1H5: induction"]
    assert show.heads_table(found).loc["planted GPT-2, L1H5: induction", "prefix_matching"] == "1.00 [1.00, 1.00]"
    [decoys] = show.heads_say(found)
    assert "Planted decoys" in decoys and max(found["planted"]["decoys, at most"].values()) < 0.3


def test_whole_patterns_are_those_of_eager_attention_on_the_last_sequence(study):
    found, (model, tokenizer) = study.arrays("patterns"), study.pair
    weights = eager_runs.read(model, repeated_sequences(tokenizer, 10, 3, range(4)).ids[-1]).weights
    for role, ((layer, head), _) in found["best"].items():
        assert_allclose(found["attention"][role], weights[layer][0, head], atol=1e-6)


# ------------------------------------------------------------------------------------------------ plain text


def made_losses():
    """Whole: 5 nats up to token 100, then 3; without heads one more after token 100, without others from the start."""
    rng, late = np.random.default_rng(0), np.arange(2, 512) > 100
    loss = 5 - 2.0 * late + rng.normal(0, 0.01, (8, 510))
    rows = {WHOLE: loss, numbers.WITHOUT: loss + late, "without other heads 1": loss + 1.0}
    return {"heads": [(1, 2)], "losses": rows, "uniform": 8.0}


def test_the_score_in_context_is_late_loss_minus_early_loss():
    found = numbers.in_context(made_losses(), None)["in context"]
    score, change, lost = found["score"], found["change"], found["lost"]
    assert score[WHOLE].value == pytest.approx(-2, abs=0.01) and found["tokens"] == [50, 500]
    assert change[numbers.WITHOUT].value == lost[numbers.WITHOUT].value == pytest.approx(1)
    assert change["without other heads 1"].value == pytest.approx(0) and lost["without other heads 1"].value == 1
    assert found["beyond"]["change"].value == pytest.approx(1) and found["beyond"]["lost"].value == pytest.approx(0)
    says = show.FIGURE.parts["in_context"].says
    said = [*says({"in context": found})]
    assert said[0] == "Gain from context shrinks 1.00 nats without induction heads, ≤ 0.00 without others"
    assert "equal odds" not in "".join(said)
    worse = numbers.in_context(made_losses() | {"uniform": 4.0}, None)
    assert "no better than equal odds" in "".join(says(worse))
    alone = {"heads": [], "losses": {WHOLE: made_losses()["losses"][WHOLE]}}
    [sentence] = says(numbers.in_context(made_losses() | alone, None))
    assert sentence.endswith("no head is an induction head")


def test_heads_of_different_widths_are_ablated_too(tmp_path, monkeypatch):
    """Those of Gemma 4's global layers are wider, so that no array has the means of all heads."""
    config = {
        "per_layer_config": {"01": {"head_dim": 32}, "03": {"head_dim": 32}},
        "vocab_size": 5120,
        "vocab_size_per_layer_input": 5120,
    }
    model = Model.given(tiny_model("gemma4_text", **config), Model("embedded").pair[1], "given:tiny Gemma 4")
    monkeypatch.setattr(measure, "INDUCTION_HEAD", 0.0)  # all heads are ablated
    study = Study("toy_induction_head", model, **SIZES, folder=tmp_path, excerpts=2, untrained_control=False)
    found = study.arrays("in_context")
    assert np.isfinite(found["losses"][numbers.WITHOUT]).all() and len({layer for layer, _ in found["heads"]}) > 1


def test_losses_by_token_are_those_of_plain_passes(tmp_path):
    study = Study("toy_induction_head", **SIZES, folder=tmp_path, excerpts=2, untrained_control=False)
    found, (model, tokenizer) = study.arrays("in_context"), study.pair
    ids = torch.tensor(excerpts(tokenizer, 511, 2))
    assert ids.shape == (2, 511) and tokenizer.decode(ids[0]).startswith("<|bos|>CHAPTER I. Down the Rabbit-Hole")

    def loss(run):
        return cross_entropy(run.logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")

    whole = eager_runs.read(model, ids)
    assert_allclose(found["losses"][numbers.WHOLE], slow := loss(whole), atol=1e-4)
    matching = study.arrays("heads")["trained"]["prefix_matching"].mean(axis=0)
    assert found["heads"] == [head for head in np.ndindex(matching.shape) if matching[head] >= 0.3] != []
    means = {layer: whole.z[layer][:, 8:].mean(dim=(0, 1)) for layer, _ in found["heads"]}  # [H, dv], of both excerpts
    places = product(found["heads"], range(2), range(511))
    writes = {(layer, row, token, head): means[layer][head] for (layer, head), row, token in places}
    without = loss(eager_runs.read(model, ids, writes))
    assert_allclose(found["losses"][numbers.WITHOUT], without, atol=1e-4)
    assert np.abs(without - slow).max() > 1
