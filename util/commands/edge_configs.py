"""Edge ablation from JSON: what a config may say, and result.json and rows.csv exported from its records.

A config is one of the reference code's five actions, or `scores`, which measures what pruning goes by. Pydantic checks
every field; what fields say together, `Draw` and `Config` check. Nothing is loaded before all configs of a file are
right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BeforeValidator

from util.commands.frame import from_json
from util.edges import names
from util.edges.ablation import WHOLE, Ablation, probes
from util.edges.edge import CIRCUITS, FAMILIES
from util.edges.splicing import Store
from util.figures.edge_ablation.numbers import SHARE, aligned, mean, queries_of, right_of
from util.figures.edge_ablation.pruning import HEADS_SHARE, SCORE, Pruner
from util.figures.edge_ablation.runs import Run
from util.figures.edge_ablation.settings import Draw, Seeds
from util.models.files import sha256
from util.prompts import word_pairs
from util.scores.pruning import Pruning as Rounds
from util.scores.units import SORTS, Circuit, Sort, write_scores
from util.study import exports
from util.study.checked import AsList, Count, Natural, Share, Text, checked
from util.study.model import Model
from util.study.store import Record
from util.study.study import Study

Draws = Mapping[int, Mapping[str, Record]]  # by seed of donors and by ablation
Naturals = Annotated[tuple[Natural, ...], AsList]
Texts = Annotated[tuple[Text, ...], AsList]
PROBED = (*FAMILIES["CONTEXT_IO"], *FAMILIES["AGG_Y"])
PRUNING: Mapping[str, Sort] = {"prune_heads": "head", "prune_edges": "edge"}
OF_UNITS = ("scores", *PRUNING)
OF_MODEL = ("revision", "dtype", "quantized", "untrained_seed")
COLUMNS = ("index", "queries", "answers", "right", "log_prob", "kl", "agrees", "written")


@checked
class Edits:
    """Fields of `Ablation`."""

    removed: Texts = ()
    kept: Texts | None = None
    probed: tuple[tuple[Text, Natural], ...] = ()
    inside: bool = True
    layers: Naturals | None = None
    heads: tuple[tuple[Natural, Natural], ...] | None = None
    channel: Text = "kv"
    mode: Text = "resample"

    def __post_init__(self) -> None:
        self.ablation  # noqa: B018  # it refuses what does not go together

    @cached_property
    def ablation(self) -> Ablation:
        """The ablation."""
        return Ablation(**asdict(self))


AsEdits = Annotated[Edits, BeforeValidator(lambda given: Edits(**given) if isinstance(given, dict) else given)]


@checked
class Pruning:
    """What `Pruner` prunes, and how; after_heads: false, to prune the edges of all heads."""

    after_heads: bool = True
    start: AsEdits = Edits()
    per_round: Share = 0.1
    heads_share: Share = HEADS_SHARE
    keep: Naturals | None = None
    score_files: Texts = ()
    search_prompts: Count | None = None

    def __post_init__(self) -> None:
        keep, files = self.keep or (), self.score_files
        if files and len(keep) != len(files):
            raise ValueError(f"score_files: {len(files)} files for {len(keep)} entries of keep")
        if lacking := [file for file in files if not Path(file).is_file()]:
            raise ValueError(f"score_files: there is no file {lacking[0]!r}")
        if any(after > before for before, after in pairwise(keep)):
            raise ValueError(f"keep = {[*keep]}: no round keeps more units than the one before")
        Circuit.whole(1, 1, start=self.start.ablation)  # it refuses what else goes not with pruning


AsPruning = Annotated[Pruning, BeforeValidator(lambda given: Pruning(**given) if isinstance(given, dict) else given)]


@checked
class Config:
    """One run. request: a model, see `Model`, and prompts, see `Draw`. donor_seeds: draws of donors. action:

    accuracy      the whole model, which also writes its answers out
    ablation      `ablation`, fields of `Ablation`, beside the whole model; it writes its answers out, too
    probes        context and label edges inside CTX+AGG, read from each corruption of the request but 0
    scores        importance scores of all head and edge units, on split "search"
    prune_heads   head units pruned round by round while `share` of the accuracy is kept, on split "search"; what is
                  left, and `random` prunings of that size, on the split of the request
    prune_edges   the same for edge units, after the heads

    pruning: of the last three. out_dir: a folder that receives result.json, rows.csv and, of pruning, a file of scores
    for each round; without it, the cached records alone are written.
    """

    action: Literal["accuracy", "ablation", "probes", "scores", "prune_heads", "prune_edges"]
    request: Mapping[str, Any] = field(default_factory=dict)
    donor_seeds: Seeds = (0, 1, 2)
    ablation: AsEdits = Edits()
    pruning: AsPruning = Pruning()
    random: Natural = 20
    share: Share = SHARE
    out_dir: Text | None = None

    def __post_init__(self) -> None:
        if (self.action == "ablation") != (self.ablation != Edits()):
            raise ValueError('ablation says what action "ablation" does; give it there, and for no other action')
        if self.action not in OF_UNITS and self.pruning != Pruning():
            raise ValueError(f"pruning: leave it out; it goes with {', '.join(OF_UNITS)}")
        if self.action not in PRUNING and (self.random, self.share) != (Config.random, Config.share):
            raise ValueError(f"random, share: leave them out; they go with {', '.join(PRUNING)}")
        if wrong := [name for name in ("donor_seed", "trained") if name in self.request]:
            raise ValueError(f"request.{wrong[0]}: leave it out; `donor_seeds` and the model say it")
        first = self.draws[0]  # the model and prompts refuse what cannot be measured
        if first.prompts < 2:
            raise ValueError("request: prompts = 1: two or more have intervals")
        if self.action == "probes" and not any(first.corruptions):
            raise ValueError("request.corruptions: probes are read from corruptions; give some from 1 on beside 0")
        if self.action in OF_UNITS and (first.split, 0 in first.corruptions) != ("test", True):
            raise ValueError(
                'request: pruned units are read from corruption 0; leave split at "test", and 0 in corruptions'
            )
        if self.out_dir is not None:
            exports.check_folder(Path(self.out_dir), "out_dir")

    @cached_property
    def model(self) -> Model:
        """The model of the request."""
        loading = {name: value for name, value in self.request.items() if name in OF_MODEL}
        return Model(self.request.get("model", "embedded"), **loading)

    @cached_property
    def draws(self) -> list[Draw]:
        """The prompts of the request, with each draw of donors."""
        given = {name: value for name, value in self.request.items() if name not in ("model", *OF_MODEL)}
        return [
            Draw(**given, donor_seed=seed, trained=word_pairs.is_trained(self.model.name)) for seed in self.donor_seeds
        ]

    @property
    def ablations(self) -> dict[str, Ablation]:
        """What is compared, by name, the whole model among it."""
        whole = {names.FULL: WHOLE}
        if self.action == "ablation":
            return {**whole, names.ABLATED: self.ablation.ablation}
        if self.action == "probes":
            return {**whole, **probes(CIRCUITS[names.CTX_AGG], PROBED, [*filter(None, self.draws[0].corruptions)])}
        return whole

    def plain(self) -> dict[str, Any]:
        """The same in JSON: what makes two runs the same run. out_dir is left out.

        Of a saved data set and of score files it says what they contain now, by a digest.
        """
        named = asdict(self)
        del named["out_dir"]
        if files := named["pruning"].pop("score_files"):
            named["score_file_digests"] = [*map(sha256, files)]
        study = Study("edge_ablation", self.model, untrained_control=False)
        named["request"] = {**self.model.request, **Run(study, replace(self.draws[0], donor_seed=0)).request}
        return json.loads(json.dumps(named))


FEW: dict[str, Any] = {"request": {"task": "capitalization", "prompts": 8, "k": 3}, "donor_seeds": [0]}
PRUNED = {**FEW, "random": 2, "pruning": {"per_round": 0.5}}
EXAMPLES: tuple[dict[str, Any], ...] = (  # a small run of each action
    {"action": "accuracy", **FEW},
    {"action": "ablation", **FEW, "ablation": {"removed": ["CONTEXT", "y->last_separator"]}},
    {"action": "probes", **FEW, "request": {**FEW["request"], "corruptions": [0, 1, 2]}},
    {"action": "scores", **FEW},
    {"action": "prune_heads", **PRUNED},
    {"action": "prune_edges", **PRUNED, "pruning": {"per_round": 0.5, "start": {"removed": ["TOQUERY"]}}},
)


def load(file: str | Path) -> list[Config]:
    """The configs of a JSON file: one object, or a list of them.

    Raises ValueError with a sentence for each wrong field: the file, the field, and what to give.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot run {file}: {error.strerror}") from error
    given = from_json(text, f"cannot run {file}: it", _no_key_twice)
    found, wrong = [], []
    for number, entry in enumerate(given if isinstance(given, list) else [given]):
        try:
            found.append(Config(**entry))
        except (ValueError, TypeError) as error:
            lines = str(error).splitlines() if isinstance(entry, dict) else [f"{entry!r:.80} is no object of fields"]
            wrong += [f"cannot run {file}, config {number}: {line}" for line in lines]
    if wrong:
        raise ValueError("\n".join(wrong))
    folders = [config.out_dir for config in found if config.out_dir is not None]
    if len(set(folders)) < len(folders):
        raise ValueError(f"cannot run {file}: two configs have one out_dir; give each a folder of its own")
    return found


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{', '.join(map(repr, twice))} stands twice in one object")
    return dict(pairs)


