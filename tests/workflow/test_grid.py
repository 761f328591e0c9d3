"""The grid of a sweep: what it multiplies, what it refuses, and the study that each cell becomes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from util import paths
from util.commands import studies
from util.figures import FIGURES
from util.records.cache import request_digest
from workflow import grid as grids
from workflow import plan
from workflow.grid import Grid, SweptModel

FORERUNNER = {"forerunner_heads": {"prompts": 8}}


def cell(stem, **arguments):
    (only,) = Grid(models="embedded", figures={stem: arguments}).cells
    return only


def measuring(made):
    """The study of a collection, and the plan beside it, if there is one: what its parts are methods of."""
    return list({id(part.args[0]): part.args[0] for part in made.parts.values()}.values())


# ---- what is multiplied ----


def test_a_figure_is_multiplied_by_what_it_has():
    grid = Grid(
        models=["embedded", {"name": "smollm2", "dtype": "bfloat16"}],
        datasets=["trec", 0],
        k=[2, 4],
        seeds=[0, 1],
        figures={"forerunner_heads": {}, "ioi_patching": {}, "induction_scores": {}, "card": {}},
    )
    names = [one.name for one in grid.cells]
    assert len(names) == len(set(names)) == 2 * (2 * 2 * 2 + 2 + 2 * 2 + 2)
    assert "embedded/forerunner_heads/trec-k2-seed1" in names
    assert "smollm2-bfloat16/forerunner_heads/glue_sst2-k4-seed0" in names  # data sets may be named by number
    assert [name for name in names if "embedded/ioi" in name] == [f"embedded/ioi_patching/seed{n}" for n in (0, 1)]
    assert "smollm2-bfloat16/induction_scores/k2-seed0" in names
    assert "embedded/card/seed1" in names


def test_an_argument_of_a_figure_takes_the_place_of_an_axis():
    grid = Grid(models="embedded", seeds=[0, 1], k=[1, 2], figures={"induction_scores": {"k": 5, "seed": 7}})
    assert [(one.name, one.arguments) for one in grid.cells] == [
        ("embedded/induction_scores/default", {"k": 5, "seed": 7})
    ]


def test_shards_and_fallbacks_of_a_model_win():
    models = ["embedded", {"name": "smollm2", "shards": 3, "minutes": 5, "gigabytes": 2}]
    few, many = Grid(models=models, shards=2, minutes=60, gigabytes=8, figures="card").cells
    assert (few.shards, few.minutes, few.gigabytes) == (2, 60, 8)
    assert (many.shards, many.minutes, many.gigabytes) == (3, 5, 2)


def test_models_of_folders_and_of_the_hub_have_names_of_folders(tmp_path):
    (tmp_path / "my model").mkdir()
    assert SweptModel(str(tmp_path / "my model")).label == "my-model"
    assert SweptModel(str(tmp_path / "my model")).loading["name"] == str(tmp_path / "my model")
    hub = SweptModel("meta-llama/Llama-3.1-70B", "main", "bfloat16", True, gpus=4, device_map="auto")
    assert hub.label == "meta-llama-Llama-3.1-70B-main-bfloat16-4bit"
    assert hub.model.device_map == "auto"


# ---- what is refused ----

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no figure": ({"figures": ["forerunner"]}, "there is no figure 'forerunner'; there are toy_induction_head"),
    "no data set": ({"datasets": ["trek"]}, "unknown data set 'trek'"),
    "no argument": ({"figures": {"card": {"minuts": 3}}}, "card has no argument 'minuts'; it has minutes, seed"),
    "of no model": ({"models": [{"name": "embedded", "gpu": 1}]}, "has no argument 'gpu'; it has name, "),
    "a nameless model": ({"models": [{"gpus": 1}]}, "a model has a name"),
    "no dtype": ({"models": [{"name": "embedded", "dtype": "float31"}]}, "unknown dtype 'float31'"),
    "no models": ({"models": []}, "models = "),
    "no axis": ({"seed": [1]}, "no argument 'seed'; it has models, figures, datasets, k, seeds"),
    "a seed twice": ({"seeds": [1, 1]}, "none of them twice"),
    "no shards": ({"shards": 0}, "shards = 0"),
    "a model twice": ({"models": ["embedded", "embedded"]}, "embedded is there twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_grids_are_refused_in_a_line(name):
    given, said = WRONG[name]
    with pytest.raises(ValueError) as error:
        Grid(**{"models": ["embedded"], "figures": FORERUNNER, **given})
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_studies_are_refused_before_anything_is_written(tmp_path):
    grid = Grid(models="embedded", seeds=[0, 1], figures={"forerunner_heads": {"prompts": 0, "ablated": 1}})
    with pytest.raises(ValueError) as error:
        plan.write(grid, tmp_path / "sweep", "python", [])
    assert str(error.value).startswith("forerunner_heads: prompts = 0: ")  # once, not for each seed
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "sweep").exists()


def test_a_file_that_is_no_grid_is_named(tmp_path):
    file = tmp_path / "grid.yaml"
    for text in ("models: [", "- embedded", "models: embedded"):
        file.write_text(text)
        with pytest.raises(ValueError, match="grid.yaml is no"):
            grids.read(file)


def test_the_grid_that_comes_with_the_suite_is_right():
    made = plan.checked(grids.read(paths.root() / "workflow" / "grid.yaml"))
    assert {one.stem for one in made} == {"forerunner_heads", "toy_induction_head", "card"}


# ---- the study of a cell ----


@pytest.mark.parametrize("stem", FIGURES)
def test_every_parameter_of_a_notebook_has_its_place(stem):
    """In its study, in the plan beside it, or in none of them, which is said."""
    given = grids.defaults(stem)
    placed = {name: plan.places(stem, name) for name in given}
    assert {name for name, found in placed.items() if not found} == {*plan.OF_NOTEBOOK.get(stem, ())}
    study = plan.study_json(cell(stem))
    for name, value in given.items():
        for place in placed[name]:
            entry = study
            for part in place.split("."):
                entry = entry[part] if value is not ... else {part: ...}
            assert value is ... or entry == value


@pytest.mark.parametrize("stem", FIGURES)
def test_a_cell_is_the_study_of_its_notebook(stem):
    """The cells of the notebook that build its studies build what the cell's JSON builds, with every default."""
    cells = json.loads(grids.notebook(stem).read_text(encoding="utf-8"))["cells"]
    code = ["".join(one["source"]) for one in cells if one["cell_type"] == "code"]
    first = next(place for place, source in enumerate(code) if "model_name = " in source)
    building = [source for source in code[first + 1 :][:3] if "Study(" in source or "Plan(" in source]
    names: dict = {}
    for source in (code[0], code[first], *building):
        exec("\n".join(line for line in source.splitlines() if not line.startswith("%")), names)
    made = studies.collection(plan.study_json(cell(stem)))
    assert made.study == names["study"]
    assert request_digest(made.study.request) == request_digest(names["study"].request)
    beside: Any = measuring(made)[-1]
    if "plan" in names:
        assert beside == names["plan"]


