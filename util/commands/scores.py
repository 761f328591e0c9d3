"""Attention scores of all heads on repeated random tokens, see `roles.sequences_study`."""

from __future__ import annotations

import pandas as pd

from util.commands.arguments import Asked, AtLeastTwo
from util.commands.results import Out, by_head
from util.stats.heads import head_name, top

SHOWN = 10  # heads in the printed table


def run(
    asked: Asked = Asked(),
    *,
    length: int = 50,
    copies: int = 4,
    sequences: AtLeastTwo = 5,
    seed: int = 0,
    no_bos: bool = False,
    out: Out = Out(),
) -> None:
    """Score all heads. Raises ValueError, before anything is loaded, for numbers out of range.

    Args:
        length: tokens that are repeated
        copies: how often they come
        sequences: how many are drawn, at least 2
        seed: of the first sequence; the others have the next ones
        no_bos: no BOS in front
    """
    from util.figures.induction_scores.plan import PAPER_SHARES, how_many
    from util.roles.sequences_study import SequenceStudy

    study = SequenceStudy(asked.source, length, copies, sequences, seed, bos=not no_bos, redo=out.redo)
    result = out.checked("scores", study, studies=[study.request])
    heads = study.scores()
    score = heads.mean()
    maps = {name: heads.intervals(name) for name in heads.scores}
    best = top(score, min(SHOWN, score.size))
    table = {name: [of_map[head] for head in best] for name, of_map in maps.items()}
    shares = {str(part): top(score, how_many(part, score.size)) for part in PAPER_SHARES}
    results = {"scores": maps, "uniform": heads.uniform, "best": shares}
    result.write(results, by_head(maps), pd.DataFrame(table, index=[head_name(head) for head in best]), [study])
