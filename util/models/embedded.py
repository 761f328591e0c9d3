"""Small language models trained by this repository, for work without a model hub.

`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load the folder `path()` offline;
`load_ICL_model("embedded")` loads it with instruments.
"""

from pathlib import Path

from util import paths


def home() -> Path:
    """The folder of all embedded models. Raises what `paths.root` raises."""
    return paths.root() / "data" / "embedded_models"


def names() -> list[str]:
    """The names of the embedded models that are present."""
    return sorted(config.parent.name for config in home().glob("*/config.json"))


def path(name: str = "generalist") -> Path:
    """The folder of an embedded model; name: its name, or the absolute path of a folder.

    Raises FileNotFoundError, which says what to do, if there is no model in it.
    """
    folder = home() / name
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no embedded model {name!r} in {home()} (present: {', '.join(names()) or 'none'}); "
            "restore it from the repository, or train it: python -m data.embedded_models.recipe.train"
        )
    return folder
