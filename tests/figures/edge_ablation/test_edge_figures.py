"""Figures of edges: titles say what was measured, or nothing; what is drawn where. See test_drawn.py, too."""

from tests.figures.edge_ablation.test_claims import rows
from tests.stored import read
from util.figures.edge_ablation import numbers, show
from util.figures.edge_ablation.show import FIGURE


def title(part, made):
    return next(iter(FIGURE.parts[part].says(made)))


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
        "last token keep 0.84 or more, the others 0.30 at most",
        "What these have in common beside: `x->y:same`.",
        "Of 2 random circuits as large the best keeps 0.40.",
    ]
    made["search"] |= {"kept": ["x->y:same"], "random": [], "aggregating": {}}
    assert title("circuit", made) == "1 of 31 type pairs keeps 0.90 [0.80, 1.00] of the performance"
    made["search"]["kept"] = []
    assert "contextualises" not in " ".join(show.circuit_say(made))


def test_a_pair_without_which_accuracy_rises_lowers_none():
    cost = {"accuracy": 0.2, "p": 0.01, "log_prob": 1.0, "low": 0.9, "high": 1.1}
    costs = {"y->last_separator": cost, "x->t": cost | {"accuracy": -0.2, "log_prob": -1.5}}
    most = "y → last separator costs most: 1.00 [0.90, 1.10] nats"
    assert [*show.map_say({"costs": costs})] == [
        f"Ablated alone, 1 of 2 type pairs significantly lowers accuracy; {most}"
    ]


def test_pruning_has_a_title_only_where_it_beats_every_random_pruning():
    def left(share, random_share):
        right = numbers.right_of(rows(40, x=round(40 * share))["x"])
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
