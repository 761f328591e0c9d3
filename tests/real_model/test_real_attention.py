"""Attention rows, copy magnitudes and induction scores of SmolLM2 against eager attention matrices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.real_model import plain
from tests.real_model.conftest import NAME, Subject
from util.engine.attention import instrument
from util.engine.instruments import CaptureRows
from util.figures.forerunner_heads import measure as forerunner
from util.load_model_and_data import staicc_prompts
from util.study.model import Model
from util.study.study import Study

TEXT = "When Mike and Emma went to the cafe, Emma gave a coffee to"


def matrices(subject: Subject, ids: Tensor) -> Tensor:
    """Eager attention of all heads, [L, B, H, T, T]."""
    with torch.no_grad():
        return torch.stack(subject.twin(ids, use_cache=False, output_attentions=True).attentions)


def own_matrices(subject: Subject, ids: Tensor) -> Tensor:
    """The same of the model that is written out."""
    kept = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kept.append(plain.scores(q, k).softmax(-1))
        return kept[-1] @ v

    subject.written_out(ids, attend)
    return torch.stack(kept)


@pytest.fixture(params=["real", "exact"])
def subject(request: Any) -> Iterator[Subject]:
    return request.getfixturevalue(request.param)


def test_both_references_and_the_engine_give_the_same_logits(subject: Subject) -> None:
    ids = subject.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        ours, theirs = (model(ids, use_cache=False).logits for model in (subject.model, subject.twin))
    assert subject.model.config._attn_implementation != subject.twin.config._attn_implementation == "eager"
    subject.check("eager code and the model written out", theirs, subject.written_out(ids))
    subject.check("the engine and the model written out", ours, subject.written_out(ids))


def test_captured_rows_are_those_of_eager_attention(subject: Subject) -> None:
    ids = subject.tokenizer([TEXT, TEXT.replace("Emma gave", "Mike gave")], return_tensors="pt").input_ids
    chosen = torch.tensor([0, 5, 6, ids.shape[1] - 1])
    with torch.no_grad(), instrument(subject.model, rows := CaptureRows(chosen)):
        subject.model(ids, use_cache=False)
    ours = torch.stack([rows.weights[layer] for layer in range(30)])
    assert ours.shape == (30, 2, 9, 4, ids.shape[1])
    subject.check("captured rows, eager attention", ours, matrices(subject, ids)[:, :, :, chosen])
    subject.check("captured rows, written out", ours, own_matrices(subject, ids)[:, :, :, chosen])


def test_copy_magnitudes_are_cells_of_eager_attention(real: Subject, tmp_path: Path) -> None:
    dataset, prompts = "glue_sst2", 4
    study = Study("forerunner_heads", Model.given(*real.pair, NAME), untrained_control=False, folder=tmp_path)
    found = forerunner.readings(study, forerunner.Data(dataset, 4, prompts, 0))
    measured = np.stack([reading["magnitude"] for reading in found.values()], axis=1)
    texts = [prompt.text for prompt in staicc_prompts(dataset, 4)[:prompts]]
    words = staicc_prompts(dataset, 4)[0].labels
    cells: list[Tensor] = []
    for number, text in enumerate(texts):
        gold = staicc_prompts(dataset, 4)[number].gold
        for word in (words[gold], words[(gold + 1) % len(words)], "the"):
            encoded = real.tokenizer(f"{text} {word}", return_offsets_mapping=True)
            ends = [end for _, end in encoded["offset_mapping"]]
            label = next(t for t, end in enumerate(ends) if end > len(text))  # the first token behind the prompt
            assert ends[label - 1] == len(text)
            ids = torch.tensor([encoded["input_ids"][: label + 1]])
            cells.append(matrices(real, ids)[:, 0, :, label, label - 1])
    theirs = torch.stack(cells).unflatten(0, (prompts, 3))
    real.check("copy magnitudes", measured, theirs)
    assert float(theirs.max()) > 0.5  # a head that reads the forerunner is among them
