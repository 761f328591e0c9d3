"""What goes into attention and what its four heads give, by plain hooks on a model's own modules."""

import torch

from tests import eager_runs


def outputs_of(model, ids):
    """z [T, H, dv] by layer, and the hidden states [T, d] that go into each attention."""
    z, inputs, hooks = {}, {}, []
    for layer, module in eager_runs.attention_modules(model).items():

        def before(_, arguments, keywords, layer=layer):
            inputs[layer] = (keywords["hidden_states"] if "hidden_states" in keywords else arguments[0])[0]

        def projected(_, arguments, layer=layer):
            z[layer] = arguments[0][0].unflatten(-1, (4, -1))

        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(eager_runs.output_projection(module).register_forward_pre_hook(projected))
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return z, inputs


def given_input(model, layer, ids, hidden):
    """z [T, H, dv] of one layer whose attention is given these hidden states [T, d] instead of its own."""

    def swap(_, arguments, keywords):
        if "hidden_states" in keywords:
            return arguments, keywords | {"hidden_states": hidden[None]}
        return (hidden[None], *arguments[1:]), keywords

    hook = eager_runs.attention_modules(model)[layer].register_forward_pre_hook(swap, with_kwargs=True)
    z, _ = outputs_of(model, ids)
    hook.remove()
    return z[layer]
