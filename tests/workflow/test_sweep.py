"""Grids: what they multiply and refuse. Sweeps of a notebook that takes no time: what runs, fails, and runs again."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import nbformat
import pytest
import yaml

from tests.clone import ROOT
from workflow.grid import jobs

WORKFLOW = ROOT / "workflow"
REAL: dict[str, Any] = {
    "models": {"embedded": None, "half": {"name": "gpt2", "dtype": "float16", "resources": "large"}},
    "notebooks": {"forerunner_heads": {"prompts": 8}, "ioi_patching": None, "role_atlas": {"ks": 2}},
    "resources": {"small": {"gigabytes": 4, "minutes": 30}, "large": {"gigabytes": 64, "minutes": 600, "gpus": 2}},
    "datasets": ["trec", "agnews"], "k": [1, 4], "seeds": [0, 1],
}  # fmt: skip
GRID = {"models": {"a": None}, "notebooks": {"tiny": None}, "seeds": [0, 1, 2, 3],
        "resources": {"small": {"gigabytes": 2, "minutes": 5, "gpus": 1}}}  # fmt: skip
# seed 0 fails the first time; seeds 2 and 3 wait as long as there is a file `hold`
CELLS = [('model_name, seed = "", 0\ndevice = "auto"', ["parameters"]), ("""
import pathlib, time
print(seed, end="", file=open("ran.txt", "a"), flush=True)
while seed > 1 and pathlib.Path("hold").exists():
    time.sleep(0.05)
if seed == 0 and not pathlib.Path("failed").exists():
    pathlib.Path("failed").touch()
    raise ValueError("prompts = 8: too few by design")
