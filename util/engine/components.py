"""A model's layers taken apart: what each head and each MLP reads from the residual stream, and what it adds to it.

The stream behind the last layer is a sum: the embedding, what the heads of each layer write, and what each MLP writes.
`Components` computes each of these alone, from any hidden states, by the model's own modules. Edge patching, path
patching and direct effects are made of that.

How a class is built is found out by interventions, once for each model: whose output attention adds to the stream, and
whose the MLP; by what factor; whether the MLP reads what attention has written; whether a norm stands between heads and
stream. All layers, put together from their parts, must then give the model's hidden states; else the class is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from util.engine.attention import PREPARED, head_writes, input_device, instrument, once, random_ids, support
from util.engine.call import Call, LayerCall, Stop, UnsupportedModel, first_of, in_place_of, recorded, take
from util.engine.finite import check_finite
from util.engine.handshake import FAILURES, check_ids, check_length, is_coarse, out_of_memory, prepare, tolerance
from util.engine.instruments import CaptureCalls, CaptureHeads
from util.engine.replay import SHORT, Runs, plan_of


@dataclass(frozen=True, eq=False)
class Block:
    """How a layer is built: stream + factor * attention's output, + factor * the MLP's output.

    attention, mlp: the modules whose outputs are added; projection: the linear module that all heads' outputs z go
    through; normed: whether `attention` is a norm on the projection's output, else both outputs are equal; parallel:
    whether the MLP reads what attention reads, else it reads what attention has added too.
    """

    attention: nn.Module
    mlp: nn.Module
    projection: nn.Module
    factor: float
    normed: bool
    parallel: bool

    def added(self, projected: Tensor) -> Tensor:
        """What attention adds to the stream [..., d], from the sum of what the projection makes of heads [..., d]."""
        return (self.attention(projected) if self.normed else projected) * self.factor

    def change(self, writes: Tensor, z: Tensor) -> Tensor:
        """By how much the stream changes [..., H, d] where what one head alone writes changes by `writes` [..., H, d].

        z [..., H, dv]: the heads' outputs without the change.
        """
        if not self.normed:
            return self.added(writes)
        # the norm sees what all heads write together
        together = self.projection(z.flatten(-2))[..., None, :]
        return self.added(together + writes) - self.added(together)


Blocks = tuple[Block, ...]  # of all layers


@dataclass(frozen=True, eq=False)
class Parts:
    """A run, taken apart. L layers, N prompts of T tokens, H heads.

    hidden: what goes into each layer, and the stream behind the last one, L + 1 tensors [N, T, d]; z: by layer, the
    heads' outputs before the projection [N, T, H, dv]; mlp: by layer, what the MLP adds to the stream [N, T, d]. Each
    is on the device of its layer.
    """

    hidden: tuple[Tensor, ...]
    z: tuple[Tensor, ...]
    mlp: tuple[Tensor, ...]


class Components:
    """The layers of a model for prompts of one length, each part of which can be computed alone.

    ids [N, T]: prompts; `base` is their plain run. Every hidden state that is given later stands for a token of one of
    them, R rows being the N prompts R / N times over. first: tokens before it are the same in all that is computed, and
    where a shape says T, the tokens behind them are meant. Raises UnsupportedModel for a class whose stream is no plain
    sum, ValueError for ids that the model cannot take.
    """

    def __init__(self, model: PreTrainedModel, ids: Tensor, first: int = 0, blocks: Blocks | None = None) -> None:
        check_length(model, ids.shape[1])
        check_ids(model, ids.flatten())
        self.blocks = blocks_of(model) if blocks is None else blocks
        self.model, self.plan = model, plan_of(model, ids.shape[1])
        self.heads = support(model).heads
        self.ids, self.first = ids.to(input_device(model)), first
        self.base, self.calls = self._run(self.ids)

    def run(self, ids: Tensor) -> Parts:
        """The plain run of other prompts [N, T], which are those of `base` before `first`. Raises as the class does."""
        check_ids(self.model, ids.flatten())
        return self._run(ids.to(self.ids.device))[0]

    @torch.no_grad()
    def _run(self, ids: Tensor) -> tuple[Parts, list[LayerCall]]:
        """The run of prompts [N, T] behind `first`, taken apart; and the calls of layers."""
        cache = DynamicCache() if self.first else None
        heads = CaptureHeads(copy=False)
        with _watched(*(block.mlp for block in self.blocks)) as added, instrument(self.model, heads):
            calls = self.plan.base_run(self.model, ids, self.first, cache)
        if cache is not None:
            cache.layers.clear()  # the calls hold it, and no one reads it again
        # of a model on several devices, the stream is recorded before it goes to the device of its layer
        streams = [*(call.hidden.to(first_of(call.out).device) for call in calls), first_of(calls[-1].out)]
        blocks = zip(self.blocks, streams[1:], strict=True)
        mlp = [added[block.mlp].view_as(stream) * block.factor for block, stream in blocks]
        return Parts(tuple(streams), tuple(heads.z[layer] for layer in range(self.layers)), tuple(mlp)), calls

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.blocks)

    def whole(self, layer: int, hidden: Tensor) -> Tensor:
        """The hidden states [R, T, d] behind a layer, from those before it."""
        return self.calls[layer].again(hidden)

    def reads(self, layer: int, hidden: Tensor) -> Call:
        """The attention call of a layer where its heads read hidden states [R, T, d]; its softmax is not computed."""
        with instrument(self.model, captured := CaptureCalls(layer, stop=True)), suppress(Stop):
            self.whole(layer, hidden)
        return replace(captured.calls[layer], knockouts=(), splice=None)

    def writes(self, layer: int, z: Tensor) -> Tensor:
        """What all heads of a layer together add to the stream [R, T, d], from their outputs z [R, T, H, dv]."""
        block = self.blocks[layer]
        return block.added(block.projection(z.flatten(-2)))

    def behind(self, layer: int, hidden: Tensor, added: Tensor) -> Tensor:
        """The hidden states [R, T, d] behind a layer where attention adds `added` [R, T, d], whatever it reads."""
        block = self.blocks[layer]
        with block.attention.register_forward_hook(_instead(added / block.factor)):
            return self.whole(layer, hidden)

    def adds(self, layer: int, hidden: Tensor) -> Tensor:
        """What the MLP of a layer adds to the stream [R, T, d], where it reads hidden states [R, T, d].

        hidden: what it reads before its own norm: in sequential layers that includes what attention has added.
        """
        block = self.blocks[layer]
        with (
            block.attention.register_forward_hook(_instead(0.0)),
            _watched(block.mlp, stop=True) as added,
            suppress(Stop),
        ):
            self.whole(layer, hidden)
        return added[block.mlp].view_as(hidden) * block.factor

    def logits(self, hidden: Tensor, answers: Tensor) -> Tensor:
        """The logits [R, A] of answers [N, A] behind the last token, from the stream [R, d] behind the last layer."""
        run = Runs(self.model, self.plan)
        with run.unembedding(answers) as columns:
            return run.read(run.end(hidden[:, None], self.calls[-1].out), columns)


@contextmanager
def _watched(*modules: nn.Module, stop: bool = False) -> Iterator[dict[nn.Module, Tensor]]:
    """The last outputs of modules inside the block; stop: leave the layer behind the first of them."""
    outputs: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, _: Any, out: Any) -> None:
        outputs[module] = first_of(out).clone()  # Falcon adds attention's output to it in place
        if stop:
            raise Stop

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(keep))
        yield outputs


# ------------------------------------------------------------------------------------------------ how a class is built


def blocks_of(model: PreTrainedModel) -> Blocks:
    """How the layers of a prepared model are built; found out once, and again after a module was replaced.

    Raises UnsupportedModel where that is not known.
    """
    if _blocks(model)[0] != _inside(model):
        PREPARED.pop(model, None)
        prepare(model)
    blocks = _blocks(model)[1]
    if isinstance(blocks, str):
        raise UnsupportedModel(blocks)
    return blocks


def known_blocks(model: PreTrainedModel) -> Blocks | None:
    """How the layers of a prepared model are built, None where that is not known."""
    try:
        return blocks_of(model)
    except UnsupportedModel:
        return None


@once
def _blocks(model: PreTrainedModel) -> tuple[tuple[nn.Module, ...], Blocks | str]:
    """A model's modules at the time, and how its layers are built, or why that is not known."""
    blocks: Blocks | str
    try:
        blocks = _taken_apart(model)
        _check_sum(model, blocks)
    except FAILURES as error:
        if out_of_memory(error):
            raise
        why = f"{type(model).__name__}: its layers cannot be taken apart ({type(error).__name__}: {error})"
        blocks = str(error) if isinstance(error, UnsupportedModel) else why
    return _inside(model), blocks


