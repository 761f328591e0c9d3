"""Edge ablation from JSON: one frozen `Config` for each run, and result.json and rows.csv exported from its records."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from util import edges
from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import CIRCUITS, FAMILIES
from util.figures.edge_ablation import measures
from util.figures.edge_ablation import study as experiment
from util.records.cache import Record
from util.records.provenance import expectation
from util.records.runs import ModelSource, loaded, once
from util.stats.intervals import accuracy, bootstrap_mean

ACTIONS = ("accuracy", "ablation", "single_edges", "circuits", "windows", "probes", "search")
PROBED = (*FAMILIES["CONTEXT_IO"], *FAMILIES["AGG_Y"])
Interval = tuple[float, ...]  # value, low, high


@dataclass(frozen=True)
class Config:
    """One run. request: arguments of `edge_ablation.study.request` (model, task, prompts, k, split, ...). action:

    accuracy      the whole model, which also writes its answers out
    ablation      `ablation`, fields of `Ablation`, beside the whole model; it writes its answers out, too
    single_edges  each type pair removed alone
    circuits      FULL, NONE, each of `circuits`, the model without it, `random` others as large as the last of them
    windows       contextualisation removed from a layer on, aggregation below a layer
    probes        context and label edges inside the last of `circuits`, read from each corruption of the request but 0
    search        a circuit that keeps `share` of the accuracy, searched on split "search"; its score on split "test"

    donor_seeds: draws of donors. out_dir: a folder that receives result.json and rows.csv; without it, the cached
    records alone are written. Raises ValueError for what is unknown, before any work.
    """

    action: str
    request: Mapping[str, Any] = field(default_factory=dict)
    ablation: Mapping[str, Any] = field(default_factory=dict)
    circuits: tuple[str, ...] = ("CTX+AGG", "CTX_IO+AGG", "AGG-ONLY")
    random: int = 20
    share: float = 0.9
    donor_seeds: tuple[int, ...] = experiment.DONOR_SEEDS
    out_dir: str | None = None

    def __post_init__(self) -> None:
        for name in ("circuits", "donor_seeds"):
            if not isinstance(getattr(self, name), list | tuple) or not getattr(self, name):
                raise ValueError(f"{name} = {getattr(self, name)!r}: give a list")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        edges.check_known(self.action, ACTIONS, "action")
        for name in self.circuits:
            edges.check_known(name, tuple(CIRCUITS), "circuit")
        if not isinstance(self.random, int) or self.random < 0 or not 0 < self.share <= 1:
            raise ValueError(
                f"random = {self.random!r}, share = {self.share}: give a number from 0 on, and 0 < share <= 1"
            )
        if (self.action == "ablation") != bool(self.ablation):
            raise ValueError('`ablation` says what action "ablation" does, and no other action')
        asked = self.asked  # unknown tasks and fields are refused here
        if self.request.get("prompts", 2) < 2 or "donor_seed" in self.request:
            raise ValueError("request: two prompts or more have intervals; draws of donors are said by donor_seeds")
        Ablation(**self.ablation)
        if self.action == "probes":
            lacking = {*map(str, PROBED)} - {*map(str, edges.type_pairs(CIRCUITS[self.circuits[-1]]))}
            if lacking or not {*asked["corruptions"]} - {0}:
                raise ValueError(
                    f"probes: circuit {self.circuits[-1]!r} lacks {sorted(lacking) or 'nothing'}, corruptions are "
                    f'{asked["corruptions"]}; take "CTX+AGG", and corruptions from 1 on beside 0'
                )

    @cached_property
    def asked(self) -> dict[str, Any]:
        return experiment.request(**self.request)

    def plain(self) -> dict[str, Any]:
        """The same in JSON, without out_dir: what makes two runs the same run."""
        named = {name: value for name, value in asdict(self).items() if name != "out_dir"}
        return json.loads(json.dumps({**named, "request": self.asked}))


def load(file: str | Path) -> list[Config]:
    """The runs of a JSON file: one object, or a list of them. Raises ValueError naming the file and what is wrong."""
    try:
        given = json.loads(Path(file).read_text(encoding="utf-8"))
        configs = [_config(each) for each in (given if isinstance(given, list) else [given])]
        folders = [config.out_dir for config in configs if config.out_dir is not None]
        if len(set(folders)) < len(folders):
            raise ValueError("two configs have one out_dir; give each a folder of its own")
        return configs
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"cannot run {file}: {error}") from error


def _config(given: Any) -> Config:
    if not isinstance(given, dict):
        raise ValueError(f"{given!r:.60} is no object of a config's fields")
    for name in given:
        edges.check_known(name, [each.name for each in fields(Config)], "field")
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
        replace(one, action="probes", request={**few, "corruptions": [0, 1, 2]}, circuits=("CTX+AGG",)),
        replace(one, action="search", random=2),
    ]


# ------------------------------------------------------------------------------------------------ running


def run(
    config: Config, model: ModelSource = None, folder: str | Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Do what a config says; its result, as in result.json. Everything measured is cached, so that it can go on.

    overwrite: measure again, and replace what is in out_dir. Raises FileExistsError, before any work, where out_dir
    holds the result of another config; the result of an equal one is loaded.
    """
    file = None if config.out_dir is None else Path(config.out_dir) / "result.json"
    if file is not None and not overwrite and (there := _exported(file, config, model)):
        return there
    asked, found, ablations = config.asked, None, {"FULL": WHOLE}
    source = (once(model, asked), folder, overwrite)
    if config.action == "ablation":
        ablations["ablated"] = Ablation(**config.ablation)
    elif config.action == "single_edges":
        ablations |= edges.single_edges()
    elif config.action == "circuits":
        last = config.circuits[-1]
        ablations = edges.circuit_ablations({n: CIRCUITS[n] for n in config.circuits}, config.random, like=last)
    elif config.action == "windows":
        ablations |= edges.windows(experiment.answers(asked, ablations, *source)["FULL"]["layers"])
    elif config.action == "probes":
        kept = CIRCUITS[config.circuits[-1]]
        ablations |= edges.probes(kept, PROBED, [c for c in asked["corruptions"] if c])
    elif config.action == "search":
        first_draw = {**asked, "split": "search", "donor_seed": config.donor_seeds[0]}
        found = experiment.search(first_draw, config.share, *source)
        asked = {**asked, "split": "test"}
        ablations = edges.circuit_ablations({"found": found.kept}, config.random, like="found")
    seeds = config.donor_seeds if any(each.corruptions for each in ablations.values()) else config.donor_seeds[:1]
    writes = config.action in ("accuracy", "ablation")
    runs = {s: experiment.records({**asked, "donor_seed": s}, ablations, *source, generate=writes) for s in seeds}
    first = next(iter(runs.values()))["FULL"]
    result = {
        "config": config.plain(),
        "provenance": first.provenance,
        "left_out": first.data["left_out"],
        "ablations": {name: ablation.plain() for name, ablation in ablations.items()},
        "results": _results([{name: record.data for name, record in each.items()} for each in runs.values()]),
    }
    if found is not None:
        result["search"] = {
            "kept": [str(edge) for edge in found.pairs],
            "alone": {str(edge): cost for edge, cost in found.alone.items()},
            "steps": [[str(edge), gone, right] for edge, gone, right in found.trace],
        }
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file.with_name("rows.csv"), _rows(runs))
        _replace(file, json.dumps(result, indent=1) + "\n")
    return result


