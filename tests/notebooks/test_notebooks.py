"""The notebooks as documents, and the proof that comparing them with their stored outputs can fail."""

import ast
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import papermill
import pytest
from PIL import Image

from tests import architectures, toys
from tests.stored import FOLDERS, values
from util import paths
from util.figures import FIGURES
from util.load_model_and_data import load_ICL_model
from util.roles.rules import Role
from util.show.files import VISIBLE
from util.show.part import conclusions

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(file):
    return [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]


def nodes_of(cell):
    """The syntax of a code cell, but for IPython's own commands."""
    source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
    return list(ast.walk(ast.parse(source)))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_thin_executed_and_comparable(file):
    cells = code_cells(file)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `make notebooks`"
    assert len(cells) <= 28 and file.stat().st_size < 1_500_000  # many short cells rather than a few long ones
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in cells) == 1
    checks = [cell for cell in cells if "NBVAL_CHECK_OUTPUT" in cell.source]
    assert checks and all(cell.outputs and cell.outputs[0].output_type == "stream" for cell in checks)
    for cell in cells:
        assert not [n for n in nodes_of(cell) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        assert all(output.get("name") != "stderr" for output in cell.outputs), "a warning or a progress bar was stored"
    assert not re.search(r"hf_[A-Za-z]{8}|findfont", file.read_text())
    assert f"notebooks/{file.name}" in (ROOT / "README.md").read_text(), "every notebook has its row in README"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_cells_can_run_again(file):
    """What a loop leaves behind is not the name of a result: a cell run twice would take one for the other."""
    looped, assigned = [], []
    for cell in code_cells(file):
        nodes = nodes_of(cell)
        looped.append(set().union(*(names(node.target) for node in nodes if isinstance(node, ast.For))))
        assigned.append(set().union(*(names(t) for n in nodes if isinstance(n, ast.Assign) for t in n.targets)))
    for place, loop in enumerate(looped):
        assert sorted(loop & set().union(*assigned[:place], *assigned[place + 1 :])) == []


def names(target):
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_reads_like_a_paper(file):
    """A cell is one idea: a dozen lines at most, but for parameters; nothing is decided there; texts are short."""
    bound: dict[str, int] = {}
    for number, cell in enumerate(nbformat.read(file, as_version=4).cells):
        if cell.cell_type == "markdown":
            assert len(cell.source.split()) <= 120, f"cell {number} has {len(cell.source.split())} words"
            continue
        checked = "NBVAL_CHECK_OUTPUT" in cell.source
        assert checked == bool(cell.metadata.get("jupyter", {}).get("source_hidden")), "check cells are folded"
        if "parameters" in cell.metadata.get("tags", []):
            continue
        lines = cell.source.splitlines()
        assert len(lines) <= 12, f"cell {number} has {len(lines)} lines"
        nodes = nodes_of(cell)
        assert not [node for node in nodes if isinstance(node, ast.If | ast.While | ast.Try)], f"cell {number} decides"
        assigned = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
        for name in set().union(*map(names, assigned)):
            assert bound.setdefault(name, number) == number, f"{name} is bound in cells {bound[name]} and {number}"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_pictures_in_a_notebook_are_sharp(file):
    """Twice as many pixels as they take of a page, so that small type is read on any screen."""
    outputs = [output for cell in code_cells(file) for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    for output in pictures:
        pixels = int.from_bytes(base64.b64decode(output.data["image/png"])[16:20])  # of PNG's first chunk: its width
        assert pixels // 2 == output.metadata["image/png"]["width"]


PICTURE = r'^study\.show\("(\w+)"'  # the name of a panel


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_pictures_in_a_notebook_are_those_of_the_figures_folder(file):
    """Whole, with their titles, and of the same run. HTML is for tables: GitHub shows other pages as bare words."""
    for cell in code_cells(file):
        for output in (output.get("data", {}) for output in cell.outputs):
            assert "<table" in output.get("text/html", "<table")
            if "image/png" not in output:
                continue
            panel = re.findall(PICTURE, cell.source, flags=re.MULTILINE)[0]
            files = io.BytesIO(base64.b64decode(output["image/png"])), figure_file(file, panel)
            shown, stored = (np.array(Image.open(place).convert("RGB"), dtype=int) for place in files)
            assert shown.shape == stored.shape, f"{panel}: run `make figures`, then `make notebooks`"
            assert (np.abs(shown - stored).max(axis=2) > VISIBLE).sum() < 200, f"{panel} shows something else"


def figure_file(notebook, panel):
    """The picture of a notebook's panel on the embedded model."""
    return ROOT / "figures" / f"{notebook.stem.partition('_')[2]}_{panel}.png"


def entries(stored):
    """Every entry of stored values with its name, however deep."""
    for name, value in stored.items():
        yield name, value
        if isinstance(value, dict):
            yield from entries(value)


@pytest.mark.parametrize("model", FOLDERS)
@pytest.mark.parametrize("stem", FIGURES)
def test_every_figure_has_an_untrained_control(stem, model):
    assert any(name.startswith("untrained") and value for name, value in entries(values(stem, model)))


def executed(name, parameters, tmp_path, monkeypatch):
    """What a notebook prints when it runs with these parameters; its files go to tmp_path / "ICL_OUTPUT".

    Records are shared by all tests, so that planted models are measured once.
    """
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path / "ICL_OUTPUT"))
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path.parent / "material"))
    source, out = ROOT / "notebooks" / f"{name}.ipynb", tmp_path / "out.ipynb"
    papermill.execute_notebook(source, out, parameters, kernel_name="python3", cwd=source.parent, progress_bar=False)
    return "".join(output.get("text", "") for cell in code_cells(out) for output in cell.outputs)


