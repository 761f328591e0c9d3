"""Whether a word-pair task is done: against plain transformers, and with models of which the answer is known."""

import numpy as np
import pytest
import torch

from tests import toys
from util.prompts import word_pairs
from util.roles import pair_task
from util.roles.function_vectors import TASKS
from util.roles.pair_task import PairTask
from util.stats.answers import gold_log_probability, label_mass
from util.study.model import Model

LOGIT = 8.0


@pytest.fixture(scope="module")
def toy():
    tokenizer = toys.tokenizer(on_tasks=True)
    model = toys.model("llama")
    model.resize_token_embeddings(len(tokenizer))
    return Model.given(model, tokenizer, "given:toy")


def queries(study):
    return [prompt.text[slice(*prompt.spans["x"][-1])] for prompt in study.items]


def planted(study, needs_demonstrations):
    """Logits of a model that knows all pairs, and may need intact demonstrations to say so."""
    tokenizer, known = study.pair[1], {pair.x: pair.y for pair in study._task.pairs}

    def logits(model, prompts):
        found = np.random.default_rng(0).normal(size=(len(prompts), len(tokenizer)))
        for number, ids in enumerate(prompts):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            *shown, query = text.split("\n")
            query = query.strip()
            intact = [known[x.strip()] == y.strip() for x, y in (line.split("\t") for line in shown)]
            if not needs_demonstrations or (intact and all(intact)):
                answer = tokenizer(f"{text}{known[query]}")["input_ids"][len(tokenizer(text)["input_ids"])]
                found[number, answer] += LOGIT
        return found

    return logits


@pytest.fixture
def study(tmp_path):
    return PairTask("embedded", "country_capital", folder=tmp_path)


def test_a_model_that_needs_intact_demonstrations_does_the_task(study, monkeypatch):
    monkeypatch.setattr(pair_task, "next_token_logits", planted(study, needs_demonstrations=True))
    check = study.check(candidates=len(TASKS))
    assert check.done and check.accuracy > 0.9 and check.n == len(study.items)
    assert check.over_none.low > 1 and check.over_permuted.low > 1


def test_a_model_that_needs_none_does_not_do_it_from_them(study, monkeypatch):
    monkeypatch.setattr(pair_task, "next_token_logits", planted(study, needs_demonstrations=False))
    check = study.check()
    assert check.bound > check.baseline and not check.done


def test_permuted_demonstrations_that_do_as_well_teach_nothing(study, monkeypatch):
    monkeypatch.setattr(pair_task, "next_token_logits", planted(study, needs_demonstrations=True))
    monkeypatch.setattr("util.prompts.prompt.Prompt.permuted", lambda self, seed: self)
    check = study.check()
    assert check.bound > check.baseline and check.over_none.low > 1 and not check.done


@pytest.mark.oracle
def test_answers_are_those_of_plain_transformers(toy, tmp_path):
    study = PairTask(toy, "present_past", 3, 5, seed=1, folder=tmp_path)
    found, (model, tokenizer) = study.answers(), toy.pair
    outputs = {pair.y for pair in word_pairs.find("present_past").pairs}

    @torch.no_grad()
    def log_prob(text):
        ids = tokenizer(text)["input_ids"]
        begins = {tokenizer(text + output)["input_ids"][len(ids)] for output in outputs}
        return model(torch.tensor([ids])).logits[0, -1].log_softmax(-1).numpy(), sorted(begins)

    for number, (query, prompt) in enumerate(zip(queries(study), study.items, strict=True)):
        permuted = prompt.permuted(number).text
        assert permuted != prompt.text and sorted(permuted) == sorted(prompt.text)
        texts = {"shown": prompt.text, "bare": f"{query}\t", "permuted": permuted}
        for name, text in texts.items():
            logs, begins = log_prob(text)
            np.testing.assert_allclose(found[name][number], logs[begins], atol=1e-4)
            if name == "shown":
                answer = tokenizer(text + prompt.label())["input_ids"][len(tokenizer(text)["input_ids"])]
                assert begins[found["gold"][number]] == answer
                assert found["right"][number] == (logs.argmax() == answer)


def test_no_query_is_asked_twice_and_none_that_verdicts_use(tmp_path):
    for task in TASKS:
        study = PairTask("embedded", task, prompts=1000, folder=tmp_path)
        asked = queries(study)
        assert len({*asked}) == len(asked) and {*asked} <= study._task.queries("search")
        assert study._task.list_name in ("embedded_words", "embedded_verbs", task)  # the words it was trained on
        assert [prompt.spans["y"] for prompt in study.asked["bare"]] == [()] * len(asked)
    few = PairTask("embedded", prompts=3, folder=tmp_path)
    assert queries(few) == queries(few.replace(prompts=9))[:3]


def test_the_words_are_few_and_the_rest_of_log_p_is_mass(study):
    data, check = study.answers(), study.check()
    for name in ("shown", "bare", "permuted"):
        assert data[name].shape == (len(study.items), len({*study._task.outputs}))
        assert (label_mass(data[name]) <= 1e-6).all()
        assert (gold_log_probability(data[name], data["gold"]) <= label_mass(data[name]) + 1e-6).all()
    assert check.baseline == 1 / len(study.items)
    assert check.accuracy == pytest.approx(data["right"].mean())


def test_wrong_arguments_are_refused_before_a_model_is_loaded():
    with pytest.raises(ValueError, match="unknown word-pair task 'copyng'"):
        PairTask("no such model", "copyng")
    with pytest.raises(ValueError, match="choose a smaller k"):
        PairTask("no such model", "present_past", k=1000)
