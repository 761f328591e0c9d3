"""The jobs of a grid: every notebook, for each model, data set, k and seed that it has a parameter for."""

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import Field, JsonValue

from util import paths
from util.prompts.text_tasks import DATASETS
from util.study.checked import AsList, Count, Distinct, Natural, Text, checked

AXES = {"datasets": "dataset", "k": "k", "seeds": "seed"}  # of the grid: the parameter of a notebook
Named = Annotated[dict[str, dict[str, JsonValue] | None], Field(min_length=1)]
Numbers = Annotated[tuple[Natural, ...], AsList, Distinct]


@checked
class Resources:
    """What each job of a class of models asks for. Without GPUs it runs on the CPU."""

    gigabytes: Count
    minutes: Count
    gpus: Natural = 0


@checked
class Grid:
    """What is swept: models by their labels, notebooks by their stems. An axis left out is as the notebook has it."""

    models: Named
    notebooks: Named
    resources: Annotated[dict[str, Resources], Field(min_length=1)]
    datasets: Annotated[tuple[Text, ...], AsList, Distinct] | None = None
    k: Numbers | None = None
    seeds: Numbers | None = None


class Job(NamedTuple):
    """One notebook with its parameters, and what it asks for."""

    notebook: Path
    parameters: dict[str, Any]
    resources: Resources


def jobs(file: Path) -> dict[str, Job]:
    """The jobs of the grid in a YAML file, by their folders: <label of the model>/<stem>/<data set>-k<k>-seed<seed>.

    Raises ValueError in one line that says how to mend it, and OSError for a file that cannot be read.
    """
    try:
        grid = Grid(**yaml.safe_load(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {' '.join(str(error).split())}; write it like workflow/grid.yaml") from None
    notebooks = {file.stem.partition("_")[2]: file for file in (paths.root() / "notebooks").glob("*_*.ipynb")}
    _known("notebook", grid.notebooks, notebooks)
    _known("data set", grid.datasets or (), DATASETS)
    made = {}
    for (label, model), (stem, own) in itertools.product(grid.models.items(), grid.notebooks.items()):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", label):
            raise ValueError(f"models: {label!r} cannot name a folder; write it like my-model: {{name: {label}}}")
        fixed = {"name": label, "resources": next(iter(grid.resources)), **(model or {})}
        name, kind = str(fixed.pop("name") or label), str(fixed.pop("resources"))
        _known("class of resources", [kind], grid.resources)
        resources, has = grid.resources[kind], parameters(notebooks[stem])
        fixed |= own or {}
        _known(f"parameter of {stem}", fixed, has)
        if not resources.gpus:
            fixed.setdefault("device", "cpu")
        place = paths.root() / Path(name).expanduser()
        fixed["model_name"] = str(place) if place.exists() else name
        axes = {one: values for axis, one in AXES.items() if one in has - {*fixed} and (values := getattr(grid, axis))}
        for chosen in itertools.product(*axes.values()):
            words = [f"{'' if one == 'dataset' else one}{value}" for one, value in zip(axes, chosen, strict=True)]
            folder = f"{label}/{stem}/{'-'.join(words) or 'default'}"
            made[folder] = Job(notebooks[stem], fixed | dict(zip(axes, chosen, strict=True)), resources)
    return made


def parameters(notebook: Path) -> set[str]:
    """The names of a notebook's parameters."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    [source] = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    return set(re.findall(r"\w+", " ".join(re.findall(r"^(\w+(?:, \w+)*) = ", source, flags=re.MULTILINE))))


def _known(what: str, given: Iterable[str], there: Iterable[str]) -> None:
    if unknown := [name for name in given if name not in there]:
        raise ValueError(f"there is no {what} {unknown[0]!r}; choose from {', '.join(sorted(there))}")
