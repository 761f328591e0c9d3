"""Induction heads: their scores, what they are made of, and what a model cannot do without them.

Crosbie & Shutova 2024, on prefix-matching scores after Olsson et al. 2022 and Bansal et al. 2023. A head is
(layer, head), the layer counted among those that have attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import instrument, support
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward, run_rows
from util.engine.call import Instrument, Support
from util.engine.direct_effects import bare_writes, direct_effects
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureHeads, CaptureRows, PatchHeads, ScoreRows
from util.figures.induction_scores import measures
from util.figures.induction_scores.measures import Head
from util.figures.planted_controls import errors_by_noise, planted_model
from util.models import planted
from util.prompts.sequences import Sequences, repeated_sequences
from util.records import cache
from util.records.runs import LazyModel, ModelSource, Run, model_request, once, twin_request
from util.records.study import plain_heads
from util.stats.heads import top

STEM = "induction_scores"
OV_TOKENS = 256


# ------------------------------------------------------------------------------------------------ requests


def sequence_request(
    model: str = "embedded", length: int = 50, copies: int = 4, sequences: int = 5, bos: bool = True, **which: Any
) -> cache.Request:
    """Random sequences to score heads on: see `prompts.sequences`; which: see `model_request`."""
    own = {"length": length, "copies": copies, "seeds": list(range(sequences)), "bos": bos}
    return {"stem": STEM, "schema": 1, "method_version": 1, **model_request(model, **which), **own}


def heads_by_layer(found: Support, heads: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Heads by the model's own layer numbers. Raises ValueError for a head that there is not."""
    wrong = [head for head in heads if not (0 <= head[0] < len(found.layers) and 0 <= head[1] < found.heads)]
    if wrong:
        raise ValueError(f"the model has {len(found.layers)} layers of {found.heads} heads, not {wrong}")
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(found.layers[layer], []).append(head)
    return by_layer


# ------------------------------------------------------------------------------------------------ scores


def head_scores(
    model: PreTrainedModel, drawn: Sequences, *attached: Instrument, token_budget: int = TOKEN_BUDGET
) -> dict[str, np.ndarray]:
    """Every score of `measures.cells` of every head on every sequence, [N, L, H]; no matrix is kept.

    attached: instruments that act before the scores are read.
    """
    found = prepare(model)
    rows = torch.from_numpy(measures.queries(drawn.length, drawn.copies, drawn.bos))
    cells = measures.cells(drawn.length, drawn.copies, drawn.bos)
    tensors = {name: torch.from_numpy(cell) for name, cell in cells.items()}
    check_context(model, [drawn.ids.shape[1]])
    scores = {name: np.empty((len(drawn.ids), len(found.layers), found.heads)) for name in cells}

    def visit(batch: Batch) -> None:
        read = ScoreRows(rows, tensors)
        forward(model, batch, *attached, read)
        for name, by_layer in read.scores.items():
            stacked = np.stack([by_layer[layer].double().cpu().numpy() for layer in found.layers], axis=1)
            scores[name][batch.numbers] = stacked / len(rows)

    run_rows(model, [Row(tuple(ids)) for ids in drawn.ids.tolist()], visit, token_budget)
    return scores


def scores(
    asked: cache.Request,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
    ablated: Sequence[Head] = (),
) -> cache.Record:
    """The record of a `sequence_request`. Its data: every score [N, L, H] by name (see `measures.cells`), ids
    [N, T], ranking (how tokens were ranked), layers.

    ablated: with the outputs of these heads at zero. Raises what `prompts.sequences` raises.
    """
    run = _Run(asked, model, folder, redo)

    def compute() -> dict[str, Any]:
        found, drawn = prepare(run.pair[0]), run.drawn
        removed = heads_by_layer(found, plain_heads(ablated))
        gone = [PatchHeads(layer, heads, 0.0) for layer, heads in removed.items()]
        return {
            **head_scores(run.pair[0], drawn, *gone),
            "ids": drawn.ids,
            "ranking": drawn.ranking,
            "layers": list(found.layers),
        }

    return run.record({"part": "scores", "ablated": plain_heads(ablated)}, compute)