def run(config: Config, model: Model, folder: Path | None = None, *, overwrite: bool = False) -> dict[str, Any]:
    """Do what a config says; its result, as in result.json. Everything measured is cached, so that it can go on.

    model: the config's model, which several configs may share. folder: of the records. overwrite: measure again, and
    replace what is in out_dir. Raises ValueError for another model than the config's, and FileExistsError, before any
    work, where out_dir holds the result of another config; the result of an equal one is loaded.
    """
    if model.request != config.model.request:
        raise ValueError(f"model = {model.shown_name!r}: the config asks for {config.model.request}")
    study = Study("edge_ablation", model, folder=folder, redo=overwrite, untrained_control=False)
    out = None if config.out_dir is None else Path(config.out_dir)
    if out is not None and not overwrite:
        there = exports.result_there(out, config.plain(), "config", study.expected, "choose another out_dir")
        if there is not None:
            return there
    more: dict[str, Any] = {}
    about = {name: ablation.plain() for name, ablation in config.ablations.items()}
    if config.action in OF_UNITS:
        pruner = Pruner.of(study, config.draws, config.pruning.search_prompts, config.pruning.start.ablation)
        if config.action == "scores":
            draws: Draws = {config.donor_seeds[0]: pruner.search.records(config.ablations)}
            more = {"scores": {sort: _scores(pruner, sort) for sort in SORTS}}
        else:
            draws, units, more = _pruned(config, pruner, out)
            about |= units
    else:
        needed = config.draws if any(one.corruptions for one in config.ablations.values()) else config.draws[:1]
        store, writes = Store(), config.action != "probes"
        runs = {draw.donor_seed: Run(study, draw, store) for draw in needed}
        draws = {seed: run.records(config.ablations, generate=writes) for seed, run in runs.items()}
    first = next(iter(draws.values()))[names.FULL]
    result = {
        "config": config.plain(),
        "provenance": first.provenance,
        "left_out": first.data["left_out"],
        "ablations": about,
        "results": _results(draws),
        **more,
    }
    if out is not None:
        exports.write(out, result, _rows(draws))
    return result


