"""The files around the code agree with each other, with what is installed, and with what is promised."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import yaml
from nbval.plugin import get_sanitize_patterns
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.clone import ROOT, text
from tests.text_rows import animals
from util import paths

README = text("README.md")
CONFIG = ROOT / "tests" / "nbval_sanitize.cfg"
PROJECT = tomllib.loads(text("pyproject.toml"))["project"]
DIRECT = [Requirement(line) for line in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]


def pins(lines):
    """Canonical name -> version, of lines that all read `name==version`."""
    found = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert len(found) == len(lines), "a package is pinned twice"
    return found


LOCK = pins(text("requirements.lock").splitlines())
CONDA = yaml.safe_load(text("environment.yml"))["dependencies"]
CONDA_PIP = next(entry["pip"] for entry in CONDA if isinstance(entry, dict))


def tracked():
    """The files git knows; none in a downloaded archive."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if (ROOT / name).is_file()]


# ---- versions ----


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_direct_dependency_is_pinned_within_its_range(requirement):
    name = canonicalize_name(requirement.name)
    assert requirement.specifier.contains(LOCK[name])


def test_environment_yml_holds_the_direct_dependencies_and_follows_the_lock():
    conda = pins([line for line in CONDA_PIP if not line.startswith("-")])
    assert (
        set(conda) == {canonicalize_name(requirement.name) for requirement in DIRECT} and conda.items() <= LOCK.items()
    )
    assert [line for line in CONDA_PIP if line.startswith("-")] == ["-c requirements.lock", "-e ."]
    assert f"python={PROJECT['requires-python'].removeprefix('>=')}" in CONDA
    builds = [name for name, pin in LOCK.items() if re.match(r"nvidia-|cuda-|triton$", name) or Version(pin).local]
    assert not builds, "they are of one platform"


def test_installed_versions_equal_the_lock():
    packages = [(canonicalize_name(one.metadata["Name"]), one.version) for one in metadata.distributions()]
    installed = {name: version.partition("+")[0] for name, version in packages}
    other = {name: f"{installed.get(name)} and not {pin}" for name, pin in LOCK.items() if installed.get(name) != pin}
    if other and os.environ.get("ICL_ALLOW_OTHER_VERSIONS"):
        pytest.skip(f"allowed by ICL_ALLOW_OTHER_VERSIONS: {other}")
    assert not other, "run `make`, or set ICL_ALLOW_OTHER_VERSIONS=1 to test other versions"


def test_citation_agrees_with_pyproject():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == PROJECT["version"] == metadata.version(PROJECT["name"])
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert f"(c) 2026 {PROJECT['authors'][0]['name']}" in text("LICENSE")


# ---- commands ----


def test_make_help_lists_every_target_and_all_are_phony():
    makefile = text("Makefile")
    described = re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE)
    public = set(re.findall(r"^([a-z-]+):(?!=)", makefile, flags=re.MULTILINE))
    assert public - {"stale"} == {*described} >= {*"help figures test check notebooks lock bench clean".split()}
    assert public == {*" ".join(re.findall(r"^\.PHONY: (.*)", makefile, flags=re.MULTILINE)).split()}
    if shutil.which("make"):
        shown = subprocess.run(["make"], cwd=ROOT, env=without("MAKE"), capture_output=True, text=True, check=True)
        assert re.findall(r"^ +make ([a-z-]+) ", shown.stdout, flags=re.MULTILINE) == described


def without(*starts):
    """The environment without variables whose names start so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(starts)}


FAKE = """#!/bin/sh
case "$*" in -I*) echo True;; "-m util.paths "*) echo place;; esac
printf "%s\\n" "$@" >> arguments.txt
"""
MODELS = ["`touch ran`", "$(touch ran)", "$$(touch ran)", "$(shell touch ran)", 'x"; touch ran; "', "a b", "my model"]


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize(
    "target, model",
    [*(("figures", model) for model in MODELS), *((target, MODELS[0]) for target in ("claims", "report", "replicate"))],
)
def test_a_models_name_reaches_the_commands_as_it_is_and_runs_nothing(target, model, tmp_path):
    """With a Python that only writes down its arguments. A folder's path is made absolute."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in (".venv/bin", "util", "my model"):
        (tmp_path / folder).mkdir(parents=True)
    (python := tmp_path / ".venv" / "bin" / "python").write_text(FAKE)
    python.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    command = ["make", target, f"MODEL={model}", "NOTEBOOKS=notebooks/a.ipynb"]
    subprocess.run(command, cwd=tmp_path, env=without("MAKE", "MODEL"), capture_output=True, timeout=60)
    assert not (tmp_path / "ran").exists()
    known = str(tmp_path / model) if model == "my model" else model
    assert known in (tmp_path / "arguments.txt").read_text().splitlines()


# ---- contents ----


def test_no_tracked_file_holds_a_home_folder_or_a_token():
    # each pattern is put together here, so that this file does not match
    homes = "|".join(("/" + "home", "/" + "Users", r"[A-Z]:\\+" + "Users"))
    secret = re.compile(rf"(?<![\w.])(?:{homes})[/\\]+\w|(?<![\w.])/{'root'}/\w|\b{'hf'}_[A-Za-z0-9]{{30,}}".encode())
    assert secret.search(b'"/' + b'home/ada/x"')
    assert secret.search(b"hf" + b"_" + b"aB3" * 11)
    found = {str(path.relative_to(ROOT)): hit[0] for path in tracked() if (hit := secret.search(path.read_bytes()))}
    assert not found


# ---- how notebooks are compared ----


