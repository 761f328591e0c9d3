"""Logits and attention rows against eager attention matrices."""

import copy

import torch
from transformers import AutoModelForCausalLM

from tests.real_model import plain
from util.engine.attention import instrument
from util.engine.instruments import CaptureRows

TEXT = "When Mike and Emma went to the cafe, Emma gave a coffee to"


def eager(model):
    """The same weights, not copied, in a model of the class's eager attention."""
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), attn_implementation="eager")
    twin.load_state_dict(model.state_dict(), assign=True)
    twin.tie_weights()
    for name, buffer in model.named_buffers():  # some are in no state dict
        owner, _, leaf = name.rpartition(".")
        setattr(twin.get_submodule(owner), leaf, buffer)
    return twin.eval().requires_grad_(False)


@torch.no_grad()
def test_engine_and_reference_are_eager_attention(subject):
    """Logits, and captured rows; what else is measured is compared with the reference alone."""
    ids = subject.tokenizer([TEXT, TEXT.replace("Emma gave", "Mike gave")], return_tensors="pt").input_ids
    twin, chosen = eager(subject.model), torch.tensor([0, 5, 6, ids.shape[1] - 1])
    layers = subject.reference.layers
    assert subject.model.config._attn_implementation != twin.config._attn_implementation == "eager"
    theirs = twin(ids, use_cache=False, output_attentions=True)
    with instrument(subject.model, rows := CaptureRows(chosen)):
        ours = subject.model(ids, use_cache=False).logits
    weights, captured = torch.stack(theirs.attentions), torch.stack([rows.weights[layer] for layer in range(layers)])
    assert captured.shape == (layers, 2, subject.reference.heads, 4, ids.shape[1])
    subject.check("logits of eager code and of the reference", theirs.logits, subject.reference(ids))
    subject.check("logits of the engine and of the reference", ours, subject.reference(ids))
    subject.check("rows of eager code and of the reference", weights, plain.observed(subject.reference, ids)[0])
    subject.check("captured rows and those of eager code", captured, weights[:, :, :, chosen])
