"""What the suite computes on a model, wherever it is: on the CPU, on fake GPUs (`tests/fake_gpu`), or on a real one.

Each run takes a prepared model and gives named numbers. Prompts are random and short, and the same for every device.
`INSTRUMENTS` reads and edits attention; `WHOLE` is everything that is built on that. What runs give in the model's own
dtype is named in `OWN_DTYPE`; everything else is promised as float32 or float64.
"""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import torch
from transformers import PreTrainedModel

from tests.architectures import VOCABULARY
from util.edges.edge import Ablation
from util.edges.splicing import Group, continuations, outcomes, whole_logits
from util.edges.states import Store, of_rows
from util.engine.attention import support
from util.engine.batches import Batch, Row, forward
from util.engine.components import direct_effects
from util.engine.instruments import (
    CaptureHeads,
    CaptureRows,
    CaptureStates,
    Knockout,
    PatchHeads,
    ScoreRows,
    Splice,
    SumHeads,
)
from util.engine.label_scores import (
    Scoring,
    knockouts,
    label_log_probs,
    label_reads,
    next_token_logits,
    replacements,
    text_losses,
)
from util.engine.means import mean_outputs, outputs_of_mean_inputs, position_means
from util.engine.replay import BaseRuns, Edit, replay
from util.prompts.prompt import LabelledTokens, TypedTokens
from util.scores import token_types
from util.scores.attribution import Method, edge_scores, model_graph
from util.scores.exact import circuit_metrics, exact_scores, path_effects
from util.scores.pruning import Circuit

Numbers = dict[str, Any]  # by name, tensors or arrays; None where a class does not allow a run
Run = Callable[[PreTrainedModel], Numbers]

PROMPTS, TOKENS = 3, 9
LABELS = ((11,), (12, 13), (12, 14, 15))
TYPES = ("bos", "x", "t", "y", "n", "x", "t", "y", "n", "query", "last_separator", "target")
EXAMPLES = (0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3)
EDGES = Ablation(kept=("WITHIN", "AGG", "ANCHOR"), probed={"y->last_separator": 1})
# What a run gives as the model computes it.
OWN_DTYPE = {"z", "keys", "hidden"}


def ids(rows=PROMPTS, tokens=TOKENS, seed=0):
    """Random prompts [rows, tokens], on the CPU."""
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def rows(count=PROMPTS, tokens=TOKENS):
    """Prompts of `tokens` tokens and fewer."""
    return [Row(tuple(row[: tokens - number % 3])) for number, row in enumerate(ids(count, tokens).tolist())]


def attached(model, *instruments, tokens=TOKENS):
    """The last hidden states [B, T, d] of a batch of prompts under instruments."""
    some = rows(tokens=tokens)
    return forward(model, Batch.of(some, range(len(some))), *instruments)[0]


# ------------------------------------------------------------------------------------------------ instruments


def capture_rows(model, tokens=TOKENS):
    """Attention rows of all heads; some keys of each; sums over cells."""
    whole = CaptureRows(torch.tensor([2, tokens - 1]))
    few = CaptureRows(torch.tensor([[3], [4], [5]]), keys=torch.tensor([[[0, 1]], [[1, 2]], [[2, 3]]]))
    cells = {"first": torch.arange(tokens)[None].expand(2, -1) == 0, "all": torch.ones(2, tokens)}
    sums = ScoreRows(torch.tensor([2, tokens - 1]), cells)
    attached(model, whole, few, sums, tokens=tokens)
    named = {f"sums {name}": scores for name, scores in sums.scores.items()}
    return by_layer({"rows": whole.weights, "cells": few.weights, **named})


def capture_heads(model, tokens=TOKENS):
    """Outputs and states of heads, and sums of outputs."""
    z, some = CaptureHeads(), CaptureHeads(torch.tensor([[1], [2], [3]]))
    states, sums = CaptureStates(), SumHeads(torch.ones(PROMPTS, tokens))
    attached(model, z, some, states, sums, tokens=tokens)
    keys = {layer: pair[0] for layer, pair in states.states.items()}
    return by_layer({"z": z.z, "z some": some.z, "keys": keys, "sums": sums.sums})


