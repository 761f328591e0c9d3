"""The plan of a sweep: every cell of a grid checked, and written for its jobs with what they ask for."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

from util import paths
from util.commands import studies
from util.commands.frame import BY_NAME, parsed
from workflow.grid import CARD, Cell, Grid, defaults, notebook

PLAN = "plan.json"
# parameters of notebooks: what they are called in the study, the plan beside it, or the rule of that plan
RENAMED = {
    ("forerunner_heads", "grid_prompts"): ("untrained_prompts", "plan.grid_prompts"),
    ("edge_ablation", "primary_task"): ("task",),
    ("edge_ablation", "corruptions"): ("plan.corruptions",),
    ("edge_ablation", "share"): ("plan.rule.share",),
    ("edge_ablation", "margin"): ("plan.rule.margin",),
}
OF_NOTEBOOK = {"toy_induction_head": ("beta", "vocabulary", "texts")}  # parameters that no study has
# how much more than estimated a job asks for: estimates of time hold within 2, those of memory within 1.5
TIME, MEMORY = 2.0, 1.5
STARTING = 10  # minutes that loading a model and a queue's nodes may take
LIBRARIES = 1500  # megabytes


def study_json(cell: Cell) -> dict[str, Any]:
    """The study of a cell as `python -m util collect` reads it: all that its notebook gives it, in plain JSON."""
    study: dict[str, Any] = {"study": cell.stem, "model": cell.model.loading}
    for name, value in (defaults(cell.stem) | dict(cell.arguments)).items():
        if value is not ...:
            for place in places(cell.stem, name):
                *objects, argument = place.split(".")
                inner = study
                for entry in objects:
                    inner = inner.setdefault(entry, {})
                inner[argument] = value
    return study


def places(stem: str, argument: str) -> tuple[str, ...]:
    """Where the study of a figure has a parameter of its notebook, such as "k" or "plan.grid_k"; nowhere, if unused."""
    if argument in OF_NOTEBOOK.get(stem, ()):
        return ()
    of_study, _ = studies.STUDIES[stem]
    beside = argument if argument in {one.name for one in fields(of_study)} else f"plan.{argument}"
    return RENAMED.get((stem, argument), (beside,))


def checked(grid: Grid) -> dict[Cell, dict[str, Any]]:
    """The study of every cell of a grid, as its STUDY.json has it, each of them built once, which checks it.

    Raises ValueError for all that is wrong in any of them, each mistake in one line.
    """
    checked_studies, mistakes = dict[Cell, dict[str, Any]](), list[str]()
    for cell in grid.cells:
        checked_studies[cell] = study_json(cell)
        try:
            studies.collection(checked_studies[cell])
        except ValueError as error:
            mistakes += [f"{cell.stem}: {line}" for line in str(error).splitlines()]
    if mistakes:
        raise ValueError("\n".join(dict.fromkeys(mistakes)))
    return checked_studies


def write(grid: Grid, folder: Path, python: str, devices: Sequence[str]) -> dict[str, Any]:
    """Check a grid, and write plan.json and the files of every cell into the folder of a sweep. Returns the plan.

    python: runs the jobs. devices: GPUs of this machine that jobs share; none where something else assigns them. Files
    that would not change are left alone, so that what was made of them stays valid. Raises what `checked` raises,
    before anything is written.
    """
    made = checked(grid)
    for cell, study in made.items():
        place = folder / "cells" / cell.name
        place.mkdir(parents=True, exist_ok=True)
        _write(place / "study.json", study)
        if cell.stem != CARD:
            loading = {"model_name" if name == "name" else name: value for name, value in cell.model.loading.items()}
            _write(place / "parameters.json", loading | dict(cell.arguments))
    cells = {cell.name: _job(cell, folder) for cell in made}
    plan = {"python": python, "devices": list(devices), "models": str(paths.models()), "cells": cells}
    _write(folder / PLAN, plan)
    return plan


def _write(file: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        part = file.with_name(f"{file.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(file)


def _job(cell: Cell, folder: Path) -> dict[str, Any]:
    """What the workflow and the index are told of a cell."""
    seconds, gigabytes = estimate(cell, folder)
    told: dict[str, Any] = {
        "model": cell.model.label,
        "figure": cell.stem,
        "arguments": dict(cell.arguments),
        "chosen": dict(cell.chosen),
        "shards": cell.shards,
        "gpus": cell.model.gpus,
        "mem_mb": math.ceil(gigabytes * 1000 * MEMORY) + LIBRARIES,
        "runtime": math.ceil(seconds / 60 * TIME) + STARTING,
        "runtime_of_shard": math.ceil(seconds / 60 * TIME / cell.shards) + STARTING,
    }
    if cell.stem == CARD:
        told["card"] = card_flags(cell)
    else:
        told["notebook"] = str(notebook(cell.stem))
    return told


def estimate(cell: Cell, folder: Path) -> tuple[float, float]:
    """The seconds and gigabytes that the study of a cell is going to take; those of the grid where nobody knows.

    They are what `python -m util estimate` says of the model's config; the seconds only where the grid has its speed.
    folder: of the sweep, in which the study is written.
    """
    seconds, gigabytes = 60 * cell.minutes, cell.gigabytes
    speed = cell.model.speed
    flags = [str(folder / "cells" / cell.name / "study.json"), "--folder", str(folder / "records"), "--config-only"]
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            arguments = parsed(BY_NAME["estimate"], [*flags, "--speed", str(speed or 1.0)])
            arguments.run(arguments)
        told = json.loads(printed.getvalue())
    except (KeyError, ValueError, OSError):  # such as a model of the hub whose config is not at hand
        return seconds, gigabytes
    return told["seconds"] if speed else seconds, told["gigabytes"]


def card_flags(cell: Cell) -> list[str]:
    """The model and the flags of `python -m util card` for a cell."""
    loading = cell.model.loading
    flags = [str(loading["name"])]
    for name in ("revision", "dtype"):
        if loading[name] not in (None, "auto"):
            flags += [f"--{name}", str(loading[name])]
    if loading["quantized"]:
        flags.append("--quantized")
    if loading["device_map"] is not None:
        given = loading["device_map"]
        flags += ["--device-map", given if isinstance(given, str) else json.dumps(given)]
    for name, value in (defaults(CARD) | dict(cell.arguments)).items():
        flags += [f"--{name}", str(value)]
    return flags
