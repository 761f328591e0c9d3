"""Edge ablation from JSON: one frozen `Config` for each run, and result.json and rows.csv exported from its records."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from util import edges
from util.edges import names
from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import CIRCUITS, FAMILIES
from util.figures.edge_ablation import measures
from util.figures.edge_ablation.pruning_study import PruningStudy
from util.figures.edge_ablation.results import Search
from util.figures.edge_ablation.study import DONOR_SEEDS, Study
from util.models.files import sha256
from util.records import exports
from util.records.cache import Record
from util.records.checked import Distinct, Share, Text, checked
from util.records.model import Model
from util.scores.units import SORTS, Sort
from util.stats.intervals import Interval, accuracy

Action = Literal[
    "accuracy", "ablation", "single_edges", "circuits", "windows", "probes", "search", "scores", "prune_heads",
    "prune_edges",
]  # fmt: skip
PRUNING: Mapping[str, Sort] = {"prune_heads": "head", "prune_edges": "edge"}
ACTIONS = get_args(Action)
PROBED = (*FAMILIES["CONTEXT_IO"], *FAMILIES["AGG_Y"])
OF_MODEL = ("revision", "dtype", "quantized", "untrained_seed")  # fields of a request that say how a model is loaded
OF_STUDY = (
    "task", "k", "prompts", "seed", "split", "corruptions", "ambiguous", "order", "layout", "token_budget", "two_pass",
    "in_turn",
)  # fmt: skip
OF_PRUNING = (
    "after_heads", "start", "per_round", "heads_share", "keep", "score_files", "search_prompts",
)  # fmt: skip
Draws = Mapping[int, Mapping[str, Record]]  # by seed of donors and by ablation
Whole = Annotated[int, Field(strict=True, ge=0)]  # JSON has numbers: text is none


@checked
class Config:
    """One run. request: model, and arguments of `Model` and `Study` (task, prompts, k, split, ...). action:

    accuracy      the whole model, which also writes its answers out
    ablation      `ablation`, fields of `Ablation`, beside the whole model; it writes its answers out, too
    single_edges  each type pair removed alone
    circuits      FULL, NONE, each of `circuits`, the model without it, `random` others as large as the last of them
    windows       contextualisation removed from a layer on, aggregation below a layer
    probes        context and label edges inside the last of `circuits`, read from each corruption of the request but 0
    search        a circuit that keeps `share` of the accuracy, searched on split "search"; its score on split "test"
    scores        importance scores of all head and edge units, on split "search"
    prune_heads   head units pruned round by round while `share` of the accuracy is kept, on split "search"; what is
                  left, and `random` prunings of that size, on the split of the request
    prune_edges   the same for edge units, after the heads

    pruning: of the last three, fields of `PruningStudy` (start, per_round, heads_share, keep,
    score_files, search_prompts), and after_heads: false, to prune the edges of all heads; out_dir
    receives a file of scores for each round.
    donor_seeds: draws of donors. out_dir: a folder that receives result.json and rows.csv; without it, the cached
    records alone are written. Raises ValueError for what is unknown or cannot be written, before any work.
    """

    action: Action
    request: dict[str, Any] = field(default_factory=dict)
    ablation: dict[str, Any] = field(default_factory=dict)
    circuits: Annotated[tuple[str, ...], Distinct] = (names.CTX_AGG, names.CTX_IO_AGG, names.AGG_ONLY)
    random: Whole = 20
    share: Share = 0.9
    donor_seeds: Annotated[tuple[Whole, ...], Distinct] = DONOR_SEEDS
    pruning: dict[str, Any] = field(default_factory=dict)
    out_dir: Text | None = None

    def __post_init__(self) -> None:
        for name in self.circuits:
            edges.check_known(name, tuple(CIRCUITS), "circuit")
        if (self.action == "ablation") != bool(self.ablation):
            raise ValueError('`ablation` says what action "ablation" does, and no other action')
        for name in self.request:
            edges.check_known(name, ("model", *OF_MODEL, *OF_STUDY), "field of request")
        if self.study.prompts < 2:
            raise ValueError(f"request: prompts = {self.study.prompts}: two prompts or more have intervals")
        if not isinstance(self.ablation.get("inside", True), bool):
            raise ValueError(f"ablation: inside = {self.ablation['inside']!r}: give true or false")
        try:
            Ablation(**self.ablation)
        except (TypeError, ValueError) as error:
            raise ValueError(f"ablation = {self.ablation}: its fields are those of Ablation ({error})") from error
        if self.action == "probes":
            self._check_probes()
        if self.action in (*PRUNING, "scores"):
            self.pruning_study  # noqa: B018  # it refuses what it cannot measure
        elif self.pruning:
            raise ValueError("`pruning` says how units are scored and pruned, and is for no other action")
        if self.out_dir is not None:
            exports.check_folder(Path(self.out_dir), "out_dir")

    def _check_probes(self) -> None:
        last, corruptions = self.circuits[-1], self.study.corruptions
        lacking = {*map(str, PROBED)} - {*map(str, edges.type_pairs(CIRCUITS[last]))}
        if lacking or not {*corruptions} - {0}:
            raise ValueError(
                f"probes: circuit {last!r} lacks {sorted(lacking) or 'nothing'}, corruptions are "
                f'{list(corruptions)}; take "{names.CTX_AGG}", and corruptions from 1 on beside 0'
            )

    @cached_property
    def study(self) -> Study:
        """The study of the request, of the model that it names. Raises ValueError for what there is not."""
        loading = {name: self.request[name] for name in OF_MODEL if name in self.request}
        arguments = {name: self.request[name] for name in OF_STUDY if name in self.request}
        model = Model(self.request.get("model", "embedded"), **loading)
        return Study(model, donor_seeds=self.donor_seeds, **arguments)

    @property
    def after_heads(self) -> bool:
        """Whether edges are pruned after heads. Raises ValueError unless it is true or false."""
        given = self.pruning.get("after_heads", True)
        if not isinstance(given, bool):
            raise ValueError(f"pruning: after_heads = {given!r}: give true or false")
        return given

    @cached_property
    def pruning_study(self) -> PruningStudy:
        """The study of pruning. Raises ValueError for what there is not."""
        given = dict(self.pruning)
        self.after_heads  # noqa: B018
        given.pop("after_heads", None)
        for name in given:
            edges.check_known(name, OF_PRUNING, "field of pruning")
        try:
            start = Ablation(**given.pop("start", {}))
        except (TypeError, ValueError) as error:
            raise ValueError(f"pruning: start: its fields are those of Ablation ({error})") from error
        return PruningStudy(self.study, start=start, share=self.share, random=self.random, **given)

    def plain(self) -> dict[str, Any]:
        """The same in JSON: what makes two runs the same run. out_dir is left out.

        Of a saved data set and of score files it says what they contain now, by a digest.
        """
        named = {name: value for name, value in asdict(self).items() if name != "out_dir"}
        if files := self.pruning.get("score_files"):
            named["pruning"] = {name: value for name, value in self.pruning.items() if name != "score_files"}
            named["score_file_digests"] = [*map(sha256, files)]
        request = self.study.replace(donor_seeds=(0,)).request
        return json.loads(json.dumps({**named, "request": request}))


def load(file: str | Path) -> list[Config]:
    """The runs of a JSON file: one object, or a list of them. Raises ValueError naming the file and what is wrong."""
    try:
        given = json.loads(Path(file).read_text(encoding="utf-8"), object_pairs_hook=_no_key_twice)
        configs = [_config(entry) for entry in (given if isinstance(given, list) else [given])]
        folders = [config.out_dir for config in configs if config.out_dir is not None]
        if len(set(folders)) < len(folders):
            raise ValueError("two configs have one out_dir; give each a folder of its own")
        return configs
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot run {file}: {error}") from error


def _no_key_twice(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{', '.join(map(repr, twice))} stands twice in one object")
    return dict(pairs)


def _config(given: Any) -> Config:
    if not isinstance(given, dict):
        raise ValueError(f"{given!r:.60} is no object of a config's fields")
    if "action" not in given:
        raise ValueError(f"action is missing; choose one of {', '.join(ACTIONS)}")
    return Config(**given)


def examples() -> list[Config]:
    """A small run of each action on the embedded model."""
    few: dict[str, Any] = {"task": "capitalization", "prompts": 8, "k": 3}
    one = Config("accuracy", few, donor_seeds=(0,))
    return [
        one,
        replace(one, action="ablation", ablation={"removed": ["CONTEXT", "y->last_separator"]}),
        replace(one, action="single_edges"),
        replace(one, action="circuits", random=2, donor_seeds=(0, 1, 2)),
        replace(one, action="windows"),
        replace(one, action="probes", request={**few, "corruptions": [0, 1, 2]}, circuits=(names.CTX_AGG,)),
        replace(one, action="search", random=2),
        replace(one, action="scores"),
        replace(one, action="prune_heads", random=2, pruning={"per_round": 0.5}),
        replace(one, action="prune_edges", random=2, pruning={"per_round": 0.5, "start": {"removed": ["TOQUERY"]}}),
    ]


# ------------------------------------------------------------------------------------------------ running


def run(
    config: Config, model: Model | None = None, folder: Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Do what a config says; its result, as in result.json. Everything measured is cached, so that it can go on.

    model: the config's model, where it is there already, for several configs of one. folder: of the records.
    overwrite: measure again, and replace what is in out_dir. Raises ValueError for another model than the config's, and
    FileExistsError, before any work, where out_dir holds the result of another config; the result of an equal one is
    loaded.
    """
    study = config.study
    if model is not None and model.request != study.model.request:
        raise ValueError(f"model = {model.shown_name!r}: the config asks for {study.model.request}")
    study = study.replace(model=study.model if model is None else model, folder=folder, redo=overwrite)
    out = None if config.out_dir is None else Path(config.out_dir)
    if out is not None and not overwrite:
        there = exports.result_there(out, config.plain(), "config", study.expected, "choose another out_dir")
        if there is not None:
            return there
    if config.action in (*PRUNING, "scores"):
        return _run_pruning(config, study, out)
    search = study.search(config.share) if config.action == "search" else None
    if search is not None:
        study = study.replace(split="test")
    ablations = _ablations(config, study, search)
    if not any(ablation.corruptions for ablation in ablations.values()):
        study = study.replace(donor_seeds=config.donor_seeds[:1])
    writes = config.action in ("accuracy", "ablation")
    draws = {draw.donor_seeds[0]: draw.records(ablations, generate=writes) for draw in study.draws}
    about = {name: ablation.plain() for name, ablation in ablations.items()}
    result = _result(config, draws, about)
    if search is not None:
        result["search"] = {
            "kept": [str(edge) for edge in search.pairs],
            "alone": {str(edge): cost for edge, cost in search.alone.items()},
            "steps": [[str(edge), gone, right] for edge, gone, right in search.trace],
        }
    _export(out, result, draws)
    return result


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


