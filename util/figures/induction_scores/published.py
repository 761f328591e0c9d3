"""What Crosbie & Shutova (2024) report of Llama-3-8B, to be read beside what is measured here."""

from __future__ import annotations

from functools import cache

from util.figures.induction_scores.edits import Group
from util.show import files

MODEL = "meta-llama/Meta-Llama-3-8B"
QUANTITIES = {
    Group.WHOLE: "full",
    Group.ABLATED: "mean ablation, top 1 %",
    Group.LAYER_MATCHED: "mean ablation, random 1 %",
    Group.KNOCKED_OUT: "knockout, top 1 %",
}


@cache
def _values() -> dict[str, float]:
    return {row["id"]: row["value"] for row in files.published("induction_scores")["values"] if row["model"] == MODEL}


def accuracies(task: str, shots: int, unrelated: bool = False) -> dict[Group, float]:
    """Returns the accuracies of a row of Tables 1 and 3, from 0 to 1, by what corresponds to them here.

    unrelated: whether the labels are Foo and Bar. The ablations are of the best 1 % of heads, and of as many random
    ones; what the row does not have is left out.
    """
    row = f"{task}, {shots} shots" + (", unrelated labels" if unrelated else "")
    values = {group: _values().get(f"{row}: {quantity}") for group, quantity in QUANTITIES.items()}
    return {group: value / 100 for group, value in values.items() if value is not None}
