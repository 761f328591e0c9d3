"""What cannot be right inside the harness is refused by name, before the first forward pass."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose

lm_eval = pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")

from tests.extras.conftest import Request  # noqa: E402
from util.edges.edge import Edge  # noqa: E402
from util.extras.harness.model import (  # noqa: E402
    InterventionLM,
    edit_of,  # noqa: E402
    evaluate,
)
from util.figures.edits import INTACT, Edit  # noqa: E402
from util.prompts import classification  # noqa: E402

HEADS = ((2, 1),)
INDUCTION, EXACT = Edit.knock_out(HEADS), Edit.knock_out(HEADS, "exact tokens")


def prompt_text(name="wordseq1", k=3):
    return classification.prompts(classification.task(name), k, limit=1)[0].text


@pytest.mark.parametrize(
    "edit, said",
    [
        (Edit.ablate([(9, 0)], "zero"), "the model has 4 layers of 8 heads"),
        (Edit.knock_out([(0, 8)]), "the model has 4 layers of 8 heads"),
        (Edge, "Edges cannot be ablated here"),
        ("zero", "give an Edit"),
    ],
)
def test_edits_that_cannot_be_attached(embedded, edit, said):
    with pytest.raises(ValueError, match=said):
        InterventionLM(embedded, edit=edit)


@pytest.mark.parametrize(
    "edit", [INDUCTION, EXACT, Edit.ablate(HEADS, "mean_pos"), Edit.ablate(HEADS, "input_mean")], ids=str
)
def test_edits_that_must_know_the_rows(embedded, counted, edit):
    """The harness tries batch sizes with rows of ones, and what a model writes has no cells and no positions."""
    with pytest.raises(ValueError, match="give a number"):
        InterventionLM(embedded, edit=edit, batch_size="auto:4")
    with pytest.raises(ValueError, match="generate_until: .* is not for texts that the model writes"):
        InterventionLM(embedded, edit=edit).generate_until([Request("a", {"max_gen_toks": 2})])
    assert not counted


TEXT = prompt_text()
REFUSED = [  # message, edit, requests, options
    ("no layout of the suite's tasks explains", INDUCTION, [(TEXT, "Foo"), ("The capital of France is", " Paris")], {}),
    ("give fewer demonstrations", EXACT, [(TEXT, "Foo")], {"max_length": 40}),
    ("leave out add_bos_token", INDUCTION, [(TEXT, "Foo")], {"add_bos_token": False}),
    ("cannot be told apart", EXACT, [("one two three", " four"), ("one two", " three five")], {}),
    (
        "the longest prompt of wordseq1 has",
        Edit.ablate(HEADS, "mean_pos"),
        [(prompt_text(k=12), "Foo")],
        {"reference": {"k": 1, "prompts": 4}},
    ),
]


@pytest.mark.parametrize("message, edit, requests, options", REFUSED)
def test_what_cannot_be_placed_is_refused(embedded, counted, message, edit, requests, options):
    lm = InterventionLM(embedded, edit=edit, **options)
    with pytest.raises(ValueError, match=message):
        lm.loglikelihood([Request(*request) for request in requests], disable_tqdm=True)
    assert not counted


def test_what_the_suite_has_not(embedded, counted):
    """Means of another task are refused; "exact tokens" goes by tokens, so that it needs no BOS and takes any text."""
    asked = [Request(TEXT, "Foo"), Request("a", " b", task="hellaswag")]
    with pytest.raises(ValueError, match="hellaswag is no task of the suite"):
        InterventionLM(embedded, edit=Edit.ablate(HEADS)).loglikelihood(asked, disable_tqdm=True)
    assert not counted
    InterventionLM(embedded, edit=EXACT, add_bos_token=False).loglikelihood(asked, disable_tqdm=True)
    assert counted


def test_the_harnesss_own_caches(embedded, tmp_path):
    from lm_eval.api.model import CachingLM

    with pytest.raises(ValueError, match="use_cache: .* leave it out"):
        CachingLM(InterventionLM(embedded, edit=INDUCTION), str(tmp_path / "answers.db"))
    for name in ("use_cache", "cache_requests"):
        with pytest.raises(ValueError, match=f"{name}: .* leave it out"):
            evaluate(embedded, ["icl_wordseq1"], INDUCTION, **{name: "somewhere"})
    CachingLM(InterventionLM(embedded), str(tmp_path / "answers.db"))


def test_edits_as_they_stand_in_json():
    for edit in (INTACT, INDUCTION, EXACT, Edit.ablate([(1, 2), (0, 3)], "zero"), Edit.knock_out(HEADS, seed=7)):
        assert edit_of(edit.plain()) == edit


def test_rows_are_found_by_their_tokens_with_zeros_at_the_end(embedded):
    """The harness pads with the token 0, which is BOS here and may stand in a text too."""
    lm = InterventionLM(embedded, edit=EXACT, batch_size=4)
    bos = embedded.pair[1].decode([0])
    asked = [Request(f"a b c a b{bos}", " c"), Request("a b c a b d e f g", " c"), Request("a b", f" c{bos}{bos}")]
    together = lm.loglikelihood(asked, disable_tqdm=True)
    alone = [lm.loglikelihood([request], disable_tqdm=True)[0] for request in asked]
    assert_allclose([p for p, _ in together], [p for p, _ in alone], rtol=0, atol=1e-5)


def test_texts_that_cannot_be_written_or_cut(embedded, counted):
    with pytest.raises(ValueError, match="has no end-of-text token"):
        InterventionLM(embedded).generate_until([Request("a", {"max_gen_toks": 2})])
    with pytest.raises(ValueError, match="no layout of the suite's tasks explains"):
        InterventionLM(embedded, edit=INDUCTION).loglikelihood_rolling([Request(prompt_text())], disable_tqdm=True)
    assert not counted


def test_models_that_the_suite_does_not_load(embedded):
    with pytest.raises(TypeError, match="comes with its tokenizer"):
        InterventionLM(embedded.pair[0])
    with pytest.raises(ValueError, match="parallelize, peft: embedded is loaded by the suite"):
        InterventionLM("embedded", peft="x", parallelize=True)
