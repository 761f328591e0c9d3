"""The references of means that the harness's interventions take."""

import pytest

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")

from tests.text_rows import as_jsonl
from util.extras.harness.model import checked_reference, means_study
from util.figures.task_study import TaskStudy
from util.study.model import Model


def test_premises_are_those_of_the_suites_own_study(tmp_path):
    as_jsonl([{"premise": f"Report {number} says that the tower is old."} for number in range(600)], tmp_path / "train")
    reference = {"reference": "mnli", "reference_prompts": 2, "reference_data": str(tmp_path)}
    wanted = TaskStudy("embedded", **reference)
    study = means_study(Model("embedded"), "arc_easy", **reference)
    assert study.own_request | {"task": ""} == wanted.own_request | {"task": ""}
    request = checked_reference(**reference)
    assert request["reference_version"] == wanted.own_request["reference_version"]
    assert str(tmp_path) not in str(request)
