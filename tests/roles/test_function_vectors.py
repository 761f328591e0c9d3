"""Function-vector heads: indirect effects against whole forward passes, a planted head, and an untrained model."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from tests import architectures, eager_runs
from tests.tiers import quick
from tests.toys import refuse_tasks
from tests.unloaded import never
from util.engine import call
from util.engine.handshake import prepare
from util.load_model_and_data import load_ICL_model
from util.prompts import word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.roles import function_vectors
from util.roles.function_vectors import (
    FunctionVectorStudy,
    function_vector_heads,
    last_outputs,
    patched_probabilities,
)
from util.roles.pair_task import words_digest
from util.stats.intervals import mean_intervals
from util.study.model import Model

LENGTHS = (9, 7, 9, 12)
WRONG = {
    "task": "copyng",
    "k": 1,  # outputs of one demonstration cannot be permuted
    "prompts": 2000,  # more than there are verbs
    "intact": 0,
    "corruption": "none",
}


def random_prompts(vocabulary, seed=0):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(3, vocabulary, length).tolist()) for length in LENGTHS], rng.integers(
        3, vocabulary, len(LENGTHS)
    ).tolist()


@pytest.fixture(params=quick(["gpt2", "llama"], ["mistral", "embedded"]))
def model(request, wide_softmax):
    if request.param == "embedded":
        model = load_ICL_model("embedded", verbose=False)[0].double()
    else:
        model = architectures.build(request.param, torch.float64)
    call._eager_function.cache_clear()
    prepare(model)
    yield model
    call._eager_function.cache_clear()


# ------------------------------------------------------------------------------------------------ slow references


def by_hooks(model, ids, answers, mean):
    """A whole pass for each prompt and head, plain hooks on the output projections; none of the suite's code runs."""
    found = np.empty((len(ids), *mean.shape[:2]))
    for number, layer, head in np.ndindex(*found.shape):
        place = (layer, 0, len(ids[number]) - 1, head)
        run = eager_runs.read(model, ids[number], {place: torch.from_numpy(mean[layer, head])})
        found[number, layer, head] = run.logits[0, -1].softmax(-1)[answers[number]]
    return found


@pytest.mark.oracle
def test_last_outputs_and_patched_probabilities_are_those_of_hooks(model, monkeypatch):
    ids, answers = random_prompts(model.config.vocab_size)
    z = [eager_runs.read(model, tokens).z for tokens in ids]
    outputs = [np.stack([layers[layer][0, -1].numpy() for layer in sorted(layers)]) for layers in z]
    monkeypatch.setattr(function_vectors, "TOKEN_BUDGET", 20)  # several batches
    assert_allclose(last_outputs(model, ids), np.mean(outputs, axis=0), atol=1e-9)
    mean = np.random.default_rng(1).normal(size=outputs[0].shape) * np.abs(outputs[0]).mean()
    found = patched_probabilities(model, ids, answers, mean)
    assert found["patched"].dtype == np.float64
    # embedded, llama: norms and rotary angles of the class are in float32, the same in both
    assert_allclose(found["patched"], by_hooks(model, ids, answers, mean), atol=1e-9, rtol=1e-6)
    effects = np.abs(found["patched"] / found["corrupted"][:, None, None] - 1)
    assert np.median(effects) > 1e-4  # not vacuous


# ------------------------------------------------------------------------------------------------ studies


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_name_themselves(name):
    with pytest.raises(ValueError, match=f"^{name} = "):
        FunctionVectorStudy(Model("embedded", loader=never), **{"task": "present_past", name: WRONG[name]})


def test_too_few_queries_for_a_tokenizer_are_told_before_anything_is_run(tmp_path, monkeypatch):
    """Of 39 queries in the list, this tokenizer leaves 36 or so with donors of as many tokens."""
    study = FunctionVectorStudy(
        task="country_capital", prompts=39, intact=2, corruption="other_outputs", folder=tmp_path
    )
    assert study._drawn(2, 0).askable < 39
    monkeypatch.setattr(function_vectors, "last_outputs", lambda *a: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match="prompts = 39: country_capital has .* queries to ask"):
        study.probabilities()


def test_other_words_have_another_digest():
    task = word_pairs.find("copying", trained=True)
    other = replace(task, pairs=(*task.pairs[1:], ("unheard", "unheard")))
    assert words_digest(task) != words_digest(other)


def test_mean_outputs_are_of_other_prompts_than_those_that_are_patched(tmp_path):
    study = FunctionVectorStudy(prompts=20, intact=40, folder=tmp_path)
    items = study.corrupted.items
    assert not {item.clean.text for item in items} & {item.clean.text for item in study.intact_prompts.items}
    queries = {item.clean.texts("x")[-1] for item in items}
    assert len(queries) == 20 and queries <= study._task.queries("search")


# ------------------------------------------------------------------------------------------------ results from arrays


def made(task, index, seed=0, shift=0.0):
    rng = np.random.default_rng((seed, len(task)))
    corrupted, effects = rng.uniform(0, 0.2, len(index)), rng.normal(0, 0.05, (len(index), 3, 4)) + shift
    intact, patched = rng.uniform(0.5, 1, len(index)), corrupted[:, None, None] + effects
    data = {"index": np.array(index), "intact": intact, "corrupted": corrupted, "patched": patched}
    return SimpleNamespace(task=task, corruption="shuffled", probabilities=lambda: data)


def effects_of(data):
    return data["patched"] - data["corrupted"][:, None, None]


def test_the_mean_effect_and_its_interval_are_those_of_prompts_within_tasks():
    """Prompts that one task dropped are left out of all."""
    studies = made("a", range(8)), made("bb", [0, 1, 2, 4, 5, 7], shift=0.3)
    heads, tasks = function_vector_heads(studies), [study.probabilities() for study in studies]
    shared = np.stack([effects_of(tasks[0])[[0, 1, 2, 4, 5, 7]], effects_of(tasks[1])], axis=1)
    assert_array_equal(heads["effects"], shared.mean(axis=1))
    interval = mean_intervals(heads["effects"])
    # tasks differ by 0.3, which is no uncertainty: the interval is that of the noise within
    assert (interval.high - interval.low).max() < 0.2
    assert heads["room"] == pytest.approx(np.mean([task["intact"].mean() - task["corrupted"].mean() for task in tasks]))


def test_a_task_that_the_tokenizer_has_no_prompts_of_is_left_out(tmp_path, monkeypatch):
    first = FunctionVectorStudy(task="copying", prompts=4, intact=4, folder=tmp_path)
    studies, lacking = [first.replace(task="person_sport"), first], ["person_sport"]
    refuse_tasks(monkeypatch, lacking)
    heads = function_vector_heads(studies)
    assert heads["effects"].shape == (4, 4, 8)
    assert heads["left out"] == {"person_sport": "task 'person_sport': no prompt can be made"}
    lacking.append("copying")
    with pytest.raises(UnsupportedTokenizer, match="Try another separator"):
        function_vector_heads([study.replace(seed=1) for study in studies])


def test_the_probability_after_intact_demonstrations_is_that_of_the_same_prompts(tmp_path):
    study = FunctionVectorStudy(prompts=3, intact=2, folder=tmp_path)
    model, tokenizer = study.pair
    for item, probability in zip(study.corrupted.items, study.probabilities()["intact"], strict=True):
        whole, alone = (tokenizer(text).input_ids for text in (item.clean.with_label(), item.clean.text))
        with torch.no_grad():
            said = model(torch.tensor([alone])).logits[0, -1].softmax(-1)
        assert probability == pytest.approx(said[whole[len(alone)]].item(), rel=1e-4)