def _export(out: Path | None, result: Mapping[str, Any], draws: Draws) -> None:
    if out is not None:
        exports.write(out, result, _rows(draws))


def _run_pruning(config: Config, study: Study, out: Path | None) -> dict[str, Any]:
    """The actions that score and prune units."""
    whole = {names.FULL: WHOLE}
    pruner = config.pruning_study.replaced(study=study)
    if config.action == "scores":
        scored = pruner.search
        draws = {scored.donor_seeds[0]: scored.records(whole)}
        result = _result(config, draws, {names.FULL: WHOLE.plain()})
        result["scores"] = pruner.named_scores(pruner.first)
        _export(out, result, draws)
        return result
    sort = PRUNING[config.action]
    start = pruner.begin(sort, after_heads=config.after_heads)
    found = pruner.pruned(sort, start, config.share)
    circuits = {names.PRUNED: found.result}
    circuits |= {names.random_circuit(n): one for n, one in enumerate(pruner.at_random(sort, start, found.result), 1)}
    draws = {}
    for draw in study.draws:
        pruned = {name: pruner.record(draw, circuit) for name, circuit in circuits.items()}
        draws[draw.donor_seeds[0]] = {**draw.records(whole), **pruned}
    about = {names.FULL: WHOLE.plain()} | {name: {"units": circuit.digest} for name, circuit in circuits.items()}
    result = _result(config, draws, about)
    result["pruning"] = {
        "sort": sort,
        "units": start.count(sort),
        "left": found.units_left,
        "accuracy": [one.accuracy for one in found.rounds],
        "floor": found.floor,
        "stopped": found.stopped,
        "kept": {each: [*found.result.names(each)] for each in SORTS},
    }
    if out is not None and not pruner.score_files:
        pruner.write_scores(out, found)
    _export(out, result, draws)
    return result


