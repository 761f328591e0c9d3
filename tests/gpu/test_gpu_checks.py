"""The checks of `make test-gpu`, rehearsed on the CPU: their code runs, and a fault is reported."""

import pytest
import torch

from tests.gpu import checks
from tests.gpu.checks import NO_GPU, Outcome, main, report
from util.engine import batches


@pytest.fixture(scope="module")
def rehearsed():
    return checks.outcomes("cpu")


@pytest.mark.slow
def test_a_rehearsal_runs_every_check(rehearsed):
    names = {outcome.name.split(":")[0].split(",")[0] for outcome in rehearsed}
    assert {"float32", "bfloat16", "memory"} <= names
    assert not [outcome for outcome in rehearsed if not outcome.good]
    assert all(
        outcome.bound is None or 0 <= outcome.measured <= outcome.bound for outcome in rehearsed if not outcome.not_run
    )


@pytest.mark.slow
def test_the_report_says_that_it_is_a_rehearsal_and_what_was_left_out(rehearsed):
    text = report("cpu", rehearsed)
    assert "a rehearsal on the CPU" in text and f"torch {torch.__version__}" in text and "0 failed" in text
    left_out = [outcome for outcome in rehearsed if outcome.not_run]
    assert {outcome.name for outcome in left_out} == {"tests marked gpu"}
    assert all(f"| {outcome.name} | nan |  | not run: {outcome.not_run} |" in text for outcome in left_out)


def test_faults_are_reported_and_do_not_stop_the_rest(monkeypatch, capsys):
    def broken(device):
        yield Outcome("a number", 2.0, 1.0)
        raise ValueError("no such kernel")

    def fine(device):
        yield Outcome("another", 0.5, 1.0)

    monkeypatch.setattr(checks, "CHECKS", {"broken": broken, "fine": fine})
    assert main(["--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert "| a number | 2 | 1 | FAILED |" in said and "| another | 0.5 | 1 | good |" in said
    assert "FAILED: ValueError: no such kernel" in said and "2 failed" in said


def test_a_batch_that_is_never_halved_is_found(monkeypatch):
    monkeypatch.setattr(batches, "out_of_memory", lambda error: False)
    monkeypatch.setattr(checks, "CHECKS", {"memory": checks.memory})
    (outcome,) = checks.outcomes("cpu")
    assert not outcome.good and "out of memory" in outcome.failed


def test_without_a_gpu_it_says_so_at_once(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(checks, "outcomes", lambda device: pytest.fail("ran"))
    assert main([]) == 1
    said = capsys.readouterr().err
    assert said.strip() == NO_GPU and "make test TESTS=tests/fake_gpu" in said and "\n" not in said.strip()
