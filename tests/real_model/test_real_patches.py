"""Logits, attention rows and ablated edges against eager attention. Patches: test_real_values.py."""

import numpy as np
import torch

from tests.edges.test_splicing import said, theirs
from util.edges.edge import Ablation
from util.edges.splicing import groups_of, outcomes
from util.edges.states import Store
from util.engine.attention import instrument
from util.engine.instruments import CaptureRows
from util.figures.ioi_patching.show import EXAMPLE
from util.prompts import word_pair_prompts

ABLATIONS = {
    "whole": Ablation(),
    "one edge": Ablation(removed=["y->last_separator"]),
    "AGG-ONLY": Ablation(kept=["AGG-ONLY"]),
    "a probe": Ablation(kept=["AGG-ONLY"], probed=[("y->last_separator", 1)]),
}


@torch.no_grad()
def test_logits_and_rows_are_those_of_eager_attention(subject):
    ids, chosen = torch.cat([*map(subject.ids, EXAMPLE)]), torch.tensor([0, 5, 6, 13])
    with instrument(subject.model, rows := CaptureRows(chosen)):
        ours = subject.model(ids, use_cache=False).logits
    run = subject.run(ids)
    subject.check("logits", ours, run.logits)
    for layer, weights in run.weights.items():
        subject.check(f"rows of layer {layer}", rows.weights[layer], weights[:, :, chosen])


def test_edges_are_read_from_donors_as_by_a_model_that_is_fed_token_by_token(subject):
    drawn = word_pair_prompts.prompts("capitalization", subject.tokenizer, n=2, k=3, corruptions=(0, 1))
    groups, store, expected = groups_of(drawn.items, subject.tokenizer), Store(), {}
    for name, ablation in ABLATIONS.items():
        logits = [theirs(subject.model, group, ablation)[0] for group in groups]
        top, expected[name] = map(np.array, zip(*map(said, groups, logits), strict=True))
        largest = max(float(rows.abs().max()) for rows in logits)
        for kept in (None, store):
            found = outcomes(subject.model, groups, ablation, store=kept)
            # these are differences of logits, which have no more digits in float32, whatever the CPU
            subject.check(name, found["log_prob"], expected[name], largest)
            assert found["top"].tolist() == top.tolist()
        assert name == "whole" or np.abs(expected[name] - expected["whole"]).max() > 1e-3
