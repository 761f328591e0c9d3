"""Mean outputs of heads in a file of numpy's, to be measured once and used on other tasks and machines.

The file (.npz) has an array for each mode of ablation: "mean" is [L, H, dv], the L layers those that have attention;
"mean_pos" and "input_mean" are [T, L, H, dv], a row for each position.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from util.engine.call import Support
from util.figures.induction_scores.edits import Edit
from util.models.files import sha256
from util.roles.head_scores import heads_by_layer

BY_POSITION = ("mean_pos", "input_mean")
MODES = ("mean", *BY_POSITION)


@dataclass(frozen=True)
class SavedMeans:
    """The arrays of a file, by mode, see above; digest: of its bytes, where they were read."""

    name: str
    arrays: Mapping[str, NDArray[np.floating]]
    digest: str = ""

    @classmethod
    def read(cls, file: Path) -> SavedMeans:
        """Reads a file. Raises ValueError, naming it, for one that is missing or holds anything else."""
        try:
            with np.load(file, allow_pickle=False) as opened:
                arrays = dict(opened)
        except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(f"means_file = {str(file)!r}: it cannot be read ({error}); `means` writes one") from None
        wrong = [name for name, array in arrays.items() if name not in MODES or array.ndim != 3 + (name in BY_POSITION)]
        if wrong or not arrays:
            raise ValueError(
                f"means_file = {str(file)!r}: it has {sorted(arrays)}; give mean [L, H, dv], mean_pos or input_mean "
                "[T, L, H, dv]"
            )
        return cls(file.name, arrays, sha256(file))

    def write(self, file: Path) -> None:
        """Write the arrays, whole or not at all; the same arrays give the same bytes."""
        temporary = file.with_name(f"{file.name}.part")
        with temporary.open("wb") as opened:
            np.savez(opened, **self.arrays)  # type: ignore[arg-type]  # its names are no flags of numpy's
        os.replace(temporary, file)

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
        by_layer = heads_by_layer(model, edit.heads)
        return {
            layer: torch.from_numpy(means[..., model.layers.index(layer), heads, :])
            for layer, heads in by_layer.items()
        }