def _inside(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    return tuple(model.modules())[1:]  # not the model itself, which would be kept alive


def parallel_mlps(model: PreTrainedModel) -> bool:
    """Whether a prepared model's MLPs read what attention reads. Raises UnsupportedModel where only some do."""
    parallel, *others = {block.parallel for block in blocks_of(model)}
    if others:
        raise UnsupportedModel(f"{type(model).__name__}: MLPs read what attention reads in some layers only")
    return parallel


@torch.no_grad()
def _taken_apart(model: PreTrainedModel) -> Blocks:
    known, plan, name = support(model), plan_of(model), type(model).__name__
    if not plan.replays:
        raise UnsupportedModel(f"{name}: what its parts write is not known, because it runs by {plan.path}")
    if len(known.layers) != len(plan.layers):
        raise UnsupportedModel(f"{name}: some of its layers have no attention, and what these write is not known")
    with plan.recorded() as calls:
        model.base_model(random_ids(model, 2, SHORT), use_cache=False)
    blocks = []
    for number, call in enumerate(calls):
        projection = known.projections[known.layers[number]]
        if projection is None:
            raise UnsupportedModel(f"{name}: layer {number} changes what its heads put out before it is projected")
        block = _Layer(model, call, projection).block()
        if block is None:
            raise UnsupportedModel(f"{name}: what layer {number} adds to the stream is no plain sum of two parts")
        blocks.append(block)
    return tuple(blocks)


@torch.no_grad()
def _check_sum(model: PreTrainedModel, blocks: Blocks) -> None:
    """Raises UnsupportedModel unless all layers, put together from their parts, give the model's hidden states."""
    parts = Components(model, random_ids(model, 2, SHORT), blocks=blocks)
    run = parts.base
    for layer, (hidden, out) in enumerate(pairwise(run.hidden)):
        z = parts.reads(layer, hidden).plain()
        between = hidden + parts.writes(layer, z)
        read = hidden if blocks[layer].parallel else between
        for ours, theirs in ((z.flatten(2), run.z[layer].flatten(2)), (between + parts.adds(layer, read), out)):
            gap, allowed = tolerance(model, ours, theirs.to(ours.device))
            if not gap <= allowed:
                name = type(model).__name__
                raise UnsupportedModel(f"{name}: the parts of layer {layer}, put together, are {gap:.2g} off")


class _Layer:
    """A layer that interventions find out about, on one call of it: two rows of a few random tokens."""

    def __init__(self, model: PreTrainedModel, call: LayerCall, projection: nn.Module) -> None:
        self.model, self.call, self.projection = model, call, projection
        self.hidden = call.hidden.to(first_of(call.out).device)
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(2, *self.hidden.shape, generator=generator, dtype=torch.float32)
        small, large = noise.to(self.hidden) * self.hidden.std()
        self.vectors = (small, 4 * large)

    def block(self) -> Block | None:
        """How the layer is built, None where it is built in another way."""
        outputs, inputs = self._outputs({})
        projected = outputs[self.projection]
        width = self.hidden.shape[-1]
        fitting = [m for m, out in outputs.items() if out.numel() == self.hidden.numel() and out.shape[-1] == width]
        # the outermost first, which end last
        equal = [m for m in fitting if _equal(outputs[m], projected)][::-1]
        norms = [m for m, given in inputs.items() if m in fitting and m not in equal and _equal(given, projected)]
        for attention in (*norms, *equal):
            for mlp in [m for m in fitting if m not in (*norms, *equal)][::-1]:
                factor = self._factor(attention, mlp)
                if factor is not None and factor == self._factor(mlp, attention):
                    parallel = self._reads_what_attention_read(attention, mlp)
                    return Block(attention, mlp, self.projection, factor, attention in norms, parallel)
        return None

    def _outputs(self, returned: dict[nn.Module, Tensor | float]) -> tuple[dict[nn.Module, Tensor], ...]:
        """What every module inside the layer returns, in the order in which they end; and what it is called with.

        returned: what some of them are to return instead, see `_run`.
        """
        outputs: dict[nn.Module, Tensor] = {}
        inputs: dict[nn.Module, Tensor] = {}

        def keep(module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
            if isinstance(first_of(out), Tensor):
                outputs.pop(module, None)
                outputs[module] = first_of(out).clone()  # Falcon adds to it in place
            if given and isinstance(given[0], Tensor):
                inputs[module] = given[0].clone()

        with ExitStack() as stack:
            for module in [*self.call.layer.modules()][1:]:
                stack.enter_context(module.register_forward_hook(keep))
            self._run(returned)
        return outputs, inputs

    def _run(self, returned: dict[nn.Module, Tensor | float]) -> Tensor:
        """The hidden states behind the layer where these modules return these vectors, or numbers everywhere."""
        with ExitStack() as stack:
            for module, value in returned.items():
                stack.enter_context(module.register_forward_hook(_instead(value)))
            return self.call.again(self.hidden)

    def _factor(self, one: nn.Module, other: nn.Module) -> float | None:
        """The number of times that a module's output is added to the stream, while the other's is 0.

        None where it is not added as it is, or where something else is added too.
        """
        if not torch.equal(self._run({one: 0.0, other: 0.0}), self.hidden):
            return None
        factors, precision = set(), 2e-2 if is_coarse(self.model) else 1e-4
        for vector in self.vectors:
            change = self._run({one: vector, other: 0.0}) - self.hidden
            factor = float((change.double() * vector.double()).sum() / vector.double().square().sum())
            error = float((change - factor * vector).abs().max())
            if not error <= precision * float(vector.abs().max()):
                return None
            factors.add(self._rounded(factor, precision))
        return factors.pop() or None if len(factors) == 1 else None

    def _rounded(self, factor: float, precision: float) -> float:
        """A factor that was measured, without the error of measuring: the config's, if it is that one."""
        config = getattr(self.model.config.get_text_config(decoder=True), "residual_multiplier", None)
        if config is not None and abs(factor - config) <= precision * abs(config):
            return float(config)
        return float(f"{factor:.2g}" if is_coarse(self.model) else f"{factor:.5g}")

    def _reads_what_attention_read(self, attention: nn.Module, mlp: nn.Module) -> bool:
        """Whether the MLP stays the same when attention's output is another one: what it is given, and its output.

        An MLP that always puts out the same, such as 0, is told by what it is given alone.
        """
        passes = [self._outputs({attention: vector}) for vector in (0.0, self.vectors[0])]
        return all(torch.equal(one[mlp], other[mlp]) for one, other in zip(*passes, strict=True) if mlp in one)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.flatten(), other.flatten())


def _instead(value: Tensor | float) -> Callable[[nn.Module, Any, Any], Any]:
    def change(_: nn.Module, __: Any, out: Any) -> Any:
        old = first_of(out)
        return in_place_of(
            out, value.view_as(old).to(old) if isinstance(value, Tensor) else torch.full_like(old, value)
        )

    return change


# ------------------------------------------------------------------------------------------------ direct effects


def direct_effects(
    model: PreTrainedModel,
    ids: Tensor,
    changes: Mapping[int, Tensor | None],
    answers: Tensor,
    positions: Sequence[int] = (-1,),
    keep: Callable[[Tensor, Tensor], Tensor] = lambda logits, base: logits,
) -> tuple[Tensor, Tensor] | None:
    """Returns the logits of `answers` [N, A] where the writes of heads change, and nothing else.

    changes: by layer [N, P, H, dv], what is added to each head's output z at P positions of ids [N, T]; None takes all
    of it away. The final norm and the unembedding see the residual stream of the base run with what one such change
    adds to it. Where a norm stands between heads and stream, it sees what all heads of the layer write, one of them
    changed. The logits are [L, H, N, P, A], those of the base run [N, P, A]. keep: what is kept of a head's logits
    [N, P, A], given those of the base run, as many dimensions: all words of all heads may not fit into memory. Returns
    None for a class whose layers cannot be taken apart, see `blocks_of`, or cannot be bypassed.
    """
    check_length(model, ids.shape[1])
    blocks = known_blocks(model)
    if blocks is None or not (plan := plan_of(model, ids.shape[1])).replays:
        return None
    check_ids(model, ids.flatten())
    places = torch.tensor([place % ids.shape[1] for place in positions])
    run, heads = Runs(model, plan), CaptureHeads(places, changes)
    with torch.inference_mode(), instrument(model, heads), recorded(plan.layers[-1:]) as calls:
        model.base_model(ids.to(input_device(model)), use_cache=False)
    out = calls[-1].out
    with torch.inference_mode(), run.unembedding(answers) as columns:
        stream = take(first_of(out), places, dim=1)  # [N, P, d]

        def read(changed: Tensor) -> Tensor:  # one row for each position of each prompt
            rows = changed.transpose(0, 1).flatten(0, 1)[:, None]
            return run.read(run.end(rows, out), columns).unflatten(0, (-1, len(ids))).transpose(0, 1)

        logits, base = [], read(stream)
        for layer, change in changes.items():
            block, z = blocks[layer], heads.z[layer]
            change = -z if change is None else change
            added = block.change(head_writes(block.projection, change), z)
            logits.append(torch.stack([keep(read(stream + one.to(stream)), base) for one in added.unbind(2)]).cpu())
        seen, base = torch.stack(logits), base.cpu()
    check_finite(base, "the logits", model, ids)
    check_finite(seen.movedim(2, 0), "the direct effects on the logits", model, ids)
    return seen, base
