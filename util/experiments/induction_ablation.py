"""What in-context learning loses without induction heads: ablation, knockout, controls (Crosbie & Shutova 2024).

Everywhere here a head is (layer, head), the layer counted among those that have attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from util import cache
from util.attention import support
from util.experiments.induction import STEM, heads_by_layer
from util.experiments.runs import ModelSource, Run, model_request, once, plain_heads
from util.handshake import prepare
from util.inference import TOKEN_BUDGET, Batch, Row, check_context, forward
from util.instruments import CaptureRows, PatchHeads
from util.load_model_and_data import staicc_prompts
from util.means import mean_outputs, outputs_of_mean_inputs, position_means
from util.measures.forerunner import right
from util.measures.induction import Head
from util.prompts import Prompt, with_bos
from util.scoring import Attach, Scoring, knockouts, label_log_probs, nothing, scoring, text_losses
from util.tasks import classification, induction_pattern

MODES = ("mean", "zero", "mean_pos", "input_mean")
TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")
TEXTS = "financial_phrasebank"  # of StaICC: plain text, and the other reference of means
REFERENCES = ("task", "staicc")
REFERENCE = 64  # prompts of a reference, and texts
Edit = Mapping[str, Any]  # what is done to a model, in JSON: see `ablation`, `knockout`
WHOLE: Edit = {}


def task_request(
    model: str = "embedded",
    task: str = "wordseq1",
    k: int = 10,
    items: int = 60,
    seed: int = 42,
    hard_negatives: bool = False,
    labels: Sequence[str] | None = None,
    reference: str = "task",
    **which: Any,
) -> cache.Request:
    """A classification task to answer: `items` queries with k demonstrations each, drawn by `seed`.

    labels: other words than Foo, Bar, Mur, Res. reference: what means are taken over, other prompts of the task or
    StaICC's. which: see `model_request`. Raises ValueError for unknown names and numbers out of range.
    """
    if reference not in REFERENCES:
        raise ValueError(f"unknown reference {reference!r}; there are {', '.join(REFERENCES)}")
    found = classification.task(task, hard_negatives)
    if not 1 <= items <= len(found.rows) or k < 0:
        raise ValueError(f"items = {items}, k = {k}: {task} has {len(found.rows)} rows, and k is at least 0")
    if labels is not None and len(set(labels)) != len(found.labels):
        raise ValueError(
            f"labels = {list(labels)}: {task} has {len(found.labels)} classes, give each a word of its own"
        )
    own = {
        "dataset": found.name,
        "task": task,
        "hard_negatives": hard_negatives,
        "k": k,
        "items": items,
        "seed": seed,
        "labels": None if labels is None else list(labels),
        "reference": reference,
        "reference_prompts": REFERENCE,
        "skipped_positions": 8,
        "token_budget": TOKEN_BUDGET,
    }
    return {"stem": STEM, "schema": 2, "method_version": 1, **model_request(model, **which), **own}


def ablation(heads: Sequence[Head], mode: str = "mean") -> Edit:
    """Replace what these heads write at all positions, by one of MODES.

    "zero"; "mean": their mean output over tokens of the reference; "mean_pos": the same position by position;
    "input_mean": what they make of the mean input of their layer, position by position, which is what Crosbie &
    Shutova's code does (queries, keys and values of the ablated heads alone come from it).
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; there are {', '.join(MODES)}")
    return {"ablate": plain_heads(heads), "mode": mode}


def knockout(heads: Sequence[Head], pattern: str = "induction", seed: int = 0) -> Edit:
    """Forbid these heads the cells of a pattern, see `tasks.induction_pattern`."""
    return {"knock_out": plain_heads(heads), "pattern": pattern, "seed": seed}


# ------------------------------------------------------------------------------------------------ answers