def patch_heads(model, tokens=TOKENS):
    """Heads patched with a number and a tensor."""
    layer = support(model).layers[-1]
    width = capture_heads(model)[f"z {layer}"].shape[-1]
    value = torch.randn(2, width, generator=torch.Generator().manual_seed(1))
    patches = {
        "number": PatchHeads(layer, 0, 0.0, positions=torch.tensor([1, 3])),
        "tensor": PatchHeads(layer, [1, 2], value, positions=torch.tensor([[2], [4]]), examples=torch.tensor([0, 2])),
    }
    return {f"hidden {name}": attached(model, patch, tokens=tokens) for name, patch in patches.items()}


def knock_out(model, tokens=TOKENS):
    """Cells knocked out in some heads and in all, with rows captured."""
    last = tokens - 1
    cut = Knockout(torch.tensor([[0, 5, 3], [2, 5, 4]]), heads=[0, 1])
    kept = CaptureRows(torch.tensor([5]))
    hidden = attached(model, cut, Knockout(torch.tensor([[last, last - 1], [5, 4]])), kept, tokens=tokens)
    return {"hidden": hidden, **by_layer({"rows": kept.weights})}


def splice_edges(model, tokens=TOKENS):
    """Cells that are read from states of an earlier pass."""
    found = support(model)
    codes = torch.zeros(PROMPTS, tokens, tokens, dtype=torch.long)
    codes[0, 4:, 1:3], codes[2, 5:, 3] = 1, 2
    table = torch.tensor([[0, 1, 2], [0, 0, 1]]).repeat(found.heads, 1)[: found.heads]
    tables = {layer: table for layer in found.layers}
    rows = CaptureRows(torch.tensor([6]))
    attached(model, kept := CaptureStates(), tokens=tokens)
    donors = [of_rows(kept.states, some) for some in ([1, 0, 0], [2, 2, 1])]
    hidden = attached(model, Splice(codes, tables, donors), rows, tokens=tokens)
    return {"hidden": hidden, **by_layer({"rows": rows.weights})}


def by_layer(found):
    """Captures by name and layer under one name each."""
    return {f"{name} {layer}": tensor for name, layers in found.items() for layer, tensor in layers.items()}


INSTRUMENTS: dict[str, Run] = {
    "capture rows": capture_rows,
    "capture heads": capture_heads,
    "patch heads": patch_heads,
    "knockout": knock_out,
    "splice edges": splice_edges,
}


def instrumented(model):
    """All that instruments give on a model."""
    return [value.float().cpu().numpy() for run in INSTRUMENTS.values() for value in run(model).values()]


# ------------------------------------------------------------------------------------------------ what is built on them


def silenced(layer, head, first):
    """A replayed run in which a head puts out nothing from a token on."""

    def instruments(place):
        positions = torch.tensor([t - place.queries.start for t in place.queries if t >= first])
        return [PatchHeads(layer, head, 0.0, positions, examples=place.examples)]

    return Edit(layer, instruments)


def replayed(model, tokens=TOKENS):
    """Head patches replayed from the first token and from a later one, as logits and as log-probabilities."""
    heads = [(layer, head) for layer in support(model).layers for head in range(support(model).heads)]
    answers = torch.tensor([[5, 7]]).expand(2, -1)
    found: Numbers = {}
    for first, log_probabilities in ((0, False), (3, True)):
        edits = [silenced(*head, first) for head in heads]
        logits, base = replay(model, ids(2, tokens), edits, answers, first, log_probabilities)
        found |= {f"logits from {first}": logits, f"base from {first}": base}
    return found


def label_scores(model, count=PROMPTS):
    """Labels scored plain, under a knockout, and with heads replaced; losses; what a label's reader reads."""
    chosen = [row.ids for row in rows(count, 12)]
    plan = Scoring(
        [LabelledTokens((*row, 11), (2, 5, len(row) - 1), (3, 6, len(row)), (1, 1, 1), len(row) + 1) for row in chosen],
        chosen, [LABELS] * count, np.zeros(count, int),
    )  # fmt: skip
    layer = support(model).layers[-1]
    cells = [np.array([(len(row) - 1, 2), (4, 2)]) for row in chosen]
    edits = {"knockout": knockouts(cells, {layer: [0, 1]}), "zero": replacements({layer: [0]}, {layer: 0.0})}
    found = {f"plain {name}": value for name, value in label_log_probs(model, plan, text=True).items()}
    runs = BaseRuns(model)
    for name, edit in edits.items():
        found[name] = label_log_probs(model, plan, edit, runs=runs)["log_prob"]
    found |= label_reads(model, plan)
    found["losses"] = text_losses(model, chosen)
    found["next"] = next_token_logits(model, chosen, PatchHeads(layer, 1, 0.0))
    return found