@pytest.mark.parametrize(
    "line, expected",
    [
        ("<Axes at 0x7f3a5c2e1d90>", "<Axes at ADDRESS>"),
        ("computed 2026-03-01T12:30:05.25+01:00, read 2026-03-01 12:31", "computed TIME, read TIME"),
        ("512 prompts in 12.3 s (24 ms each, 0 min)", "512 prompts in DURATION (DURATION each, DURATION)"),
        ("wrote /tmp/x-1/data/values/toy.json", "wrote FOLDER/toy.json"),
        ("torch 2.13.0+cpu", "torch 2.13.0"),
        ("top head 3.1: 0.731 (95% CI 0.702 to 0.760), p = 0.004", None),
        ("patched/base 0.5, and/or, 1/2/3, 4 heads, 6 sets, -0.2 shift", None),
        ("https://example.org/a/b, data/published/ioi.json", None),
    ],
)
def test_sanitising_touches_what_differs_between_runs_and_no_result(line, expected):
    config, changed = CONFIG.read_text(), line
    rules = get_sanitize_patterns(config)
    assert len(dict(rules)) == len(re.findall(r"^regex:", config, flags=re.MULTILINE)) == config.count("\nreplace:")
    for regex, replacement in rules:
        changed = re.sub(regex, replacement, changed)
    assert changed == (expected or line)


@pytest.mark.slow
@pytest.mark.notebook
def test_nbval_fails_on_a_changed_result_and_on_an_error_alone(tmp_path):
    check = "# NBVAL_CHECK_OUTPUT\nimport sys\nprint({!r})\nprint('bar', file=sys.stderr)"
    for name, source in {
        "same": check.format("0.731 in 2.5 s"),
        "changed": check.format("0.732"),
        "error": "1 / 0",
    }.items():
        cell = nbformat.v4.new_code_cell(source, execution_count=1)
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="0.731 in 9 s\n")]
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
    options = ["--nbval-lax", "--nbval-current-env", "--nbval-sanitize-with", str(CONFIG), "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1 and "2 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    assert all(f"{name}.ipynb::" in run.stdout.partition("FAILED ")[2] for name in ("changed", "error"))


# ---- installed without a clone ----


@pytest.mark.slow
def test_an_installed_wheel_needs_no_clone(tmp_path):
    """In an environment of its own, beside the packages of this one, and in an empty folder, offline."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")  # whose own .pth files are not followed
    pip = [sys.executable, "-m", "pip", "--quiet", f"--python={tmp_path / 'env'}"]
    subprocess.run([*pip, "install", "--no-deps", str(ROOT)], check=True)
    (work := tmp_path / "work").mkdir()
    env = without("ICL_", "PYTHONPATH") | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    program = [tmp_path / "env" / "bin" / "icl-circuits"]

    def run(*words):
        return subprocess.run([*program, *words], cwd=work, env=env, capture_output=True, text=True, check=True)

    first, again = (run("scores", "embedded", "--sequences", "2", "--out", "scores") for _ in range(2))
    kept = "what is measured is kept in"
    assert kept in first.stderr and kept not in again.stderr and "icl-circuits" in run("--help").stdout
    assert (work / "scores" / "result.json").exists() and [*work.iterdir()] == [work / "scores"]
    assert [*(tmp_path / "cache" / "icl-circuits").iterdir()]
    assert run("draw", "smollm2", "--figure", "ioi_patching", "--out", "pictures").stdout.count(".png") > 5
    animals(work / "animals.csv")
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "animals.csv" in block)
    subprocess.run([tmp_path / "env" / "bin" / "python", "-c", code], cwd=work, env=env, check=True)
    assert not (work / "experiment_material").exists()


# ---- folders ----


@pytest.fixture
def unset(monkeypatch):
    for name in ("ICL_ROOT", "ICL_MATERIAL", "ICL_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_root_without_data_names_the_cure(unset, tmp_path):
    unset.setattr(paths, "__file__", str(tmp_path / "site-packages" / "util" / "paths.py"))
    with pytest.raises(FileNotFoundError, match=r"pip install -e \."):
        paths.root()
    unset.setenv("ICL_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="ICL_ROOT"):
        paths.root()


def test_output_goes_to_the_cache_unless_it_is_sent_elsewhere(unset, tmp_path):
    (tmp_path / "data").mkdir()
    unset.setenv("ICL_ROOT", str(tmp_path))
    assert paths.output("values") == tmp_path / "experiment_material" / "output" / "values"
    unset.setenv("ICL_MATERIAL", "cache")  # relative: from the clone, not from the working folder
    assert paths.output("figures") == tmp_path / "cache" / "output" / "figures" and paths.output("figures").is_dir()
    unset.setenv("ICL_OUTPUT", str(tmp_path / "out"))
    assert paths.output("values") == tmp_path / "out" / "data" / "values"


def test_tests_write_outside_the_clone():
    assert not paths.material().is_relative_to(ROOT)
    assert not paths.output("figures").is_relative_to(ROOT)


def test_ci_runs_check_and_all_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    said = script.read_text()
    assert "set -euo pipefail" in said
    assert "for target in check test test-all test-real test-oracles test-harness test-workflow; do" in said


TOP_LEVEL = """
    .ci .gitattributes .github .gitignore .pre-commit-config.yaml CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE
    Makefile README.md environment.yml pyproject.toml requirements.lock data experiment_material figures notebooks tests
    util workflow
"""


def test_top_level_holds_the_agreed_entries_only():
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= {*TOP_LEVEL.split()}


def test_no_test_is_skipped_without_a_condition():
    pattern = re.compile(r"pytest\.mark\.(skip|xfail)\b")
    files = [
        path for path in tracked() if path.suffix == ".py" and path.name != "conftest.py" and path != Path(__file__)
    ]
    assert not [path.name for path in files if path.is_relative_to(ROOT / "tests") and pattern.search(path.read_text())]
