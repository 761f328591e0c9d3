"""Small language models trained by this repository, for work without a model hub.

`path()` is a folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load offline;
`load_ICL_model("embedded")` loads it with instruments.
"""

from pathlib import Path

from util import paths


def home() -> Path:
    """The folder of all embedded models. Raises what `paths.root` raises."""
    return paths.root() / "data" / "embedded_models"


def names() -> list[str]:
    """The embedded models that are present."""
    return sorted(config.parent.name for config in home().glob("*/config.json"))


def path(name: str = "generalist") -> Path:
    """The folder of an embedded model (a name, or the absolute path of a folder); FileNotFoundError says the cure."""
    folder = home() / name
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no embedded model {name!r} in {home()} (present: {', '.join(names()) or 'none'}); "
            f"restore it from the repository, or train it: python -m util.training train {name}"
        )
    return folder
