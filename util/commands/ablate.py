"""Classification tasks with some heads ablated, see `figures.induction_scores.edits.Edit.ablate`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from util.commands.arguments import Asked, Compared, Queries, Reference
from util.commands.results import Out
from util.figures.induction_scores.edits import Edit, Mode


def run(
    asked: Asked = Asked(),
    *,
    queries: Queries = Queries(),
    heads: Compared = Compared(),
    mode: Mode = "mean",
    reference: Reference = Reference(),
    out: Out = Out(),
) -> None:
    """Ablate heads on classification tasks. Raises ValueError, before anything is loaded, for what there is not.

    Args:
        mode: what replaces a head's output
    """
    from util.commands.answers import compare

    compare("ablate", asked, queries, heads, out, partial(Edit.ablate, mode=mode), **asdict(reference))