def _scores(pruner: Pruner, sort: Sort) -> dict[str, float]:
    """The scores of the living units of a sort by name, the highest first."""
    scores, units = pruner.scores(pruner.first, sort), pruner.first.units(sort)
    named = {str(unit): float(scores[units.place(unit)]) for unit in units.of(pruner.first.living(sort))}
    return dict(sorted(named.items(), key=lambda pair: -pair[1]))


def _pruned(config: Config, pruner: Pruner, out: Path | None) -> tuple[Draws, dict[str, Any], dict[str, Any]]:
    """The records of pruning, the units of its circuits, and what the result has more; out: receives its scores."""
    sort, how, start = PRUNING[config.action], config.pruning, pruner.first
    if sort == "edge" and how.after_heads:
        start = pruner.before_edges(how.per_round, how.heads_share)
    found = pruner.pruned(sort, start, config.share, how.per_round, how.keep, how.score_files)
    drawn = pruner.at_random(sort, start, found.result, config.random)
    circuits = {names.PRUNED: found.result}
    circuits |= {names.random_circuit(number): one for number, one in enumerate(drawn, 1)}
    draws = {
        run.draw.donor_seed: {
            **run.records(config.ablations),
            **{name: pruner.record(run, circuit) for name, circuit in circuits.items()},
        }
        for run in pruner.runs
    }
    if out is not None and not how.score_files:
        save_scores(out, pruner, found)
    pruning = {
        "sort": sort,
        "units": start.count(sort),
        "left": found.units_left,
        "accuracy": [one.accuracy for one in found.rounds],
        "floor": found.floor,
        "stopped": found.stopped,
        "kept": {name: [*found.result.names(name)] for name in SORTS},
    }
    return draws, {name: {"units": circuit.digest} for name, circuit in circuits.items()}, {"pruning": pruning}


def save_scores(folder: Path, pruner: Pruner, found: Rounds) -> list[Path]:
    """Write a file of scores for each round of a pruning but the last, which `score_files` takes; their paths."""
    files = [folder / f"{found.sort}_scores_{number}.json" for number in range(len(found.rounds) - 1)]
    folder.mkdir(parents=True, exist_ok=True)
    for file, one in zip(files, found.rounds, strict=False):
        write_scores(file, one.circuit, found.sort, pruner.scores(one.circuit, found.sort), **SCORE)
    return files


def _results(draws: Draws) -> dict[str, dict[str, Any]]:
    """The interval of every measure by ablation."""
    results = {}
    for name, row in aligned([{name: one.data for name, one in draw.items()} for draw in draws.values()]).items():
        units = row["query"] if queries_of(row) > 1 else None  # prompts, where all ask the same
        results[name] = {
            measure: right_of(row, measure) if values.dtype == bool else mean(values, units)
            for measure, values in row.items()
            if measure != "query"
        }
    return results


def _rows(draws: Draws) -> str:
    """One line for each ablation, draw of donors and prompt."""
    tables = [
        pd.DataFrame({"ablation": name, "donor_seed": seed, **{part: record.data.get(part, "") for part in COLUMNS}})
        for seed, records in draws.items()
        for name, record in records.items()
    ]
    return pd.concat(tables).to_csv(index=False, lineterminator="\n")
