"""The grid of a sweep: models x data sets x k x seeds x figures, read from YAML, and checked before any job runs.

    models:
      - embedded
      - {name: meta-llama/Llama-3.1-70B, dtype: bfloat16, device_map: auto, gpus: 4, shards: 16}
    datasets: [trec, glue_sst2]
    k: [4]
    seeds: [0, 1]
    figures:
      forerunner_heads: {prompts: 64}
      induction_scores: {}
      card: {minutes: 20}

A figure is the stem of a notebook, or "card". Its arguments are the parameters of its notebook, those of the card
`minutes` and `seed`. A figure is multiplied by what it has: IOI, which asks no StaICC data set, is the same in all of
them and runs once for each model and seed. An argument of a figure takes the place of the axis of that name.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from util import paths
from util.card.study import Study as CardStudy
from util.figures import FIGURES
from util.records.checked import AsList, Count, Distinct, Natural, Number, checked
from util.records.model import Model
from util.records.staicc import Datasets

CARD = "card"
AXES = {"dataset": "datasets", "k": "k", "seed": "seeds"}  # argument of a figure: axis of the grid
OF_MODEL = ("model_name", "revision", "quantized", "device", "device_map", "dtype")  # parameters of every notebook
Positive = Annotated[Number, Field(gt=0)]
Seeds = Annotated[tuple[Natural, ...], AsList, Distinct]
Numbers = Annotated[tuple[Natural, ...], AsList, Distinct]


@checked
class SweptModel:
    """A model of the grid: how it is loaded, see `records.model.Model`, and what its jobs ask for.

    gpus: of each job, 0 for none; where there are none, jobs run on the CPU. shards: jobs that share a study; default:
    those of the grid. speed: tokens a second, from which the time of jobs is estimated. minutes, gigabytes: of a study,
    where they cannot be estimated; default: those of the grid.
    """

    name: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    dtype: str = "auto"
    quantized: bool = False
    _: KW_ONLY
    device_map: Any = None
    gpus: Natural = 1
    shards: Count | None = None
    speed: Positive | None = None
    minutes: Positive | None = None
    gigabytes: Positive | None = None

    def __post_init__(self) -> None:
        self.model  # noqa: B018  # it checks its own arguments

    @property
    def loading(self) -> dict[str, Any]:
        """The fields of a `Model`, in plain JSON. A folder or file is named in full: jobs run in another folder."""
        name = str(Path(self.name).resolve()) if Path(self.name).exists() else self.name
        return {
            "name": name,
            "revision": self.revision,
            "dtype": self.dtype,
            "quantized": self.quantized,
            "device_map": self.device_map,
        }

    @property
    def model(self) -> Model:
        """The model, not loaded. Raises ValueError for what there is not."""
        return Model(**self.loading)

    @property
    def label(self) -> str:
        """What the model is called in names of folders."""
        name = Path(self.name).name if Path(self.name).exists() else self.name
        parts = [name, self.revision, None if self.dtype == "auto" else self.dtype, "4bit" if self.quantized else None]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(filter(None, parts))).strip("-.")


def _swept(value: Any) -> Any:
    if isinstance(value, SweptModel):
        return value
    if isinstance(value, Mapping):
        if "name" not in value:
            raise ValueError("a model has a name")
        return SweptModel(**value)
    return SweptModel(value)


def _figures(value: Any) -> Any:
    """Figures with their arguments, by stem; a list of stems stands for figures without any."""
    named = value if isinstance(value, Mapping) else dict.fromkeys(value if isinstance(value, list) else [value])
    if not named:
        raise ValueError(f"there are {', '.join((*FIGURES, CARD))}; give one or more")
    for stem, arguments in named.items():
        if stem not in (*FIGURES, CARD):
            raise ValueError(f"there is no figure {stem!r}; there are {', '.join((*FIGURES, CARD))}")
        if not isinstance(arguments, Mapping | None):
            raise ValueError(f"{stem}: {arguments!r} are no arguments; write them like {{prompts: 64}}")
        known = tuple(defaults(stem))
        if unknown := sorted(set(arguments or {}) - set(known)):
            raise ValueError(f"{stem} has no argument {unknown[0]!r}; it has {', '.join(known)}")
    return {stem: dict(arguments or {}) for stem, arguments in named.items()}


@checked
class Grid:
    """What is swept. An axis that is None leaves to every figure what its notebook has.

    shards: jobs that share a study. minutes, gigabytes: of a study, where they cannot be estimated.
    """

    models: Annotated[tuple[Annotated[SweptModel, BeforeValidator(_swept)], ...], AsList, Field(min_length=1)]
    figures: Annotated[dict[str, dict[str, Any]], BeforeValidator(_figures)]
    _: KW_ONLY
    datasets: Datasets | None = None
    k: Numbers | None = None
    seeds: Seeds | None = None
    shards: Count = 1
    minutes: Positive = 240
    gigabytes: Positive = 16

    def __post_init__(self) -> None:
        labels = [model.label for model in self.models]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"models: {twice[0]} is there twice; leave one out, or rename the folder of one")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every combination of a model, a figure and what of the axes this figure has."""
        return tuple(cell for model in self.models for stem in self.figures for cell in self._cells(model, stem))

    def _cells(self, model: SweptModel, stem: str) -> Iterator[Cell]:
        own = self.figures[stem]
        axes = {
            argument: getattr(self, axis)
            for argument, axis in AXES.items()
            if argument in defaults(stem) and argument not in own and getattr(self, axis) is not None
        }
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            yield Cell(
                model,
                stem,
                chosen,
                own | chosen,
                shards=model.shards or self.shards,
                minutes=model.minutes or self.minutes,
                gigabytes=model.gigabytes or self.gigabytes,
            )


@dataclass(frozen=True, eq=False)
class Cell:
    """One figure of one model. chosen: what the axes give it; arguments: these and the figure's own."""

    model: SweptModel
    stem: str
    chosen: Mapping[str, Any]
    arguments: Mapping[str, Any]
    shards: int
    minutes: float
    gigabytes: float

    @property
    def name(self) -> str:
        """The folder of the cell: <model>/<figure>/<data set>-k<k>-seed<seed>."""
        words = {"dataset": "", "k": "k", "seed": "seed"}
        chosen = [f"{words[axis]}{value}" for axis, value in self.chosen.items()]
        return f"{self.model.label}/{self.stem}/{'-'.join(chosen) or 'default'}"


def notebook(stem: str) -> Path:
    """The notebook of a figure."""
    (file,) = (paths.root() / "notebooks").glob(f"*_{stem}.ipynb")
    return file


@cache
def parameters(stem: str) -> dict[str, Any]:
    """The parameters of a figure's notebook with their defaults; ... stands for one that is no plain value."""
    cells = json.loads(notebook(stem).read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    found: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            found |= {ast.unparse(name): _plain(value) for name, value in pairs}
    return found


def _plain(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ...


@cache
def defaults(stem: str) -> dict[str, Any]:
    """The arguments that a figure, or the card, has in a grid, with their defaults."""
    if stem == CARD:
        return {one.name: one.default for one in fields(CardStudy) if one.name in ("minutes", "seed")}
    return {name: value for name, value in parameters(stem).items() if name not in (*OF_MODEL, "forced_redo")}


def read(file: Path) -> Grid:
    """The grid in a YAML file. Raises ValueError, a line for each mistake, and OSError for a file that is not there."""
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict) or not {"models", "figures"} <= given.keys():
        raise ValueError(f"{file} is no grid: it has models and figures, see workflow/grid.yaml")
    return Grid(**given)
