"""Classification tasks with the induction pattern forbidden to some heads, see `prompts.induction_pattern`."""

from __future__ import annotations

from functools import partial
from typing import Literal

from util.commands.arguments import Asked, Compared
from util.commands.results import Out
from util.figures.induction_scores.edits import Edit

Pattern = Literal["induction", "random-keys", "previous-part", "exact-tokens"]


def run(
    asked: Asked = Asked(),
    *,
    compared: Compared = Compared(),
    pattern: Pattern = "induction",
    key_seed: int = 0,
    out: Out = Out(),
) -> None:
    """Knock a pattern out on classification tasks. Raises ValueError, before any loading, for what there is not.

    Args:
        pattern: what the heads may not read: what followed an earlier part of the same kind (the default), as many
            random keys, or what followed any earlier part
        key_seed: of random keys
    """
    from util.commands.answers import compare

    name = pattern.replace("-", " ")
    edit = partial(Edit.knock_out, pattern=name, seed=key_seed)
    edit([])  # raises ValueError for a wrong seed
    compare("knockout", asked, compared, out, edit, {"pattern": name, "key_seed": key_seed})