def untrained_scores(
    asked: cache.Request, model: LazyModel, folder: str | Path | None = None, redo: bool = False
) -> np.ndarray:
    """The prefix-matching scores [L, H] of the model's untrained twin, mean of the sequences."""
    return scores(twin_request(asked), model.twin(), folder, redo).data["prefix_matching"].mean(0)


def stability(
    asked: cache.Request, n: int, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> pd.DataFrame:
    """How prefix-matching scores agree with those of other settings: rank correlation over heads, and the heads that
    are among the best n both times. Single sequences: the least of any."""
    model = once(model, asked)
    settings: dict[str, dict[str, Any]] = {
        "without BOS": {"bos": False},
        "length 25": {"length": 25},
        "length 100": {"length": 100},
    }
    own = scores(asked, model, folder, redo).data["prefix_matching"]
    others = {
        name: scores({**asked, **changed}, model, folder, redo).data["prefix_matching"].mean(0)
        for name, changed in settings.items()
    }
    pairs = {name: [other] for name, other in others.items()} | {"single sequences": [*own]}
    best, rows = set(top(own.mean(0), n)), {}
    for name, several in pairs.items():
        agree = min(float(spearmanr(own.mean(0).ravel(), other.ravel())[0]) for other in several)
        rows[name] = {
            "rank correlation": agree,
            f"of the best {n}": min(len(best & {*top(o, n)}) for o in several),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


class _Run(Run):
    """A request's sequences."""

    @cached_property
    def drawn(self) -> Sequences:
        return self.repeated(self.asked["copies"])

    def repeated(self, copies: int) -> Sequences:
        return repeated_sequences(self.pair[1], self.asked["length"], copies, self.asked["seeds"], self.asked["bos"])

    @property
    def texts(self) -> list[str]:
        return list(map(str, self.drawn.ids.tolist()))


def outputs(
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The record of what heads write on the sequences of a request. Its data, each [N, L, H]:

    copying: the OV score on sequences that are not repeated, see `measures.copying`; attribution: what a
    head's write adds directly to the logit of the token that comes next in the last copy, beyond what it adds to the
    sequence's other tokens, mean of all places; weights_copying [L, H] without sequences: the share of 256 tokens that
    a head copies by its weights alone, see `bare_writes`. NaN where `direct_effects` has none.
    """
    run = _Run(asked, model, folder, redo)

    def compute() -> dict[str, Any]:
        net, tokenizer = run.pair
        data = {"copying": head_copying(net, run.repeated(1)), "attribution": head_attribution(net, run.drawn)}
        ids = repeated_sequences(tokenizer, OV_TOKENS, 1, [0], bos=False).ids[0]
        alone = bare_writes(net, torch.from_numpy(ids))
        shape = (len(support(net).layers), support(net).heads)
        data["weights_copying"] = (
            np.full(shape, np.nan) if alone is None else measures.weights_copying(alone.float().numpy())
        )
        return data

    return run.record({"part": "outputs"}, compute)


def _direct(
    model: PreTrainedModel, ids: np.ndarray, tokens: np.ndarray, positions: Sequence[int], *attached: Instrument
) -> np.ndarray | None:
    """What every head adds to the logits of tokens [N, A] at P positions of ids [N, T]: [N, L, H, P, A]."""
    rows, heads = torch.from_numpy(ids), CaptureHeads(torch.tensor(positions))
    with torch.inference_mode(), instrument(model, heads, *attached):
        model.base_model(rows.to(input_device(model)), use_cache=False)
    gone = {layer: -z for layer, z in heads.z.items()}  # as what is lost without it: the norm's scale is real
    seen = direct_effects(model, rows, gone, torch.from_numpy(tokens), positions)
    return None if seen is None else (seen[1] - seen[0]).movedim(2, 0).numpy()


def head_copying(model: PreTrainedModel, drawn: Sequences) -> np.ndarray:
    """The copying score of every head on sequences that are not repeated, [N, L, H]; NaN where there is none."""
    found = prepare(model)
    places = range(drawn.bos, drawn.ids.shape[1])
    scores = np.full((len(drawn.ids), len(found.layers), found.heads), np.nan)
    for number, ids in enumerate(tqdm(drawn.ids, desc="copying", leave=False)):
        rows = CaptureRows(torch.tensor(places))
        raised = _direct(model, ids[None], ids[None, drawn.bos :], places, rows)
        if raised is None:
            return scores
        attended = [rows.weights[layer][0, :, :, drawn.bos :].argmax(-1).cpu().numpy() for layer in found.layers]
        scores[number] = measures.copying(raised, np.stack(attended)[None])[0]
    return scores


def head_attribution(model: PreTrainedModel, drawn: Sequences) -> np.ndarray:
    """Direct logit attribution of every head to the next token in the last copy, [N, L, H]; NaN where there is none."""
    found = prepare(model)
    start = drawn.bos + (drawn.copies - 1) * drawn.length
    places, wanted = range(start, start + drawn.length - 1), np.arange(1, drawn.length)
    scores = np.full((len(drawn.ids), len(found.layers), found.heads), np.nan)
    for number, ids in enumerate(tqdm(drawn.ids, desc="attribution", leave=False)):
        change = _direct(model, ids[None], ids[None, drawn.bos : drawn.bos + drawn.length], places)
        if change is None:
            return scores
        next_ = np.broadcast_to(wanted, change.shape[:-1])
        scores[number] = measures.repeated_attribution(change, next_).mean(-1)[0]
    return scores


def patterns(
    asked: cache.Request,
    heads: Sequence[Head],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> cache.Record:
    """The record of the whole attention of some heads on the last sequence of a request. Its data: attention [heads, T,
    T], query by key (float32), in the order of `heads`; ids [T]."""
    run = _Run(asked, model, folder, redo)
    wanted = [[int(layer), int(head)] for layer, head in heads]

    def compute() -> dict[str, Any]:
        net, ids = run.pair[0], run.drawn.ids[-1]
        numbers = prepare(net).layers
        heads_by_layer(support(net), wanted)  # refuses a head that there is not
        check_context(net, [len(ids)])
        rows = CaptureRows(torch.arange(len(ids)), layers={numbers[layer] for layer, _ in wanted})
        forward(net, Batch.of([Row(tuple(ids.tolist()))], [0], [len(run.drawn.ids) - 1]), rows)
        attention = [rows.weights[numbers[layer]][0, head].float().cpu().numpy() for layer, head in wanted]
        return {"attention": np.stack(attention), "ids": ids}

    return run.record({"part": "patterns", "heads": wanted}, compute)


# ------------------------------------------------------------------------------------------------ planted heads


def planted_control(
    asked: cache.Request, folder: str | Path | None = None, **options: Any
) -> tuple[cache.Record, planted.Planted]:
    """The same sequences put to heads that are known: `planted.induction`, on the embedded model's tokenizer.

    options: those of the planted circuit (family, copies, noise, seed).
    """
    pair, truth, which = planted_model(planted.induction, options)
    return scores({**asked, **which}, pair, folder), truth


def planted_errors(
    asked: cache.Request,
    noises: Sequence[float] = (0.5, 1.0, 2.0),
    seeds: Sequence[int] = (0, 1),
    folder: str | Path | None = None,
) -> dict[float, dict[str, tuple[int, int]]]:
    """How often planted heads are misjudged by a score of 0.3, by the noise on their weights (see `planted.Plan`):
    "false alarms" among heads that are no induction heads, and "misses", each of how many."""

    def judge(noise: float, seed: int) -> list[tuple[bool, bool]]:
        record, truth = planted_control(asked, folder, noise=noise, seed=seed)
        found = record.data["prefix_matching"].mean(0) >= measures.INDUCTION_HEAD
        known = {place: place in truth.heads["induction"] for place in np.ndindex(found.shape)}
        return [(one, bool(found[place]) != one) for place, one in known.items()]

    return errors_by_noise(judge, noises, seeds)
