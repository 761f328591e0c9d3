"""Attention rows, copy magnitudes and induction scores against eager attention matrices."""

import copy

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.real_model import plain
from util.engine.attention import instrument
from util.engine.instruments import CaptureRows
from util.figures.forerunner_heads import measure as forerunner
from util.load_model_and_data import staicc_prompts
from util.study.study import Study

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


def test_copy_magnitudes_are_cells_of_eager_attention(real, tmp_path):
    dataset, prompts = "glue_sst2", 4
    study = Study("forerunner_heads", real.given, untrained_control=False, folder=tmp_path)
    found = forerunner.readings(study, forerunner.Data(dataset, 4, prompts, 0))
    measured = np.stack([reading["magnitude"] for reading in found.values()], axis=1)
    cells: list[Tensor] = []
    for prompt in staicc_prompts(dataset, 4)[:prompts]:
        words = [prompt.labels[(prompt.gold + step) % len(prompt.labels)] for step in (0, 1)]
        for word in (*words, "the"):
            encoded = real.tokenizer(f"{prompt.text} {word}", return_offsets_mapping=True)
            ends = [end for _, end in encoded["offset_mapping"]]
            label = next(t for t, end in enumerate(ends) if end > len(prompt.text))  # the first token behind the prompt
            assert ends[label - 1] == len(prompt.text)
            ids = torch.tensor([encoded["input_ids"][: label + 1]])
            cells.append(plain.observed(real.reference, ids)[0][:, 0, :, label, label - 1])
    theirs = torch.stack(cells).unflatten(0, (prompts, 3))
    real.check("copy magnitudes", measured, theirs)
    assert float(theirs.max()) > 0.5  # a head that reads the forerunner is among them
