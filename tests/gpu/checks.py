"""Checks of the suite on a GPU, and a report that is made to be pasted into an issue.

    python -m tests.gpu.checks [--device cuda]

`make test-gpu` runs it. Every check measures something and compares it with a bound that stands beside it. What could
not run is listed with the reason. With `--device cpu` it is a rehearsal: the same code, without a GPU.

    float32     what a model gives on the device and on the CPU, TF32 off: the largest difference
    bfloat16    a model in bfloat16 on the device, and the same weights in float32 on the CPU: the mean difference
    memory      a batch that does not fit is halved, and gives what it gives whole
    marked      the tests that are marked `gpu`: weights in 4 bits, models that are spread or offloaded

All differences are shares of the largest number that is compared (of 1 at least).
"""

import argparse
import platform
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import accelerate
import bitsandbytes
import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from tests import architectures, device_runs
from util.engine.batches import Batch, run_rows
from util.engine.handshake import prepare
from util.engine.label_scores import next_logits

MODELS = ("llama", "gpt2", "gemma2", "mixtral")
FLOAT32, BFLOAT16, HALVED = 1e-4, 5e-2, 1e-5  # bounds
CHUNK = 100 * 2**20  # bytes that a row takes while memory is short
NO_GPU = (
    "No CUDA device here, so nothing was run. What is checked without one: make test TESTS=tests/fake_gpu NOTEBOOKS= "
    "(devices, dtypes and copies, on fake GPUs)."
)


@dataclass(frozen=True)
class Outcome:
    """What came of a check: what was measured and its bound, None where there is none; or why it could not run."""

    name: str
    measured: float = float("nan")
    bound: float | None = None
    not_run: str = ""
    failed: str = ""

    @property
    def good(self) -> bool:
        """Whether it ran and held, or had nothing to hold. What was not run is not counted as bad."""
        return not self.failed and (bool(self.not_run) or self.bound is None or self.measured <= self.bound)


def gap(ours: Any, theirs: Any, reduce: Callable[[Any], Any] = np.nanmax) -> float:
    """A difference of two tensors or arrays, as a share of the largest number (of 1 at least)."""
    one, other = (
        numbers.detach().double().cpu().numpy() if isinstance(numbers, Tensor) else np.asarray(numbers, np.float64)
        for numbers in (ours, theirs)
    )
    return float(reduce(np.abs(one - other)) / max(1.0, np.nanmax(np.abs(other))))


@cache
def built(name: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A tiny model of this dtype on a device; its weights are those of float32, rounded."""
    model = architectures.build(name, dtype).to(device)
    prepare(model)
    return model


@cache
def reference(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights in float32 on the CPU."""
    model = architectures.build(name, dtype).to(torch.float32)
    prepare(model)
    return model


def worst(run: device_runs.Run, model: PreTrainedModel, other: PreTrainedModel, reduce: Any) -> float:
    """The largest of the gaps of all that a run gives."""
    ours, theirs = run(model), run(other)
    return max(gap(ours[key], theirs[key], reduce) for key in theirs if theirs[key] is not None)


# ------------------------------------------------------------------------------------------------ checks


def float32(device: str) -> Iterator[Outcome]:
    """Everything in float32, beside the CPU."""
    for run, function in (device_runs.INSTRUMENTS | device_runs.WHOLE).items():
        gaps = [
            worst(function, built(name, torch.float32, device), reference(name, torch.float32), np.nanmax)
            for name in MODELS[:3]  # a mixture of experts may send a token to another expert
        ]
        yield Outcome(f"float32: {run}", max(gaps), FLOAT32)


def bfloat16(device: str) -> Iterator[Outcome]:
    """Instruments and what averages over them in bfloat16, beside float32."""
    for run in (*device_runs.INSTRUMENTS, "replay", "label scores", "means"):
        function = (device_runs.INSTRUMENTS | device_runs.WHOLE)[run]
        gaps = [
            worst(function, built(name, torch.bfloat16, device), reference(name, torch.bfloat16), np.nanmean)
            for name in MODELS
        ]
        yield Outcome(f"bfloat16: {run}", max(gaps), BFLOAT16)


def memory(device: str) -> Iterator[Outcome]:
    """Each row of a batch takes CHUNK bytes while two and a half of them are free: batches of four are halved."""
    model = built("llama", torch.float32, device)
    rows = device_runs.rows(8)
    logits: dict[str, np.ndarray] = {}
    halved: dict[str, bool] = {}
    for name in ("whole", "halved"):
        found = np.empty((len(rows), architectures.VOCABULARY), np.float32)

        def visit(batch: Batch, short: bool = name == "halved", found: np.ndarray = found) -> None:
            if short:
                take(device, len(batch.numbers))
            found[batch.numbers] = next_logits(model, batch).cpu().numpy()

        if device != "cpu" and name == "halved":
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2.5 * CHUNK) / total)
        try:
            halved[name] = run_rows(model, rows, visit, token_budget=4 * device_runs.TOKENS)
        finally:
            if device != "cpu":
                torch.cuda.set_per_process_memory_fraction(1.0)
        logits[name] = found
    yield Outcome("memory: batches that did not fit and were not halved", 1 - int(halved["halved"]), 0)
    yield Outcome("memory: batches that fitted and were halved", int(halved["whole"]), 0)
    yield Outcome("memory: logits of halved batches, beside whole ones", gap(logits["halved"], logits["whole"]), HALVED)


