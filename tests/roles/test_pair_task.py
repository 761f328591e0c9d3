"""Whether a word-pair task is done: against plain transformers, and with models of which the answer is known."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests import toys
from util.prompts import word_pairs
from util.roles.function_vectors import TASKS
from util.roles.pair_task import PairTask
from util.study.model import Model


def queries(study):
    return [prompt.texts("x")[-1] for prompt in study.items]


def made_up(**gains):
    """Answers to 40 queries; gains: by how many nats the right output is likelier than noise, by prompt."""
    rng, gold = np.random.default_rng(0), np.arange(40) % 20
    found = {name: rng.normal(size=(40, 20)) + gain * np.eye(20)[gold] for name, gain in gains.items()}
    return {"gold": gold, "right": np.full(40, True), **found}


@pytest.mark.parametrize("bare, permuted", [(0, 0), (8, 0), (0, 8), (8, 8)])
def test_a_task_is_done_where_intact_demonstrations_alone_teach_it(bare, permuted, monkeypatch):
    monkeypatch.setattr(PairTask, "answers", lambda self: made_up(shown=8, bare=bare, permuted=permuted))
    check = PairTask("embedded", "country_capital").check(candidates=len(TASKS))
    assert check.done == (bare == permuted == 0) and check.bound > check.baseline == 1 / 20
    assert (check.over_none.low > 1, check.over_permuted.low > 1) == (bare == 0, permuted == 0)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["bpe", "bpe-no-bos"])
def test_answers_are_those_of_plain_transformers(kind, toy, tmp_path):
    """BOS stands first whether or not the tokenizer puts it there."""
    model, tokenizer = toy.pair[0], toys.tokenizer(kind, on_tasks=True)
    study = PairTask(Model.given(model, tokenizer, "given:toy"), "present_past", 3, 5, seed=1, folder=tmp_path)
    found, outputs = study.answers(), {pair.y for pair in word_pairs.find("present_past").pairs}

    def tokens(text):
        return [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]

    for number, (query, prompt) in enumerate(zip(queries(study), study.items, strict=True)):
        permuted = prompt.permuted(number).text
        assert permuted != prompt.text and sorted(permuted) == sorted(prompt.text)
        for name, text in {"permuted": permuted, "bare": f"{query}\t", "shown": prompt.text}.items():
            ids = tokens(text)
            logs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1).numpy()
            begins = sorted({tokens(text + output)[len(ids)] for output in outputs})
            assert_allclose(found[name][number], logs[begins], atol=1e-4)
        answer = tokens(text + prompt.label())[len(ids)]
        assert begins[found["gold"][number]] == answer and found["right"][number] == (logs.argmax() == answer)


def test_no_query_is_asked_twice_and_none_that_verdicts_use(tmp_path):
    study = PairTask("embedded", "present_past", prompts=1000, folder=tmp_path)
    asked = queries(study)
    assert len({*asked}) == len(asked) and {*asked} <= study._task.queries("search")
    assert study._task.list_name == "embedded_verbs"  # the words that the model was trained on
    assert [prompt.spans["y"] for prompt in study.asked["bare"]] == [()] * len(asked)
    few = PairTask("embedded", prompts=3, folder=tmp_path)
    assert queries(few) == queries(few.replace(prompts=9))[:3]
