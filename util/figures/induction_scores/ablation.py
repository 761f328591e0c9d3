"""What in-context learning loses without induction heads: ablation, knockout, controls (Crosbie & Shutova 2024).

Everywhere here a head is (layer, head), the layer counted among those that have attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from util.engine.attention import support
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows, PatchHeads
from util.engine.label_scores import Attach, Scoring, knockouts, label_log_probs, nothing, scoring, text_losses
from util.engine.means import mean_outputs, outputs_of_mean_inputs, position_means
from util.figures.induction_scores import measures
from util.figures.induction_scores.measures import Floats, Head
from util.figures.induction_scores.study import STEM, heads_by_layer
from util.load_model_and_data import staicc_prompts
from util.prompts import classification, induction_pattern
from util.prompts.prompt import Prompt, with_bos
from util.records import cache
from util.records.runs import ModelSource, Run, model_request, once
from util.records.study import plain_heads
from util.stats.answers import right
from util.stats.controls import layer_matched, norm_matched, shortage
from util.stats.heads import top
from util.stats.intervals import accuracy

MODES = ("mean", "zero", "mean_pos", "input_mean")
TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")
TEXTS = "financial_phrasebank"  # of StaICC: plain text, and the other reference of means
REFERENCES = ("task", "staicc")
REFERENCE = 64  # prompts of a reference, and texts
Interval = tuple[float, float, float]  # value, low, high
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
    start: int = 0,
    **which: Any,
) -> cache.Request:
    """A classification task to answer: `items` queries from the one at `start` on, k demonstrations each by `seed`.

    labels: other words than Foo, Bar, Mur, Res. reference: what means are taken over, other prompts of the task or
    StaICC's. which: see `model_request`. Raises ValueError for unknown names and numbers out of range.
    """
    if reference not in REFERENCES:
        raise ValueError(f"unknown reference {reference!r}; there are {', '.join(REFERENCES)}")
    found = classification.task(task, hard_negatives)
    if not 1 <= items <= len(found.rows) - start or k < 0 or start < 0:
        raise ValueError(
            f"items = {items}, start = {start}, k = {k}: {task} has {len(found.rows)} rows, and k is at least 0"
        )
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
        "start": start,
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
    """Forbid these heads the cells of a pattern, see `prompts.induction_pattern`."""
    return {"knock_out": plain_heads(heads), "pattern": pattern, "seed": seed}


# ------------------------------------------------------------------------------------------------ what to measure


@dataclass(frozen=True)
class Settings:
    """What is ablated and how it is measured. What is None follows from the model, see `for_model`.

    items: queries of each task; seeds: of their demonstrations; mode, reference: of an ablation; sizes: of the sets of
    best heads; primary: the one with controls; control_sets: of either kind on the primary task, other_sets: on others;
    all_tasks: ablations on tasks too that the whole model does not do; all_sizes: knockout and layer-matched controls
    for every size.
    """

    tasks: tuple[str, ...]
    primary_task: str
    items: int | None
    seeds: tuple[int, ...]
    mode: str
    reference: str
    sizes: tuple[int, ...] | None
    primary: int | None
    control_sets: int | None
    other_sets: int | None
    all_tasks: bool
    all_sizes: bool

    def for_model(self, heads: int) -> Settings:
        """The same with what follows from the number of heads of a model.

        Below 100 heads: 60 queries, the best 1, 2, 4, 8 heads, four of them with 20 control sets of either kind. From
        100 on: 40 queries, the best 1 % and 3 %, the former with 10 control sets of either kind, 5 on other tasks; with
        19 in all, the least p is 0.05. Raises ValueError where a size is none of the sizes, or more than the heads.
        """
        small = heads < 100
        sizes = self.sizes or ((1, 2, 4, 8) if small else tuple(measures.how_many(n, heads) for n in PAPER_SHARES))
        primary = self.primary or (4 if small and 4 in sizes else sizes[0])
        if primary not in sizes or not all(0 < n <= heads for n in sizes):
            raise ValueError(f"sizes = {list(sizes)}, primary = {primary}: sizes of 1 to {heads} heads, one is primary")
        control_sets = self.control_sets or (20 if small else 10)
        return replace(
            self,
            items=self.items or (60 if small else 40),
            sizes=sizes,
            primary=primary,
            control_sets=control_sets,
            other_sets=self.other_sets or (control_sets if small else min(5, control_sets)),
        )


PAPER_SHARES = (0.01, 0.03)
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"seeds": (42,), "mode": "mean", "reference": "task", "all_tasks": False, "all_sizes": False},
    # Crosbie & Shutova: all queries, three draws of demonstrations and of random heads, the mode of their code with
    # means over other texts than the tasks'
    "paper": {
        "items": 500,
        "seeds": (42, 43, 44),
        "mode": "input_mean",
        "reference": "staicc",
        "control_sets": 3,
        "all_tasks": True,
        "all_sizes": True,
    },
}


def settings(name: str = "default", **given: Any) -> Settings:
    """One of SETTINGS, with the fields of `Settings` that are given and not None instead.

    Raises ValueError, before any work, for an unknown name, task or mode, and for a primary task that is none of the
    tasks.
    """
    if name not in SETTINGS:
        raise ValueError(f"unknown settings {name!r}; there are {', '.join(SETTINGS)}")
    fields: dict[str, Any] = (
        dict.fromkeys(Settings.__annotations__) | {"tasks": TASKS, "primary_task": "wordseq1"} | SETTINGS[name]
    )
    fields |= {field: value for field, value in given.items() if value is not None}
    for field in ("tasks", "seeds", "sizes"):
        if isinstance(fields[field], str):
            raise ValueError(f"{field} = {fields[field]!r} is a text, not a list; papermill takes lists with -y")
        fields[field] = fields[field] and tuple(fields[field])
    if unknown := sorted(set(fields["tasks"]) - set(classification.NAMES)):
        raise ValueError(f"no task {unknown}; there are {', '.join(classification.NAMES)}")
    if fields["primary_task"] not in fields["tasks"]:
        raise ValueError(f"primary_task = {fields['primary_task']!r} is none of tasks = {list(fields['tasks'])}")
    for field, known in (("mode", MODES), ("reference", REFERENCES)):
        if fields[field] not in known:
            raise ValueError(f"unknown {field} {fields[field]!r}; there are {', '.join(known)}")
    return Settings(**fields)


@dataclass(frozen=True)
class Plan:
    """The edits that are compared, by name.

    chosen: the primary set of heads; controls: sets of other heads by "layer-matched" and "norm-matched"; short: layers
    with too few other heads, see `shortage`; edits: all of them; more: those of other sizes than the primary.
    """

    setup: Settings
    chosen: list[Head]
    controls: dict[str, list[list[Head]]]
    short: dict[int, tuple[int, int]]
    edits: dict[str, Edit]
    more: tuple[str, ...]

    @property
    def ablated(self) -> str:
        """The name of the primary ablation."""
        return f"top {self.setup.primary} ablated"

    def family(self, name: str, among: Mapping[str, Any] | None = None) -> list[str]:
        """The names of the edits that are draws of one control."""
        return [edit for edit in (self.edits if among is None else among) if edit.startswith(f"{name} ")]

    def of_task(self, task: str, done: Sequence[str]) -> dict[str, Edit]:
        """The edits to measure on a task: all on the primary one, fewer control sets on others that are done."""
        if task == self.setup.primary_task:
            return self.edits
        if task not in done:
            return {"whole model": WHOLE}
        left_out = {name for kind in self.controls for name in self.family(kind)[self.setup.other_sets :]}
        return {name: edit for name, edit in self.edits.items() if name not in left_out}

    def shown(
        self, right: Mapping[str, Mapping[str, np.ndarray]]
    ) -> tuple[dict[str, dict[str, Interval]], dict[str, dict[str, list[float]]]]:
        """Accuracies with intervals by task and row, NaN where there are none, and those of control sets by task.

        right: by task and edit, which queries are answered right, [R, N].
        """
        kinds = (*self.controls, "pattern in others")
        accuracies = {
            task: {name: accuracy(right[task][name]) if name in right[task] else (np.nan,) * 3 for name in self.rows}
            for task in right
        }
        drawn = {
            task: {kind: [float(row[name].mean()) for name in self.family(kind, row)] for kind in kinds}
            for task, row in right.items()
        }
        return accuracies, drawn

    def by_size(self, right: Mapping[str, np.ndarray]) -> list[Interval]:
        """Accuracy with none of the best heads ablated, then with each of the sizes."""
        return [accuracy(right[name]) for name in ("whole model", *(f"n = {n}" for n in self.setup.sizes or ()))]

    def few(self, done: bool = True, sets: int = 5) -> dict[str, Edit]:
        """The edits that are also measured without demonstrations: the whole model, ablated, and some control sets."""
        names = [self.ablated, *self.family("norm-matched")[:sets]] if done else []
        return {name: self.edits[name] for name in ("whole model", *names)}

    @property
    def rows(self) -> list[str]:
        """The names of a figure's rows: controls have one for all of their draws."""
        modes = [name for name in self.edits if name.startswith(f"top {self.setup.primary}")]
        kinds = ["layer-matched", "norm-matched", "pattern knocked out", "pattern in others"]
        return ["whole model", *modes, *kinds, "random keys", "previous part"]