def written_to(tmp_path, kind):
    """Where a notebook writes what it has of the model in tmp_path / "tiny"."""
    return tmp_path / "ICL_OUTPUT" / kind / paths.model_folder(str(tmp_path / "tiny"))


@pytest.mark.slow
@pytest.mark.notebook
def test_the_notebook_runs_on_another_model_and_few_prompts(tmp_path, monkeypatch):
    toys.save(tmp_path / "tiny", toys.model("gpt2"))
    parameters = {
        "model_name": str(tmp_path / "tiny"),
        "dataset": 4,
        "k": 1,
        "prompts": 8,
        "grid_datasets": "['sst5', 4]",  # as papermill -p passes it
        "grid_k": [0, 2],
        "grid_prompts": 8,
        "causal_datasets": ["trec"],
        "causal_k": [1],
        "ablated": 8,
    }
    panels = {"counts", "paper_counts", "paper_layers", "specificity", "ablation", "induction", "grid", "k"}
    place = written_to(tmp_path, "figures")
    for k, untrained_control in ((1, True), (0, False)):
        shutil.rmtree(place, ignore_errors=True)
        parameters |= {"k": k, "untrained_control": untrained_control, "quantized": untrained_control}
        printed = executed("01_forerunner_heads", parameters, tmp_path, monkeypatch)
        assert "heads exceed the threshold" in printed and "findfont" not in printed
        assert "labels only -> forerunner head; any token -> previous-token head; never -> neither" in printed
        assert "trec, k = 1: task not done" in printed
        assert {file.stem.removeprefix("forerunner_heads_") for file in place.glob("*.pdf")} == panels
    written = json.loads((written_to(tmp_path, "data/values") / "forerunner_heads.json").read_text())
    assert list(written["grid_counts"]) == ["sst5", "trec"] and "GPT2LMHeadModel" in written["model"]
    assert list(written["by_k"]["fixed"]) == ["0", "2"]


@pytest.mark.slow
@pytest.mark.notebook
def test_the_toy_notebook_shows_another_model_by_its_name(tmp_path, monkeypatch):
    toys.save(tmp_path / "tiny")
    parameters = {"model_name": str(tmp_path / "tiny"), "length": 10, "copies": 3, "sequences": 4}
    for untrained_control in (True, False):
        parameters |= {"untrained_control": untrained_control, "quantized": untrained_control}
        printed = executed("00_toy_induction_head", parameters, tmp_path, monkeypatch)
        assert "tmp" not in printed and ("that of the untrained twin has" in printed) == untrained_control
    written = json.loads((written_to(tmp_path, "data/values") / "toy_induction_head.json").read_text())
    heads = [*written["heads"]]
    assert written["request"]["model"] == "tiny" and len(heads) == 4
    assert heads[1] == "planted GPT-2, L1H5: induction" and heads[2].startswith("tiny, L")
    figures = tmp_path / "ICL_OUTPUT" / "figures"
    assert [file.stem for file in written_to(tmp_path, "figures").glob("*.pdf")] == ["toy_induction_head_patterns"]
    assert len(list(figures.glob("toy_induction_head_*.pdf"))) == 4  # no model is in these


