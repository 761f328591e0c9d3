"""Edge ablation from JSON: what a config may say, and what is measured for it.

A config is a run of the reference code. Pydantic checks every field, and each action has its own; nothing is loaded
before all configs of a file are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from util.commands.frame import from_json
from util.commands.results import Out, Result
from util.edges import names
from util.edges.ablation import WHOLE, Ablation
from util.edges.states import Store
from util.figures.edge_ablation.numbers import SHARE, aligned, by_query, queries_of, right_of
from util.figures.edge_ablation.runs import SCORE, Data, Pruner, Run, check_tokens
from util.figures.edge_ablation.settings import Draw, Seeds
from util.paths import sha256
from util.prompts import word_pairs
from util.scores.pruning import SORTS, Sort, write_scores
from util.stats.intervals import mean_interval
from util.study.checked import Natural, Share, Text
from util.study.model import Model
from util.study.study import Study

Draws = Mapping[int, Mapping[str, Data]]  # answers by seed of donors and by ablation
Edges = tuple[Text, ...]  # by their names and those of families, see `Ablation`
OF_MODEL = ("revision", "dtype", "quantized", "untrained_seed")
COLUMNS = ("index", "queries", "answers", "right", "log_prob", "kl", "agrees", "written")


class Measured(BaseModel, extra="forbid"):
    """What all actions have.

    request: a model, see `Model`, and prompts, see `Draw`. donor_seeds: draws of donors. removed: edges, see
    `Ablation`. out_dir: a folder that receives result.json and rows.csv, by default one of its own.
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
        loading = {name: value for name, value in self.request.items() if name in OF_MODEL}
        return Model(self.request.get("model", "embedded"), **loading)

    @cached_property
    def draws(self) -> list[Draw]:
        """The prompts of the request, with each draw of donors."""
        given = {name: value for name, value in self.request.items() if name not in ("model", *OF_MODEL)}
        trained = word_pairs.is_trained(self.model.name)
        return [Draw(**{"donor_seed": seed, "trained": trained, **given}) for seed in self.donor_seeds]

    @cached_property
    def ablation(self) -> Ablation:
        """What is done to edges. Raises ValueError for edges that there are not, and what does not go together."""
        return Ablation(self.removed)  # type: ignore[arg-type]  # names of edges

    def plain(self, study: Study) -> dict[str, Any]:
        """What makes two runs the same run, with all that decides the prompts; out_dir is left out."""
        asked = Run(study, replace(self.draws[0], donor_seed=0)).request
        return {**self.model_dump(exclude={"out_dir"}), "request": asked}

    def measured(self, study: Study, folder: Path) -> tuple[Draws, dict[str, Any]]:
        """The answers by draw and ablation, and what the result has more. folder: receives further files."""
        raise NotImplementedError


class Answered(Measured):
    """What the whole model answers and writes out; and beside it without some edges. kept, probed: see `Ablation`."""

    action: Literal["accuracy", "ablation"]
    kept: Edges | None = None
    probed: tuple[tuple[Text, Natural], ...] = ()

    @model_validator(mode="after")
    def _edges_checked(self) -> Answered:
        if (self.action == "ablation") != (self.ablation != WHOLE):
            raise ValueError("removed, kept, probed: give edges to ablate, and for no other action")
        return self

    @cached_property
    def ablation(self) -> Ablation:
        return Ablation(self.removed, self.kept, self.probed)  # type: ignore[arg-type]  # names of edges

    def measured(self, study: Study, folder: Path) -> tuple[Draws, dict[str, Any]]:
        ablations, draws, store = {names.FULL: WHOLE}, self.draws[:1], Store()
        if self.ablation != WHOLE:
            ablations, draws = {**ablations, names.ABLATED: self.ablation}, self.draws
        return {draw.donor_seed: Run(study, draw, store).answers(ablations, generate=True) for draw in draws}, {}


