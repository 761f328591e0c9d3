"""What Crosbie & Shutova (2024) report of a model, to be read beside what is measured here."""

from __future__ import annotations

from functools import cache

from util.figures.induction_scores.edits import Group
from util.show import files

MODEL = "meta-llama/Meta-Llama-3-8B"
FULL, ABLATED, RANDOM, KNOCKED_OUT = "full", "top 1 % out", "random 1 % out", "pattern out"
QUANTITIES = {
    FULL: "full",
    ABLATED: "mean ablation, top 1 %",
    RANDOM: "mean ablation, random 1 %",
    KNOCKED_OUT: "knockout, top 1 %",
}
GROUPS = {  # what corresponds to it here
    FULL: Group.WHOLE,
    ABLATED: Group.ABLATED,
    RANDOM: Group.LAYER_MATCHED,
    KNOCKED_OUT: Group.KNOCKED_OUT,
}


@cache
def _values(model: str) -> dict[str, float]:
    return {row["id"]: row["value"] for row in files.published("induction_scores")["values"] if row["model"] == model}


def accuracies(place: str, model: str = MODEL) -> dict[str, float]:
    """Returns the accuracies of a row of Tables 1 and 3, in per cent, by the names of QUANTITIES that it has.

    place: see `measures.place_in_tables`. The ablations are of the best 1 % of heads, and of as many random ones.
    """
    values = {name: _values(model).get(f"{place}: {quantity}") for name, quantity in QUANTITIES.items()}
    return {name: value for name, value in values.items() if value is not None}
