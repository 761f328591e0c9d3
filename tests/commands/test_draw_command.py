"""Figures are drawn again from their values alone, as they are stored, where no model can be loaded."""

import subprocess
import sys

import pytest
from PIL import Image

from tests.stored import look_alike, picture, read
from util.commands import stored as stored_values
from util.commands.frame import main

PANELS = ("role_atlas_atlas", "role_atlas_function_vectors")


@pytest.mark.slow
def test_stored_pictures_are_drawn_again_without_torch(tmp_path):
    """All others: tests/figures/test_drawn.py."""
    program = "import sys; from util.commands.frame import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "draw", "smollm2", "--out", str(tmp_path), "--figure", "role_atlas"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("False\n")
    assert {file.stem for file in tmp_path.glob("*.png")} == {*PANELS}
    assert all(look_alike(tmp_path / f"{name}.png", picture(name, "smollm2")) for name in PANELS)


def test_pictures_of_two_models_stand_side_by_side(tmp_path):
    main(["draw", "smollm2", "embedded", "--figure", "role_atlas", "--out", str(tmp_path)])
    assert {file.stem for file in tmp_path.iterdir()} == {*PANELS}
    for name in PANELS:
        left, right = (Image.open(picture(name, model)) for model in ("smollm2", "embedded"))
        joined = Image.open(tmp_path / f"{name}.png")
        assert joined.size == (left.width + right.width, max(left.height, right.height))
        assert look_alike(joined.crop((left.width, 0, joined.width, right.height)), right)


def test_values_of_an_older_version_are_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    values = read("role_atlas", "embedded")
    del values["function vectors"]
    monkeypatch.setattr(stored_values, "stored", lambda *_, **__: values)
    with pytest.raises(SystemExit):
        main(["draw", "embedded", "--figure", "role_atlas", "--out", str(tmp_path)])
    assert "the values of role_atlas have no 'function vectors', as an older version" in capsys.readouterr().err
