"""Edge ablation from JSON: what a config may say, and result.json and rows.csv exported from its records.

A config is one of the reference code's five actions, or `scores`, which measures what pruning goes by. Pydantic checks
every field; what fields say together, `Draw` and `Config` check. Nothing is loaded before all configs of a file are
right.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, probes
from util.edges.edge import CIRCUITS, FAMILIES
from util.edges.splicing import Store
from util.figures.edge_ablation.numbers import SHARE, aligned, mean, queries_of, right_of
from util.figures.edge_ablation.pruning import HEADS_SHARE, SCORE, Pruner
from util.figures.edge_ablation.runs import Run
from util.figures.edge_ablation.settings import Draw
from util.models.files import sha256
from util.prompts import word_pairs
from util.scores.pruning import Pruning as Rounds
from util.scores.units import SORTS, Circuit, Sort, write_scores
from util.stats.intervals import Interval
from util.study import exports
from util.study.checked import Distinct
from util.study.model import Model
from util.study.store import Record
from util.study.study import Study

Draws = Mapping[int, Mapping[str, Record]]  # by seed of donors and by ablation
Whole = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(gt=0, le=1)]
PROBED = (*FAMILIES["CONTEXT_IO"], *FAMILIES["AGG_Y"])
PRUNING: Mapping[str, Sort] = {"prune_heads": "head", "prune_edges": "edge"}
OF_UNITS = ("scores", *PRUNING)
OF_MODEL = ("revision", "dtype", "quantized", "untrained_seed")


class Fields(BaseModel):
    """Fields of an object in a config."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @property
    def given(self) -> dict[str, Any]:
        """What the file says of them."""
        return self.model_dump(exclude_unset=True)


class Request(Fields):
    """A model, see `Model`, and prompts, see `Draw`."""

    model: Text = "embedded"
    revision: Text | None = None
    dtype: Text = "auto"
    quantized: bool = False
    untrained_seed: Whole | None = None
    task: Text = Draw.task
    k: int = Draw.k
    prompts: Annotated[int, Field(ge=2)] = Draw.prompts  # an interval needs two
    seed: int = Draw.seed
    split: Text = Draw.split
    corruptions: tuple[int, ...] = Draw.corruptions
    ambiguous: int | None = None
    order: Text = Draw.order
    layout: dict[str, str] | None = None
    token_budget: int | None = None
    two_pass: bool = False
    in_turn: bool = False


class Edits(Fields):
    """Fields of `Ablation`."""

    removed: tuple[Text, ...] = ()
    kept: tuple[Text, ...] | None = None
    probed: tuple[tuple[Text, Whole], ...] = ()
    inside: bool = True
    layers: tuple[Whole, ...] | None = None
    heads: tuple[tuple[Whole, Whole], ...] | None = None
    channel: Text = "kv"
    mode: Text = "resample"

    @model_validator(mode="after")
    def _together(self) -> Edits:
        self.ablation  # noqa: B018  # it refuses what does not go together
        return self

    @cached_property
    def ablation(self) -> Ablation:
        """The ablation."""
        return Ablation(**self.given)


class Pruning(Fields):
    """What `Pruner` prunes, and how; after_heads: false, to prune the edges of all heads."""

    after_heads: bool = True
    start: Edits = Edits()
    per_round: Share = 0.1
    heads_share: Share = HEADS_SHARE
    keep: tuple[Whole, ...] | None = None
    score_files: tuple[Text, ...] = ()
    search_prompts: Annotated[int, Field(ge=1)] | None = None