class _Run(Run):
    """What all edits of a task request share; prompts and means are there once they are called for."""

    @cached_property
    def known(self) -> dict[str, dict[str, Any]]:
        """Means that were asked for."""
        return {}

    @cached_property
    def drawn(self) -> tuple[list[Prompt], list[Prompt]]:
        """The prompts to answer, and those of the reference, which ask for other rows."""
        asked = self.asked
        task = classification.task(asked["task"], asked["hard_negatives"])
        if asked["labels"] is not None:
            task = classification.relabelled(task, asked["labels"])
        prompts = classification.prompts(task, asked["k"], asked["seed"], asked["items"])
        if asked["reference"] == "staicc":
            return prompts, staicc_prompts(TEXTS, 4)[:REFERENCE]
        others = classification.prompts(task, asked["k"], asked["seed"] + 1000, asked["items"] + REFERENCE)
        return prompts, others[asked["items"] :] or others[:REFERENCE]

    @cached_property
    def plan(self) -> Scoring:
        return scoring(*self.pair, self.drawn[0])

    @cached_property
    def plain_texts(self) -> list[tuple[int, ...]]:
        prompts = staicc_prompts(TEXTS, 0)[:REFERENCE]
        return [with_bos(p.text[slice(*p.spans["x"][-1])], self.pair[1]).ids for p in prompts]

    @property
    def texts(self) -> list[str]:
        return [prompt.text for part in self.drawn for prompt in part]

    @cached_property
    def reference(self) -> list[Row]:
        rows = [Row(with_bos(prompt.text, self.pair[1]).ids) for prompt in self.drawn[1]]
        check_context(self.pair[0], [len(row) for row in rows])
        return rows

    def means(self, mode: str, heads: Sequence[Sequence[int]] | None = None) -> dict[str, Any]:
        own: dict[str, Any] = {"part": "means", "mode": mode, "heads": heads}
        if (name := repr(own)) not in self.known:  # once for all edits, redo or not
            self.known[name] = self.record(own, partial(self.measured_means, mode, heads)).data
        return self.known[name]

    def measured_means(self, mode: str, heads: Sequence[Sequence[int]] | None) -> dict[str, Any]:
        net, rows, budget = self.pair[0], self.reference, self.asked["token_budget"]
        if mode == "mean":
            return mean_outputs(net, rows, self.asked["skipped_positions"], budget)
        measure = position_means if mode == "mean_pos" else outputs_of_mean_inputs
        by_layer = heads_by_layer(support(net), heads or [])
        values = measure(net, rows, list(by_layer), budget)
        chosen = [values[layer][:, own] for layer, own in by_layer.items()]
        return {"values": np.concatenate(chosen, axis=1), "prompts": len(rows)}

    def instruments(self, edit: Edit, lengths: Sequence[int]) -> Attach:
        """What an edit attaches to texts of so many tokens. Raises ValueError before any forward pass."""
        if not edit:
            return nothing
        net, tokenizer = self.pair
        found = prepare(net)
        heads = edit["ablate"] if "ablate" in edit else edit["knock_out"]
        by_layer = heads_by_layer(found, heads)
        if not heads:
            return nothing
        if "knock_out" in edit:
            cut = [induction_pattern.cells(p, tokenizer, edit["pattern"], edit["seed"]) for p in self.drawn[0]]
            return knockouts(cut, by_layer)
        mode = edit["mode"]
        if mode == "zero":
            return lambda batch: [PatchHeads(layer, own, 0.0) for layer, own in by_layer.items()]
        if mode == "mean":
            mean = torch.from_numpy(self.means("mean")["mean"])
            values = {layer: mean[found.layers.index(layer)][own] for layer, own in by_layer.items()}
            return lambda batch: [PatchHeads(layer, own, values[layer]) for layer, own in by_layer.items()]
        longest, there = max(lengths), max(map(len, self.reference))
        if longest > there:
            raise ValueError(
                f"the longest prompt has {longest} tokens, the reference of {mode} {there}; take mode 'mean', or a "
                "reference of longer prompts"
            )
        kept = torch.from_numpy(self.means(mode, edit["ablate"])["values"])  # [T, heads, dv]
        parts = dict(zip(by_layer, kept.split([len(own) for own in by_layer.values()], dim=1), strict=True))

        def attach(batch: Batch) -> list[PatchHeads]:
            places = batch.positions.clamp(max=there - 1)  # those of padding may be larger
            return [PatchHeads(layer, own, parts[layer][places]) for layer, own in by_layer.items()]

        return attach


