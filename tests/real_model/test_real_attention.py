"""Attention rows, copy magnitudes and induction scores of SmolLM2 against eager attention matrices."""

import ast
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
from util.records.model import Model
from util.roles.sequences_study import SequenceStudy
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


def test_the_references_import_nothing_of_the_suite() -> None:
    tree = ast.parse(Path(plain.__file__).read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "torch" in names and not [name for name in names if name.split(".")[0] in ("util", "tests", "")]


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


def test_induction_scores_are_sums_of_eager_attention(real: Subject, tmp_path: Path) -> None:
    scores = SequenceStudy(Model.given(*real.pair, NAME), folder=tmp_path).scores()
    ids = scores.ids
    assert ids.shape == (5, 201) and (ids[:, 0] == real.tokenizer.bos_token_id).all()
    theirs = {name: [] for name in ("prefix_matching", "duplicate_token", "previous_token", "sink")}  # type: dict[str, list[Tensor]]
    for row in ids.tolist():
        attention = matrices(real, torch.tensor([row]))[:, 0]
        given: dict[str, Any] = dict.fromkeys(theirs, 0)
        for query in range(51, 201):
            for key in range(query + 1):
                if key >= 2 and row[key - 1] == row[query]:
                    given["prefix_matching"] = given["prefix_matching"] + attention[:, :, query, key]
                if 0 < key < query and row[key] == row[query]:
                    given["duplicate_token"] = given["duplicate_token"] + attention[:, :, query, key]
            given["previous_token"] = given["previous_token"] + attention[:, :, query, query - 1]
            given["sink"] = given["sink"] + attention[:, :, query, 0]
        for name, total in given.items():
            theirs[name].append(total / 150)
    for name, found in theirs.items():
        real.check(name, scores.scores[name], torch.stack(found))
    assert float(torch.stack(theirs["prefix_matching"]).mean(0).max()) > 0.3  # SmolLM2 has induction heads
