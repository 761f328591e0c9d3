"""What tests of the harness share: models, and quiet runs of the harness on the suite's tasks."""

from __future__ import annotations

import numpy as np
import pytest

from util.study.model import Model


@pytest.fixture(scope="session")
def wide():
    """The embedded model in float64."""
    return Model("embedded", dtype="float64", device="cpu", verbose=False)


@pytest.fixture
def counted(monkeypatch):
    """The number of rows of each forward pass that the harness makes."""
    from lm_eval.models.huggingface import HFLM

    call, rows = HFLM._model_call, []

    def counting(self, inps, *arguments):
        rows.append(len(inps))
        return call(self, inps, *arguments)

    monkeypatch.setattr(HFLM, "_model_call", counting)
    return rows


class Request:
    """What the harness asks of a model."""

    def __init__(self, *args, task="icl_wordseq1"):
        self.args, self.task_name = args, task


def harness_run(lm, tasks, k, limit, seed=42):
    """What the harness makes of one task or several. Its `simple_evaluate` does the same and adds slow reports."""
    from lm_eval.evaluator import evaluate

    from util.extras.harness.tasks import manager

    loaded = manager().load(tasks if isinstance(tasks, list) else [tasks])
    for task in loaded["tasks"].values():
        task.set_config("num_fewshot", k)
        task.set_fewshot_seed(seed)
    return evaluate(lm, loaded, limit=limit, bootstrap_iters=0)


def log_probs(results):
    """The log-probability of each label of each query, [N, C], of the one task that was run."""
    (samples,) = results["samples"].values()
    return np.array([[answer[0][0] for answer in sample["resps"]] for sample in samples])
