"""Heads of an induction circuit in models: planted, trained and untrained."""

from __future__ import annotations

from typing import Any

from util.figures.planted_controls import planted_control
from util.models import planted
from util.roles.attention_scores import best_heads
from util.roles.sequences_study import patterns, scores
from util.study.study import Study


def _sequences(study: Study) -> dict[str, Any]:
    settings = study.settings
    seeds = list(range(settings.seed, settings.seed + settings.sequences))
    return {"length": settings.length, "copies": settings.copies, "seeds": seeds}


def heads(study: Study) -> dict[str, Any]:
    """Attention scores [N, L, H] of a planted model, of the trained one and of its untrained twin, by whose they are.

    roles: of planted heads, [layer, head, role]; decoys: [layer, head].
    """
    model, truth = planted_control(planted.induction, {})
    known = study.replace(model=model, redo=False, untrained_control=False)
    arrays = {"planted": scores(known, **_sequences(study)), "trained": scores(study, **_sequences(study))}
    if study.settings.untrained_control:
        arrays["untrained"] = scores(study.twin(), **_sequences(study))
    roles = [[*head, role] for head, role in truth.names.items()]
    return {**arrays, "title": study.model.title, "roles": roles, "decoys": [list(head) for head in truth.decoys]}


def attention(study: Study) -> dict[str, Any]:
    """The whole attention [T, T], BOS first, of the best trained head of each role, on the last sequence."""
    best = best_heads(study.arrays("heads")["trained"])
    rows = patterns(study, [head for head, _ in best.values()], **_sequences(study))
    return {"title": study.model.title, "best": best, "attention": dict(zip(best, rows["attention"], strict=True))}
