"""Scores of edges of the component graph, against hooks on named modules: one whole pass for each edge."""

from functools import partial

import numpy as np
import pytest
import torch

from tests import architectures
from tests.scores import slow_paths
from tests.scores.slow_edges import SlowCircuit, SlowEdges, difference
from tests.tiers import quick
from tests.unloaded import no_pass
from util.engine.components import UnsupportedModel, blocks_of
from util.engine.handshake import prepare
from util.engine.replay import row_bytes
from util.scores import attribution
from util.scores.attribution import edge_scores, model_graph
from util.scores.exact import circuit_metrics, exact_scores, path_effects, stream_effects

SLOW = ("llama", "mistral", "granite", "qwen2", "olmo2", "phi")
CLASSES = quick(["gpt2"], ["gemma2", *SLOW])
BASE = torch.tensor([[5, 9, 33, 71, 2, 60, 44], [8, 8, 90, 12, 55, 3, 17]])
SOURCE = torch.tensor([[5, 9, 33, 20, 2, 13, 44], [8, 8, 90, 40, 55, 81, 17]])
ANSWERS = torch.tensor([[5, 9], [7, 20]])
PAIR = (BASE, SOURCE, ANSWERS)


@pytest.fixture(autouse=True)
def wide(wide_softmax):
    """Softmax in float64, with `wide_norms`: many classes compute these in float32 whatever the model's dtype is."""


def wide_norms(model):
    """Norms that are computed in float64, as the rest of a float64 model is."""
    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            module.forward = _wide_norm(module)
    return model


