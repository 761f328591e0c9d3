"""Edge ablations against attention that is written out, prompts and donors layer by layer in lock-step."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.real_model import plain
from util.edges.edge import CIRCUITS, Ablation
from util.edges.splicing import groups_of, outcomes
from util.edges.states import Store
from util.prompts import word_pair_prompts

TASK, SHOTS, PROMPTS = "capitalization", 3, 2
WITHIN = {("x", "t"), ("x", "y"), ("t", "y"), ("x", "n"), ("t", "n"), ("y", "n")}


class Token(NamedTuple):
    kind: str  # bos, x, t, y, n, query, last, answer
    line: int
    slot: int


def read(subject, text, answer):
    """A prompt with its answer as tokens, BOS in front, and what each of them is, by characters alone."""
    encoded = subject.tokenizer(text + answer, return_offsets_mapping=True, add_special_tokens=False)
    whole, found, last = text + answer, [Token("bos", 0, 0)], text.count("\n")
    kinds: list[tuple[str, int]] = []
    for line, row in enumerate((text + answer).split("\n")):
        left, _, right = row.partition("\t")
        parts = ("query", "last", "answer") if line == last else ("x", "t", "y")
        kinds += [(parts[0], line)] * len(left) + [(parts[1], line)] + [(parts[2], line)] * len(right) + [("n", line)]
    slots = np.cumsum([a != b for a, b in zip(kinds, [None, *kinds], strict=False)])
    for start, end in encoded["offset_mapping"]:
        assert len({kinds[at] for at in range(start, end)}) == 1, whole[start:end]
        kind, line = kinds[start]
        found.append(Token(kind, line, int(slots[start])))
    return [subject.tokenizer.bos_token_id, *encoded["input_ids"]], found


def kept_by_aggregation(query, key):
    """AGG-ONLY: reading within an example, the last separator reading anything, BOS, and words of several tokens."""
    if query.kind == "answer" or key.kind == "bos" or query.slot == key.slot:
        return True
    return (query.line == key.line and (key.kind, query.kind) in WITHIN) or query.kind == "last"


def log_probability(logits, ids, length):
    said = logits.double().log_softmax(-1)
    return sum(float(said[t - 1, ids[t]]) for t in range(length, len(ids)))


def test_edges_are_read_from_donors_as_when_every_cell_is_written_out(subject):
    drawn = word_pair_prompts.prompts(TASK, subject.tokenizer, n=PROMPTS, k=SHOTS, corruptions=(0, 1))
    groups = groups_of(drawn.items, subject.tokenizer)
    ablations = {
        "whole": Ablation(),
        "one edge": Ablation(removed=["y->last_separator"]),
        "AGG-ONLY": Ablation(kept=CIRCUITS["AGG-ONLY"]),
        "a probe": Ablation(kept=CIRCUITS["AGG-ONLY"], probed=[("y->last_separator", 1)]),
    }
    theirs: dict[str, list[Tensor]] = {name: [] for name in ablations}
    targets, lengths = [], []
    for item in drawn.items:
        clean = item.clean
        ids, tokens = read(subject, clean.text, clean.label())
        lengths.append([token.kind for token in tokens].index("answer"))
        targets.append(ids)
        size = len(ids) - 1  # the last token of the answer is not read by anything
        rows = []
        for donor in (item.donors[0], item.donors[1], clean):
            other, kinds = read(subject, donor.text, donor.label())
            assert kinds == tokens
            rows.append(other[:size])
        batch = torch.tensor(rows)
        pairs = [(q, k) for q in range(size) for k in range(q)]
        edge = {(q, k) for q, k in pairs if tokens[q].kind == "last" and tokens[k].kind == "y"}
        gone = {(q, k) for q, k in pairs if not kept_by_aggregation(tokens[q], tokens[k])}
        assert edge and gone and not edge & gone

        def sources(row, elsewhere, size=size):
            table = torch.full((size, size), row)
            for cell, other in elsewhere.items():
                table[cell] = other
            return table

        without, probe = dict.fromkeys(gone, 0), dict.fromkeys(gone, 0) | dict.fromkeys(edge, 1)
        plans = {
            "whole": {},
            "one edge": {2: sources(2, dict.fromkeys(edge, 0))},
            "AGG-ONLY": {2: sources(2, without)},
            "a probe": {1: sources(1, without), 2: sources(2, probe)},
        }
        for name, plan in plans.items():
            theirs[name].append(subject.reference(batch, plain.read_elsewhere(plan))[2])
    expected = {name: np.array([*map(log_probability, logits, targets, lengths)]) for name, logits in theirs.items()}
    ends = {name: [logits[at - 1] for logits, at in zip(each, lengths, strict=True)] for name, each in theirs.items()}
    whole, store = torch.stack(ends["whole"]), Store()
    before = whole.double().log_softmax(-1)
    for name, ablation in ablations.items():
        after = torch.stack(ends[name]).double().log_softmax(-1)
        divergence = (before.exp() * (before - after)).sum(-1)
        right = after.argmax(-1) == torch.tensor([ids[at] for ids, at in zip(targets, lengths, strict=True)])
        for kept in (None, store):
            found = outcomes(subject.model, groups, ablation, whole.numpy(), store=kept)
            what = name if kept is None else f"{name}, on kept states"
            # below one nat in nats: logits of 20 have no more digits in float32, whatever the CPU
            scale = max(1, np.abs(expected[name]).max())
            subject.check(f"{what}: log-probability", found["log_prob"], expected[name], scale)
            assert found["top"].tolist() == after.argmax(-1).tolist() and found["right"].tolist() == right.tolist()
            if name != "whole":
                subject.check(f"{what}: KL", found["kl"], divergence, max(1, float(divergence.max())))
                assert np.abs(expected[name] - expected["whole"]).max() > 1e-3