def _exported(file: Path, config: Config, model: ModelSource) -> dict[str, Any] | None:
    """What is there already, if it is the result of an equal config and the same weights. Raises FileExistsError."""
    there = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    other = []
    if file.exists() or file.with_name("rows.csv").exists():
        own, was = config.plain(), there.get("config", {})
        other = [name for name in own if was.get(name) != own[name]]
        known = expectation(config.asked, loaded(model))
        of = there.get("provenance", {})
        other += [n for n in ("revision", "weights", "tokenizer_digest") if known[n] and known[n] != of.get(n)]
    if other:
        raise FileExistsError(f"{file} is of another config ({', '.join(other)}); choose another out_dir")
    return there or None


def _results(runs: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Interval]]:
    """(value, low, high) of every measure by ablation, and the score of circuits."""
    every, found = experiment.aligned(runs), dict[str, dict[str, Interval]]()
    for name, row in every.items():
        query = row.pop("query")
        found[name] = {
            measure: accuracy(values, len(set(query)))
            if values.dtype == bool
            else tuple(map(float, bootstrap_mean(measures.by_query(values, query if len(set(query)) > 1 else None))))
            for measure, values in row.items()
        }
        if "NONE" in every and every["FULL"]["right"].sum() > every["NONE"]["right"].sum():
            parts = (row["right"], every["FULL"]["right"], every["NONE"]["right"])
            found[name]["score"] = measures.score(*parts, query)
    return found


def _rows(runs: Mapping[int, Mapping[str, Record]]) -> str:
    """One line for each ablation, draw of donors and prompt."""
    columns = ("index", "queries", "answers", "right", "log_prob", "kl", "agrees", "written")
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["ablation", "donor_seed", *columns])
    for seed, records in runs.items():
        for name, record in records.items():
            parts = [record.data.get(column, [""] * len(record.data["index"])) for column in columns]
            table.writerows([name, seed, *cells] for cells in zip(*parts, strict=True))
    return text.getvalue()


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(f"{file.name}.part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
