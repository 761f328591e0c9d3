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

from tests.benchmarks import edge_scores, patch_map, referee
from util.models import packaged

ROOT = Path(__file__).resolve().parents[2]
PATCHES = "random GPT-2 small, 14 tokens"

PYTHON = Path(os.environ.get("ICL_ORACLES", ROOT / ".venv-oracles/bin/python"))
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs the environment that `make test-oracles` makes"),
]


def values_of(benchmark: str, contest: str, *names: str, **setting: Any) -> dict[str, np.ndarray]:
    """What contestants find in the setting of tests, each in its own process and environment."""
    found = {}
    for name in names:
        tiny = {**referee.contests(benchmark)[contest].tiny, **setting}
        with referee.started(benchmark, contest, [name], tiny) as contestants:
            found[name] = np.array(contestants[name]("value"))
    return found


@pytest.fixture(scope="module")
def loop():
    return values_of("patch_map", PATCHES, "loop of hooks")["loop of hooks"]


@pytest.mark.parametrize("library", patch_map.LIBRARIES)
def test_the_library_has_the_loops_map_and_so_have_we(library, loop):
    found = values_of("patch_map", PATCHES, "ours", library)
    assert loop.shape == (3, 4) and loop.std() > 1e-2
    np.testing.assert_allclose(found[library], loop, atol=1e-4)
    np.testing.assert_allclose(found["ours"], found[library], atol=1e-4)


def test_prefix_matching_scores_are_those_of_transformer_lens():
    found = values_of("prefix_scores", "random GPT-2 small", "scores", "TransformerLens", length=50)
    assert found["scores"].shape == (3, 4) and np.ptp(found["scores"]) > 1e-4
    np.testing.assert_allclose(found["scores"], found["TransformerLens"], atol=1e-6)


@pytest.mark.parametrize("model", ["tiny", "tiny llama"])
def test_edge_attribution_is_that_of_transformer_lens(model):
    """In float32. Theirs is by token, and its gradients are those of the corrupted run."""
    found = values_of("edge_scores", "EAP, two prompts", "ours", *edge_scores.LIBRARIES, model=model)
    ours = found["ours"]
    assert ours.shape == (16, 40) and np.abs(ours).max() > 0.1
    for library in edge_scores.LIBRARIES:
        np.testing.assert_allclose(ours, found[library], atol=1e-5 * np.abs(ours).max())


# ------------------------------------------------------------------------------------------------ a real model

REAL = "smollm2"
real = pytest.mark.skipif(
    not packaged.is_converted(packaged.place(REAL)),
    reason=f"{REAL} was not fetched yet: `make test-real`, or ICL_MODELS names where it is",
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

    from util.figures.ioi_patching.measure import heads_of, patch_map
    from util.figures.ioi_patching.show import EXAMPLE

    net, tokenizer = model
    base, source = (tokenizer(text).input_ids for text in EXAMPLE)
    answers = [tokenizer(f" {name}").input_ids[0] for name in ("Mike", "Emma")]
    first = next(t for t, (a, b) in enumerate(zip(base, source, strict=True)) if a != b)
    z = heads_of(net, torch.tensor([source]))
    ours, plain = patch_map(net, torch.tensor([base]), z, torch.tensor([answers]), first)
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
    from util.roles.head_scores import head_scores

    drawn = repeated_sequences(model[1], 25, 3, [0, 1])
    ours = head_scores(model[0], drawn)["prefix_matching"].mean(0)
    found = np.array(theirs("scores", {"ids": drawn.ids.tolist()}, tmp_path))
    assert found.shape == (30, 9) and found.max() > 0.2
    np.testing.assert_allclose(ours * 50 / 76, found, atol=1e-5)  # theirs averages over the first copy and BOS, too
