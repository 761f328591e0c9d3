"""Contestants that nobody here wrote, called as their own documents recommend, and the loop of hooks.

The tests of tests/oracles compare with them, too. They live in an environment of their own, which lacks what `util`
imports.
"""

from typing import Any

import numpy as np
import torch

from tests.benchmarks.tasks import (
    GPT2,
    LLAMA,
    SEQUENCES,
    answer_difference,
    eap_difference,
    eap_prompts,
    model_of,
    pair_of,
    repeated,
)


def bridge_of(name):
    """The same random model in TransformerLens."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model = model_of(name, "eager")
    kind = type(model).__name__
    bridge = build_bridge_from_module(model, kind, hf_config=model.config, model_name="random")
    bridge.eval()
    return bridge


def projections(network, name):
    """The output projections of a model, or of nnsight's view of it, by layer."""
    if name in GPT2:
        return [network.transformer.h[layer].attn.c_proj for layer in range(network.config.num_hidden_layers)]
    return [network.model.layers[layer].self_attn.o_proj for layer in range(network.config.num_hidden_layers)]


def hook_loop(model, some=None, attention="eager", **options):
    """some: patch only so many heads of each layer, NaN for the rest; options: for each forward pass."""
    patched = model_of(model, attention)
    written = projections(patched, model)
    base, source, answers = pair_of(model)
    heads = patched.config.num_attention_heads
    width = patched.config.hidden_size // heads

    @torch.no_grad()
    def run():
        z: dict[Any, Any] = {}
        hooks = [p.register_forward_pre_hook(lambda p, x: z.update({p: x[0].clone()})) for p in written]
        patched(source, **options)
        for hook in hooks:
            hook.remove()
        scores = np.full((len(written), heads), np.nan)
        for layer, projection in enumerate(written):
            for head in range(some or heads):
                part = slice(head * width, (head + 1) * width)

                def patch(p, x, part=part):
                    mixed = x[0].clone()
                    mixed[..., part] = z[p][..., part]
                    return (mixed, *x[1:])

                hook = projection.register_forward_pre_hook(patch)
                scores[layer, head] = answer_difference(patched(base, **options).logits, answers)[0]
                hook.remove()
        return scores

    return run


def patch_map_transformer_lens(model):
    from transformer_lens import patching

    bridge = bridge_of(model)
    base, source, answers = pair_of(model)

    @torch.no_grad()
    def run():
        _, cache = bridge.run_with_cache(source, names_filter=lambda name: name.endswith("attn.hook_z"))
        metric = lambda logits: answer_difference(logits, answers).mean()  # noqa: E731
        return patching.get_act_patch_attn_head_out_all_pos(bridge, base, cache, metric).numpy()

    return run


def patch_map_nnsight(model):
    import nnsight as library
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    patched = model_of(model, "eager")
    raw = Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>")
    nn = library.TransformersModel(patched, tokenizer=tokenizer, task="text-generation")
    base, source, (one, other) = pair_of(model)
    heads = patched.config.num_attention_heads
    width = patched.config.hidden_size // heads

    @torch.no_grad()
    def run():
        z, layers = {}, projections(nn, model)
        with nn.trace(source):
            for layer, projection in enumerate(layers):
                z[layer] = projection.input.save()
        with nn.trace() as tracer:
            found = library.save([])
            for layer, projection in enumerate(layers):
                for head in range(heads):
                    with tracer.invoke(base):
                        part = slice(head * width, (head + 1) * width)
                        projection.input[:, :, part] = z[layer][:, :, part]
                        logits = nn.lm_head.output[:, -1]
                        found.append(logits[0, one] - logits[0, other])
        return np.array([float(value) for value in found]).reshape(-1, heads)

    return run


