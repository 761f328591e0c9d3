"""Mean outputs of heads in a file of numpy's, to be measured once and used on other tasks and machines.

The file (.npz) has an array for each mode of ablation: "mean" is [L, H, dv], the L layers those that have attention;
"mean_pos" and "input_mean" are [T, L, H, dv], a row for each position. Beside them "model" says, as a text in JSON, of
which model they are: the fields of its request, and the digest of its weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from util.engine.call import Support
from util.figures.induction_scores.edits import Edit
from util.models.files import sha256
from util.records.model import Model
from util.roles.head_scores import heads_by_layer


def model_of(model: Model, weights: str | None) -> dict[str, Any]:
    """What a file says of its model. weights: their digest as provenance has it, None where some were offloaded."""
    return {**model.request, "weights": weights}


BY_POSITION = ("mean_pos", "input_mean")
MODES = ("mean", *BY_POSITION)


@dataclass(frozen=True)
class SavedMeans:
    """The arrays of a file, by mode, and their model, see above; digest: of the file's bytes, where they were read."""

    name: str
    arrays: Mapping[str, NDArray[np.floating]]
    model: Mapping[str, Any]
    digest: str = ""

    @classmethod
    def read(cls, file: Path) -> SavedMeans:
        """Reads a file. Raises ValueError, naming it, for one that is missing or holds anything else."""
        try:
            with np.load(file, allow_pickle=False) as opened:
                arrays = dict(opened)
            model = json.loads(str(arrays.pop("model", "null")))
        except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(f"means_file = {str(file)!r}: it cannot be read ({error}); `means` writes one") from None
        wrong = [name for name, array in arrays.items() if name not in MODES or array.ndim != 3 + (name in BY_POSITION)]
        if wrong or not arrays:
            raise ValueError(
                f"means_file = {str(file)!r}: it has {sorted(arrays)}; give mean [L, H, dv], mean_pos or input_mean "
                "[T, L, H, dv]"
            )
        if not isinstance(model, dict) or "weights" not in model:
            raise ValueError(
                f"means_file = {str(file)!r}: it does not say of which model it is; measure it again with `means`"
            )
        return cls(file.name, arrays, model, sha256(file))

    def write(self, file: Path) -> None:
        """Write the arrays, whole or not at all; the same arrays give the same bytes."""
        temporary = file.with_name(f"{file.name}.part")
        with temporary.open("wb") as opened:
            model = np.array(json.dumps(dict(self.model), sort_keys=True))
            np.savez(opened, model=model, **self.arrays)  # type: ignore[arg-type]  # its names are no flags of numpy's
        os.replace(temporary, file)

    def check_model(self, model: Mapping[str, Any]) -> None:
        """Raises ValueError for another model than the file's, see `model_of`.

        Weights are compared by their digest, so that a model may be loaded from another place; where one of the digests
        is unknown, since weights were offloaded, the fields of the request are compared.
        """
        both = self.model["weights"] is not None and model["weights"] is not None
        different = [n for n in ({"weights"} if both else {*model} - {"weights"}) if self.model.get(n) != model[n]]
        if different:
            told = [
                ", ".join(f"{n} {v}" for n, v in of.items() if v not in (None, False)) for of in (self.model, model)
            ]
            raise ValueError(
                f"{self.name} has means of another model: {told[0]}; this one is {told[1]}; measure means of this one "
                "with `means`"
            )

    def values(self, edit: Edit, model: Support, lengths: Sequence[int]) -> dict[int, torch.Tensor]:
        """Returns, by layer, what stands for the heads of an ablation: [heads, dv], or [T, heads, dv] by position.

        lengths: of the texts. Raises ValueError for a mode that the file has not, for means of a model of another shape
        and for texts that are longer than it has positions.
        """
        mode = str(edit.mode)
        if mode not in self.arrays:
            raise ValueError(f"mode = {mode!r}: {self.name} has means for {', '.join(sorted(self.arrays))}")
        means = self.arrays[mode]
        if means.shape[-3:-1] != (len(model.layers), model.heads):
            raise ValueError(
                f"{self.name} is of a model of {means.shape[-3]} layers of {means.shape[-2]} heads; this one has "
                f"{len(model.layers)} of {model.heads}"
            )
        if mode in BY_POSITION and max(lengths) > len(means):
            raise ValueError(
                f"{self.name}: {mode} has {len(means)} positions, the longest text {max(lengths)}; measure means "
                "over longer texts, or take mode 'mean'"
            )
        linear = [each for each in model.projections.values() if isinstance(each, nn.Linear)]
        widths = {each.in_features // model.heads for each in linear}
        if widths - {means.shape[-1]}:
            raise ValueError(
                f"{self.name} has outputs of {means.shape[-1]} values by head; those of this model have {max(widths)}"
            )
        by_layer = heads_by_layer(model, edit.heads)
        return {
            layer: torch.from_numpy(means[..., model.layers.index(layer), heads, :])
            for layer, heads in by_layer.items()
        }