class Pruned(Measured):
    """Units pruned round by round while `share` of the accuracy is kept, on split "search".

    What is left, and `random` prunings of that size, are measured on split "test". prune_heads: head units;
    prune_edges: edge units, after the heads unless after_heads is false. All of this without the edges removed.
    per_round: the share of the units that goes in a round; keep: instead, how many each round leaves, and score_files:
    scores of earlier rounds, with which none are measured. out_dir receives such a file for each round but the last.
    """

    action: Literal["prune_heads", "prune_edges"]
    after_heads: bool = True
    per_round: Share = 0.1
    keep: tuple[Natural, ...] | None = None
    score_files: tuple[Text, ...] = ()
    share: Share = SHARE
    random: Natural = 20

    @model_validator(mode="after")
    def _pruning_checked(self) -> Pruned:
        first, keep, files = self.draws[0], self.keep or (), self.score_files
        if first.split != "test" or 0 not in first.corruptions:
            raise ValueError('request: units are read from corruption 0; leave split at "test", and 0 in corruptions')
        if files and len(keep) != len(files):
            raise ValueError(f"score_files: {len(files)} files for {len(keep)} entries of keep; give as many")
        if list(keep) != sorted(keep, reverse=True):
            raise ValueError(f"keep = {[*keep]}: no round keeps more units than the one before")
        return self

    def plain(self, study: Study) -> dict[str, Any]:
        digests = [*map(sha256, self.score_files)]  # of what the files contain now
        return {**super().plain(study), "score_files": digests}

    def measured(self, study: Study, folder: Path) -> tuple[Draws, dict[str, Any]]:
        sort: Sort = "head" if self.action == "prune_heads" else "edge"
        pruner = Pruner(study, self.draws, start=self.ablation)
        after_heads = sort == "edge" and self.after_heads
        start = pruner.before_edges(self.per_round) if after_heads else pruner.first
        pruned = pruner.pruned(sort, start, self.share, self.per_round, self.keep, self.score_files)
        for number, step in enumerate([] if self.score_files else pruned.rounds[:-1]):
            file, scores = folder / f"{sort}_scores_{number}.json", pruner.scored(step.circuit, sort)[1]
            write_scores(file, step.circuit, sort, scores, **SCORE)
        drawn = pruner.at_random(sort, start, pruned.result, self.random)
        circuits = {names.PRUNED: pruned.result}
        circuits |= {names.random_circuit(number): circuit for number, circuit in enumerate(drawn, 1)}
        draws = {
            run.draw.donor_seed: run.answers({names.FULL: WHOLE})
            | {name: pruner.answer(run, circuit) for name, circuit in circuits.items()}
            for run in pruner.runs
        }
        result = {
            "left": pruned.units_left,
            "accuracy": [step.accuracy for step in pruned.rounds],
            "floor": pruned.floor,
            "kept": {name: pruned.result.names(name) for name in SORTS},
        }
        return draws, {"pruning": result}


Config = Answered | Pruned
CONFIGS: TypeAdapter[list[Config]] = TypeAdapter(
    Annotated[list[Annotated[Config, Field(discriminator="action")]], Field(min_length=1)]
)
FEW: dict[str, Any] = {"request": {"task": "capitalization", "prompts": 8, "k": 3}, "donor_seeds": [0]}
EXAMPLES: tuple[dict[str, Any], ...] = (  # a small run of each action
    {"action": "accuracy", **FEW},
    {"action": "ablation", **FEW, "removed": ["CONTEXT", "y->last_separator"]},
    {"action": "prune_heads", **FEW, "per_round": 0.5, "random": 2},
    {"action": "prune_edges", **FEW, "per_round": 0.5, "random": 2, "removed": ["TOQUERY"]},
)


def load(file: Path) -> list[Config]:
    """The configs of a JSON file: one object, or a list of them.

    Raises ValueError where there is no file, and with a sentence for each wrong field: the file, the field, what to
    give.
    """
    if not file.is_file():
        raise ValueError(f"cannot run {file}: there is no such file")
    given = from_json(file.read_text(encoding="utf-8"), f"cannot run {file}: it")
    try:
        return CONFIGS.validate_python(given if isinstance(given, list) else [given])
    except ValidationError as error:
        wrong = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in error.errors()]
        raise ValueError("\n".join(f"cannot run {file}, config {where}: {what}" for where, what in wrong)) from None


def prepared(config: Config, model: Model, **places: Any) -> tuple[Study, Result]:
    """The study of a config and the place of its result. places: `folder` and `redo` of the study.

    Raises ValueError, before any work, for an out_dir that cannot be made, and for rows of a task from a file that the
    tokenizer cannot carry.
    """
    study = Study("edge_ablation", model, untrained_control=False, **places)
    check_tokens(config.draws[0], model)
    out = Out(None if config.out_dir is None else Path(config.out_dir))
    return study, out.checked("edges", study, **config.plain(study))


def write(config: Config, study: Study, result: Result) -> None:
    """Measure what a config asks for, or find it in the cache, and write the result."""
    draws, more = config.measured(study, result.folder)
    first = next(iter(draws.values()))[names.FULL]
    ablations = {}
    for name, row in aligned([*draws.values()]).items():
        units = row["query"] if queries_of(row) > 1 else None  # prompts, where all ask the same
        ablations[name] = {
            measure: right_of(row, measure) if values.dtype == bool else mean_interval(by_query(values, units))
            for measure, values in row.items()
            if measure != "query"
        }
    rows = [
        pd.DataFrame({"ablation": name, "donor_seed": seed, **{part: data.get(part, "") for part in COLUMNS}})
        for seed, by_name in draws.items()
        for name, data in by_name.items()
    ]
    results = {**ablations, "left_out": first["left_out"], **more}
    result.write(results, pd.concat(rows), pd.DataFrame(ablations).T, [study])
