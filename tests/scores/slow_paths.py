"""The slow reference of path patching: whole forward passes, one for each sender and one for each path.

`Hooks` knows which modules a class reads and writes by, see `slow_edges`; it needs a model without shared keys and
values, such as `with_own_keys` makes. `together` takes any class, by instruments, and patches what the receiver puts
out, so that its query, key and value change together.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.scores.slow_edges import GPT2, NAMES
from util.engine.attention import instrument
from util.engine.instruments import CaptureHeads, PatchHeads

Head = tuple[int, int]
STATES = ("query", "key", "value")


def difference(model: PreTrainedModel, ids: Tensor, answers: Tensor) -> Tensor:
    """The logit differences [N] of whole forward passes."""
    pair = model(ids, use_cache=False).logits[:, -1].gather(1, answers)
    return pair[:, 0] - pair[:, 1]


def with_own_keys(model: PreTrainedModel) -> PreTrainedModel:
    """The same function with a key and a value for every head, for classes with `k_proj` and `v_proj`."""
    config = copy.deepcopy(model.config)
    shared = config.num_attention_heads // config.num_key_value_heads
    if shared == 1:
        return model
    width = model.get_submodule("model.layers.0.self_attn").head_dim
    config.num_key_value_heads = config.num_attention_heads
    own = type(model)(config).to(model.dtype).eval().requires_grad_(False)
    weights = dict(model.state_dict())
    for name, value in weights.items():
        if any(part in name for part in ("k_proj", "v_proj", "k_norm")):
            weights[name] = value.unflatten(0, (-1, width)).repeat_interleave(shared, 0).flatten(0, 1)
    own.load_state_dict(weights)
    return own


class Hooks:
    """Path patching by hooks on named modules, for prompts base and source [N, T] and answers [N, 2]."""

    def __init__(self, model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor) -> None:
        self.model, self.base, self.answers = model, base, answers
        self.names, self.heads = NAMES[model.config.model_type], model.config.num_attention_heads
        self.layers = model.get_submodule(self.names.layers)
        self.z = [self._outputs(ids) for ids in (base, source)]
        self.plain = difference(model, base, answers)

    def direct(self, sender: Head) -> Tensor:
        """The change [N] by the direct path to the output."""
        return self._frozen(sender)[0] - self.plain

    def edge(self, sender: Head, receiver: Head, states: Sequence[str]) -> Tensor:
        """The change [N] where these of the receiver's states are what the frozen run gives it."""
        heard = self._frozen(sender)[1]
        layer, head = receiver
        with ExitStack() as stack:
            for state in states:
                module, part = self._module(layer, state), self._columns(layer, head, state)

                def instead(_: Any, __: Any, out: Tensor, part: slice = part, state: str = state) -> Tensor:
                    out = out.clone()
                    out[..., part] = heard[layer, state][..., part]
                    return out

                stack.callback(module.register_forward_hook(instead).remove)
            return difference(self.model, self.base, self.answers) - self.plain

    def _frozen(self, sender: Head) -> tuple[Tensor, dict[tuple[int, str], Tensor]]:
        """The metric, and the states of all heads by layer, where all heads but the sender are frozen to the base."""
        heard: dict[tuple[int, str], Tensor] = {}
        with ExitStack() as stack:
            for layer, own in enumerate(self.z[0]):
                z = own.unflatten(-1, (self.heads, -1)).clone()
                if layer == sender[0]:
                    z[:, :, sender[1]] = self.z[1][layer].unflatten(-1, (self.heads, -1))[:, :, sender[1]]
                projection = self.layers[layer].get_submodule(self.names.o)
                hook = projection.register_forward_pre_hook(lambda _, __, z=z: (z.flatten(-2),))
                stack.callback(hook.remove)
                for state in STATES:
                    place = (layer, state)
                    hook = self._module(layer, state).register_forward_hook(
                        lambda _, __, out, place=place: heard.update({place: out})
                    )
                    stack.callback(hook.remove)
            return difference(self.model, self.base, self.answers), heard

    def _outputs(self, ids: Tensor) -> list[Tensor]:
        kept: list[Tensor] = []
        with ExitStack() as stack:
            for layer in self.layers:
                projection = layer.get_submodule(self.names.o)
                stack.callback(projection.register_forward_pre_hook(lambda _, args: kept.append(args[0])).remove)
            self.model(ids, use_cache=False)
        return kept

    def _module(self, layer: int, state: str) -> nn.Module:
        names = dict(zip(STATES, (self.names.q, self.names.k, self.names.v), strict=True))
        return self.layers[layer].get_submodule(names[state])

    def _columns(self, layer: int, head: int, state: str) -> slice:
        width = self.z[0][layer].shape[-1] // self.heads
        start = STATES.index(state) * self.heads * width if self.names is GPT2 else 0
        return slice(start + head * width, start + (head + 1) * width)


def together(
    model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor, sender: Head, receivers: Sequence[Head]
) -> tuple[Tensor, Tensor]:
    """The changes [N] by a sender's direct path, and by what receivers in later layers hear, all of them together."""
    z, other = outputs(model, base), outputs(model, source)
    plain = difference(model, base, answers)
    layer, head = sender
    frozen = {at: value.clone() for at, value in z.items()}
    frozen[layer][:, :, head] = other[layer][:, :, head]
    heard = CaptureHeads()  # attached before the patches, so that it sees what they replace
    patches = [PatchHeads(at, range(value.shape[2]), value) for at, value in frozen.items()]
    with instrument(model, heard, *patches):
        direct = difference(model, base, answers) - plain
    with instrument(model, *(PatchHeads(at, to, heard.z[at][:, :, [to]]) for at, to in receivers)):
        return direct, difference(model, base, answers) - plain


def outputs(model: PreTrainedModel, ids: Tensor) -> dict[int, Tensor]:
    """The outputs z of all heads by layer [N, T, H, dv]."""
    with instrument(model, heads := CaptureHeads()):
        model(ids, use_cache=False)
    return heads.z
