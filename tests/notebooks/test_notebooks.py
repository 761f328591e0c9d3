"""The notebooks as documents, and the proof that comparing them with their stored outputs can fail."""

import ast
import base64
import io
import json
import re

import nbformat
import papermill
import pytest
from PIL import Image

from tests import architectures
from tests.clone import ROOT, text
from tests.stored import FOLDERS, look_alike, values
from util import paths
from util.figures import FIGURES
from util.load_model_and_data import load_tokenizer
from util.show.part import figure_of
from util.study.study import conclusions, published

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells_of(file):
    return nbformat.read(file, as_version=4).cells


def code_cells(file):
    return [cell for cell in cells_of(file) if cell.cell_type == "code"]


by_notebook = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


@by_notebook
def test_a_notebook_is_thin_executed_and_comparable(file):
    cells = code_cells(file)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `make notebooks`"
    assert len(cells) <= 28 and file.stat().st_size < 1_500_000  # many short cells rather than a few long ones
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in cells) == 1
    checks = [cell for cell in cells if "NBVAL_CHECK_OUTPUT" in cell.source]
    assert checks == [cells[-1]] and cells[-1].outputs
    outputs = [output for cell in cells for output in cell.outputs]
    assert all(output.get("name") != "stderr" for output in outputs), "a warning or a progress bar was stored"
    assert not re.search(r"hf_[A-Za-z]{8}|findfont", file.read_text())
    assert f"notebooks/smollm2/{file.name}" in text("README.md"), "every notebook has its row in README"


