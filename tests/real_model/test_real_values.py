"""Numbers that are committed for SmolLM2, data/values/smollm2/, measured again: 20 of each array, chosen by a hash.

By hooks and eager attention where one pass is enough (`plain`), otherwise by a direct call of the suite. What is a mean
over hundreds of prompts would take as long as the notebook did, and is not measured again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.real_model import plain
from tests.real_model.conftest import NAME, Subject
from util import paths
from util.load_model_and_data import untrained_twin
from util.prompts.sequences import Sequences, repeated_sequences
from util.roles.attention_scores import uniform_prefix_matching
from util.show import files

CELLS = 20
ROUNDED = 6e-7  # values are written with six decimals
SCALE = {"patched": "scores", "permuted": "scores"}  # changes are as exact as the logit differences that change
NOT_AGAIN = ("untrained",)  # of 128 prompts on another model
FOLDER = paths.root() / "data" / "values" / paths.model_folder(NAME)

Place = tuple[str | int, ...]
Again = Callable[[Place], float]  # where in an array -> the number measured again
Figure = tuple[str, dict[str, Any], dict[str, Again]]  # stem, values, what measures them again

# ------------------------------------------------------------------------------------------------ arrays and cells


def numbers(stored: Any) -> list[Place]:
    """Where the numbers of an array, a list of lists or a dictionary of those are."""
    if isinstance(stored, dict):
        return [(key, *rest) for key, value in stored.items() for rest in numbers(value)]
    if isinstance(stored, list):
        return [(i, *rest) for i, value in enumerate(stored) for rest in numbers(value)]
    return [()] if isinstance(stored, int | float) and not isinstance(stored, bool) else []


def drawn(stored: Any, what: str) -> list[Place]:
    """CELLS of them, chosen by a hash of the array's name and the place."""
    return sorted(numbers(stored), key=lambda place: hashlib.sha256(f"{what} {place}".encode()).hexdigest())[:CELLS]


def at(stored: Any, place: Place) -> Any:
    for step in place:
        stored = stored[step]
    return stored


# ------------------------------------------------------------------------------------------------ induction_scores


def sequences(real: Subject, request: dict[str, Any]) -> Sequences:
    seeds = range(request["seed"], request["seed"] + request["sequences"])
    return repeated_sequences(real.tokenizer, request["length"], request["copies"], seeds, request["bos"])


def eager_scores(twin: Any, found: Sequences) -> np.ndarray:
    """Mean prefix-matching scores [L, H], read off eager attention matrices."""
    total: Any = 0.0
    start = found.bos + found.length
    for row in found.ids.tolist():
        with torch.no_grad():
            weights = torch.stack(twin(torch.tensor([row]), use_cache=False, output_attentions=True).attentions)[:, 0]
        cells = [(q, key + 1) for q in range(start, len(row)) for key in range(found.bos, q) if row[key] == row[q]]
        queries, keys = torch.tensor(cells).T
        total = total + weights[:, :, queries, keys].double().sum(-1) / (len(row) - start)
    return np.asarray(total / len(found.ids))


def again_induction(real: Subject, stored: dict[str, Any]) -> dict[str, Again]:
    request = stored["request"]

    @cache
    def attention() -> np.ndarray:
        return eager_scores(real.twin, sequences(real, request))

    @cache
    def untrained() -> np.ndarray:
        return eager_scores(plain.eager(untrained_twin(real.model, 0)), sequences(real, request))

    uniform = uniform_prefix_matching(request["length"], request["copies"], request["bos"])
    return {
        "scores/mean": lambda place: float(attention()[place]),
        "scores/untrained": lambda place: float(untrained()[place]),
        "scores/uniform": lambda place: uniform,
    }


# ------------------------------------------------------------------------------------------------ ioi_patching


def again_ioi(real: Subject, stored: dict[str, Any]) -> dict[str, Again]:
    request = stored["request"]
    base, source = (real.tokenizer(text, return_tensors="pt").input_ids for text in request["texts"])
    answer, other = (real.tokenizer(f" {name}").input_ids[0] for name in request["names"])
    first = int((base != source)[0].nonzero()[0])

    def difference(logits: Tensor) -> float:
        return float(logits[0, -1, answer] - logits[0, -1, other])

    @cache
    def run(which: str) -> tuple[float, dict[int, Tensor]]:
        ids = base if which == "base" else source
        with torch.no_grad():
            return difference(real.twin(ids, use_cache=False).logits), plain.outputs(real.twin, ids)

    def patched(place: Place) -> float:
        def value(layer: int, head: int, own: Tensor) -> Tensor:
            return torch.cat([own[:, :first], run("source")[1][layer][:, first:, head]], dim=1)

        return difference(plain.with_heads(real.twin, base, [place], value)) - run("base")[0]  # type: ignore[list-item]

    def permuted(place: Place) -> float:
        def value(layer: int, head: int, own: Tensor) -> Tensor:
            flat = own[0].flatten()  # tokens, then dimensions
            order = np.random.default_rng((request["seed"], layer, head)).permutation(len(flat))
            return flat[torch.from_numpy(order)].view_as(own)

        return difference(plain.with_heads(real.twin, base, [place], value)) - run("base")[0]  # type: ignore[list-item]

    return {
        "scores": lambda place: run(("base", "source")[int(place[0])])[0],
        "patched": patched,
        "permuted": permuted,
    }


# ------------------------------------------------------------------------------------------------ forerunner_heads


# ------------------------------------------------------------------------------------------------ the comparison

AGAIN: dict[str, Callable[..., dict[str, Again]]] = {
    "induction_scores": again_induction,
    "ioi_patching": again_ioi,
}


def stored_values(stem: str) -> dict[str, Any]:
    file = FOLDER / f"{stem}.json"
    if not file.exists():
        pytest.skip(f"{file.relative_to(paths.root())} is not there: `make figures MODEL={NAME}` writes it")
    values = files.read_values(file)
    assert values["request"]["model"] == NAME and (values["request"].get("figure") or values["request"]["stem"]) == stem
    return values


@pytest.fixture(scope="module", params=sorted(AGAIN))
def figure(request: Any, real: Subject) -> Figure:
    values = stored_values(request.param)
    return request.param, values, AGAIN[request.param](real, values)


def test_stored_numbers_are_measured_again(figure: Figure) -> None:
    stem, values, rules = figure
    for name, measure in rules.items():
        array = at(values, tuple(name.split("/")))
        if isinstance(array, dict):
            array = {key: value for key, value in array.items() if key not in NOT_AGAIN}
        places = drawn(array, f"{stem} {name}")
        mine = np.array([measure(place) for place in places])
        theirs = np.array([at(array, place) for place in places], float)
        assert len(places) == min(CELLS, len(numbers(array))) > 0
        scale = at(values, tuple(SCALE.get(name, name).split("/")))
        gap, largest = float(np.abs(mine - theirs).max()), max(abs(at(scale, place)) for place in numbers(scale))
        print(f"{stem}, {name}: {len(places)} cells, largest difference {gap:.1e} of {largest:.3g}")
        assert gap <= 1e-5 * largest + ROUNDED, f"{stem}, {name}: largest difference {gap:.2e} of {largest:.3g}"
