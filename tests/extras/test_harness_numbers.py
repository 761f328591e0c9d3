"""What the harness measures under an edit is what the suite measures, and what a model without these heads gives."""

from __future__ import annotations

import copy
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")

from lm_eval.models.huggingface import HFLM  # noqa: E402

from tests import eager_runs  # noqa: E402
from tests.extras.conftest import Request, harness_run, log_probs  # noqa: E402
from util.extras.harness.model import InterventionLM  # noqa: E402
from util.figures.edits import (
    INTACT,
    Edit,  # noqa: E402
    Mode,
)
from util.figures.task_study import TaskStudy  # noqa: E402
from util.models.table import embedded_path  # noqa: E402
from util.prompts import classification, induction_pattern  # noqa: E402
from util.stats.answers import label_mass, which_label  # noqa: E402
from util.study.model import (
    tokenizer_digest,
    weights_digest,
)

HEADS = ((2, 1), (2, 2), (3, 0))
EDITS = {
    "whole": INTACT,
    **{mode: Edit.ablate(HEADS, mode) for mode in get_args(Mode)},
    **{pattern: Edit.knock_out(HEADS, pattern, seed=3) for pattern in induction_pattern.PATTERNS},
}
asked_of_no_task = partial(Request, task="plain")
SINGLE, DOUBLE = 1e-5, 1e-9  # log-probabilities in nats


@pytest.mark.parametrize(
    "dtype, atol, task, labels, k, prompts",
    [
        ("embedded", SINGLE, "wordseq1", None, 5, 7),
        ("wide", DOUBLE, "wordseq1", None, 5, 7),
        ("embedded", SINGLE, "centre_embedding", None, 4, 7),
        ("wide", DOUBLE, "centre_embedding", None, 4, 7),
        ("embedded", 5 * SINGLE, "sst2", None, 2, 3),  # texts that people wrote
        ("embedded", 5 * SINGLE, "sst2", ("Foo", "Bar"), 2, 3),
    ],
)
def test_the_harness_gives_what_the_suite_gives_under_every_edit(request, dtype, atol, task, labels, k, prompts):
    model, name = request.getfixturevalue(dtype), f"icl_{task}{'_sul' if labels else ''}"
    reference = {"k": k, "prompts": prompts, "reference_prompts": 96}
    edits = EDITS if prompts == 7 else {edit: EDITS[edit] for edit in ("whole", "mean", "induction", "exact tokens")}
    study = TaskStudy(model, task, k, prompts, 42, labels=labels, reference_prompts=96)
    answers = study.answers(edits)
    for key, ours in answers.items():
        lm = InterventionLM(model, edit=EDITS[key], reference=reference, batch_size=4)
        results = harness_run(lm, name, k, prompts)
        assert_allclose(log_probs(results), ours["log_prob"], rtol=0, atol=atol, err_msg=key)
        found = results["results"][name]
        assert found["acc,none"] == ours["right"].mean()
        means = which_label(ours["log_prob"], ours["gold"]).mean(), label_mass(ours["log_prob"]).mean()
        assert_allclose((found["which_label,none"], found["label_mass,none"]), means, atol=2 * atol)
        assert key == "whole" or np.abs(ours["log_prob"] - answers["whole"]["log_prob"]).max() > 100 * SINGLE


# ------------------------------------------------------------------------------------------------ plain references


@pytest.fixture(scope="module")
def without_heads(wide):
    """The float64 model with the columns of HEADS in its output projections set to zero."""
    model = copy.deepcopy(wide.pair[0])
    model.set_attn_implementation("sdpa")
    size = model.model.layers[0].self_attn.o_proj.in_features // model.config.num_attention_heads
    with torch.no_grad():
        for layer, head in HEADS:
            model.model.layers[layer].self_attn.o_proj.weight[:, head * size : (head + 1) * size] = 0
    return model


@pytest.fixture(scope="module")
def tokenizer(wide):
    """The tokenizer with an end of text, which the harness needs to write."""
    made = copy.deepcopy(wide.pair[1])
    made.eos_token = made.pad_token
    return made


