"""Head patching, induction and edge scores against TransformerLens, nnsight and pyvene, called as their documents say.

They live in an environment of their own, which `make test-oracles` makes; without it these tests are skipped. Those on
a real model want its converted folder too: they are skipped where nothing has fetched SmolLM2 yet.
"""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.benchmarks import edge_scores, patch_map, referee
from tests.clone import ROOT
from util.models import packaged

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        not (ROOT / referee.ORACLES).exists(), reason="needs the environment that `make test-oracles` makes"
    ),
]
SMOLLM2 = str(packaged.place("smollm2"))
FETCHED = pytest.mark.skipif(
    not packaged.is_converted(packaged.place("smollm2")), reason="SmolLM2 was not fetched yet: `make test-real`"
)
MAPS: list[Any] = [("tiny", library) for library in patch_map.LIBRARIES]
MAPS += [pytest.param(SMOLLM2, library, marks=FETCHED) for library in ("TransformerLens", "nnsight")]


def values_of(benchmark, contest, *names, **setting):
    """What contestants find in the setting of tests, each in its own process and environment."""
    found = {}
    for name in names:
        tiny = {**referee.contests(benchmark)[contest].tiny, **setting}
        with referee.started(benchmark, contest, [name], tiny) as contestants:
            found[name] = np.array(contestants[name]("value"))
    return found


@pytest.mark.parametrize("model, library", MAPS)
def test_the_patch_map_is_the_librarys(model, library):
    found = values_of("patch_map", "random GPT-2 small, 14 tokens", "ours", library, model=model)
    assert found["ours"].ndim == 2 and found["ours"].std() > 1e-2
    assert_allclose(found["ours"], found[library], atol=1e-4)


@pytest.mark.parametrize("model", ["tiny", pytest.param(SMOLLM2, marks=FETCHED)])
def test_prefix_matching_scores_are_those_of_transformer_lens(model):
    found = values_of("prefix_scores", "random GPT-2 small", "scores", "TransformerLens", model=model, length=25)
    assert np.ptp(found["scores"]) > 1e-4
    assert_allclose(found["scores"], found["TransformerLens"], atol=1e-6 if model == "tiny" else 1e-5)


@pytest.mark.parametrize("model", ["tiny", "tiny llama"])
def test_edge_attribution_is_that_of_transformer_lens(model):
    """In float32. Theirs is by token, and its gradients are those of the corrupted run."""
    found = values_of("edge_scores", "EAP, two prompts", "ours", *edge_scores.LIBRARIES, model=model)
    ours = found["ours"]
    assert ours.shape == (16, 40) and np.abs(ours).max() > 0.1
    for library in edge_scores.LIBRARIES:
        assert_allclose(ours, found[library], atol=1e-5 * np.abs(ours).max())