def plan(score: Floats, norms: Floats, setup: Settings, seed: int = 0, full_grid: bool = False) -> Plan:
    """The sets of heads and edits for prefix-matching scores [L, H] and the lengths of what heads write [L, H].

    Control sets have no head with a score of 0.3 or more. full_grid: the primary set in all modes.
    """
    assert setup.sizes is not None and setup.primary is not None and setup.control_sets is not None
    mode, primary, chosen = setup.mode, setup.primary, top(score, setup.primary)
    eligible = score < measures.INDUCTION_HEAD
    short = shortage(chosen, eligible)
    controls = {
        "layer-matched": [] if short else layer_matched(chosen, eligible, setup.control_sets, seed),
        "norm-matched": norm_matched(chosen, eligible, norms, setup.control_sets, seed),
    }
    edits = {"whole model": WHOLE, f"top {primary} ablated": ablation(chosen, mode)}
    edits |= {f"top {primary}, {other}": ablation(chosen, other) for other in MODES if full_grid and other != mode}
    for kind, sets in controls.items():
        edits |= {f"{kind} {i + 1}": ablation(heads, mode) for i, heads in enumerate(sets)}
    edits |= {f"n = {n}": ablation(top(score, n), mode) for n in setup.sizes}
    edits |= {"pattern knocked out": knockout(chosen)}
    others = (controls["layer-matched"] or controls["norm-matched"])[:3]
    edits |= {f"pattern in others {i + 1}": knockout(heads) for i, heads in enumerate(others)}
    edits |= {pattern: knockout(chosen, pattern, seed) for pattern in ("random keys", "previous part")}
    known = len(edits)
    for n in setup.sizes if setup.all_sizes else ():
        if n != primary:
            heads = top(score, n)
            drawn = [] if shortage(heads, eligible) else layer_matched(heads, eligible, 3, seed)
            edits |= {f"n = {n}, pattern knocked out": knockout(heads)}
            edits |= {f"n = {n}, layer-matched {i + 1}": ablation(own, mode) for i, own in enumerate(drawn)}
    return Plan(setup, chosen, controls, short, edits, tuple(edits)[known:])


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
        end = asked["start"] + asked["items"]
        prompts = classification.prompts(task, asked["k"], asked["seed"], end)[asked["start"] :]
        if asked["reference"] == "staicc":
            return prompts, staicc_prompts(TEXTS, 4)[:REFERENCE]
        others = classification.prompts(task, asked["k"], asked["seed"] + 1000, end + REFERENCE)
        return prompts, others[end:] or others[:REFERENCE]

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


