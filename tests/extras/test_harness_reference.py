"""The references of means that the harness's interventions take."""

import json

import pytest

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")

from util.extras.harness.interventions import Reference
from util.figures.induction_scores.task_study import TaskStudy
from util.records.model import Model


def test_premises_are_those_of_the_suites_own_study(tmp_path):
    premises = [json.dumps({"premise": f"Report {number} says that the tower is old."}) for number in range(600)]
    (tmp_path / "train.jsonl").write_text("\n".join(premises))
    reference = Reference("mnli", reference_prompts=2, data=str(tmp_path))
    wanted = TaskStudy("embedded", reference="mnli", reference_prompts=2, reference_data=str(tmp_path))
    study = reference.study(Model("embedded"), "arc_easy")
    assert study.means_study.request == wanted.means_study.request
    assert Reference(**reference.arguments) == reference
    assert reference.request["reference_version"] == wanted.own_request["reference_version"]
    assert str(tmp_path) not in str(reference.request)


def test_premises_that_are_missing_are_refused_when_the_reference_is_built():
    with pytest.raises(ValueError, match="reference_data = '/nowhere': there is no"):
        Reference("mnli", data="/nowhere")
    with pytest.raises(ValueError, match="leave it out with reference 'task'"):
        Reference(data="/nowhere")


def test_requests_of_other_references_stay_as_they_were():
    task = {"source": "task", "k": None, "prompts": None, "seed": 42, "reference_prompts": 64}
    assert json.dumps(Reference().request) == json.dumps(task)
    assert Reference("staicc").request == {"source": "staicc", "reference_prompts": 64}