@pytest.mark.slow
@pytest.mark.notebook
def test_the_ioi_notebook_runs_on_another_model_and_few_prompts(tmp_path, monkeypatch):
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    model = architectures.build("opt", vocab_size=len(tokenizer), num_hidden_layers=5)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    parameters = {
        "model_name": str(tmp_path / "tiny"),
        "prompts": 16,
        "corruption": "abc",
        "shown_layer": 1,
        "path_heads": 5,
        "edge_pairs": 4,
        "exact_edges": 20,
        "quantized": True,  # beside the untrained twin, which is not
    }
    executed("03_ioi_patching", parameters, tmp_path, monkeypatch)
    figures = (written_to(tmp_path, "figures")).glob("ioi_patching_*.pdf")
    parts = {file.stem.removeprefix("ioi_patching_") for file in figures}
    assert parts | {"diagram"} == {  # which a random model need not have
        "p1", "p2", "p3", "p4", "p5", "population", "circuit", "paths", "diagram", "edge_circuits",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.notebook
def test_the_induction_notebook_runs_on_another_model_and_few_prompts(tmp_path, monkeypatch):
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    model = architectures.build("gemma2", vocab_size=len(tokenizer), max_position_embeddings=512)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    parameters = {
        "model_name": str(tmp_path / "tiny"),
        "sequences": 2,
        "tasks": ["centre_embedding", "wordseq1"],
        "k": 3,
        "prompts": 6,
        "mode": "zero",
        "reference": "staicc",
        "text_tasks": ["sst2"],
        "quantized": True,  # beside the untrained twin, which is not
    }
    printed = executed("02_induction_scores", parameters, tmp_path, monkeypatch)
    assert "of 12 heads attend" in printed and "Planted induction heads found exactly: True" in printed
    parts = {file.stem.split("_")[-1] for file in (written_to(tmp_path, "figures")).glob("induction_scores_*.pdf")}
    assert parts == {"scores", "companions", "pattern", "mechanism", "ablation", "vectors"}  # no task is done for shots


@pytest.mark.slow
@pytest.mark.notebook
def test_the_edge_notebook_runs_on_another_model_and_few_prompts(tmp_path, monkeypatch):
    """On a model, too, that answers nothing right, so that circuits have no score and the search keeps nothing."""
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    model = architectures.build("gemma2", vocab_size=len(tokenizer), max_position_embeddings=512)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    parameters = {
        "model_name": str(tmp_path / "tiny"),
        "tasks": "['copying', 'person_sport']",  # as text, as papermill's -p hands it over
        "primary_task": "person_sport",
        "k": 3,
        "prompts": 4,
        "donor_seeds": [3, 4],
        "ambiguous_counts": [0, 2],
        "corruptions": [2, 4],
        "pruned_tasks": "['copying', 'person_sport']",
        "search_prompts": 4,
        "quantized": True,  # beside the untrained twin, which is not
    }
    printed = executed("04_edge_ablation", parameters, tmp_path, monkeypatch)
    assert "score by hand, in the primary task:" in printed
    parts = {file.stem.split("_")[-1] for file in (written_to(tmp_path, "figures")).glob("edge_*.pdf")}
    assert parts == {"circuits", "map", "circuit", "windows", "pruning", "probes", "ambiguous"}
    written = json.loads((written_to(tmp_path, "data/values") / "edge_ablation.json").read_text())
    assert sorted(written["planted"]["kept"]) == written["planted"]["true"] and len(written["windows"]["at"]) == 4


@pytest.mark.slow
@pytest.mark.notebook
def test_the_role_notebook_runs_on_another_model_and_few_prompts(tmp_path, monkeypatch):
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    model = architectures.build("gemma2", vocab_size=len(tokenizer), max_position_embeddings=512)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    parameters = {
        "model_name": str(tmp_path / "tiny"),
        "sequences": 4,
        "pairs": 8,
        "datasets": 0,
        "ks": [1],
        "prompts": 4,
        "word_prompts": 4,
        "intact": 2,
        "quantized": True,  # beside the untrained twin, which is not
    }
    printed = executed("05_role_atlas", parameters, tmp_path, monkeypatch)
    assert "of 12 heads ha" in printed and printed.count("just the planted roles") == 6  # and once more in the check
    assert [file.name for file in (written_to(tmp_path, "figures")).iterdir()].count("role_atlas_atlas.pdf") == 1
    written = json.loads((written_to(tmp_path, "data/values") / "role_atlas.json").read_text())
    assert set(map(str, Role)) == set(written["roles"]) and written["request"]["model"].endswith("tiny")


SMALL: dict[str, dict[str, Any]] = {
    "00_toy_induction_head": {"length": 10, "copies": 3, "sequences": 4},
    "01_forerunner_heads": {
        "dataset": 4, "k": 2, "prompts": 8, "grid_datasets": ["trec", "agnews"], "grid_k": [0, 2, 12],
        "grid_prompts": 8, "causal_datasets": ["agnews", "trec"], "ablated": 4,
    },
    "02_induction_scores": {
        "sequences": 2, "tasks": ["wordseq1"], "k": 2, "prompts": 6, "text_tasks": ["sst2"],
    },
    "03_ioi_patching": {"prompts": 16, "path_heads": 3, "edge_pairs": 4, "exact_edges": 20},
    "04_edge_ablation": {
        "tasks": ["copying"], "primary_task": "copying", "k": 3, "prompts": 4, "donor_seeds": [3],
        "ambiguous_counts": [0, 2], "corruptions": [2, 4], "pruned_tasks": ["copying"], "search_prompts": 4,
    },
    "05_role_atlas": {
        "sequences": 4, "pairs": 8, "datasets": ["agnews"], "ks": [4], "prompts": 8, "word_prompts": 4, "intact": 2,
    },
}  # fmt: skip
LEFT_OUT = {
    "01_forerunner_heads": [
        "agnews, k = 16: left out, ",
        "left out, 321 tokens, 256 positions",
    ],
    "02_induction_scores": ["left out, 465 tokens, 256 positions"],
    "05_role_atlas": ["labels: no role is tested, the longest prompt has 536 tokens, this model places 256"],
}


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_whole_on_a_model_of_few_positions_and_says_what_it_leaves_out(name, tmp_path, monkeypatch):
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    model = architectures.build("gpt2", vocab_size=len(tokenizer), hidden_size=48, max_position_embeddings=256)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    parameters = {"model_name": str(tmp_path / "tiny"), "untrained_control": False, **SMALL[name]}
    executed(name, parameters, tmp_path, monkeypatch)
    values = [file.read_text() for file in written_to(tmp_path, "data/values").glob("*.json")]  # captions of pictures
    shown = "".join([(tmp_path / "out.ipynb").read_text(encoding="utf-8"), *values])
    assert values and [said for said in LEFT_OUT.get(name, ()) if said not in shown] == []


@pytest.mark.slow
@pytest.mark.notebook
def test_a_broken_measure_makes_nbval_fail(tmp_path):
    shutil.copytree(ROOT / "util", tmp_path / "util", ignore=shutil.ignore_patterns("__pycache__"))
    measure = tmp_path / "util" / "figures" / "forerunner_heads" / "numbers.py"
    healthy = "return magnitude > threshold("
    assert measure.read_text().count(healthy) == 1
    measure.write_text(measure.read_text().replace(healthy, "return magnitude > 1000 * threshold("))
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "ICL_ROOT": str(ROOT),
        "ICL_MATERIAL": str(tmp_path / "material"),
        "ICL_OUTPUT": str(tmp_path / "output"),
    }
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider", "-q"]
    command += ["-p", "tests.conftest", "--nbval-cell-timeout", "600"]
    command += ["--nbval-sanitize-with", "tests/nbval_sanitize.cfg", "notebooks/01_forerunner_heads.ipynb"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout and "Cell outputs differ" in done.stdout, done.stdout
    broken = "No more heads are shown to be frequent than with untrained weights: 0 [0, 0] and 0 [0, 0]" in done.stdout
    assert broken, "the broken package was not the one that ran"


def test_what_notebooks_say_of_the_papers_models_follows_from_what_was_measured():
    """The measured times stand in README; the extrapolated ones follow by the rules that the notebooks state."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = {}
    for name in ("02_induction_scores", "03_ioi_patching"):
        cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
        [told[name]] = [cell.source for cell in cells if cell.source.startswith("### On the paper")]
    [induction] = [line for line in readme.splitlines() if line.startswith("| Induction scores")]
    assert "17 minutes" in told["02_induction_scores"] and "| 17 minutes |" in induction
    times = 8 / 0.135
    assert round(times, -1) == 60 and round(17 * times / 60) == 17
    assert "60 times as long, 17 hours" in told["02_induction_scores"]
    assert round(500 * 3 / 40) == 38 and "38 times as many as 40" in told["02_induction_scores"]
    [ioi] = [line for line in readme.splitlines() if line.startswith("| IOI head")]
    assert "12 minutes, and half an hour of one core for the edges" in told["03_ioi_patching"]
    assert "12 minutes, and half an hour of one core for the edges" in ioi
    assert round(0.774 / 0.135) == 6 and 4 * 0.774 + 1 < 4.1 and "4 GB are enough" in told["03_ioi_patching"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_ends_with_what_it_shows(file):
    """Made of stored values, for both models; no number is typed there."""
    cells = nbformat.read(file, as_version=4).cells
    [place] = [n for n, cell in enumerate(cells) if cell.source.startswith("## What this shows")]
    assert not re.search(r"\d\.\d", cells[place].source)
    [output] = [output for output in cells[place + 1].outputs if "text/markdown" in output.get("data", {})]
    shown = output.data["text/markdown"]
    assert "**embedded**\n" in shown and "\n**SmolLM2-135M-Instruct" in shown and shown.count("\n- ") > 5
    stem = file.stem.partition("_")[2]
    assert shown == str(conclusions(stem, "embedded"))