def patch_map_pyvene(model):
    import pyvene as library

    patched = model_of(model, "eager")
    base, source = ({"input_ids": tokens} for tokens in pair_of(model)[:2])
    layers, heads, _ = GPT2[model]
    one = {"component": "head_attention_value_output", "unit": "h.pos", "max_number_of_units": 1}
    one |= {"intervention_type": library.VanillaIntervention}

    @torch.no_grad()
    def run():
        scores = np.empty((layers, heads))
        for layer in range(layers):
            config = library.IntervenableConfig([{"layer": layer, **one}])
            intervenable = library.IntervenableModel(config, patched)
            for head in range(heads):
                at = [[[[head]], [list(range(base["input_ids"].shape[1]))]]]
                _, out = intervenable(base, [source], {"sources->base": (at, at)})
                scores[layer, head] = answer_difference(out.logits)[0]
        return scores

    return run


def prefix_scores_transformer_lens(model, length):
    from transformer_lens.head_detector import detect_head

    bridge = bridge_of(model)
    ids = torch.from_numpy(repeated(bridge.cfg.d_vocab, length))
    bridge.to_tokens = lambda text, **_: ids[int(text)][None]  # it has no tokenizer

    @torch.no_grad()
    def run():
        return torch.stack([detect_head(bridge, str(i), "induction_head") for i in range(SEQUENCES)]).mean(0).numpy()

    return run


def edge_scores_transformer_lens(model, prompts):
    from transformer_lens.tools.analysis import attribution_patching as library

    bridge = bridge_of(model)
    layers, heads = (GPT2 | LLAMA)[model][:2]
    base, corrupted, _ = eap_prompts(bridge.cfg.d_vocab, prompts)
    config = library.EdgeAttributionConfig(granularity="edge")
    senders = {"embed": lambda n: 0, "attn_head_out": lambda n: 1 + n.layer * (heads + 1) + n.head}
    senders["mlp_out"] = lambda n: (n.layer + 1) * (heads + 1)
    parts = ("q_input", "k_input", "v_input")

    def reader(node):
        if node.kind == "logits":
            return layers * (3 * heads + 1)
        own = 3 * heads if node.kind == "mlp_in" else parts.index(node.kind) * heads + node.head
        return int(node.layer * (3 * heads + 1) + own)

    def run():
        found = library.attribution_patch(bridge, base, corrupted, eap_difference, config)
        scores = np.zeros((1 + layers * (heads + 1), layers * (3 * heads + 1) + 1))
        for (writer, read), score in found.edge_scores.items():
            scores[senders[writer.kind](writer), reader(read)] += score
        return scores

    return run


def edge_scores_eap_ig(model, prompts):
    from transformer_lens.tools.analysis import attribution_patching as library

    bridge = bridge_of(model)
    layers, heads = (GPT2 | LLAMA)[model][:2]
    base, corrupted, _ = eap_prompts(bridge.cfg.d_vocab, prompts)
    written, readers = ["hook_embed"], []  # what senders write, what is read
    for layer in range(layers):
        written += [f"blocks.{layer}.attn.hook_result", f"blocks.{layer}.hook_mlp_out"]
        readers += [f"blocks.{layer}.attn.hook_{part}_input" for part in "qkv"] + [f"blocks.{layer}.hook_mlp_in"]
    readers.append(f"blocks.{layers - 1}.hook_resid_post")
    # products are of all senders with all readers: those of edges are of what comes before with what comes after
    order = np.arange(2 * layers)
    before = np.r_[-1, np.repeat(order, [heads, 1] * layers)]
    after = np.r_[np.repeat(order, [3 * heads, 1] * layers), 2 * layers]

    def by_head(tensor):
        return tensor if tensor.ndim == 4 else tensor[:, :, None]  # [N, T, heads, d]; what has no heads is one

    def run():
        with library._edge_hook_flags(bridge):
            other = library.cache_activation_and_gradient(bridge, base, eap_difference, written, compute_gradient=False)
            own = library.cache_activation_and_gradient(bridge, corrupted, eap_difference, written + readers)
        writes = torch.cat([by_head(other.activations[n] - own.activations[n]) for n in written], 2)
        gradients = torch.cat([by_head(own.gradients[n]) for n in readers], 2)
        scores = (torch.einsum("ntud,ntvd->uv", writes, gradients) / len(base)).numpy()
        return np.where(before[:, None] < after, scores, 0)

    return run
