"""Head patching, induction and edge scores against TransformerLens, nnsight and pyvene, called as their documents say.

They live in an environment of their own, which `make test-oracles` makes; without it these tests are skipped. Those on
a real model want its converted folder too: they are skipped where nothing has fetched SmolLM2 yet.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import bench_component_scores, bench_edges, bench_induction, bench_ioi
from util.models import packaged

ROOT = Path(__file__).resolve().parents[2]

PYTHON = Path(os.environ.get("ICL_ORACLES", ROOT / ".venv-oracles/bin/python"))
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs the environment that `make test-oracles` makes"),
]


@pytest.fixture(scope="module")
def loop():
    return bench_ioi.maps(str(PYTHON), "tiny", ("naive",))["naive"]


@pytest.mark.parametrize("library", bench_ioi.OPPONENTS)
def test_the_library_has_the_loops_map_and_so_have_we(library, loop):
    found = bench_ioi.maps(str(PYTHON), "tiny", ("ours", library))
    assert loop.shape == (3, 4) and loop.std() > 1e-2
    np.testing.assert_allclose(found[library], loop, atol=1e-4)
    np.testing.assert_allclose(found["ours"], found[library], atol=1e-4)


def test_prefix_matching_scores_are_those_of_transformer_lens():
    theirs, ours = bench_induction.scores_of(str(PYTHON), "tiny")
    assert theirs.shape == (3, 4) and np.ptp(theirs) > 1e-4
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("shape", ["tiny", "tiny llama"])
def test_edge_attribution_is_that_of_transformer_lens(shape):
    """In float32. Theirs is by token, and its gradients are those of the corrupted run."""
    found = bench_component_scores.values_of(str(PYTHON), ("ours", *bench_component_scores.OPPONENTS), shape, 2)
    ours = found["ours"]
    assert ours.shape == (16, 40) and np.abs(ours).max() > 0.1
    for library in bench_component_scores.OPPONENTS:
        np.testing.assert_allclose(ours, found[library], atol=1e-5 * np.abs(ours).max())


def test_contestants_of_the_edge_benchmark_find_the_same():
    found = bench_edges.values_of("tiny")
    np.testing.assert_allclose(found["sdpa"], found["plain"], atol=1e-4)
    np.testing.assert_allclose(found["two_pass"], found["lock_step"], atol=1e-4)
    assert all(np.abs(found[name] - found["plain"]).max() > 1e-2 for name in ("lock_step", "single"))


# ------------------------------------------------------------------------------------------------ a real model

REAL = "smollm2"
real = pytest.mark.skipif(
    not packaged.is_there(REAL), reason=f"{REAL} was not fetched yet: `make test-real`, or ICL_MODELS names where it is"
)


@pytest.fixture(scope="module")
def model() -> Any:
    from util.load_model_and_data import load_ICL_model

    return load_ICL_model(REAL, device="cpu", verbose=False)


def theirs(what: str, task: dict[str, Any], folder: Path) -> Any:
    """What a library makes of a task, see tests/oracles/real_oracles.py."""
    file = folder / "task.json"
    file.write_text(json.dumps(task))
    command = [str(PYTHON), "-m", "tests.oracles.real_oracles", what, str(packaged.place(REAL)), str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@real
@pytest.mark.parametrize("library", ["tl", "nnsight"])
def test_the_patch_map_of_a_real_model_is_the_librarys(library: str, model: Any, tmp_path: Path) -> None:
    import torch

    from util.figures.ioi_patching.patching import heads_of, patch_map
    from util.figures.ioi_patching.study import EXAMPLE

    net, tokenizer = model
    base, source = (tokenizer(text).input_ids for text in EXAMPLE)
    answers = [tokenizer(f" {name}").input_ids[0] for name in ("Mike", "Emma")]
    first = next(t for t, (a, b) in enumerate(zip(base, source, strict=True)) if a != b)
    z = heads_of(net, torch.tensor([source]))
    ours, plain, _ = patch_map(net, torch.tensor([base]), z, torch.tensor([answers]), first)
    every = [(layer, head) for layer in range(30) for head in range(9)]
    heads = sorted(every, key=lambda head: hashlib.sha256(f"{head}".encode()).hexdigest())[:12]
    heads.append(max(every, key=lambda head: abs(ours[0, *head] - plain[0])))
    task = {"base": base, "source": source, "answers": answers, "first": first, "heads": heads}
    found = np.array(theirs(library, task, tmp_path))
    assert np.abs(found - plain).max() > 0.1 * abs(plain[0])
    np.testing.assert_allclose([ours[0, *head] for head in heads], found, atol=1e-4)


@real
def test_induction_scores_of_a_real_model_are_those_of_detect_head(model: Any, tmp_path: Path) -> None:
    from util.prompts.sequences import repeated_sequences
    from util.roles.attention_scores import variants
    from util.roles.head_scores import head_scores

    drawn = repeated_sequences(model[1], 25, 3, [0, 1])
    ours = head_scores(model[0], drawn)["prefix_matching"].mean(0)
    found = np.array(theirs("scores", {"ids": drawn.ids.tolist()}, tmp_path))
    assert found.shape == (30, 9) and found.max() > 0.2
    np.testing.assert_allclose(variants(ours, 25, 3)["TransformerLens mul"], found, atol=1e-5)