def names(targets):
    nodes = [node for target in targets for node in ast.walk(target)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


@by_notebook
def test_a_notebook_reads_like_a_paper(file):
    """A cell is one idea: a dozen lines at most, but for parameters; nothing is decided there; texts are short.

    And cells can run again: a name has one meaning, and what a loop leaves behind is not the name of a result.
    """
    bound: dict[str, int] = {}
    looped = set()
    for number, cell in enumerate(cells_of(file)):
        if cell.cell_type == "markdown":
            words = len(re.sub(r"<img[^>]*>", "", cell.source).split())
            assert words <= 120, f"cell {number} has {words} words"
            continue
        checked = "NBVAL_CHECK_OUTPUT" in cell.source
        assert checked == bool(cell.metadata.get("jupyter", {}).get("source_hidden")), "check cells are folded"
        if "parameters" in cell.metadata.get("tags", []):
            continue
        lines = [line for line in cell.source.splitlines() if not line.startswith("%")]  # IPython's own commands
        assert len(lines) <= 12, f"cell {number} has {len(lines)} lines"
        nodes = list(ast.walk(ast.parse("\n".join(lines))))
        wrong = ast.If | ast.While | ast.Try | ast.FunctionDef | ast.ClassDef
        assert not [node for node in nodes if isinstance(node, wrong)], f"cell {number} decides"
        for name in names(target for node in nodes if isinstance(node, ast.Assign) for target in node.targets):
            assert bound.setdefault(name, number) == number, f"{name} is bound in cells {bound[name]} and {number}"
        looped |= names(node.target for node in nodes if isinstance(node, ast.For))
    assert not looped & {*bound}


@by_notebook
def test_pictures_in_a_notebook_are_sharp_and_those_of_the_figures_folder(file):
    """Whole, with their titles, of the same run, and with twice as many pixels as they take of a page.

    HTML is for tables: GitHub shows other pages as bare words.
    """
    outputs = [(cell.source, output) for cell in code_cells(file) for output in cell.outputs if "data" in output]
    assert all("<table" in output.data.get("text/html", "<table") for _, output in outputs)
    pictures = [(source, output) for source, output in outputs if "image/png" in output.data]
    assert pictures
    for source, output in pictures:
        panel = re.findall(r'^study\.show\("(\w+)"', source, flags=re.MULTILINE)[-1]
        picture = io.BytesIO(base64.b64decode(output.data["image/png"]))
        stored = ROOT / "figures" / f"{file.stem.partition('_')[2]}_{panel}.png"
        assert look_alike(picture, stored), f"{panel} shows something else: run `make figures`, then `make notebooks`"
        assert Image.open(picture).width // 2 == output.metadata["image/png"]["width"]


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


def saved(folder, kind, **sizes):
    """A random model of a class in a folder, with the tokenizer of the embedded model."""
    tokenizer = load_tokenizer("embedded")
    architectures.build(kind, vocab_size=len(tokenizer), **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


GEMMA2 = {"kind": "gemma2", "max_position_embeddings": 512}
FEW_POSITIONS = {"kind": "gpt2", "hidden_size": 48, "max_position_embeddings": 256}
# Notebook, model, parameters (lists as text, as papermill's -p hands them over), what is said, and panels that are
# written of those that a random model need not have. `quantized` stands beside the untrained twin, which is not.
RUNS = [
    (
        "00_toy_induction_head", GEMMA2, {"length": 10, "copies": 3, "sequences": 4, "quantized": True},
        ["untrained twin, L"], {"patterns"},
    ),
    (
        "01_forerunner_heads", FEW_POSITIONS,
        {
            "dataset": 4, "k": 2, "prompts": 8, "grid_datasets": "['trec', 'agnews']",
            "grid_prompts": 8, "causal_datasets": ["agnews", "trec"], "ablated": 4, "untrained_control": False,
        },
        ["heads exceed the threshold", "agnews, k = 16: left out, "],
        {"counts", "paper_layers", "specificity", "ablation", "induction", "grid"},
    ),
    (
        "02_induction_scores", GEMMA2,
        {
            "sequences": 2, "tasks": ["centre_embedding", "wordseq1"], "k": 3, "prompts": 6, "mode": "zero",
            "reference": "staicc", "text_tasks": ["sst2"], "quantized": True,
        },
        ["of 12 heads ha", "Of a model with planted induction heads just these are found: True"],
        {"scores", "pattern"},  # no task is done
    ),
    (  # a random model, of whose circuits nothing is a share
        "03_ioi_patching", {"kind": "opt", "num_hidden_layers": 5},
        {
            "prompts": 16, "corruption": "abc", "shown_layer": 1, "path_heads": 5, "edge_pairs": 4, "exact_edges": 20,
            "quantized": True,
        },
        [], {"p1", "p2", "p3", "p4", "p5", "population"},
    ),
    (  # it answers nothing right, so that circuits have no score and the search keeps nothing
        "04_edge_ablation", GEMMA2,
        {
            "tasks": "['copying', 'person_sport']", "primary_task": "person_sport", "k": 3, "prompts": 4,
            "donor_seeds": [3, 4], "corruptions": [2, 4],
            "pruned_tasks": "['copying', 'person_sport']", "search_prompts": 4, "quantized": True,
        },
        ["score by hand, in the primary task:"],
        {"circuits", "map", "circuit", "windows", "probes"},
    ),
    (
        "05_role_atlas", FEW_POSITIONS,
        {
            "sequences": 4, "pairs": 8, "datasets": ["agnews"], "ks": [4], "prompts": 8, "word_prompts": 4, "intact": 2,
            "quantized": True,
        },
        ["just the planted roles", "no role is tested, the longest prompt has 536 tokens, this model places 256"],
        {"atlas"},
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.parametrize("name, model, parameters, sentences, panels", RUNS)
def test_a_notebook_runs_whole_on_another_model_and_few_prompts(
    name, model, parameters, sentences, panels, tmp_path, monkeypatch
):
    """And says what it leaves out where a model has few positions."""
    saved(tmp_path / "tiny", **model)
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path.parent / "material"))  # shared: planted models are measured once
    source, out = ROOT / "notebooks" / f"{name}.ipynb", tmp_path / "out.ipynb"
    parameters = parameters | {"model_name": str(tmp_path / "tiny")}
    papermill.execute_notebook(source, out, parameters, kernel_name="python3", cwd=source.parent, progress_bar=False)
    folder, stem = paths.model_folder(str(tmp_path / "tiny")), name.partition("_")[2]
    written = tmp_path / "output" / "data" / "values" / folder / f"{stem}.json"
    texts = [output.get("text", "") for cell in code_cells(out) for output in cell.outputs]
    shown = "".join([out.read_text(encoding="utf-8"), *texts, written.read_text(encoding="utf-8")])
    assert [sentence for sentence in sentences if sentence not in shown] == [] and "findfont" not in shown
    drawn = {file.stem.removeprefix(f"{stem}_") for file in (tmp_path / "output/figures" / folder).glob("*.pdf")}
    assert drawn >= panels
    assert json.loads(written.read_text())["request"]["model"].endswith("tiny")
    assert ("untrained twin, L" in "".join(texts)) <= parameters.get("untrained_control", True)


@by_notebook
def test_a_notebook_begins_with_what_published_models_show_and_ends_with_what_its_own_does(file):
    """Made of stored values; no number is typed there."""
    cells, stem = cells_of(file), file.stem.partition("_")[2]
    assert cells[1].source.startswith("## What this shows") and not re.search(r"\d\.\d", cells[1].source)
    first, last = (
        [output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})]
        for cell in (cells[2], cells[-1])
    )
    assert first == [published(stem).data] and "**SmolLM2-135M-Instruct" in first[0]
    figure, stored = figure_of(stem), values(stem, "embedded")
    assert last == [conclusions(figure, stored).data]
    code = "".join(cell.source for cell in cells[:-1])  # so that nothing is measured, with bars, in the compared cell
    assert not [part for part in figure.parts if not re.search(rf'study\.(show|numbers|arrays)\("{part}"\)', code)]