def test_arguments_reach_the_study():
    arguments = {"prompts": 8, "grid_prompts": 4, "grid_k": [0, 1], "ablated": 2, "seed": 3}
    made = studies.collection(plan.study_json(cell("forerunner_heads", **arguments)))
    study, beside = measuring(made)
    assert (study.prompts, study.seed, study.untrained_prompts) == (8, 3, 4)
    assert (beside.grid_prompts, beside.grid_k, beside.ablated) == (4, (0, 1), 2)
    rule = plan.study_json(cell("edge_ablation", share=0.8, primary_task="copying"))
    assert (rule["task"], rule["plan"]["rule"]) == ("copying", {"share": 0.8, "margin": 0.1})


# ---- what is written ----


def test_the_plan_has_what_jobs_ask_for(tmp_path):
    models = [{"name": "meta-llama/Llama-3.1-70B", "device_map": "auto", "gpus": 4, "shards": 8, "dtype": "bfloat16"}]
    grid = Grid(models=models, figures={"toy_induction_head": {}, "card": {"minutes": 5}}, minutes=80, gigabytes=160)
    planned = plan.write(grid, tmp_path, "python3", ["0", "1"])
    assert planned == json.loads((tmp_path / "plan.json").read_text())
    toy, card = planned["cells"].values()
    assert toy["gpus"] == 4 and toy["shards"] == 8
    assert toy["runtime"] == 170 and toy["runtime_of_shard"] == 30 and toy["mem_mb"] == 241_500
    assert card["card"] == "meta-llama/Llama-3.1-70B --dtype bfloat16 --device-map auto --minutes 5 --seed 0".split()
    place = tmp_path / "cells" / "meta-llama-Llama-3.1-70B-bfloat16"
    given = json.loads((place / "toy_induction_head" / "default" / "parameters.json").read_text())
    assert (given["model_name"], given["device_map"]) == ("meta-llama/Llama-3.1-70B", "auto")
    assert not (place / "card" / "default" / "parameters.json").exists()


def test_estimates_decide_what_jobs_ask_for(tmp_path, monkeypatch):
    """Those of `python -m util estimate`; the time only where the speed of the model is known."""
    asked = []

    def estimating(command, argv):
        asked.append(argv)
        return SimpleNamespace(run=lambda arguments: print(json.dumps({"seconds": 1200.0, "gigabytes": 3.0})))

    monkeypatch.setattr(plan, "BY_NAME", {"estimate": None})
    monkeypatch.setattr(plan, "parsed", estimating)
    models = [{"name": "embedded", "speed": 500, "shards": 4}, {"name": "smollm2", "minutes": 7}]
    cells = plan.write(Grid(models=models, figures="card"), tmp_path, "python3", [])["cells"]
    known, unknown = cells.values()
    assert (known["runtime"], known["runtime_of_shard"], known["mem_mb"]) == (50, 20, 6000)
    assert (unknown["runtime"], unknown["mem_mb"]) == (24, 6000)
    assert asked[0][1:] == ["--folder", str(tmp_path / "records"), "--config-only", "--speed", "500.0"]
    assert json.loads(Path(asked[0][0]).read_text())["study"] == "card"


def test_what_has_not_changed_is_not_written_again(tmp_path):
    grid = Grid(models="embedded", seeds=[0, 1], figures={"toy_induction_head": {}})
    plan.write(grid, tmp_path, "python3", [])
    files = sorted(file for file in tmp_path.rglob("*.json"))
    for file in files:
        os.utime(file, (1, 1))
    plan.write(Grid(models="embedded", seeds=[0, 2], figures={"toy_induction_head": {}}), tmp_path, "python3", [])
    changed = [file.relative_to(tmp_path).as_posix() for file in files if file.stat().st_mtime != 1]
    assert changed == ["plan.json"]
    assert (tmp_path / "cells" / "embedded" / "toy_induction_head" / "seed2" / "study.json").exists()
