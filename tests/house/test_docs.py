"""The code in README and CONTRIBUTING runs as it stands there, and what these pages name is there."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.clone import ROOT, text
from tests.text_rows import animals

FOLDERS = ("notebooks", "util", "util/commands", "data", "data/embedded_models", "experiment_material", "workflow")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"{folder}/README.md" for folder in FOLDERS))
LONG = ("README.md", "util/README.md", "data/embedded_models/README.md")  # half a minute of code
FENCE = re.compile(r"^```python(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, titled):
    """The Python blocks of a page: (title, code), those with a title or those without."""
    return [(m["title"], m["code"]) for m in FENCE.finditer(text(page)) if (m["title"] is not None) == titled]


def run(code, folder, util=ROOT):
    environment = os.environ | {
        "PYTHONPATH": str(util),
        "ICL_ROOT": str(ROOT),
        "ICL_MATERIAL": str(folder / "material"),
    }
    environment["ICL_OUTPUT"] = str(folder / "output")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in PAGES if blocks(page, titled=False)
])  # fmt: skip
def test_the_code_of_a_page_runs(page, tmp_path):
    """In one process, each block in a namespace of its own."""
    (tmp_path / "plural.csv").write_text("x,y\n" + "\n".join(f"{word},{word}s" for word in WORDS.split()) + "\n")
    animals(tmp_path / "animals.csv")
    run("\n".join(f"exec({code!r}, {{}})" for _, code in blocks(page, titled=False)), tmp_path)


WORDS = (
    "car dog cat boy girl book tree house king queen bird horse river road table chair door wall stone wind star moon"
)


@pytest.mark.slow
def test_the_figure_that_contributing_adds_is_right(tmp_path):
    """Written into a copy of the suite by the page alone: measured, cached, drawn, tested, within the rules."""
    for folder in ("util", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    cells, written = [], []
    for title, code in blocks("CONTRIBUTING.md", titled=True):
        if title == "notebook":
            cells.append(code.replace("study.save()", "print(study.save().data)"))  # as a notebook shows it
        else:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(code)
            written.append(title)
    listed = tmp_path / "util" / "figures" / "__init__.py"
    listed.write_text(listed.read_text().replace("FIGURES = (", 'FIGURES = ("attention_sinks", '))

    first = run("".join(cells), tmp_path, util=tmp_path)
    assert re.search(r"^- \w+ of 32 heads gives? the first token most of their", first, re.MULTILINE), first
    drawn = {file.name for file in (tmp_path / "output" / "figures").iterdir()}
    assert drawn == {"attention_sinks_map.png", "attention_sinks_map.pdf"}
    again = "".join(cells[:2]) + "\nassert study.model.loaded is None\n" + cells[-1]
    assert run(again, tmp_path, util=tmp_path) in first  # without the line that says what was loaded

    for command in (
        ["ruff", "check", *written],
        ["ruff", "format", "--check", *written],
        ["pytest", "-q", "-p", "no:cacheprovider", "tests/test_attention_sinks.py", "tests/house/test_architecture.py"],
    ):
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "ICL_ROOT": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_files_and_modules_that_a_page_names_are_there(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text(page)) if not link.startswith("http")]
    assert not [link for link in links if not ((ROOT / page).parent / link).exists()]
    named = re.findall(r"`((?:util|tests|data|notebooks|figures)/[\w./]*[\w/])`", text(page))
    assert not [place for place in named if not (ROOT / place).exists()]


def test_what_readme_runs_is_there_in_a_new_shell():
    """Bare `python` is another one there, and has none of the packages."""
    prose = FENCE.sub("", text("README.md"))
    assert not re.findall(r"(?<!\.venv/bin/)python -m util", prose)
    commands = re.sub(r"\\\n", "", prose)
    starts = {line.split()[0] for line in re.findall(r"^    (\S.*)$", commands, flags=re.MULTILINE)}
    assert starts <= {"make", ".venv/bin/python", ".venv/bin/papermill", "echo", CPU_INDEX}


CPU_INDEX = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"


def test_contributing_names_every_room():
    page = text("CONTRIBUTING.md")
    rooms = {path.name for path in (ROOT / "util").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not {room for room in rooms - {"__init__.py"} if f"util/{room}" not in page}
