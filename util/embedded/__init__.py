"""Small language models trained by this repository, for work without a model hub.

`path()` is a folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load offline.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data" / "embedded_models"

__all__ = ["FOLDER", "ROOT", "names", "path", "untrained_twin"]


def names() -> list[str]:
    """The embedded models that are present."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def path(name: str = "generalist") -> Path:
    """The folder of an embedded model (a name, or the absolute path of a folder); FileNotFoundError says the cure."""
    folder = FOLDER / name
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no embedded model {name!r} in {FOLDER} (present: {', '.join(names()) or 'none'}). The data folder is "
            f"part of the repository, not of an installed package: work in a checkout (pip install -e .), or train the "
            f"model: python -m util.embedded train {name}"
        )
    return folder


def untrained_twin(name: str = "generalist", seed: int = 0) -> PreTrainedModel:
    """The same architecture with seeded random weights, in float32 and evaluation mode: the negative control."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path(name))
    config.dtype = torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
