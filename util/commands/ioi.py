"""Indirect object identification: maps of all heads by patching, see `figures.ioi_patching`."""

from __future__ import annotations

from util.commands.arguments import Asked, Words
from util.commands.results import Out, by_head
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
    """
    from util.study.study import Study

    study = Study(
        "ioi_patching", asked.source, redo=out.redo, untrained_control=False,
        corruption=corruption, prompts=prompts, seed=seed, texts=(base, source), names=names,
    )  # fmt: skip
    result = out.checked("ioi", study, studies=[study.request])
    values = study.values_of("p1", "population")
    print(*[*predictions_say(values)][2:], *patching_says(values), sep="\n")
    found, example = values["population"], values["example"]
    rows = by_head({
        "noised": intervals(found["noised"]), "denoised": intervals(found["denoised"]),
        "direct": found["direct"], "example patched": values["patched"], "example permuted": values["permuted"],
        "example norm": example["norms"],
    })  # fmt: skip
    shown = {name: values[name] for name in ("scores", "permuted", "patched", "selectivity")}
    result.write({"population": found, "example": shown}, rows, heads_table(values), [study])
