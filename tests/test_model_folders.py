"""Where files of a model lie."""

from util import paths

NAMES = [
    "orgA/model",
    "orgB/model",
    "orga/model",
    "модель",
    "模型",
    "..",
    "embedded/other",
    "embedded//any/path",
    "Model",
]


def test_no_two_models_share_a_folder_and_none_is_that_of_the_embedded_model(tmp_path, monkeypatch):
    folders = [paths.model_folder(name) for name in NAMES]
    assert len({*folders, ""}) == len(NAMES) + 1 and not any(set("/\\") & set(folder) for folder in folders)
    assert not any(folder.startswith(".") for folder in folders)
    assert [paths.model_folder(name) for name in ("embedded", "embedded/generalist", "smollm2")] == ["", "", "smollm2"]
    for place in ("first", "second"):
        (tmp_path / place / "tiny").mkdir(parents=True)
        (tmp_path / place / "tiny" / "config.json").touch()
        (tmp_path / place / "smollm2").mkdir()  # not a model
    monkeypatch.chdir(tmp_path / "first")
    assert paths.model_folder("smollm2") == "smollm2"
    here, there = (paths.model_folder(str(tmp_path / place / "tiny")) for place in ("first", "second"))
    assert (
        here != there
        and here.startswith("tiny-")
        and paths.model_folder("tiny") == paths.model_folder("./tiny/") == here
    )