def _ablations(config: Config, study: Study, search: Search | None) -> dict[str, Ablation]:
    """What a config compares, by name, the whole model among them. search: what an action "search" has kept."""
    whole = {names.FULL: WHOLE}
    if search is not None:
        return edges.circuit_ablations({names.FOUND: search.kept}, config.random, like=names.FOUND)
    if config.action == "ablation":
        return {**whole, names.ABLATED: Ablation(**config.ablation)}
    if config.action == "single_edges":
        return {**whole, **edges.single_edges()}
    if config.action == "circuits":
        circuits = {name: CIRCUITS[name] for name in config.circuits}
        return edges.circuit_ablations(circuits, config.random, like=config.circuits[-1])
    if config.action == "windows":
        return {**whole, **edges.windows(study.layers)}
    if config.action == "probes":
        return {**whole, **edges.probes(CIRCUITS[config.circuits[-1]], PROBED, [c for c in study.corruptions if c])}
    return whole


def _results(draws: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Interval]]:
    """The interval of every measure by ablation, and the score of circuits."""
    rows, results = measures.aligned(draws), dict[str, dict[str, Interval]]()
    for name, row in rows.items():
        query = row["query"]
        units = query if measures.queries_of(row) > 1 else None  # prompts, where all ask the same
        results[name] = {
            measure: accuracy(values, measures.queries_of(row))
            if values.dtype == bool
            else measures.mean(values, units)
            for measure, values in row.items()
            if measure != "query"
        }
        if names.NONE in rows and rows[names.FULL]["right"].sum() > rows[names.NONE]["right"].sum():
            ends = (rows[names.FULL]["right"], rows[names.NONE]["right"])
            results[name]["score"] = measures.score(row["right"], *ends, query)
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
