"""Knockouts and head ablations, as in notebook 02, against eager attention."""

from functools import partial
from itertools import product

import numpy as np
import torch
from torch import nn

from tests.engine.test_label_scores import by_whole_passes
from tests.real_model.conftest import NAME
from util.engine.label_scores import scoring
from util.figures.edits import INTACT, Edit
from util.figures.task_study import TaskStudy
from util.load_model_and_data import staicc_prompts
from util.prompts import classification, induction_pattern
from util.study.model import Model

HEADS = {"smollm2": [(3, 2), (11, 0), (11, 7), (28, 5)], "gemma3": [(5, 1), (11, 0), (11, 2), (17, 2)]}[NAME]
REFERENCE = 2  # prompts of a reference, StaICC's, instead of 64
LABELS = ("A", "lexicographer")  # one token, and several
TASK, K, ITEMS, SEED = "wordseq1", 2, 2, 42
MODES = ("zero", "mean", "mean_pos")  # what puts out the mean of inputs is compared in tests/figures/induction_scores


def means(subject, texts):
    """What stands for heads under each mode, by (layer, head) [T or 1, d], by loops over the reference's prompts."""
    outputs, found = [subject.run(subject.ids(text)).z for text in texts], {}
    for layer, head in HEADS:
        own = [z[layer][0, :, head] for z in outputs]
        at_each_position = nn.utils.rnn.pad_sequence(own, padding_value=torch.nan).nanmean(1)
        mean = torch.cat([z[8:] for z in own]).mean(0, keepdim=True)
        found[layer, head] = {"zero": torch.zeros_like(mean), "mean": mean, "mean_pos": at_each_position}
    return found


def test_ablated_and_knocked_out_heads_answer_as_eager_attention(real, tmp_path):
    study = TaskStudy(
        Model.given(real.model, real.tokenizer, NAME), TASK, K, ITEMS, SEED, labels=LABELS, reference="staicc",
        reference_prompts=REFERENCE, folder=tmp_path,
    )  # fmt: skip
    cut = {"knocked out": HEADS, "knocked out everywhere": real.every}
    edits = {"whole": INTACT, **{name: Edit.knock_out(heads) for name, heads in cut.items()}}
    edits |= {mode: Edit.ablate(HEADS, mode) for mode in MODES}
    ours = study.answers(edits)
    stand_ins = means(real, [prompt.text for prompt in staicc_prompts("financial_phrasebank", 4)[:REFERENCE]])
    prompts = classification.prompts(classification.relabelled(classification.task(TASK), LABELS), K, SEED, ITEMS)
    plan = scoring(real.model, real.tokenizer, prompts)
    passes = partial(by_whole_passes, real.reference, plan)
    cells = [induction_pattern.cells(prompt, real.tokenizer).tolist() for prompt in prompts]
    theirs = {"whole": passes()}
    for name, heads in cut.items():
        theirs[name] = passes(cuts=[[(*head, *cell) for head, cell in product(heads, own)] for own in cells])
    for mode in MODES:
        values = {head: own[mode] for head, own in stand_ins.items()}
        theirs[mode] = passes(lambda _, t, values=values: {head: v[min(t, len(v) - 1)] for head, v in values.items()})
    assert all(cells)
    for name, found in theirs.items():
        real.check(f"{name}: log-probabilities of labels", ours[name]["log_prob"], found)
        assert name == "whole" or np.abs(found - theirs["whole"]).max() > 1e-3
