"""Indirect object identification: maps of all heads by patching, see `figures.ioi_patching`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from cyclopts.types import PositiveInt

from util.commands.arguments import Asked, Words
from util.commands.results import Out, columns
from util.figures.ioi_patching.numbers import intervals
from util.figures.ioi_patching.show import EXAMPLE, NAMES, heads_table, patching_says, predictions_say
from util.prompts.ioi import Corruption


def run(
    asked: Asked = Asked(),
    *,
    corruption: Corruption = "s2_swap",
    prompts: int = 128,
    seed: int = 0,
    base: str = EXAMPLE[0],
    source: str = EXAMPLE[1],
    names: Words = NAMES,
    show: PositiveInt = 8,
    out: Out = Out(),
) -> None:
    """Patch every head, on one pair of prompts and on many. Raises ValueError for what there is not.

    Args:
        corruption: how a source differs from its base
        prompts: pairs that are drawn, at least 8
        seed: of the pairs
        base: of one pair of your own
        source: its source
        names: the answer of that base, and the name that it repeats
        show: heads in the printed table
    """
    from util.study.study import Study

    settings: dict[str, Any] = {
        "corruption": corruption,
        "prompts": prompts,
        "seed": seed,
        "texts": (base, source),
        "names": names,
    }
    study = Study("ioi_patching", asked.source, untrained_control=False, redo=out.redo, **settings)
    write = out.checked("ioi", [study])
    example, found = study.numbers("p1"), study.numbers("population")["population"]
    values = {"request": study.request, "model": study.description, "population": found, **example}
    print(*[*predictions_say(values)][2:], *patching_says(values), sep="\n")
    effects = {
        "estimate": found["estimate"], "direct": found["direct"], "example patched": example["patched"],
        "example permuted": example["permuted"], "example norm": example["example"]["norms"],
    }  # fmt: skip
    rows = pd.DataFrame(list(np.ndindex(found["direct"].shape)), columns=["layer", "head"]).assign(
        **columns("noised", intervals(found["noised"])), **columns("denoised", intervals(found["denoised"])),
        **{name: values.ravel() for name, values in effects.items()},
    )  # fmt: skip
    shown = {name: example[name] for name in ("scores", "permuted", "patched", "selectivity")}
    write({"population": found, "example": shown}, rows, heads_table(values, show), [study])