class Config(Fields):
    """One run. request: model and prompts. donor_seeds: draws of donors. action:

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
    request: Request = Request()
    donor_seeds: Annotated[tuple[Whole, ...], Distinct] = (0, 1, 2)
    ablation: Edits = Edits()
    pruning: Pruning = Pruning()
    random: Whole = 20
    share: Share = SHARE
    out_dir: Text | None = None

    @model_validator(mode="after")
    def _together(self) -> Config:
        if (self.action == "ablation") != bool(self.ablation.given):
            raise ValueError('ablation says what action "ablation" does; give it there, and for no other action')
        for fields, actions in ((("pruning",), OF_UNITS), (("random", "share"), OF_UNITS[1:])):
            if self.action not in actions and (wrong := self.model_fields_set.intersection(fields)):
                raise ValueError(f"{', '.join(sorted(wrong))}: leave it out; it goes with {', '.join(actions)}")
        if self.action == "probes" and not {*self.request.corruptions} - {0}:
            raise ValueError("request.corruptions: probes are read from corruptions; give some from 1 on beside 0")
        self.model, self.draws  # noqa: B018  # they refuse what cannot be measured
        if self.action in OF_UNITS:
            self._check_units()
        if self.out_dir is not None:
            exports.check_folder(Path(self.out_dir), "out_dir")
        return self

    def _check_units(self) -> None:
        """Raises ValueError for what does not go together in pruning."""
        keep, files, request = self.pruning.keep, self.pruning.score_files, self.request
        if files and len(keep or ()) != len(files):
            raise ValueError(f"score_files: {len(files)} files for {len(keep or ())} entries of keep")
        if lacking := [file for file in files if not Path(file).is_file()]:
            raise ValueError(f"score_files: there is no file {lacking[0]!r}")
        if request.split != "test":
            raise ValueError(f'split = {request.split!r}: give "test"; units are pruned on the search split')
        if any(after > before for before, after in pairwise(keep or ())):
            raise ValueError(f"keep = {[*(keep or ())]}: no round keeps more units than the one before")
        if 0 not in request.corruptions:
            raise ValueError(f"corruptions = {list(request.corruptions)}: pruned units are read from corruption 0")
        Circuit.whole(1, 1, start=self.pruning.start.ablation)

    @cached_property
    def model(self) -> Model:
        """The model of the request."""
        loading = {name: value for name, value in self.request.given.items() if name in OF_MODEL}
        return Model(self.request.model, **loading)

    @cached_property
    def draws(self) -> list[Draw]:
        """The prompts of the request, with each draw of donors."""
        given = {name: value for name, value in self.request.given.items() if name not in ("model", *OF_MODEL)}
        trained = word_pairs.is_trained(self.request.model)
        return [Draw(**given, donor_seed=seed, trained=trained) for seed in self.donor_seeds]

    @property
    def ablations(self) -> dict[str, Ablation]:
        """What is compared, by name, the whole model among it."""
        whole = {names.FULL: WHOLE}
        if self.action == "ablation":
            return {**whole, names.ABLATED: self.ablation.ablation}
        if self.action == "probes":
            corruptions = [corruption for corruption in self.request.corruptions if corruption]
            return {**whole, **probes(CIRCUITS[names.CTX_AGG], PROBED, corruptions)}
        return whole

    def plain(self) -> dict[str, Any]:
        """The same in JSON: what makes two runs the same run. out_dir is left out.

        Of a saved data set and of score files it says what they contain now, by a digest.
        """
        named = self.model_dump(mode="json", exclude={"out_dir"})
        if files := named["pruning"].pop("score_files"):
            named["score_file_digests"] = [*map(sha256, files)]
        study = Study("edge_ablation", self.model, untrained_control=False)
        asked = Run(study, replace(self.draws[0], donor_seed=0)).request
        return {**named, "request": {**self.model.request, **asked}}


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
        given = json.loads(Path(file).read_text(encoding="utf-8"), object_pairs_hook=_no_key_twice)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot run {file}: {error}") from error
    found, wrong = [], []
    for number, entry in enumerate(given if isinstance(given, list) else [given]):
        try:
            found.append(Config.model_validate_json(json.dumps(entry)))
        except ValidationError as error:
            where = f"{file}, config {number}" if isinstance(given, list) else file
            wrong += [f"cannot run {where}: {_sentence(one)}" for one in error.errors(include_url=False)]
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


def _sentence(error: Any) -> str:
    """What is wrong with a field, and what to give."""
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{field} is missing; give it"
    if error["type"] == "extra_forbidden":
        kind: Any = Config
        for name in error["loc"][:-1]:
            kind = kind.model_fields[name].annotation
        return f"{field}: there is no such field; leave it out, or give one of {', '.join(kind.model_fields)}"
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"]).replace("\n", "; ")
        return f"{field}: {message}" if field else message
    return f"{field or 'config'} = {error['input']!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"


# ------------------------------------------------------------------------------------------------ running


def run(
    config: Config, model: Model | None = None, folder: Path | None = None, *, overwrite: bool = False
) -> dict[str, Any]:
    """Do what a config says; its result, as in result.json. Everything measured is cached, so that it can go on.

    model: the config's model, where it is there already, for several configs of one. folder: of the records.
    overwrite: measure again, and replace what is in out_dir. Raises ValueError for another model than the config's, and
    FileExistsError, before any work, where out_dir holds the result of another config; the result of an equal one is
    loaded.
    """
    model = config.model if model is None else model
    if model.request != config.model.request:
        raise ValueError(f"model = {model.shown_name!r}: the config asks for {config.model.request}")
    study = Study("edge_ablation", model, folder=folder, redo=overwrite, untrained_control=False)
    out = None if config.out_dir is None else Path(config.out_dir)
    if out is not None and not overwrite:
        there = exports.result_there(out, config.plain(), "config", study.expected, "choose another out_dir")
        if there is not None:
            return there
    if config.action in OF_UNITS:
        start, prompts = config.pruning.start.ablation, config.pruning.search_prompts
        pruner = Pruner.of(study, config.draws, prompts, start)
        result, draws = (_scored if config.action == "scores" else _pruned)(config, pruner, out)
    else:
        needed = config.draws if any(one.corruptions for one in config.ablations.values()) else config.draws[:1]
        store, writes = Store(), config.action != "probes"
        runs = {draw.donor_seed: Run(study, draw, store) for draw in needed}
        draws = {seed: run.records(config.ablations, generate=writes) for seed, run in runs.items()}
        result = _result(config, draws, {name: ablation.plain() for name, ablation in config.ablations.items()})
    if out is not None:
        exports.write(out, result, _rows(draws))
    return result


def _scored(config: Config, pruner: Pruner, _: Path | None) -> tuple[dict[str, Any], Draws]:
    """The result with the scores of the living units by name, the highest first, for each sort; and its records."""
    draws = {pruner.search.draw.donor_seed: pruner.search.records(config.ablations)}
    named: dict[str, dict[str, float]] = {}
    for sort in SORTS:
        scores, units = pruner.scores(pruner.first, sort), pruner.first.units(sort)
        pairs = [(str(unit), float(scores[units.place(unit)])) for unit in units.of(pruner.first.living(sort))]
        named[sort] = dict(sorted(pairs, key=lambda pair: -pair[1]))
    return _result(config, draws, {names.FULL: WHOLE.plain()}) | {"scores": named}, draws


def _pruned(config: Config, pruner: Pruner, out: Path | None) -> tuple[dict[str, Any], Draws]:
    """The result of pruning, and its records; out: a folder that receives the scores that were measured."""
    sort, how, start = PRUNING[config.action], config.pruning, pruner.first
    if sort == "edge" and how.after_heads:
        start = pruner.before_edges(how.per_round, how.heads_share)
    found = pruner.pruned(sort, start, config.share, how.per_round, how.keep, how.score_files)
    circuits, drawn = {names.PRUNED: found.result}, pruner.at_random(sort, start, found.result, config.random)
    circuits |= {names.random_circuit(number): one for number, one in enumerate(drawn, 1)}
    draws: dict[int, dict[str, Record]] = {}
    for run in pruner.runs:
        pruned = {name: pruner.record(run, circuit) for name, circuit in circuits.items()}
        draws[run.draw.donor_seed] = {**run.records(config.ablations), **pruned}
    about = {names.FULL: WHOLE.plain()} | {name: {"units": circuit.digest} for name, circuit in circuits.items()}
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
    return _result(config, draws, about) | {"pruning": pruning}, draws


def save_scores(folder: Path, pruner: Pruner, found: Rounds) -> list[Path]:
    """Write a file of scores for each round of a pruning but the last, which `score_files` takes; their paths."""
    files = [folder / f"{found.sort}_scores_{number}.json" for number in range(len(found.rounds) - 1)]
    folder.mkdir(parents=True, exist_ok=True)
    for file, one in zip(files, found.rounds, strict=False):
        write_scores(file, one.circuit, found.sort, pruner.scores(one.circuit, found.sort), **SCORE)
    return files


def _result(config: Config, draws: Draws, ablations: Mapping[str, Any]) -> dict[str, Any]:
    """What every result says: of which config and model it is, and what was measured."""
    first = next(iter(draws.values()))[names.FULL]
    return {
        "config": config.plain(),
        "provenance": first.provenance,
        "left_out": first.data["left_out"],
        "ablations": dict(ablations),
        "results": _results([{name: record.data for name, record in draw.items()} for draw in draws.values()]),
    }


def _results(draws: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Interval]]:
    """The interval of every measure by ablation."""
    results = dict[str, dict[str, Interval]]()
    for name, row in aligned(draws).items():
        units = row["query"] if queries_of(row) > 1 else None  # prompts, where all ask the same
        results[name] = {
            measure: right_of(row, measure) if values.dtype == bool else mean(values, units)
            for measure, values in row.items()
            if measure != "query"
        }
    return results


def _rows(draws: Draws) -> str:
    """One line for each ablation, draw of donors and prompt."""
    columns = ("index", "queries", "answers", "right", "log_prob", "kl", "agrees", "written")
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["ablation", "donor_seed", *columns])
    for seed, records in draws.items():
        for name, record in records.items():
            parts = [record.data.get(column, [""] * len(record.data["index"])) for column in columns]
            table.writerows([name, seed, *cells] for cells in zip(*parts, strict=True))
    return text.getvalue()
