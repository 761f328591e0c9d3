"""Knockouts and head ablations, as in notebook 02, against the reference."""

from typing import get_args

import torch
from torch import Tensor, nn

from tests.real_model import plain
from tests.real_model.conftest import NAME
from util.figures.edits import INTACT, Edit, Mode
from util.figures.task_study import TaskStudy
from util.load_model_and_data import staicc_prompts
from util.prompts import classification, induction_pattern

HEADS = {"smollm2": [(3, 2), (11, 0), (11, 7), (28, 5)], "gemma3": [(5, 1), (11, 0), (11, 2), (17, 2)]}[NAME]
REFERENCE = 2  # prompts of a reference, StaICC's, instead of 64
LABELS = ("A", "lexicographer")  # one token, and several
TASK, K, ITEMS, SEED = "wordseq1", 2, 2, 42


def averaged(rows):
    """The mean at each position [T, ...] of prompts [T', ...], of those that reach it."""
    return nn.utils.rnn.pad_sequence([*rows], padding_value=torch.nan).nanmean(1)


def means(subject, texts):
    """What stands for heads under each mode, by layer [T or 1, H, d], by plain loops over the reference's prompts."""
    z, inputs = [], []
    for text in texts:
        z.append(plain.observed(subject.reference, subject.ids(text))[1][:, 0].transpose(1, 2))  # [L, T, H, d]
        inputs.append({layer: h[0] for layer, h in subject.reference.inputs.items()})
    found: dict[str, dict[int, Tensor]] = {mode: {} for mode in get_args(Mode)}
    for layer in {layer for layer, _ in HEADS}:
        found["zero"][layer] = torch.zeros_like(z[0][layer, :1])
        found["mean"][layer] = torch.cat([heads[layer, 8:] for heads in z]).mean(0, keepdim=True)
        found["mean_pos"][layer] = averaged([heads[layer] for heads in z])
        q, k, v = subject.reference.read(layer, averaged([h[layer] for h in inputs])[None])
        found["input_mean"][layer] = plain.attention(q, k, v)[0].transpose(0, 1)
    return found


def log_probability(logits, ids, start):
    """The log-probability of the tokens from `start` on, their sum."""
    return sum(logits[0, t - 1].double().log_softmax(0)[ids[0, t]] for t in range(start, ids.shape[1]))


def test_ablated_and_knocked_out_heads_answer_as_the_reference(real, tmp_path):
    study = TaskStudy(
        real.given, TASK, K, ITEMS, SEED, labels=LABELS, reference="staicc",
        reference_prompts=REFERENCE, folder=tmp_path,
    )  # fmt: skip
    every = real.reference.every
    edits = {"whole": INTACT, "knocked out": Edit.knock_out(HEADS), "knocked out everywhere": Edit.knock_out(every)}
    edits |= {mode: Edit.ablate(HEADS, mode) for mode in get_args(Mode)}
    ours = study.answers(edits)
    stand_ins = means(real, [prompt.text for prompt in staicc_prompts("financial_phrasebank", 4)[:REFERENCE]])
    prompts = classification.prompts(classification.relabelled(classification.task(TASK), LABELS), K, SEED, ITEMS)
    theirs: dict[str, list[Tensor]] = {name: [] for name in edits}
    for prompt in prompts:
        start = real.ids(prompt.text).shape[1]
        cells = {0: [(int(q), int(k)) for q, k in induction_pattern.cells(prompt, real.tokenizer)]}
        assert cells[0]
        for label in prompt.labels:
            ids = real.ids(f"{prompt.text}{label}")
            for name, attend in (
                ("whole", None),
                ("knocked out", plain.cut(cells, HEADS)),
                ("knocked out everywhere", plain.cut(cells, every)),
            ):
                theirs[name].append(log_probability(real.reference(ids[:, :-1], attend), ids, start))
            for mode in get_args(Mode):

                def value(layer, head, own, mode=mode):
                    return stand_ins[mode][layer][: own.shape[1], head].expand_as(own)

                theirs[mode].append(
                    log_probability(plain.with_heads(real.reference, ids[:, :-1], HEADS, value), ids, start)
                )
    for name, found in theirs.items():
        real.check(f"{name}: log-probabilities of labels", ours[name]["log_prob"].flatten(), torch.stack(found))
        assert name == "whole" or float((torch.stack(found) - torch.stack(theirs["whole"])).abs().max()) > 1e-3
