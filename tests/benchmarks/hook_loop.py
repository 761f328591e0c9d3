"""The slow way to patch every head: one forward pass for each, with a hook on the output projection of its layer."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


def hook_loop(
    model: Any,
    projections: Sequence[Any],
    tokens: tuple[Any, Any],
    difference: Callable[[Any], Any],
    some: int | None = None,
    **options: Any,
) -> Callable[[], Any]:
    """A run that returns the map [L, H] of single-head patches; NaN for heads that are left out.

    projections: the output projection of each layer; tokens: [1, T] of base and source; difference: of logits
    [1, T, V], the number that is mapped; some: patch only so many heads of each layer; options: for each forward pass.
    """
    base, source = tokens
    heads = model.config.num_attention_heads
    width = model.config.hidden_size // heads

    @torch.no_grad()
    def run() -> Any:
        z: dict[Any, Any] = {}
        hooks = [p.register_forward_pre_hook(lambda p, x: z.update({p: x[0].clone()})) for p in projections]
        model(source, **options)
        for hook in hooks:
            hook.remove()
        scores = np.full((len(projections), heads), np.nan)
        for layer, projection in enumerate(projections):
            for head in range(some or heads):
                part = slice(head * width, (head + 1) * width)

                def patch(p: Any, x: Any, part: slice = part) -> Any:
                    mixed = x[0].clone()
                    mixed[..., part] = z[p][..., part]
                    return (mixed, *x[1:])

                hook = projection.register_forward_pre_hook(patch)
                scores[layer, head] = difference(model(base, **options).logits)[0]
                hook.remove()
        return scores

    return run
