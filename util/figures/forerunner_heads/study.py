"""Forerunner token heads: from a request to a record of copy magnitudes (Cho et al. 2025, Fig. 5 middle, 22-25)."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from util.engine import batches
from util.engine.attention import support
from util.figures.forerunner_heads import magnitudes
from util.figures.forerunner_heads.measures import THRESHOLD, VERDICTS, Growth, growth, verdicts
from util.figures.planted_controls import errors_by_noise, planted_model
from util.load_model_and_data import DATASETS, dataset_index, staicc_prompts, staicc_version
from util.models import planted
from util.prompts.prompt import Appended, Prompt, check_conditions, tokenize
from util.records import cache
from util.records.runs import ModelSource, Run, model_request

STEM = "forerunner_heads"
BLOCK = 64  # prompts computed, and saved, at a time: what an interruption can cost at most


def request(
    model: str = "embedded",
    dataset: int | str = "financial_phrasebank",
    k: int = 4,
    prompts: int = 512,
    appended: Sequence[Appended] = (0, 1, "the"),
    control_tokens: int = 32,
    seed: int = 0,
    dtype: Any = "auto",
    quantized: bool = False,
    revision: str | None = None,
    untrained_seed: int | None = None,
) -> cache.Request:
    """What to measure, in a form that can be hashed without any model.

    appended: what stands after each prompt in turn: a label counted from the gold one in the label space (0 is the
    correct one, 1 the reference code's wrong one), or a word that is no label, as a control. untrained_seed: instead of
    the model, its architecture with fresh weights. Raises ValueError for an unknown data set or dtype and for numbers
    that make no sense, TypeError for a k that is no integer.
    """
    k, prompts, control_tokens = index(k), index(prompts), index(control_tokens)
    if not 1 <= prompts <= 512:
        raise ValueError(f"prompts = {prompts}: StaICC has 512 test queries per data set; choose 1 to 512")
    if k < 0 or control_tokens < 1:
        raise ValueError(f"k = {k}, control_tokens = {control_tokens}: k cannot be negative, nor the control empty")
    check_conditions(appended)
    return {
        "stem": STEM,
        "schema": 2,
        "method_version": 2,
        **model_request(model, dtype, quantized, revision, untrained_seed),
        "dataset": DATASETS[dataset_index(dataset)],
        "data_version": f"StaICC {staicc_version()}",
        "k": k,
        "prompts": prompts,
        "appended": list(appended),
        "control_tokens": control_tokens,
        "seed": seed,
        "token_budget": batches.TOKEN_BUDGET,
    }


def changed(asked: cache.Request, **options: Any) -> cache.Request:
    """The same request with other options of `request`, checked like those; raises what it raises."""
    names = ("model dataset k prompts appended control_tokens seed dtype quantized revision untrained_seed").split()
    return request(**{name: asked[name] for name in names} | options)


def listed(values: Any) -> list[Any]:
    """A list as a notebook's parameter: a list, one value, or the text of a list, which is what `papermill -p` passes.

    Raises ValueError for text that looks like a list and is none.
    """
    if isinstance(values, str):
        if not values.lstrip().startswith("["):
            return [int(values) if values.isdigit() else values]
        try:
            return list(json.loads(values.replace("'", '"')))
        except json.JSONDecodeError as error:
            raise ValueError(f"{values!r} is no list: write it like [1, 2] or ['trec', 'sst5']") from error
    return list(values) if isinstance(values, Sequence) else [values]


def run(
    asked: cache.Request,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> cache.Record:
    """The record of a request: from the cache, or measured now, block by block, and cached.

    model: where to get (model, tokenizer) on a miss: a `LazyModel`, a pair, or None to load the request's own model.
    An interrupted run, a redo too, goes on where it stopped. The record's data:

        magnitude [N, C, L, H]   A[y_q, s_q] with what each condition appends (float32)
        control [N, L, H]        mean of A[t, t-1] over other tokens of the prompt (float32)
        control_count [N]        how many of them
        value_norm [N, L, H]     |W_O^h v| of the forerunner (float32; NaN where `Support.projections` has none)
        n_t, label_lengths [N, C]  tokens of the labelled prompt, and of the label
        gold [N], demonstrations [N, k]  indices into `labels`; layers: the model's own layer numbers

    Raises what loading, `magnitudes.label_run` and `cache` raise, all before the first forward pass.
    """
    shared = _Run(asked, model, folder, redo)

    def compute() -> dict[str, Any]:
        prompts = shared.prompts
        plan = magnitudes.label_run(*shared.pair, prompts, asked["appended"])
        blocks = []
        with tqdm(total=len(plan.rows), desc=asked["dataset"], unit="row", leave=False) as bar:
            for start in range(0, len(prompts), BLOCK):
                part = range(start, min(start + BLOCK, len(prompts)))
                blocks.append(shared.block(plan, part, bar))
                bar.n = sum(owner < part.stop for owner in plan.owners)  # a cached block moves it too
                bar.refresh()
        data: dict[str, Any] = {
            name: np.concatenate([block[name] for block in blocks])
            for name in ("magnitude", "control", "control_count", "value_norm")
        }
        data |= {
            "n_t": plan.n_t,
            "label_lengths": plan.label_lengths,
            "gold": np.array([p.gold for p in prompts]),
            "demonstrations": np.array([p.demonstrations for p in prompts], np.int64).reshape(len(prompts), -1),
            "labels": list(prompts[0].labels),
            "layers": list(support(shared.pair[0]).layers),
        }
        shared.origin["oom_backoff"] = any(block["oom_backoff"] for block in blocks)
        return data

    record = shared.record({}, compute)
    whole = cache.record_path(asked, shared.folder)
    for start in range(0, asked["prompts"], BLOCK):  # only a whole record that is no older makes a block superfluous
        file = cache.record_path(_part(asked, start), shared.folder / "blocks")
        if whole.exists() and file.exists() and file.stat().st_mtime_ns <= whole.stat().st_mtime_ns:
            file.unlink()
            Path(f"{file}.lock").unlink(missing_ok=True)
    return record


def _part(asked: cache.Request, start: int) -> cache.Request:
    return {**asked, "block": [start, min(start + BLOCK, asked["prompts"])]}


class StaiccRun(Run):
    """What is measured on StaICC's prompts."""

    @cached_property
    def prompts(self) -> list[Prompt]:
        return staicc_prompts(self.asked["dataset"], self.asked["k"])[: self.asked["prompts"]]


class _Run(StaiccRun):
    """Copy magnitudes, in blocks of prompts."""

    @property
    def texts(self) -> list[str]:
        return [prompt.with_label(appended) for appended in self.asked["appended"] for prompt in self.prompts]

    def block(self, plan: magnitudes.LabelRun, numbers: range, bar: tqdm) -> dict[str, Any]:
        """What some of the prompts give; never measured again where it is there, not even by redo."""
        known = ("revision", "weights", "dtype", "tokenizer_digest", "prompt_digest", "code_digest")
        options = {name: self.asked[name] for name in ("control_tokens", "seed", "token_budget")}

        def compute() -> tuple[dict[str, Any], dict[str, Any]]:
            data = magnitudes.copy_magnitudes(self.pair[0], plan, numbers=numbers, bar=bar, **options)
            return data, dict(self.origin)

        expected = {name: self.origin[name] for name in known}
        return cache.load_or_compute(
            _part(self.asked, numbers.start), compute, self.folder / "blocks", expect=expected
        ).data


def condition(record: cache.Record, appended: Appended = 0) -> dict[str, np.ndarray]:
    """The arrays of one condition, as `measures` takes them: magnitude, control, moved [N, L, H], n_t [N].

    moved: the value-weighted magnitude, how long a vector the head adds at the label because of what it reads at the
    forerunner.
    """
    place = record.request["appended"].index(appended)
    return {
        "magnitude": record.data["magnitude"][:, place],
        "control": record.data["control"],
        "moved": record.data["magnitude"][:, place] * record.data["value_norm"],
        "n_t": record.data["n_t"][:, place],
    }


def planted_control(
    asked: cache.Request, folder: str | Path | None = None, **options: Any
) -> tuple[cache.Record, planted.Planted]:
    """The same request put to heads whose verdicts are known: `planted.forerunner`, on the embedded model's tokenizer.

    options: those of the planted circuit (family, copies, noise, seed). Returns the record and the planted truth.
    """
    prompt = staicc_prompts(asked["dataset"], asked["k"])[0]

    def labels(tokenizer: Any) -> list[int]:
        return [tokenize([prompt], tokenizer, label)[0].ids[-1] for label in prompt.labels]

    pair, truth, which = planted_model(planted.forerunner, options, labels)
    return run({**asked, **which}, pair, folder), truth


# what is to be found of the planted heads, by role
PLANTED = dict(zip(("labels only", "any token", "never"), VERDICTS, strict=True))


def planted_errors(
    asked: cache.Request,
    noises: Sequence[float] = (0.5, 1.0, 2.0),
    seeds: Sequence[int] = (0, 1),
    folder: str | Path | None = None,
) -> dict[float, dict[str, tuple[int, int]]]:
    """How often planted heads are misjudged, by the noise on their weights: "false alarms" and "misses", of how many.

    A false alarm is a decoy, or the head that never reads the previous token, with a verdict other than "neither"; a
    miss is one of the other two without the verdict it deserves. noises and seeds: see `planted.Plan`.
    """

    def judge(noise: float, seed: int) -> list[tuple[bool, bool]]:
        record, truth = planted_control(asked, folder, noise=noise, seed=seed)
        arrays = condition(record)
        found = verdicts(arrays["magnitude"], arrays["control"], arrays["n_t"])
        wanted = {head: PLANTED[role] for head, role in truth.names.items()}
        wanted |= dict.fromkeys(truth.decoys, VERDICTS[2])
        return [(verdict != VERDICTS[2], bool(found[head] != verdict)) for head, verdict in wanted.items()]

    return errors_by_noise(judge, noises, seeds)


def grid(
    asked: cache.Request,
    variations: Sequence[Mapping[str, Any]],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> list[cache.Record]:
    """The records of a request with other options of `request` in turn, such as [{"dataset": 4}, {"k": 0}].

    All requests are checked before the first is measured. Raises what `request` and `run` raise.
    """
    requests = [changed(asked, **dict(options)) for options in variations]
    return [run(one, model, folder, redo) for one in requests]


def growth_by_k(records: Sequence[cache.Record], c: float = THRESHOLD) -> Growth:
    """How many heads exceed the threshold with the demonstrations of each record, which differ in k alone."""
    conditions: dict[str, Appended] = {"correct": 0, "wrong": 1, "other word": "the"}
    by_k = {}
    for record in records:
        parts = {name: condition(record, what) for name, what in conditions.items()}
        by_k[record.request["k"]] = {name: (part["magnitude"], part["n_t"]) for name, part in parts.items()}
    return growth(by_k, c)
