"""Labels of several tokens: the sum of their log-probabilities, against a whole pass for each label."""

from pathlib import Path

import pytest
import torch

from tests.real_model.conftest import NAME, Subject
from util.figures.induction_scores.edits import WHOLE
from util.figures.induction_scores.task_study import TaskStudy
from util.prompts import classification
from util.study.model import Model

TASK, K, ITEMS, SEED = "repetition", 2, 2, 42


@pytest.mark.parametrize("labels", [None, ("A", "lexicographer")])
def test_labels_are_scored_as_by_a_whole_pass_for_each(
    real: Subject, labels: tuple[str, ...] | None, tmp_path: Path
) -> None:
    study = TaskStudy(Model.given(*real.pair, NAME), TASK, K, ITEMS, SEED, labels=labels, folder=tmp_path)
    ours = study.answers({"whole": WHOLE})["whole"]
    task = classification.task(TASK)
    task = task if labels is None else classification.relabelled(task, labels)
    theirs, lengths = [], set()
    for prompt in classification.prompts(task, K, SEED, ITEMS):
        before = len(real.tokenizer(prompt.text).input_ids)
        for label in prompt.labels:
            ids = real.tokenizer(f"{prompt.text}{prompt.label_join}{label}").input_ids
            with torch.no_grad():
                said = real.twin(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
            theirs.append(sum(float(said[t - 1, ids[t]]) for t in range(before, len(ids))))
            lengths.add(len(ids) - before)
    assert max(lengths) > 1
    real.check("labels' log-probabilities", ours.log_prob.flatten(), theirs)
    gold = [prompt.gold for prompt in classification.prompts(task, K, SEED, ITEMS)]
    assert ours.gold.tolist() == gold