def test_zeroed_heads_are_heads_without_an_output_projection(wide, without_heads, tokenizer):
    """Log-likelihoods, those of whole texts longer than the context, and what is written, beside the plain HFLM."""
    options = {"tokenizer": tokenizer, "batch_size": 3, "max_length": 64}
    ablated = InterventionLM(wide.pair[0], edit=EDITS["zero"], **options)
    whole = InterventionLM(wide.pair[0], **options)
    plain = HFLM(without_heads, **options)
    texts = [prompt.text for prompt in classification.prompts(classification.task("wordseq1"), 12, limit=4)]
    texts += ["apple cat", "a short text about a dog"]
    assert max(len(wide.pair[1](text)["input_ids"]) for text in texts) > 64
    choices = [asked_of_no_task(text[:40], label) for text in texts for label in (" Foo", " Bar bar", "x")]
    found, expected, other = (lm.loglikelihood(choices, disable_tqdm=True) for lm in (ablated, plain, whole))
    assert_allclose([p for p, _ in found], [p for p, _ in expected], rtol=0, atol=DOUBLE)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert np.abs(np.subtract([p for p, _ in found], [p for p, _ in other])).max() > 0.1
    rolled = [
        lm.loglikelihood_rolling([asked_of_no_task(text) for text in texts], disable_tqdm=True)
        for lm in (ablated, plain)
    ]
    assert_allclose(rolled[0], rolled[1], rtol=0, atol=1e-7)
    asked = [asked_of_no_task(text[:100], {"until": ["\n\n"], "max_gen_toks": 6}) for text in texts]
    before = weights_digest(wide.pair[0]), tokenizer_digest(tokenizer), tokenizer.padding_side
    written = [lm.generate_until(asked, disable_tqdm=True) for lm in (ablated, plain, whole)]
    assert written[0] == written[1] != written[2]
    assert before == (weights_digest(wide.pair[0]), tokenizer_digest(tokenizer), tokenizer.padding_side)


def test_a_mean_ablation_acts_on_what_is_written_too(wide, tokenizer):
    """With a key-value cache and left padding, each text is what it is alone."""
    reference = {"reference": "staicc", "reference_prompts": 8}
    lm = InterventionLM(wide.pair[0], tokenizer=tokenizer, edit=EDITS["mean"], reference=reference, batch_size=4)
    texts = [prompt.text for prompt in classification.prompts(classification.task("wordseq1"), 3, limit=3)]
    asked = [asked_of_no_task(text, {"until": ["\n\n"], "max_gen_toks": 5}) for text in [*texts, "apple"]]
    together = lm.generate_until(asked, disable_tqdm=True)
    assert together == [lm.generate_until([one], disable_tqdm=True)[0] for one in asked]
    attach = lm.intervention.attach("plain", [])
    for request, written in zip(asked, together, strict=True):
        ids = wide.pair[1](request.args[0])["input_ids"]
        for _ in range(5):
            lm._attached = attach
            ids.append(int(lm._model_call(torch.tensor([ids]))[0, -1].argmax()))
        text = wide.pair[1].decode(ids[-5:], skip_special_tokens=True)
        assert written == text.split("\n\n")[0]


def test_whole_texts_under_a_knockout_of_exact_tokens(wide):
    """Every window is a text of its own, with the cells of its own tokens."""
    model, tokenizer = wide.pair
    text = classification.prompts(classification.task("repetition"), 6, limit=1)[0].text
    lm = InterventionLM(wide, edit=EDITS["exact tokens"], batch_size=2)
    (found,) = lm.loglikelihood_rolling([asked_of_no_task(text)], disable_tqdm=True)
    ids = [lm.prefix_token_id, *tokenizer(text)["input_ids"]]
    row = ids[:-1]
    cells = [(q, k) for q in range(len(row)) for k in range(1, q) if row[k - 1] == row[q]]
    cuts = {(layer, head, 0, q, k) for layer, head in HEADS for q, k in cells}
    rows = eager_runs.read(model, row, cuts=cuts).logits[0].log_softmax(-1)
    expected = float(rows[torch.arange(len(row)), torch.tensor(ids[1:])].sum())
    assert_allclose(found, expected, rtol=0, atol=1e-3)
    assert abs(found - InterventionLM(wide, batch_size=2).loglikelihood_rolling([asked_of_no_task(text)])[0]) > 1


# ------------------------------------------------------------------------------------------------ models and means


def test_a_model_that_the_harness_loads_itself():
    options = {"batch_size": 4, "device": "cpu", "dtype": "float32"}
    folder = str(embedded_path("generalist"))
    models = [InterventionLM(folder, edit=edit, **options) for edit in (EDITS["zero"], INTACT)]
    models += [InterventionLM("embedded", edit=EDITS["zero"], batch_size=4, device="cpu"), HFLM(folder, **options)]
    theirs, whole, ours, plain = (log_probs(harness_run(lm, "icl_recursion", 5, 4)) for lm in models)
    assert_allclose(theirs, ours, rtol=0, atol=SINGLE)
    assert_allclose(whole, plain, rtol=0, atol=SINGLE)
    assert np.abs(theirs - plain).max() > 1e-3
    assert folder not in str(models[0].get_model_info()["intervention"])