def take(device: str, rows: int) -> None:
    """Take CHUNK bytes for each row, and leave them again. On the CPU it only says whether they would be there."""
    if device == "cpu":
        if rows * CHUNK > 2.5 * CHUNK:
            raise torch.OutOfMemoryError("out of memory (rehearsed)")
        return
    torch.empty(rows * CHUNK, dtype=torch.uint8, device=device)


def marked(device: str) -> Iterator[Outcome]:
    """The tests that are marked `gpu`, run by pytest."""
    if device == "cpu":
        yield Outcome("tests marked gpu", not_run="a rehearsal has no GPU")
        return
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    last = (done.stdout.strip().splitlines() or ["pytest said nothing"])[-1]
    failed = "" if done.returncode == 0 else last
    yield Outcome(f"tests marked gpu ({last})", done.returncode, 0, failed=failed)
    for line in done.stdout.splitlines():
        if line.startswith("SKIPPED"):
            yield Outcome("a test marked gpu", not_run=line)


CHECKS = {"float32": float32, "bfloat16": bfloat16, "memory": memory, "marked": marked}


# ------------------------------------------------------------------------------------------------ the report


def outcomes(device: str) -> list[Outcome]:
    """What came of all checks; one that raises does not keep the others from running."""
    found: list[Outcome] = []
    for name, check in CHECKS.items():
        try:
            for outcome in check(device):
                found.append(outcome)
                print(row(outcome), file=sys.stderr, flush=True)
        except Exception as error:  # noqa: BLE001  # whatever it is belongs into the report
            traceback.print_exc()
            found.append(Outcome(f"{name}: the rest of this check", failed=f"{type(error).__name__}: {error}"))
    return found


def row(outcome: Outcome) -> str:
    """A line of the report's table; what was not run or failed says why."""
    bound = "" if outcome.bound is None else f"{outcome.bound:g}"
    verdict = "recorded" if outcome.bound is None else "good" if outcome.good else "FAILED"
    if outcome.not_run or outcome.failed:
        verdict = f"not run: {outcome.not_run}" if outcome.not_run else f"FAILED: {outcome.failed}"
    return f"| {outcome.name} | {outcome.measured:.2g} | {bound} | {verdict} |"


def report(device: str, outcomes: list[Outcome]) -> str:
    """The report as one block of Markdown: the machine and the versions, what came of each check."""
    cards = [] if device == "cpu" else [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    machine = [*cards, f"CUDA {torch.version.cuda}"] if cards else ["a rehearsal on the CPU: no GPU was used"]
    packages = [f"{module.__name__} {module.__version__}" for module in (torch, transformers, accelerate, bitsandbytes)]
    about = [*machine, platform.processor() or platform.machine(), f"Python {platform.python_version()}", *packages]
    bad, left_out = (sum(1 for _ in filter(wanted, outcomes)) for wanted in (lambda o: not o.good, lambda o: o.not_run))
    lines = ["## GPU checks", "", *(f"- {entry}" for entry in about), ""]
    lines += [f"{len(outcomes) - left_out} checks run, {bad} failed, {left_out} not run.", ""]
    return "\n".join([*lines, "| check | measured | bound | verdict |", "|---|---|---|---|", *map(row, outcomes), ""])


def main(arguments: list[str] | None = None) -> int:
    """Run all checks and print the report. Returns 1 where one failed or there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    device = parser.parse_args(arguments).device
    if device == "cuda" and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("ignore", message="Knockout: some cells were masked")
    found = outcomes(device)
    print(report(device, found))
    return int(not all(outcome.good for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
