"""Edge ablation from JSON: what a config may say, and what is measured for it.

A config is a run of the reference code, whose own names of fields are understood too (`of_reference`). Pydantic checks
every field, and each action has its own; nothing is loaded before all configs of a file are right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError, model_validator

from util import paths
from util.commands import arguments
from util.commands.frame import from_json
from util.edges.edge import ABLATED, FULL, PRUNED, WHOLE, Ablation, random_name
from util.edges.states import Store
from util.figures import MODEL
from util.figures.edge_ablation.numbers import SHARE, aligned, by_query, queries_of, right_of
from util.figures.edge_ablation.runs import (
    Data,
    Draw,
    Run,
    all_units,
    at_random,
    before_edges,
    check_tokens,
    circuit_answer,
    pruned,
    runs_to_prune,
    scored,
)
from util.figures.edge_ablation.show import Seeds
from util.prompts import word_pairs
from util.scores.pruning import SORTS, Sort, scores_in, write_scores
from util.scores.token_types import METHOD, REDUCE
from util.show import files
from util.stats.intervals import ANYTHING, mean_interval
from util.study.checked import Natural, Share, Text, capped
from util.study.model import Model
from util.study.study import Study

Draws = Mapping[int, Mapping[str, Data]]  # answers by seed of donors and by ablation


def _edge(given: Any) -> Any:
    return "->".join(map(str, given)) if isinstance(given, list | tuple) and len(given) == 2 else given


Named = Annotated[Text, BeforeValidator(_edge)]  # an edge: "x->y", ["x", "y"], or the name of a family, see `Ablation`
Edges = tuple[Named, ...]
COLUMNS = ("index", "queries", "answers", "right", "log_prob", "kl", "agrees", "written")
LOGGED = 5  # prompts in model_logs.json


class Measured(BaseModel, extra="forbid"):
    """What all actions have.

    request: a model, see `Model`, and prompts, see `Draw`; prompts: null, or more than the split has queries, for one
    prompt of each query. donor_seeds: draws of donors. removed: edges, see `Ablation`. out_dir: a folder that receives
    result.json, rows.csv and model_logs.json, by default one of its own.
    """

    request: Mapping[str, Any] = Field(default_factory=dict)
    donor_seeds: Seeds = (0, 1, 2)
    removed: Edges = ()
    out_dir: Text | None = None

    @model_validator(mode="after")
    def _request_checked(self) -> Measured:
        self.ablation  # noqa: B018  # reading it, and the draws, refuses what cannot be measured
        if self.draws[0].prompts < 2:
            raise ValueError("request: prompts = 1: two or more have intervals")
        return self

    @cached_property
    def model(self) -> Model:
        """The model of the request."""
        loading = {name: value for name, value in self.request.items() if name in MODEL}
        return Model(loading.pop("model", "embedded"), **loading)

    @cached_property
    def draws(self) -> list[Draw]:
        """The prompts of the request, with each draw of donors."""
        named = {name: value for name, value in self.request.items() if name not in MODEL}
        given = {name: value for name, value in named.items() if value is not None}
        draw = Draw(**{"trained": word_pairs.is_trained(self.model.name), **given})
        queries = len(draw.pairs.queries(draw.split))
        if named.get("prompts", draw.prompts) is None or capped(draw.prompts, queries, draw.task) < draw.prompts:
            draw = replace(draw, prompts=queries, in_turn=True)
        return [replace(draw, donor_seed=seed) for seed in self.donor_seeds]

    @cached_property
    def ablation(self) -> Ablation:
        """What is done to edges. Raises ValueError for edges that there are not, and what does not go together."""
        return Ablation(**self.model_dump(include={"removed", "kept", "probed"}))

    def plain(self) -> dict[str, Any]:
        """What makes two runs the same run, with all that decides the prompts; out_dir is left out."""
        return {**self.model_dump(exclude={"out_dir"}), "request": replace(self.draws[0], donor_seed=0).request}


class Answered(Measured):
    """What the whole model answers and writes out; and beside it without some edges. kept, probed: see `Ablation`."""

    action: Literal["accuracy", "ablation"]
    kept: Edges | None = None
    probed: tuple[tuple[Named, Natural], ...] = ()

    @model_validator(mode="after")
    def _edges_checked(self) -> Answered:
        if (self.action == "ablation") != (self.ablation != WHOLE):
            raise ValueError("removed, kept, probed: give edges to ablate, and for no other action")
        return self

    def measured(self, study: Study, folder: Path) -> tuple[Draws, dict[str, Any]]:
        ablations, draws, store = {FULL: WHOLE}, self.draws[:1], Store()
        if self.ablation != WHOLE:
            ablations, draws = {**ablations, ABLATED: self.ablation}, self.draws
        return {draw.donor_seed: Run(study, draw, store).answers(ablations, generate=True) for draw in draws}, {}


class Pruned(Measured):
    """Units pruned round by round while `share` of the accuracy is kept, on split "search".

    What is left, and `random` prunings of that size, are measured on split "test". prune_heads: head units;
    prune_edges: edge units, after the heads unless after_heads is false. All of this without the edges removed.
    per_round: the share of the units that goes in a round; keep: instead, how many each round leaves, and score_files:
    scores of earlier rounds, by which units go; of prune_edges, first those of heads, and then those of edges. out_dir
    receives such a file for every other round.
    """

    action: Literal["prune_heads", "prune_edges"]
    after_heads: bool = True
    per_round: Share = 0.1
    keep: tuple[Natural, ...] | None = None
    score_files: Annotated[tuple[Text, ...], PlainSerializer(lambda files: [*map(paths.sha256, files)])] = ()
    share: Share = SHARE
    random: Natural = 20

    @model_validator(mode="after")
    def _pruning_checked(self) -> Pruned:
        first, rounds, keep = self.draws[0], len(self.score_files), self.keep or ()
        if first.split != "test" or 0 not in first.corruptions:
            raise ValueError('request: units are read from corruption 0; leave split at "test", and 0 in corruptions')
        if rounds and len(keep) != rounds:
            raise ValueError(f"score_files: {rounds} files for {len(keep)} entries of keep; give as many")
        for left, _ in self.given.values():
            if left and list(left) != sorted(left, reverse=True):
                raise ValueError(f"keep = {[*left]}: no round keeps more units than the one before")
        return self

    @cached_property
    def sort(self) -> Sort:
        """Which units are pruned."""
        return "head" if self.action == "prune_heads" else "edge"

    @cached_property
    def given(self) -> dict[Sort, tuple[tuple[int, ...] | None, tuple[str, ...]]]:
        """By sort of units: how many each round leaves (None: see per_round), and the files of scores they go by.

        Raises ValueError for a file without scores, and for scores that this action does not take in this order.
        """
        sorts = [scores_in(Path(file))[0] for file in self.score_files]
        heads = sorts.count("head")
        if sorts != ["head"] * heads + [self.sort] * (len(sorts) - heads):
            raise ValueError(
                f"score_files have scores of {', '.join(sorts)} units: give those of heads, and of prune_edges those "
                "of edges behind them"
            )
        if not sorts:
            return {self.sort: (self.keep, ())}
        keep, files = self.keep or (), self.score_files
        return {"head": (keep[:heads] or None, files[:heads]), "edge": (keep[heads:] or None, files[heads:])}

    def measured(self, study: Study, folder: Path) -> tuple[Draws, dict[str, Any]]:
        sort, (runs, search) = self.sort, runs_to_prune(study, self.draws)
        start = all_units(search, self.ablation)
        keep, score_files = self.given[sort]
        heads = self.given.get("head", (None, ()))
        if sort == "edge" and (self.after_heads or heads[1]):
            start = before_edges(search, start, self.per_round, *heads)
        pruning = pruned(search, sort, start, self.share, self.per_round, keep, score_files)
        for number, circuit in enumerate(pruning.circuits[len(score_files) :], len(score_files)):
            file, scores = folder / f"{sort}_scores_{number}.json", scored(search, circuit, sort)[1]
            write_scores(file, circuit, sort, scores, method=METHOD, reduce=REDUCE)
        drawn = at_random(search, sort, start, pruning.result, self.random)
        random = {random_name(number): circuit for number, circuit in enumerate(drawn, 1)}
        circuits = {PRUNED: pruning.result, **random}
        draws = {
            draw.donor_seed: run.answers({FULL: WHOLE})
            | {name: circuit_answer(run, circuit) for name, circuit in circuits.items()}
            for draw, run in zip(self.draws, runs, strict=True)
        }
        result = {
            "left": pruning.units_left,
            "accuracy": pruning.accuracy,
            "floor": pruning.floor,
            "kept": {name: pruning.result.names(name) for name in SORTS},
        }
        return draws, {"pruning": result}


BASES = {"gemma2": "google/gemma-2-2b", "phi2": "microsoft/phi-2", "smollm": "smollm2"}  # another is a model's name
ACTIONS = {
    "calc_accuracy": "accuracy",
    "ablate_edges": "ablation",
    "ablate_edges_differently_for_different_tokens": "ablation",
    "prune_heads_in_circuits": "prune_heads",
    "prune_edges_in_circuits": "prune_edges",
}
FIELDS = {"output_path": "out_dir", "prune_using_imp_scores": "score_files", "prune_k": "keep"}


def of_reference(given: Any) -> Any:
    """A config in the reference code's names as one of ours; what has no model_name is returned unchanged.

    batch_size decides nothing: batches are made by their tokens. Raises ValueError for an unknown model_name, and for
    edges in a circuit that are not removed by corruption 0.
    """
    if not isinstance(given, dict) or "model_name" not in given:
        return given
    rest = {name: value for name, value in given.items() if name != "batch_size"}
    name, task = str(rest.pop("model_name")), str(rest.pop("task", None))
    ends = [end for end in ACTIONS if name.endswith(f"_{end}")]
    if not ends:
        raise ValueError(f"model_name = {name!r}: write MODEL_ACTION with an action of {', '.join(ACTIONS)}")
    base, plain = name.removesuffix(f"_{ends[0]}"), task.lower().replace("-", "_").replace(" ", "_")
    request = {
        "model": BASES.get(base, base),
        "task": plain if plain in word_pairs.names() else task,
        "prompts": rest.pop("limit", None),
        **rest.pop("request", {}),
    }
    config: dict[str, Any] = {"action": ACTIONS[ends[0]], "request": request}
    if config["action"] == "prune_edges":
        config["after_heads"] = False  # they are pruned by files of scores, or not at all
    affected = rest.pop("affect_whom", None) or []
    if isinstance(affected, dict):
        removed, probed = (
            [*pairs.items()] if isinstance(pairs, dict) else pairs
            for pairs in (affected.get("curcuit", {}), affected.get("ablate", {}))
        )
        if wrong := [edge for edge, number in removed if number != 0]:
            raise ValueError(f"affect_whom: {wrong} of the circuit: edges are removed by corruption 0")
        request["corruptions"] = sorted({0, *(number for _, number in probed)})
        config["probed"], affected = probed, [edge for edge, _ in removed]
    config["removed"] = affected
    return config | {FIELDS.get(name, name): value for name, value in rest.items() if value is not None}


Config = Answered | Pruned
CONFIGS: TypeAdapter[list[Config]] = TypeAdapter(
    Annotated[
        list[Annotated[Config, Field(discriminator="action"), BeforeValidator(of_reference)]],
        Field(min_length=1),
    ]
)
FEW: dict[str, Any] = {"request": {"task": "capitalization", "prompts": 8, "k": 3}, "donor_seeds": [0]}
EXAMPLES: tuple[dict[str, Any], ...] = (  # a small run of each action
    {"action": "accuracy", **FEW},
    {"action": "ablation", **FEW, "removed": ["CONTEXT", "y->last_separator"]},
    {"action": "prune_heads", **FEW, "per_round": 0.5, "random": 2},
    {"action": "prune_edges", **FEW, "per_round": 0.5, "random": 2, "removed": ["TOQUERY"]},
)


def load(file: Path) -> list[Config]:
    """The configs of a JSON file: one object, or a list of them; see `of_reference` for the reference code's names.

    Raises ValueError where there is no file, and with a sentence for each wrong field: the file, the field, what to
    give.
    """
    if not file.is_file():
        raise ValueError(f"cannot run {file}: there is no such file")
    given = from_json(file.read_text(encoding="utf-8-sig"), f"cannot run {file}: it")
    try:
        return CONFIGS.validate_python(given if isinstance(given, list) else [given])
    except ValidationError as error:
        wrong = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in error.errors()]
        raise ValueError("\n".join(f"cannot run {file}, config {where}: {what}" for where, what in wrong)) from None


def prepared(config: Config, model: Model, **places: Any) -> tuple[Study, Path, dict[str, Any]]:
    """The study of a config, and where its result goes, see `Out.checked`. places: `folder` and `redo` of the study.

    Raises ValueError, before any work, for an out_dir that cannot be made, and for rows of a task from a file that the
    tokenizer cannot carry.
    """
    study = Study("edge_ablation", model, untrained_control=False, **places)
    check_tokens(config.draws[0], model)
    out = arguments.Out(Path(config.out_dir) if config.out_dir else None)
    return study, *out.checked("edges", study, **config.plain())


ENDS = {"log_prob": (-inf, 0.0), "kl": (0.0, inf)}  # of intervals


def write(config: Config, study: Study, folder: Path, request: Mapping[str, Any]) -> None:
    """Measure what a config asks for, or find it in the cache, and write the result."""
    draws, more = config.measured(study, folder)
    first = next(iter(draws.values()))
    ablations = {}
    for name, row in aligned([*draws.values()]).items():
        units = row["query"] if queries_of(row) > 1 else range(len(row["query"]))  # prompts, where all ask the same
        ablations[name] = {
            measure: right_of(row, measure)
            if values.dtype == bool
            else mean_interval(by_query(values, units), within=ENDS.get(measure, ANYTHING))
            for measure, values in row.items()
            if measure != "query"
        }
    rows = [
        pd.DataFrame({"ablation": name, "donor_seed": seed, **{part: data.get(part, "") for part in COLUMNS}})
        for seed, by_name in draws.items()
        for name, data in by_name.items()
    ]
    results = {**ablations, "left_out": first[FULL]["left_out"], **more}
    examples = [
        {**text, "answers": [table.iloc[number].to_dict() for table in rows[: len(first)]]}
        for number, text in enumerate(Run(study, config.draws[0]).examples(LOGGED))
    ]
    accuracy = {name: float(data["right"].mean()) for name, data in first.items()}
    log = files.plain({"accuracy": accuracy, "examples": examples})
    arguments.write(folder, request, results, pd.concat(rows), pd.DataFrame(ablations).T, [study])
    print(paths.write_whole(folder / "model_logs.json", json.dumps(log, indent=1) + "\n"))
