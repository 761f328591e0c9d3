"""The roles of a model's heads, as the role atlas has stored them: for figures that show heads with their roles."""

import re
from collections.abc import Mapping
from typing import Any

from util.roles.rules import Role
from util.show.part import listed, say, stored
from util.stats.heads import Head

MODEL = ("model", "revision", "dtype", "quantized", "untrained_seed")  # what of a request says which model it is


def stored_roles(request: Mapping[str, Any]) -> dict[Head, list[Role]] | None:
    """Returns the roles of each head that has any; None where nothing is stored of this model.

    request: of any study of the model, see `Study.request`. Values that this run has written come before those of the
    clone; values of the model in another revision, dtype or quantisation do not count.
    """
    atlas = stored_atlas(request)
    if atlas is None:
        return None
    roles: dict[Head, list[Role]] = {}
    for role in Role:
        for name in atlas.get(role, {"heads": {}})["heads"]:
            layer, head = map(int, re.findall(r"\d+", name))
            roles.setdefault((layer, head), []).append(role)
    return roles


def why_no_role(heads: Mapping[str, tuple[float, float | None]], request: Mapping[str, Any]) -> list[str]:
    """Returns sentences: which heads that carry most of an IOI effect have no role, and of which it is mostly direct.

    heads: by name, the effect of each and the part of it that goes directly to the output; None or NaN where that is
    not known. request: as in `stored_roles`. There are no sentences where nothing is stored of this model.
    """
    atlas = stored_atlas(request)
    if atlas is None:
        return []
    without = [head for head in heads if not any(head in tested["heads"] for tested in atlas.values())]
    if not without:
        return []
    text = "of the heads that carry most, {heads} {heads:has|have} none of {n:words} roles (notebook 05)."
    sentences = [say(text, heads=without, n=len(atlas))]
    parts = {head: heads[head] for head in without}
    direct = [
        f"{head} ({part:.2f} of {whole:.2f})"
        for head, (whole, part) in parts.items()
        if part is not None and part / whole > 0.5
    ]
    if direct:
        sentences.append(f"The direct effect, all else frozen, is more than half of the whole one: {listed(direct)}.")
        sentences.append("The rule for inhibition heads asks for more through other heads.")
    return sentences


def stored_atlas(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The stored values of each role that was tested; None where nothing is stored of this model."""
    values = stored("role_atlas", str(request["model"]), latest=True)
    if values is None or any(values["request"].get(name) != request.get(name) for name in MODEL):
        return None
    return values["roles"]
