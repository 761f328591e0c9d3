"""The road of a number, from a notebook's cell to a forward pass and to a picture: few frames, few files."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import util
from util.study.study import Study

ROOT = Path(util.__file__).parent
BELOW = ("engine", "prompts", "models", "load_model_and_data.py")  # what every number passes, whatever the figure


@cache
def place(code):
    """A callable of util as (file, name); None for all others, and for what is not counted."""
    file = Path(code.co_filename)
    if not file.is_relative_to(ROOT) or file.relative_to(ROOT).parts[0] in BELOW:
        return None
    return file.relative_to(ROOT).as_posix(), code.co_qualname


def traced(call):
    """The callables of util that a call runs, and the frames of util on the deepest way to a forward pass."""
    callables: set[Any] = set()
    deepest: list[Any] = []

    def watch(frame, event, _):
        nonlocal deepest
        if event != "call":
            return
        callables.add(place(frame.f_code))
        if frame.f_code.co_name == "forward" and "transformers/models" in frame.f_code.co_filename:
            frames = []
            while frame := frame.f_back:
                frames += [place(frame.f_code)] * (place(frame.f_code) is not None)
            deepest = max(deepest, frames, key=len)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return callables - {None}, deepest


@pytest.mark.parametrize(
    ("stem", "part", "settings", "most_frames", "most_files"),
    [
        ("ioi_patching", "p5", {}, 6, 13),
        pytest.param(
            *("forerunner_heads", "counts", {"prompts": 4, "k": 1, "untrained_control": False}, 8, 12),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_number_takes_few_frames_to_a_forward_pass_and_few_files_to_a_picture(
    stem, part, settings, most_frames, most_files, tmp_path, monkeypatch
):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path / "output"))
    study = Study(stem, "embedded", folder=tmp_path, **settings)
    study.pair  # noqa: B018  # loading is not counted
    callables, frames = traced(lambda: study.show(part))
    files = sorted({file for file, _ in callables})
    assert 0 < len(frames) <= most_frames, frames
    assert len(files) <= most_files, files
    assert {("study/study.py", "Study.show"), ("show/files.py", "write_figure")} <= callables