""", [])]  # fmt: skip
KERNEL = {"name": "python3", "display_name": "Python", "language": "python"}


def made(folder, text=None, **changes):
    file = folder / "grid.yaml"
    file.write_text(text or yaml.safe_dump(REAL | changes, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return jobs(file)


def test_a_notebook_is_multiplied_by_the_axes_that_it_has_and_that_are_not_given(tmp_path):
    found = made(tmp_path, models=REAL["models"] | {"folder": {"name": str(tmp_path)}})
    assert len(found) == 3 * (2 * 2 * 2 + 2 + 2)
    one, other = found["embedded/forerunner_heads/agnews-k4-seed1"], found["half/role_atlas/seed0"]
    asked = {"prompts": 8, "dataset": "agnews", "k": 4, "seed": 1}
    assert one.parameters == {"model_name": "embedded", "device": "cpu"} | asked
    assert other.parameters == {"model_name": "gpt2", "dtype": "float16", "ks": 2, "seed": 0}
    assert (one.resources.gigabytes, other.resources.gpus) == (4, 2)
    assert found["folder/ioi_patching/seed0"].parameters["model_name"] == str(tmp_path)
    assert "half/ioi_patching/default" in made(tmp_path, seeds=None)
    mine = {
        "edge_ablation": {"tasks": ["/data/animals.csv"], "primary_task": "/data/animals.csv"}
    }  # passed on as it is
    assert (
        made(tmp_path, notebooks=mine)["half/edge_ablation/k1-seed0"].parameters.items()
        >= mine["edge_ablation"].items()
    )


def test_the_grid_beside_the_snakefile_is_right_and_every_notebook_can_be_swept(tmp_path):
    assert len(jobs(WORKFLOW / "grid.yaml")) == 6
    stems = [file.stem.partition("_")[2] for file in (ROOT / "notebooks").glob("*.ipynb")]
    assert len(made(tmp_path, notebooks=dict.fromkeys(stems), datasets=["trec"], k=[1], seeds=[3])) == 2 * len(stems)


WRONG = [
    ({"models": {"模型": None}}, "'模型' cannot name a folder; write it like my-model: {name: 模型}"),
    ({"models": {"..": None}}, "'..' cannot name a folder"),
    ({"models": ["embedded"]}, "models = ['embedded']: input should be a valid dictionary"),
    ({"models": {"a": {"resources": "huge"}}}, "no class of resources 'huge'; choose from large, small"),
    ({"notebooks": {"forerunner": None}}, "no notebook 'forerunner'; choose from edge_ablation, forerunner_heads"),
    ({"notebooks": {"role_atlas": {"promts": 3}}}, "no parameter of role_atlas 'promts'; choose from datasets, device"),
    ({"datasets": ["../trec"]}, "no data set '../trec'; choose from agnews, "),
    ({"resources": {"a": {"minutes": 3}}}, "resources.a.gigabytes is missing; give it"),
    ({"seeds": [1, 1]}, "seeds = [1, 1]: give one or more, none of them twice"),
    ({"seed": [1]}, "no argument 'seed'; it has models, notebooks"),
    *(({"text": text}, "; write it like workflow/grid.yaml") for text in ("3", "[", "{3: 4}", "{" * 3000)),
]


@pytest.mark.parametrize("changes, said", WRONG)
def test_wrong_grids_are_refused_in_a_line_with_the_cure(changes, said, tmp_path):
    with pytest.raises(ValueError) as error:
        made(tmp_path, **changes)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.fixture
def clone(tmp_path):
    pytest.importorskip("snakemake", reason="needs Snakemake: make test-workflow")
    for folder in ("data", "notebooks"):
        (tmp_path / folder).mkdir()
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": tags}) for source, tags in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, tmp_path / "notebooks" / "00_tiny.ipynb")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(GRID))
    return tmp_path


def started(clone, *flags, profile="local"):
    command = [sys.executable, "-m", "snakemake", "--snakefile", WORKFLOW / "Snakefile", "--cores", "4", *flags,
               "--profile", WORKFLOW / "profiles" / profile, "--directory", clone / "out", "--resources", "gpu=4",
               "--config", f"grid={clone / 'grid.yaml'}"]  # fmt: skip
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=os.environ | {"ICL_ROOT": str(clone)}, start_new_session=True, **pipes)


def ended(*asked, **profile):
    running = started(*asked, **profile)
    said, _ = running.communicate(timeout=180)
    return running.returncode, said


def done(clone):
    return [(clone / f"out/jobs/a/tiny/seed{seed}/notebook.ipynb").exists() for seed in range(4)]


def test_four_jobs_one_of_which_fails_killed_once_are_complete_after_the_second_call(clone):
    hold, ran = (clone / "notebooks" / name for name in ("hold", "ran.txt"))
    hold.touch()
    running = started(clone)
    noted, until = clone / "out" / ".snakemake" / "incomplete", time.monotonic() + 120  # a file for each job that runs
    while not (done(clone)[1] and len(ran.read_text()) == 4 and len(list(noted.iterdir())) == 2):
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    hold.unlink()
    assert done(clone) == [False, True, False, False]
    status, said = ended(clone)
    assert status == 0 and all(done(clone)), said
    assert sorted(ran.read_text()) == ["0", "0", "1", "2", "2", "3", "3"]


def test_a_job_that_fails_is_named_stops_no_other_and_runs_again_alone(clone):
    status, said = ended(clone)
    named = "\na/tiny/seed0 failed: ValueError: prompts = 8: too few by design (jobs/a/tiny/seed0/log.txt)\n"
    assert status == 1 and named in said and said.count(" failed: ") == 1
    assert done(clone) == [False, True, True, True]
    assert ended(clone)[0] == 0 and all(done(clone))
    assert sorted((clone / "notebooks" / "ran.txt").read_text()) == ["0", "0", "1", "2", "3"]
    (clone / "grid.yaml").write_text(yaml.safe_dump(GRID | {"notebooks": {"tiny": {"device": "cpu"}}}))
    assert "\nnotebook        4\n" in ended(clone, "--dry-run")[1]  # with another parameter all of them are missing


def test_a_cluster_is_asked_for_what_the_class_has_and_a_wrong_grid_ends_before_anything_runs(clone):
    _, said = ended(clone, "--dry-run", profile="slurm")
    assert [said.count(asked) for asked in ("threads: 4\n", "mem_mb=2000", "runtime=5", "gpu=1")] == [4] * 4, said
    (clone / "grid.yaml").write_text("models: embedded")
    status, said = ended(clone)
    assert status == 1 and said.splitlines()[-1].endswith("; write it like workflow/grid.yaml")
    assert "Traceback" not in said and not (clone / "out" / "jobs").exists()
