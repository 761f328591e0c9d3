"""The slow reference of path patching: whole forward passes, one for each sender and one for each path.

It knows which modules a class reads and writes by, see `slow_edges`; it needs a model without shared keys and values,
such as `with_own_keys` makes.
"""

import copy
from contextlib import ExitStack

from torch import Tensor

from tests.scores.slow_edges import GPT2, SlowEdges

STATES = ("query", "key", "value")


def with_own_keys(model):
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


class SlowPaths(SlowEdges):
    """Path patching by hooks on named modules, for prompts base and source [N, T] and answers [N, 2]."""

    def direct(self, sender):
        """The change [N] by the direct path to the output."""
        return self.frozen(sender)[0] - self.metric

    def edge(self, sender, receiver, states):
        """The change [N] where these of the receiver's states are what the frozen run gives it."""
        heard, (layer, head) = self.frozen(sender)[1], receiver
        with ExitStack() as stack:
            for state in states:
                own = self.columns(heard[layer, state], head, STATES.index(state), self.names is GPT2)

                def instead(_, __, out, own=own, state=state):
                    out = out.clone()
                    out[..., own] = heard[layer, state][..., own]
                    return out

                stack.enter_context(self.state(layer, state).register_forward_hook(instead))
            return self.difference() - self.metric

    def frozen(self, sender):
        """The metric, and the states of all heads by layer, where all heads but the sender are frozen to the base."""
        heard: dict[tuple[int, str], Tensor] = {}
        with ExitStack() as stack:
            for layer, base in enumerate(self.writes[0]["o"]):
                z, own = base.clone(), self.columns(base, sender[1])
                if layer == sender[0]:
                    z[..., own] = self.writes[1]["o"][layer][..., own]
                projection = self.module(layer, self.names.o)
                stack.enter_context(projection.register_forward_pre_hook(lambda _, __, z=z: (z,)))
                for place in ((layer, state) for state in STATES):
                    hook = self.state(*place).register_forward_hook(
                        lambda _, __, out, place=place: heard.update({place: out})
                    )
                    stack.enter_context(hook)
            return self.difference(), heard

    def state(self, layer, state):
        """The module that makes queries, keys or values."""
        return self.module(layer, dict(zip(STATES, (self.names.q, self.names.k, self.names.v), strict=True))[state])
