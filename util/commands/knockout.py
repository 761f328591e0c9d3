"""Classification tasks with the induction pattern forbidden to some heads, see `prompts.induction_pattern`."""

from __future__ import annotations

from functools import partial
from typing import Literal

from util.commands.arguments import Asked, Compared, Queries
from util.commands.results import Out
from util.figures.induction_scores.edits import Edit

Pattern = Literal["induction", "random-keys", "previous-part", "exact-tokens"]


def run(
    asked: Asked = Asked(),
    *,
    queries: Queries = Queries(),
    heads: Compared = Compared(),
    pattern: Pattern = "induction",
    out: Out = Out(),
) -> None:
    """Knock a pattern out on classification tasks. Raises ValueError, before any loading, for what there is not.

    Args:
        pattern: what the heads may not read: what followed an earlier part of the same kind (the default), as many
            random keys, or what followed any earlier part
    """
    from util.commands.answers import compare

    edit = partial(Edit.knock_out, pattern=pattern.replace("-", " "))
    compare("knockout", asked, queries, heads, out, edit)
