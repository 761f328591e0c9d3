"""Figures are drawn again from their values alone, as they are stored, where no model can be loaded."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.stored import FOLDERS, read
from util import paths
from util.commands import stored as stored_values
from util.commands.frame import main
from util.figures import FIGURES
from util.show.files import VISIBLE
from util.show.part import figure_of


@pytest.mark.parametrize(
    ("model", "stems"),
    [("smollm2", ["toy_induction_head"]), *(pytest.param(model, FIGURES, marks=pytest.mark.slow) for model in FOLDERS)],
)
def test_every_stored_picture_is_drawn_again_without_torch(model, stems, tmp_path):
    program = "import sys; from util.commands.frame import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "draw", model, "--out", str(tmp_path), "--figure", ",".join(stems)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("False\n")
    panels = [f"{stem}_{name}" for stem in stems for name, part in figure_of(stem).parts.items() if part.panels]
    assert {file.stem for file in tmp_path.glob("*.png")} == {*panels}
    for file in tmp_path.glob("*.png"):
        places = (paths.root() / "figures" / folder / file.name for folder in (FOLDERS[model], ""))  # or of no model
        stored = next(place for place in places if place.exists())
        one, other = (np.array(Image.open(place).convert("RGB"), dtype=int) for place in (file, stored))
        assert one.shape == other.shape, file.name
        assert (np.abs(one - other).max(axis=2) > VISIBLE).sum() < 200, file.name


def test_pictures_of_two_models_stand_side_by_side(tmp_path):
    main(["draw", "smollm2", "embedded", "--figure", "role_atlas", "--out", str(tmp_path)])
    assert {file.name for file in tmp_path.iterdir()} == {"role_atlas_atlas.png", "role_atlas_function_vectors.png"}
    for file in tmp_path.iterdir():
        left, right = (Image.open(paths.root() / "figures" / folder / file.name) for folder in ("smollm2", ""))
        with Image.open(file) as joined:
            assert joined.size == (left.width + right.width, max(left.height, right.height))
            beside = joined.convert("RGB").crop((left.width, 0, joined.width, right.height))
        changed = np.abs(np.array(beside, dtype=int) - np.array(right.convert("RGB"), dtype=int))
        assert (changed.max(axis=2) > VISIBLE).sum() < 200


def test_values_of_an_older_version_are_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    values = read("role_atlas", "embedded")
    del values["function vectors"]
    monkeypatch.setattr(stored_values, "stored", lambda *_, **__: values)
    with pytest.raises(SystemExit):
        main(["draw", "embedded", "--figure", "role_atlas", "--out", str(tmp_path)])
    assert "the values of role_atlas have no 'function vectors', as an older version" in capsys.readouterr().err


def test_a_model_without_values_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["util", "draw", "gpt2"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "no values of toy_induction_head of gpt2 are stored" in capsys.readouterr().err