def answers(
    asked: cache.Request,
    edits: Mapping[str, Edit],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, dict[str, Any]]:
    """What the model answers to a `task_request` under each edit, by its name; each is cached on its own.

    log_prob [N, C] of the labels (see `label_log_probs`), gold [N]. An ablation acts on the tokens of a label as on all
    others; a knockout on the prompt's alone. Raises ValueError, before any forward pass, for what `scoring` refuses in
    labels, for prompts that are too long, and for what an edit cannot do.
    """
    run = _Run(asked, model, folder, redo)

    def compute(edit: Edit) -> dict[str, Any]:
        attach = run.instruments(edit, run.plan.lengths)
        found = label_log_probs(run.pair[0], run.plan, attach, token_budget=asked["token_budget"])
        return {**found, "gold": run.plan.gold}

    bar = tqdm(edits.items(), desc=f"{asked['dataset']}, {asked['k']} shots", leave=False)
    return {name: run.record({"part": "answers", "edit": dict(e)}, partial(compute, e)).data for name, e in bar}


def answered_right(
    requests: Sequence[cache.Request],
    edits: Mapping[str, Edit],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, np.ndarray]:
    """Which queries are answered right under each edit, [R, N] by name: a row for each request, one per seed say."""
    model = once(model, requests[0])
    runs = [answers(asked, edits, model, folder, redo) for asked in requests]
    return {name: np.stack([right(run[name]["log_prob"], run[name]["gold"]) for run in runs]) for name in edits}


def language_losses(
    asked: cache.Request,
    edits: Mapping[str, Edit],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, np.ndarray]:
    """The mean next-token loss of plain texts (StaICC's) under each ablation, in nats, [N] by name."""
    run = _Run(asked, model, folder, redo)
    if any("knock_out" in edit for edit in edits.values()):
        raise ValueError("plain texts have no induction pattern to knock out; give ablations alone")

    def compute(edit: Edit) -> dict[str, Any]:
        attach = run.instruments(edit, list(map(len, run.plain_texts)))
        return {"loss": text_losses(run.pair[0], run.plain_texts, attach, asked["token_budget"])}

    bar = tqdm(edits.items(), desc="plain text", leave=False)
    return {n: run.record({"part": "text", "edit": dict(e)}, partial(compute, e)).data["loss"] for n, e in bar}


def means(
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> dict[str, Any]:
    """Mean outputs over the reference of a `task_request`: mean [L, H, dv], norms [L, H], tokens, prompts.

    norms: how long what each head writes is, at the last token of a prompt, on average.
    """
    return _Run(asked, model, folder, redo).means("mean")


def pattern(
    asked: cache.Request,
    head: Head,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, Any]:
    """What one head attends to in the first prompt of a task: attention [T, T], tokens as text, ids, kinds of parts."""
    run = _Run(asked, model, folder, redo)

    def compute() -> dict[str, Any]:
        net, tokenizer = run.pair
        found = support(net)
        ((layer, (place,)),) = heads_by_layer(found, [head]).items()
        prompt = run.drawn[0][0]
        tokens = with_bos(prompt.text, tokenizer)
        rows = CaptureRows(torch.arange(len(tokens.ids)), layers=layer)
        forward(net, Batch.of([Row(tokens.ids)], [0]), rows)
        kinds = [""] * len(tokens.ids)
        for part in induction_pattern.parts(prompt):
            for token in tokens.under(part.span):
                kinds[token] = part.kind or "text"
        return {
            "attention": rows.weights[layer][0, place].cpu().numpy(),
            "tokens": [tokenizer.decode([token]) for token in tokens.ids],
            "kinds": kinds,
        }

    return run.record({"part": "pattern", "head": [int(part) for part in head]}, compute).data
