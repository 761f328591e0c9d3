"""Heads of an induction circuit in models, planted, trained and untrained; and what plain text loses without them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from util.engine.batches import TOKEN_BUDGET, Row, context_length
from util.engine.handshake import prepare
from util.engine.instruments import PatchHeads
from util.engine.label_scores import text_losses
from util.engine.means import position_means
from util.engine.replay import BaseRuns
from util.figures.controls import planted_control
from util.figures.edits import WHOLE
from util.figures.task_study import SKIPPED_POSITIONS, whole_attention
from util.figures.toy_induction_head.numbers import WITHOUT
from util.models import planted
from util.prompts.induction_pattern import Sequences, excerpts, repeated_sequences
from util.roles.attention_scores import INDUCTION_HEAD, best_heads
from util.roles.effects import heads_by_layer
from util.roles.sequences_study import measured_scores
from util.stats.heads import Head, heads_where, layer_matched, shortage
from util.study.records import Fields
from util.study.study import Study

LONGEST, CONTROLS = 511, 3  # tokens of an excerpt; control sets


def _on_sequences(
    study: Study, name: str, compute: Callable[[PreTrainedModel, Sequences], Fields], **heads: Any
) -> Fields:
    """A record of what is measured on the repeated sequences of the settings. heads: what its request has of them."""
    s = study.settings
    request: Fields = {
        "length": s.length,
        "copies": s.copies,
        "seeds": [*range(s.seed, s.seed + s.sequences)],
        "bos": True,
    }
    drawn = cache(lambda: repeated_sequences(study.pair[1], **request))
    return study.record(
        name, lambda: compute(study.pair[0], drawn()), lambda: map(str, drawn().ids.tolist()), **request, **heads
    ).data


def heads(study: Study) -> Fields:
    """Attention scores [N, L, H] of a planted model, of the trained one and of its untrained twin, by whose they are.

    roles: of planted heads, [layer, head, role]; decoys: [layer, head].
    """
    model, truth = planted_control(planted.induction, {})
    known = study.replace(model=model, redo=False, untrained_control=False)
    studies = {"planted": known, "trained": study}
    if study.settings.untrained_control:
        studies["untrained"] = study.twin()
    arrays = {name: _on_sequences(one, "sequence scores", measured_scores, ablated=[]) for name, one in studies.items()}
    roles = [[*head, role] for head, role in truth.names.items()]
    return {**arrays, "title": study.model.title, "roles": roles, "decoys": [list(head) for head in truth.decoys]}


def attention(study: Study) -> Fields:
    """The whole attention [T, T], BOS first, of the best trained head of each role, on the last sequence."""
    best = best_heads(study.arrays("heads")["trained"])
    heads = [head for head, _ in best.values()]

    def measured(model: PreTrainedModel, sequences: Sequences) -> Fields:
        ids = sequences.ids[-1]
        return {"attention": np.array(whole_attention(model, ids.tolist(), heads), np.float32), "ids": ids}

    rows = _on_sequences(study, "sequence patterns", measured, heads=[*map(list, heads)])
    return {"title": study.model.title, "best": best, "attention": dict(zip(best, rows["attention"], strict=True))}


def text(study: Study) -> Fields:
    """Losses of excerpts of a novel [N, T - 1], by what is ablated: nothing, all induction heads, or control sets.

    uniform: the loss of equal odds. heads: those with a prefix-matching score of INDUCTION_HEAD or more; their outputs
    are replaced at all positions by their mean over the excerpts. A control set has as many other heads in the same
    layers; there are none where a layer has too few.
    """
    score = study.arrays("heads")["trained"]["prefix_matching"].mean(axis=0)
    heads, others = heads_where(score >= INDUCTION_HEAD), score < INDUCTION_HEAD
    sets: dict[str, list[Head]] = {WHOLE: []}
    if heads:
        sets[WITHOUT] = heads
    if heads and not shortage(heads, others):
        drawn = layer_matched(heads, others, CONTROLS, study.settings.seed)
        sets |= {f"without other heads {number}": some for number, some in enumerate(drawn, 1)}

    @cache
    def texts() -> list[list[int]]:
        model, tokenizer = study.pair
        length = min(LONGEST, context_length(model))
        return excerpts(tokenizer, length, study.settings.excerpts).tolist()

    runs = cache(lambda: BaseRuns(study.pair[0]))

    def losses(ablated: list[Head]) -> Fields:
        by_layer = heads_by_layer(prepare(study.pair[0]), ablated)
        patches = [
            PatchHeads(layer, some, torch.from_numpy(means()[str(layer)][some])) for layer, some in by_layer.items()
        ]
        by_token = text_losses(study.pair[0], texts(), lambda batch: patches, TOKEN_BUDGET, runs(), by_token=True)
        return {"losses": by_token, "vocabulary": study.pair[0].config.get_text_config().vocab_size}

    @cache
    def means() -> Fields:  # by layer [H, dv], as heads may be wider in some; control sets have the same layers
        layers = [*heads_by_layer(prepare(study.pair[0]), heads)]

        def compute() -> Fields:
            rows = [Row(tuple(text)) for text in texts()]
            by_position = position_means(study.pair[0], rows, layers, TOKEN_BUDGET)
            return {
                str(layer): mean[SKIPPED_POSITIONS:].mean(axis=0, dtype=np.float64).astype(mean.dtype)
                for layer, mean in by_position.items()
            }

        return recorded(compute, part="means", layers=layers)

    def recorded(compute: Callable[[], Fields], **part: Any) -> Fields:
        request = {"schema": 3, "excerpts": study.settings.excerpts, "longest": LONGEST, **part}
        return study.record("plain text", compute, lambda: map(str, texts()), **request).data

    by_set = {
        name: recorded(partial(losses, some), ablated=[*map(list, some)])
        for name, some in study.progress(sets.items(), "plain text")
    }
    uniform = float(np.log(by_set[WHOLE]["vocabulary"]))
    return {"heads": heads, "losses": {name: one["losses"] for name, one in by_set.items()}, "uniform": uniform}
