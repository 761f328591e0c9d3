"""What cannot be right inside the harness is refused by name, before the first forward pass."""

from __future__ import annotations

import numpy as np
import pytest

from util.extras.harness import evaluate

lm_eval = pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")

from util.edges.edge import Edge  # noqa: E402
from util.extras.harness.interventions import edit_of  # noqa: E402
from util.extras.harness.model import InterventionLM  # noqa: E402
from util.figures.induction_scores.edits import WHOLE, Edit  # noqa: E402
from util.prompts import classification  # noqa: E402

HEADS = ((2, 1),)
INDUCTION, EXACT = Edit.knock_out(HEADS), Edit.knock_out(HEADS, "exact tokens")


class Request:
    def __init__(self, *args, task="icl_wordseq1"):
        self.args, self.task_name = args, task


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


def test_batch_sizes_that_are_tried_with_rows_of_ones(embedded):
    for edit in (INDUCTION, EXACT, Edit.ablate(HEADS, "mean_pos"), Edit.ablate(HEADS, "input_mean")):
        for batch_size in ("auto", "auto:4"):
            with pytest.raises(ValueError, match="give a number"):
                InterventionLM(embedded, edit=edit, batch_size=batch_size)
    lm = InterventionLM(embedded, edit=Edit.ablate(HEADS, "zero"), batch_size="auto", max_batch_size=2)
    one = InterventionLM(embedded, edit=Edit.ablate(HEADS, "zero"), batch_size=1)
    asked = [Request(prompt_text(), label) for label in ("Foo", "Bar", "Mur", "Res")]
    found, expected = (np.array(each.loglikelihood(asked, disable_tqdm=True)) for each in (lm, one))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_prompts_whose_cells_cannot_be_placed(embedded, counted):
    def refused(said, edit, *requests, **options):
        lm = InterventionLM(embedded, edit=edit, **options)
        with pytest.raises(ValueError, match=said):
            lm.loglikelihood([Request(*request) for request in requests], disable_tqdm=True)

    text = prompt_text()
    refused("no layout of the suite's tasks explains", INDUCTION, (text, "Foo"), ("The capital of France is", " Paris"))
    refused("give fewer demonstrations", INDUCTION, (text, "Foo"), max_length=40)
    refused("give fewer demonstrations", EXACT, (text, "Foo"), max_length=40)
    refused("leave out add_bos_token", INDUCTION, (text, "Foo"), add_bos_token=False)
    refused("cannot be told apart", EXACT, ("one two three", " four"), ("one two", " three five"))
    assert not counted
    lm = InterventionLM(embedded, edit=EXACT)  # without BOS, and any text: this pattern goes by tokens
    lm.loglikelihood([Request("The capital of France is", " Paris")], disable_tqdm=True)
    InterventionLM(embedded, edit=EXACT, add_bos_token=False).loglikelihood([Request(text, "Foo")], disable_tqdm=True)
    assert counted


def test_rows_are_found_by_their_tokens_with_zeros_at_the_end(embedded):
    """The harness pads with the token 0, which is BOS here and may stand in a text too."""
    lm = InterventionLM(embedded, edit=EXACT, batch_size=4)
    bos = embedded.pair[1].decode([0])
    asked = [Request(f"a b c a b{bos}", " c"), Request("a b c a b d e f g", " c"), Request("a b", f" c{bos}{bos}")]
    together = lm.loglikelihood(asked, disable_tqdm=True)
    alone = [lm.loglikelihood([request], disable_tqdm=True)[0] for request in asked]
    np.testing.assert_allclose([p for p, _ in together], [p for p, _ in alone], rtol=0, atol=1e-5)


def test_texts_longer_than_the_reference_of_their_positions(embedded, counted):
    lm = InterventionLM(embedded, edit=Edit.ablate(HEADS, "mean_pos"), reference={"k": 1, "prompts": 4})
    with pytest.raises(ValueError, match="the longest prompt of wordseq1 has"):
        lm.loglikelihood([Request(prompt_text(k=12), "Foo")], disable_tqdm=True)
    assert not counted


def test_means_of_a_task_that_the_suite_has_not(embedded, counted):
    lm = InterventionLM(embedded, edit=Edit.ablate(HEADS))
    with pytest.raises(ValueError, match="hellaswag is no task of the suite"):
        lm.loglikelihood([Request(prompt_text(), "Foo"), Request("a", " b", task="hellaswag")], disable_tqdm=True)
    assert not counted


def test_texts_that_the_model_writes_have_no_cells_and_no_positions(embedded, counted):
    for edit in (INDUCTION, EXACT, Edit.ablate(HEADS, "mean_pos"), Edit.ablate(HEADS, "input_mean")):
        with pytest.raises(ValueError, match="generate_until: .* is not for texts that the model writes"):
            InterventionLM(embedded, edit=edit).generate_until([Request("a", {"max_gen_toks": 2})])
    with pytest.raises(ValueError, match="has no end-of-text token"):
        InterventionLM(embedded).generate_until([Request("a", {"max_gen_toks": 2})])
    with pytest.raises(ValueError, match="no layout of the suite's tasks explains"):
        InterventionLM(embedded, edit=INDUCTION).loglikelihood_rolling([Request(prompt_text())], disable_tqdm=True)
    assert not counted


def test_the_harnesss_own_caches(embedded, tmp_path):
    from lm_eval.api.model import CachingLM

    for edit in (INDUCTION, Edit.ablate(HEADS, "zero")):
        with pytest.raises(ValueError, match="use_cache: .* leave it out"):
            CachingLM(InterventionLM(embedded, edit=edit), str(tmp_path / "answers.db"))
        for name in ("use_cache", "cache_requests"):
            with pytest.raises(ValueError, match=f"{name}: .* leave it out"):
                evaluate.evaluate(embedded, ["icl_wordseq1"], edit, **{name: "somewhere"})
    CachingLM(InterventionLM(embedded), str(tmp_path / "answers.db"))


def test_models_that_the_suite_does_not_load(embedded):
    with pytest.raises(TypeError, match="comes with its tokenizer"):
        InterventionLM(embedded.pair[0])
    with pytest.raises(ValueError, match="parallelize, peft: embedded is loaded by the suite"):
        InterventionLM("embedded", peft="x", parallelize=True)


def test_edits_as_they_stand_in_json():
    for edit in (WHOLE, INDUCTION, EXACT, Edit.ablate([(1, 2), (0, 3)], "zero"), Edit.knock_out(HEADS, seed=7)):
        assert edit_of(edit.plain()) == edit
    for wrong in ({"ablate": [[0, 1]]}, {"ablate": [[0, 1]], "mode": "none"}, {"ablated": [[0, 1]]}):
        with pytest.raises(ValueError):
            edit_of(wrong)


def test_a_harness_that_is_too_old(monkeypatch):
    monkeypatch.setattr(evaluate.importlib.metadata, "version", lambda name: "0.4.9.2")
    with pytest.raises(ValueError, match=r"is 0\.4\.9\.2, and 0\.4\.10 or later is needed: pip install"):
        evaluate.check_installed()