def means(model, count=PROMPTS):
    """Mean outputs of heads, by token and by position, and outputs of mean inputs."""
    layers, some = list(support(model).layers), rows(count, 12)
    found = {name: mean_outputs(model, some)[name] for name in ("mean", "norms")}
    return found | by_layer(
        {"positions": position_means(model, some, layers), "inputs": outputs_of_mean_inputs(model, some, layers)}
    )


def direct(model):
    """Direct effects of heads on logits."""
    prompts = ids(2)
    z = capture_heads(model)
    changes = {layer: -z[f"z {layer}"][:2, -1:] for layer in support(model).layers}
    found = direct_effects(model, prompts, changes, torch.tensor([[5, 7], [6, 8]]))
    return {"direct": None if found is None else found[0]}


def groups(vocabulary=VOCABULARY):
    """Two prompts of word pairs with donors of two corruptions; one of them has a word of two tokens."""
    found = []
    for slots in (tuple(range(len(TYPES))), (0, 1, *range(1, len(TYPES)))):
        types, examples = tuple(TYPES[slot] for slot in slots), tuple(EXAMPLES[slot] for slot in slots)
        rng = np.random.default_rng(len(slots))
        drawn = [(1, *rng.integers(3, vocabulary, len(slots) - 1).tolist()) for _ in range(3)]
        base, *donors = (TypedTokens(tokens, types, examples, slots) for tokens in drawn)
        found.append(Group(base, dict(enumerate(donors))))
    return found


def edges(model):
    """Ablated edges: donors that run for one ablation, and kept ones."""
    whole = whole_logits(model, groups())
    found = {"whole": whole}
    for name, store in (("apart", None), ("kept", Store())):
        said = outcomes(model, groups(), EDGES, whole, store=store)
        found |= {f"{name} {key}": said[key] for key in ("log_prob", "kl")}
    return found


def units(model):
    """Scores of units by token type, and a pruned run."""
    chosen, found = groups(), support(model)
    circuit = Circuit.whole(len(found.layers), found.heads, [group.base for group in chosen])
    alive = np.random.default_rng(0).random(circuit.living_edges.shape) > 0.3
    pruned = circuit.keeping("edge", alive)
    scored = token_types.scores(model, chosen, pruned)
    answers = token_types.answers(model, chosen, pruned)["log_prob"]
    return {"heads": scored["head"], "edges": scored["edge"], "losses": scored["losses"], "log_prob": answers}


def components(model):
    """First-order and exact scores of edges, paths between heads, and a circuit run for real."""
    base, source = ids(2), ids(2)
    source[:, 3:6] = ids(2, seed=1)[:, 3:6]
    answers = torch.tensor([[5, 7], [6, 8]])
    graph = model_graph(model)
    found = {method: edge_scores(model, base, source, answers, method, steps=1) for method in get_args(Method)}
    some = [tuple(edge) for edge in np.argwhere(graph.edges)[:: max(1, graph.size // 6)].tolist()]
    found["exact"] = exact_scores(model, base, source, answers, some)
    heads = [(layer, layer) for layer in range(graph.layers)]
    direct, paths = path_effects(model, base, source, answers, heads)
    found |= {"paths": paths, "direct paths": direct}
    kept = torch.rand(graph.shape, generator=torch.Generator().manual_seed(0)) > 0.5
    found["circuit"] = circuit_metrics(model, base, source, answers, kept[None].numpy())
    return found


class Letters:
    """A tokenizer that writes every token as one letter."""

    eos_token_id = 2

    def decode(self, tokens):
        return "".join(chr(97 + token) for token in tokens)


def written(model):
    """Tokens that are written behind ablated prompts, on caches: a letter each."""
    texts = [continuations(model, Letters(), groups(), EDGES, store=store) for store in (None, Store())]
    return {"tokens": np.array([ord(letter) for text in sum(texts, []) for letter in text], np.float64)}


WHOLE: dict[str, Run] = {
    "replay": replayed,
    "label scores": label_scores,
    "means": means,
    "direct effects": direct,
    "spliced edges": edges,
    "continuations": written,
    "scores of units": units,
    "scores of components": components,
}
