"""SmolLM2 in TransformerLens and nnsight: what test_oracles.py runs in the environment of these libraries.

    python -m tests.oracles.real_oracles tl|nnsight|scores FOLDER TASK.json

FOLDER holds the model as transformers loads it. The task says what to measure: "base", "source" (tokens), "answers"
(two of them), "first" (where the prompts differ), "heads" (layer, head), or "ids" (repeated sequences). Prints
one line of JSON: logit differences of the base run with one of these heads from the source, or scores [L, H]. Imports
nothing of the suite.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch


def eager_model(folder: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def bridge_of(model: Any) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    bridge = build_bridge_from_module(model, "LlamaForCausalLM", hf_config=model.config, model_name="smollm2")
    bridge.eval()
    return bridge


@torch.no_grad()
def tl(folder: str, task: dict[str, Any]) -> list[float]:
    """Heads patched by a hook on TransformerLens' hook_z."""
    bridge = bridge_of(eager_model(folder))
    base, source = (torch.tensor([task[name]]) for name in ("base", "source"))
    _, cache = bridge.run_with_cache(source, names_filter=lambda name: name.endswith("attn.hook_z"))
    found = []
    for layer, head in task["heads"]:
        name = f"blocks.{layer}.attn.hook_z"

        def patch(z: Any, hook: Any, name: str = name, head: int = head) -> Any:
            z[:, task["first"] :, head] = cache[name][:, task["first"] :, head]
            return z

        found.append(difference(bridge.run_with_hooks(base, fwd_hooks=[(name, patch)]), task))
    return found


@torch.no_grad()
def nnsight(folder: str, task: dict[str, Any]) -> list[float]:
    """Heads patched in nnsight, one trace with an invoke for every head."""
    import nnsight as library
    from transformers import AutoTokenizer

    model = eager_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    nn = library.TransformersModel(model, tokenizer=tokenizer, task="text-generation")
    base, source = (torch.tensor([task[name]]) for name in ("base", "source"))
    width, first, (one, other) = model.config.head_dim, task["first"], task["answers"]
    z = {}
    with nn.trace(source):
        for layer in sorted({layer for layer, _ in task["heads"]}):
            z[layer] = nn.model.layers[layer].self_attn.o_proj.input.save()
    with nn.trace() as tracer:
        found = library.save([])
        for layer, head in task["heads"]:
            with tracer.invoke(base):
                part = slice(head * width, (head + 1) * width)
                nn.model.layers[layer].self_attn.o_proj.input[:, first:, part] = z[layer][:, first:, part]
                logits = nn.lm_head.output[:, -1]
                found.append(logits[0, one] - logits[0, other])
    return [float(value) for value in found]


@torch.no_grad()
def scores(folder: str, task: dict[str, Any]) -> list[list[float]]:
    """TransformerLens' detect_head for "induction_head", mean over sequences."""
    from transformer_lens.head_detector import detect_head

    bridge = bridge_of(eager_model(folder))
    ids = torch.tensor(task["ids"])
    bridge.to_tokens = lambda text, **_: ids[int(text)][None]  # tokens, not text, are what is asked about
    return torch.stack([detect_head(bridge, str(i), "induction_head") for i in range(len(ids))]).mean(0).tolist()


def difference(logits: Any, task: dict[str, Any]) -> float:
    one, other = task["answers"]
    return float(logits[0, -1, one] - logits[0, -1, other])


if __name__ == "__main__":
    what, place, file = sys.argv[1:]
    result = {"tl": tl, "nnsight": nnsight, "scores": scores}[what](place, json.loads(Path(file).read_text()))
    print(json.dumps(result))