def tasks_done(
    requests: Sequence[cache.Request],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, Interval]:
    """Which tasks the whole model does better than chance, with its accuracy and interval on as many other queries.

    The queries are those behind the ones that a request asks for, so that what is chosen by is not measured again. An
    ablation of a task that the model does not do says nothing.
    """
    model = once(model, requests[0])
    done = {}
    for asked in requests:
        others = {**asked, "start": asked["start"] + asked["items"]}
        value, low, high = accuracy(answered_right([others], {"whole": WHOLE}, model, folder, redo)["whole"])
        if low > 1 / len(classification.task(asked["task"]).labels):
            done[asked["task"]] = value, low, high
    return done


def language_losses(
    asked: cache.Request,
    edits: Mapping[str, Edit],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, np.ndarray]:
    """The mean next-token loss of plain texts (StaICC's) under each ablation, in nats, [N] by name."""
    if any("knock_out" in edit for edit in edits.values()):
        raise ValueError("plain texts have no induction pattern to knock out; give ablations alone")
    run = _Run(asked, model, folder, redo)
    return {name: _text(run, edit)["loss"] for name, edit in tqdm(edits.items(), desc="plain text", leave=False)}


def uniform_loss(
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> float:
    """The loss of a model that gives all tokens of its vocabulary the same probability, in nats."""
    return float(np.log(_text(_Run(asked, model, folder, redo), WHOLE)["vocabulary"]))


def _text(run: _Run, edit: Edit) -> dict[str, Any]:
    def compute() -> dict[str, Any]:
        net, texts = run.pair[0], run.plain_texts
        attach = run.instruments(edit, list(map(len, texts)))
        losses = text_losses(net, texts, attach, run.asked["token_budget"])
        return {"loss": losses, "vocabulary": net.config.get_text_config().vocab_size}

    return run.record({"part": "text", "edit": dict(edit)}, compute).data


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
