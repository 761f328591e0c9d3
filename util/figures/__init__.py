"""One folder per figure, named by its stem; beside them what all figures share, and what they have stored.

The roles of a model's heads are those that the role atlas has stored, for figures that show heads with their roles.
"""

from collections.abc import Mapping

from util.show.part import Values, figure_of, headline, listed, say, stored
from util.stats.heads import place_of

FIGURES = ("toy_induction_head", "forerunner_heads", "induction_scores", "ioi_patching", "edge_ablation", "role_atlas")
MODEL = (
    "model",
    "folder",
    "revision",
    "dtype",
    "quantized",
    "untrained_seed",
)  # what of a request says which model it is


def beside(*models: str) -> str:
    """A table in Markdown of what stored values say: a column for each model, the title of each part in a row."""
    lines = [["part", *models], ["---"] * (1 + len(models))]
    for stem in FIGURES:
        values_of = [stored(stem, model) for model in models]
        for name, part in figure_of(stem).parts.items():
            titles = [headline(part, values) if values and part.measure else "" for values in values_of]
            if any(titles):
                lines.append([f"{stem}, {name}", *titles])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def stored_atlas(request: Values) -> Values | None:
    """The stored values of each role that was tested; None where nothing is stored of this model.

    request: of the values of any study of the model. Values that this run has written come before those of the
    clone; values of the model in another revision, dtype or quantisation do not count.
    """
    values = stored("role_atlas", str(request.get("folder", request["model"])), latest=True)
    if values is None or any(values["request"].get(name) != request.get(name) for name in MODEL):
        return None
    return values["roles"]


def by_head(atlas: Values) -> dict[str, list[str]]:
    """The roles of each head that has any, by name, heads and roles in their order. atlas: see `stored_atlas`."""
    names = {name for tested in atlas.values() for name in tested["heads"]}
    return {
        name: [role for role, tested in atlas.items() if name in tested["heads"]]
        for name in sorted(names, key=place_of)
    }


def why_no_role(heads: Mapping[str, tuple[float, float | None]], request: Values) -> list[str]:
    """Returns sentences: which heads that carry most of an IOI effect have no role, and of which it is mostly direct.

    heads: by name, the effect of each and the part of it that goes directly to the output; None or NaN where that is
    not known. request: as in `stored_atlas`. There are no sentences where nothing is stored of this model.
    """
    atlas = stored_atlas(request)
    without = {name: effect for name, effect in heads.items() if name not in by_head(atlas or {})}
    if not atlas or not without:
        return []
    text = "of the strongest heads, {heads} {heads:has|have} none of {n:words} roles (notebook 05)."
    sentences = [say(text, heads=[*without], n=len(atlas))]
    direct = [
        f"{name} ({part:.2f} of {whole:.2f})"
        for name, (whole, part) in without.items()
        if part is not None and part / whole > 0.5
    ]
    if direct:
        sentences.append(f"The direct effect, all else frozen, is more than half of the whole one: {listed(direct)}.")
        sentences.append("The rule for inhibition heads asks for more through other heads.")
    return sentences
