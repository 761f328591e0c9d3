"""Attention scores of all heads on repeated random tokens, see `roles.sequences_study`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from cyclopts.types import PositiveInt

from util.commands.arguments import Asked
from util.commands.results import Out, columns, shown
from util.stats.heads import head_name, top
from util.stats.intervals import mean_intervals


def run(
    asked: Asked = Asked(),
    *,
    length: int = 50,
    copies: int = 4,
    sequences: int = 5,
    seed: int = 0,
    no_bos: bool = False,
    copying: bool = False,
    show: PositiveInt = 10,
    out: Out = Out(),
) -> None:
    """Score all heads. Raises ValueError, before anything is loaded, for numbers out of range.

    Args:
        length: tokens that are repeated
        copies: how often they come
        sequences: how many are drawn, at least 2
        seed: of the first sequence; the others have the next ones
        no_bos: no BOS in front
        copying: also what heads write: copying, attribution to logits
        show: heads in the printed table
    """
    from util.figures.induction_scores.measure import outputs
    from util.figures.induction_scores.plan import PAPER_SHARES, how_many
    from util.roles.sequences_study import SequenceStudy

    if sequences < 2:
        raise ValueError(f"sequences = {sequences}: two or more have intervals")
    study = SequenceStudy(asked.source, length, copies, sequences, seed, bos=not no_bos, redo=out.redo)
    write = out.checked("scores", [study], copying=copying)
    heads = study.scores()
    score = heads.mean()
    maps = {name: heads.intervals(name) for name in heads.scores}
    best = top(score, min(show, score.size))
    table = {name: [shown(of_map[head]) for head in best] for name, of_map in maps.items()}
    shares = {str(part): top(score, how_many(part, score.size)) for part in PAPER_SHARES}
    results: dict[str, Any] = {"scores": maps, "uniform": heads.uniform, "best": shares}
    columned, values = dict(maps), {}
    if copying:
        written = outputs(study)
        columned["attribution"] = mean_intervals(written["attribution"])
        values["copying"] = mean_intervals(written["copying"], within=(0, 1)).value
        values["weights_copying"] = written["weights_copying"]
        results |= {**values, "attribution": columned["attribution"]}
        table |= {name: [f"{of_map[head]:.3f}" for head in best] for name, of_map in values.items()}
    rows = pd.DataFrame(list(np.ndindex(score.shape)), columns=["layer", "head"])
    for name, of_map in columned.items():
        rows = rows.assign(**columns(name, of_map))
    rows = rows.assign(**{name: of_map.ravel() for name, of_map in values.items()})
    write(results, rows, pd.DataFrame(table, index=[head_name(head) for head in best]), [study])
