"""Figures of edges: titles say what was measured, or nothing; what is drawn where. See test_drawn.py, too."""

import numpy as np
from matplotlib.patches import Rectangle

from tests.stored import read
from util.edges.edge import CIRCUITS, FULL, TYPE_PAIRS
from util.figures.edge_ablation import numbers, show
from util.figures.edge_ablation.show import FIGURE, Settings
from util.show.draw import draw
from util.show.part import drawn
from util.stats.intervals import Interval


def title(part, made):
    return next(iter(FIGURE.parts[part].says(made)))


def drawn_axes(grid):
    return draw(grid, "", "setting").axes


# ------------------------------------------------------------------------------------------------ what titles say

N = 40


def row(right):
    """A row of N prompts with a query each, of which such a share is answered right."""
    answers = np.tile(np.arange(N) < right * N, (2, 1))
    return {
        "right": answers,
        "query": np.arange(N),
        "log_prob": np.log(np.where(answers, 0.9, 0.05)),
        "kl": np.zeros(answers.shape),
    }


def made_of(entries):
    request = {"primary_task": "capitalization", "k": 10, "prompts": N, "donor_seeds": [0, 1]}
    return {"request": request, "model": "toy: of a class", **entries}


def compared(**right):
    shares = {name: right.get(name.replace("-", "_").replace("+", "_"), 1.0) for name in CIRCUITS}
    rows = {name: row(share) for name, share in shares.items()}
    return {"rows": rows, "alone": row(0.0), "chance": 0.0, "written": {}}


def circuits(untrained=None, **by_task):
    return made_of(numbers.circuits({"tasks": by_task, "untrained": untrained}, Settings()))


def test_the_title_of_circuits_counts_the_tasks_that_need_demonstrations():
    needs, not_ = compared(QUERY_ONLY=0.2, AGG_ONLY=0.5), compared(QUERY_ONLY=0.98)
    both = circuits(a=needs, b=not_)
    loss = numbers.sure_losses({"a": (needs["rows"]["FULL"], needs["rows"]["AGG-ONLY"])})["a"]
    assert loss.value == 0.5 and loss.low > 0.3
    most = both["sure losses"]["QUERY-ONLY"]["a"]
    bare = f"with the query alone (QUERY-ONLY) in 1 of 2 tasks, by up to {most} in a"
    read = f"without contextualisation (AGG-ONLY) in 1 of 2 tasks, by up to {loss} in a"
    assert title("circuits", both) == f"Accuracy falls significantly {bare}; {read}"
    assert both["sure losses"]["AGG-ONLY"] == {"a": loss} and [*both["sure losses"]["QUERY-ONLY"]] == ["a"]
    twin = [*FIGURE.parts["circuits"].says(circuits(needs["rows"], b=not_))][-1]
    assert twin == "Untrained twin, capitalization: accuracy 1.00 [0.91, 1.00] at most (in FULL)."
    silent = drawn(FIGURE.parts["circuits"], circuits(b=not_))
    assert silent is not None and silent.get_suptitle() == ""


def test_a_loss_is_sure_only_after_all_are_counted():
    """Six of forty are significantly lost alone, not as the best of thirty."""
    pair = row(1.0), row(1 - 6 / N)
    same = {str(number): (row(1.0), row(1.0)) for number in range(29)}
    assert [*numbers.sure_losses({"it": pair})] == ["it"] and not numbers.sure_losses({"it": pair, **same})


def test_the_title_of_the_map_names_what_costs_most_or_nothing():
    rows = {FULL: row(1.0), **{str(edge): row(1.0) for edge in TYPE_PAIRS}}
    assert title("map", made_of(numbers.single(rows, None))) == ""
    made = made_of(numbers.single(rows | {"x->y:same": row(0.6), "query->last_separator": row(0.0)}, None))
    cost = Interval(*(made["costs"]["query->last_separator"][name] for name in ("log_prob", "low", "high")))
    assert title("map", made) == (
        f"Ablated alone, 2 of 31 type pairs significantly lower accuracy, most query → last separator: {cost} nats"
    )
    assert len(frames(drawn_axes(show.map_panels(made))[0])) == 2


def frames(ax):
    return [patch for patch in ax.patches if isinstance(patch, Rectangle) and not patch.get_fill()]


def test_the_title_of_a_circuit_is_its_score_beside_the_best_random_one():
    made = read("edge_ablation", "smollm2")
    made["search"] |= {"kept": ["y->last_separator", "query->last_separator"], "random": [0.1, 0.4], "aggregating": {}}
    made["search"]["scores"]["found"] = [0.9, 0.8, 1.0]
    assert title("circuit", made) == (
        "2 of 31 type pairs keep 0.90 [0.80, 1.00] of the performance; "
        "of 2 random circuits as large the best keeps 0.40"
    )
    made["search"]["aggregating"] = {"x->y:same, t->n:same": 0.84, "t->t:earlier, x->y:same": 1.0, "n->x:earlier": 0.3}
    assert [*show.circuit_say(made)][:3] == [
        "2 of 31 type pairs keep 0.90 [0.80, 1.00] of the performance; two of 3 random circuits with its reads of the "
        "last token keep as much, the others 0.30 at most",
        "What these have in common beside: `x->y:same`.",
        "Of 2 random circuits as large the best keeps 0.40.",
    ]
    made["search"] |= {"kept": ["x->y:same"], "random": [], "aggregating": {}}
    assert title("circuit", made) == "1 of 31 type pairs keeps 0.90 [0.80, 1.00] of the performance"


def test_pruning_has_a_title_only_where_it_beats_every_random_pruning():
    def left(share, random_share):
        right = numbers.right_of(row(share))
        return {"result": 4, "units": 100, "accuracy": {"4": right}, "explained": {"4": [share, 0, 1]},
                "whole": right, "random": [random_share]}  # fmt: skip

    def said(*both):
        made = {"pruning": {"by_task": {"copying": dict(zip(("head", "edge"), both, strict=True))}}}
        assert show.pruning_table(made).shape == (2, 6)
        return [*FIGURE.parts["pruning"].says(made)]

    assert said(left(1.0, 0.1), left(0.9, 0.2)) == [
        "At most 4 % of the units keep 0.90 to 1.00 of the accuracy; as many random units answer 0.20 right at most"
    ]
    assert said(left(1.0, 0.1), left(0.3, 0.2)) == [""]


# ------------------------------------------------------------------------------------------------ what is drawn where
