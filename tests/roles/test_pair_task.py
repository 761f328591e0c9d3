"""Whether a word-pair task is done: against plain transformers, and with models of which the answer is known."""

import numpy as np
import pytest
import torch

from util.prompts import word_pairs
from util.roles import pair_task
from util.roles.function_vectors import TASKS
from util.roles.pair_task import PairTask

LOGIT = 8.0


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


@pytest.mark.parametrize(
    ("needs_demonstrations", "permuted", "done"),
    [(True, True, True), (False, True, False), (True, False, False)],
    ids=["needs intact demonstrations", "needs none", "permuted ones do as well"],
)
def test_a_task_is_done_where_intact_demonstrations_alone_teach_it(
    study, monkeypatch, needs_demonstrations, permuted, done
):
    monkeypatch.setattr(pair_task, "next_token_logits", planted(study, needs_demonstrations))
    if not permuted:
        monkeypatch.setattr("util.prompts.prompt.Prompt.permuted", lambda self, seed: self)
    check = study.check(candidates=len(TASKS))
    assert check.done == done and check.bound > check.baseline == 1 / len(study.items)
    assert (check.over_none.low > 1, check.over_permuted.low > 1) == (
        needs_demonstrations,
        needs_demonstrations and permuted,
    )


@pytest.mark.oracle
def test_answers_are_those_of_plain_transformers(toy, tmp_path):
    study = PairTask(toy, "present_past", 3, 5, seed=1, folder=tmp_path)
    found, (model, tokenizer) = study.answers(), toy.pair
    outputs = {pair.y for pair in word_pairs.find("present_past").pairs}
    for number, (query, prompt) in enumerate(zip(queries(study), study.items, strict=True)):
        permuted = prompt.permuted(number).text
        assert permuted != prompt.text and sorted(permuted) == sorted(prompt.text)
        for name, text in {"permuted": permuted, "bare": f"{query}\t", "shown": prompt.text}.items():
            ids = tokenizer(text)["input_ids"]
            with torch.no_grad():
                logs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1).numpy()
            begins = sorted({tokenizer(text + output)["input_ids"][len(ids)] for output in outputs})
            np.testing.assert_allclose(found[name][number], logs[begins], atol=1e-4)
        answer = tokenizer(text + prompt.label())["input_ids"][len(ids)]
        assert begins[found["gold"][number]] == answer and found["right"][number] == (logs.argmax() == answer)


def test_no_query_is_asked_twice_and_none_that_verdicts_use(tmp_path):
    study = PairTask("embedded", "present_past", prompts=1000, folder=tmp_path)
    asked = queries(study)
    assert len({*asked}) == len(asked) and {*asked} <= study._task.queries("search")
    assert study._task.list_name == "embedded_verbs"  # the words that the model was trained on
    assert [prompt.spans["y"] for prompt in study.asked["bare"]] == [()] * len(asked)
    few = PairTask("embedded", prompts=3, folder=tmp_path)
    assert queries(few) == queries(few.replace(prompts=9))[:3]


def test_wrong_arguments_are_refused_before_a_model_is_loaded():
    with pytest.raises(ValueError, match="unknown word-pair task 'copyng'"):
        PairTask("no such model", "copyng")
    with pytest.raises(ValueError, match="choose a smaller k"):
        PairTask("no such model", "present_past", k=1000)