def _wide_norm(module):
    epsilon = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    one = float("Gemma" in type(module).__name__)

    def forward(x):
        return (module.weight + one) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)

    x = torch.randn(3, len(module.weight), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(forward(x), module(x), atol=1e-5, rtol=1e-5)
    return forward


def model_of(name, shared=False):
    """A tiny float64 model; shared: two heads share keys and values, which hooks cannot tell apart."""
    options = {} if name == "gpt2" else {"num_key_value_heads": 2 if shared else 4}
    model = wide_norms(architectures.build(name, torch.float64, **options))
    prepare(model)
    return model


def edges(model):
    return [tuple(map(int, edge)) for edge in np.argwhere(model_graph(model).edges)]


def picked(scores, wanted):
    """The scores [N, E] of some edges out of all [N, U, V]."""
    return torch.stack([scores[:, sender, reader] for sender, reader in wanted], 1)


def slope(slow, edge, step=1e-4):
    """How fast the metric falls, by central differences of an order that leaves an error of step^4."""
    near, far = ((slow.effect(*edge, size) - slow.effect(*edge, -size)) / (2 * size) for size in (step, 2 * step))
    return (4 * near - far) / 3


@pytest.mark.parametrize("name", CLASSES)
def test_scores_and_circuits_equal_whole_passes(name):
    """Exact scores of every second edge, slopes of some by finite differences, and circuits reader by reader."""
    model = model_of(name)
    slow, every = SlowCircuit(model, *PAIR), edges(model)
    assert len(every) == (250 if name == "phi" else 262)  # 3 layers of 4 heads
    wanted = every[::2]
    theirs = torch.stack([slow.effect(*edge) for edge in wanted], 1)
    assert theirs.abs().max() > 0.5
    few = 40 * row_bytes(model, 7, 7)
    for budget in (few, attribution.BUDGET):
        assert (exact_scores(model, *PAIR, wanted, budget=budget) - theirs).abs().max() < 1e-10
    slopes = torch.stack([slope(slow, edge) for edge in wanted[::3]], 1)
    for budget in (1, attribution.BUDGET):
        assert (picked(edge_scores(model, *PAIR, budget=budget), wanted[::3]) - slopes).abs().max() < 1e-8
    generator = torch.Generator().manual_seed(0)
    circuits = torch.stack([torch.rand(16, 40, generator=generator) < share for share in (0, 0.3, 0.97, 1)])
    theirs = torch.stack([slow.circuit(circuit) for circuit in circuits])
    assert (circuit_metrics(model, *PAIR, circuits) - theirs).abs().max() < 1e-10


WRITERS = {  # whose outputs attention and the MLP of a layer add to the stream
    "gpt2": ("attn", "mlp"),
    "llama": ("self_attn", "mlp"),
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "falcon_7b": ("self_attention", "mlp"),
}


@pytest.mark.parametrize("name", [*WRITERS])
def test_streams_of_the_source_have_the_effects_of_hooks(name):
    """A hook keeps what a module gives in a run of the source; another puts it, at one token, into one of the base."""
    model = model_of(name)
    layers = model.base_model.h if hasattr(model.base_model, "h") else model.base_model.layers
    modules = [*layers, *(getattr(layer, part) for part in WRITERS[name] for layer in layers)]

    def hooked(module, change):
        """Inside it what a module gives, or a layer is given, goes through `change`."""

        def before(_, given):
            return (change(given[0]), *given[1:])

        def after(_, __, out):
            return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

        return module.register_forward_pre_hook(before) if module in layers else module.register_forward_hook(after)

    base, slow = difference(model, BASE, ANSWERS), torch.zeros(3, 3, *BASE.shape, dtype=torch.float64)
    for number, module in enumerate(modules):
        kept: list[torch.Tensor] = []
        with hooked(module, lambda stream, kept=kept: kept.append(stream.clone()) or stream):
            difference(model, SOURCE, ANSWERS)
        for token, value in enumerate(kept[0].unbind(1)):
            place = torch.tensor([token]), value[:, None]
            with hooked(module, lambda stream, place=place: stream.index_copy(1, *place)):
                slow[number // 3, number % 3, :, token] = difference(model, BASE, ANSWERS) - base
    for budget in (40 * row_bytes(model, 7, 7), attribution.BUDGET):
        effects, plain = stream_effects(model, *PAIR, budget=budget)
        assert (effects - slow).abs().max() < 1e-10 and (plain - base).abs().max() < 1e-10
    assert (slow[..., :3] == 0).all() and slow.abs().amax((1, 2, 3)).min() > 0.1


@pytest.mark.parametrize("name", quick(["llama"], ["gemma2"]))
def test_heads_that_share_keys_and_values_are_readers_of_their_own(name):
    shared = model_of(name, shared=True)
    own = wide_norms(slow_paths.with_own_keys(shared))
    prepare(own)
    wanted = edges(shared)
    assert (shared(BASE).logits - own(BASE).logits).abs().max() < 1e-10
    assert (exact_scores(shared, *PAIR, wanted) - exact_scores(own, *PAIR, wanted)).abs().max() < 1e-10
    assert (edge_scores(shared, *PAIR) - edge_scores(own, *PAIR)).abs().max() < 1e-10
    kept = torch.rand(3, 16, 40, generator=torch.Generator().manual_seed(0)) < 0.7
    assert (circuit_metrics(shared, *PAIR, kept) - circuit_metrics(own, *PAIR, kept)).abs().max() < 1e-10


@torch.no_grad()
def test_a_map_beside_the_last_one_takes_a_pass_for_each_head():
    """A low-rank adapter: queries have two ways from the stream, so no map's columns tell all of them."""
    model = model_of("llama")
    wanted = edges(model)[::20]
    edge_scores(model, *PAIR)  # the columns of the maps that are replaced are known
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    slow = SlowEdges(model, *PAIR)
    theirs = torch.stack([slope(slow, edge) for edge in wanted], 1)
    assert (picked(edge_scores(model, *PAIR), wanted) - theirs).abs().max() < 1e-8


class Adapted(torch.nn.Module):
    """A linear map with a low-rank one beside it."""

    def __init__(self, whole):
        super().__init__()
        self.whole = whole
        self.down, self.up = (torch.nn.Linear(*shape, bias=False).double() for shape in ((64, 3), (3, 64)))

    def forward(self, x):
        return self.whole(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "gpt_oss", "bloom", "falcon_7b", "glm4"])
def test_other_classes_give_what_a_pass_for_each_head_gives(name, monkeypatch):
    """In float32, because experts need it. Where keys pass a map of latents by, no columns are taken."""
    model = architectures.prepared(name)
    fast = edge_scores(model, *PAIR)
    monkeypatch.setattr(attribution, "_columns", lambda *_: None)
    assert (edge_scores(model, *PAIR) - fast).abs().max() < 1e-3 * fast.abs().max()


@pytest.mark.parametrize("name", quick(["gpt2"], ["gemma2", "phi"]))
def test_integrated_gradients_along_inputs_are_means_of_slopes(name):
    model = model_of(name)
    slow, wanted = SlowEdges(model, *PAIR), edges(model)[::16]
    base, source = (written["input"][0] for written in slow.writes)
    theirs = torch.zeros(2, len(wanted), dtype=torch.float64)
    for share in (0, 1 / 3, 2 / 3):
        with slow.starting_from(torch.lerp(source, base, share)):
            theirs += torch.stack([slope(slow, edge) for edge in wanted], 1) / 3
    ours = edge_scores(model, *PAIR, method="EAP-IG inputs", steps=3)
    assert (picked(ours, wanted) - theirs).abs().max() < 1e-8


ALL = torch.ones(1, 16, 40, dtype=torch.bool)
MANY = SOURCE + 5000 * (SOURCE == 20)
SHORTER = (BASE, SOURCE[:, 1:], ANSWERS)
WRONG = [
    (edge_scores, SHORTER, "as many tokens as its base prompt"),
    (exact_scores, (*SHORTER, [(0, 0)]), "as many tokens as its base prompt"),
    (circuit_metrics, (*SHORTER, ALL), "as many tokens as its base prompt"),
    (edge_scores, (BASE, SOURCE, ANSWERS[:1]), r"give \[2, 2\]"),
    (edge_scores, (BASE, -SOURCE, ANSWERS), "token ids are integers from 0 on"),
    (edge_scores, (BASE, MANY, ANSWERS), "has the token 5020"),
    (edge_scores, (*PAIR, "EAP-IG"), "EAP-IG inputs"),
    (edge_scores, (*PAIR, "EAP-IG inputs", 0), "1 step or more"),
    *((exact_scores, (*PAIR, [edge]), "there is no edge at") for edge in ((5, 0), (0, 40), (16, 39), (-1, 3))),
    (exact_scores, (*PAIR, []), "at least one"),
    (circuit_metrics, (*PAIR, ALL[:, :, 1:]), r"\(16, 40\)"),
    (circuit_metrics, (*PAIR, ALL.float()), "torch.float32"),
]


@pytest.mark.parametrize("function, arguments, message", WRONG)
def test_what_does_not_fit_is_refused_before_any_pass(function, arguments, message):
    model = model_of("llama")
    blocks_of(model)
    with no_pass(), pytest.raises(ValueError, match=message):
        function(model, *arguments)


@pytest.mark.parametrize("measure", [edge_scores, partial(path_effects, heads=[(0, 1)])])
def test_a_class_without_plain_sums_is_refused(measure):
    model = architectures.prepared("qwen3_next")
    with pytest.raises(UnsupportedModel, match="no attention"):
        measure(model, *PAIR)
