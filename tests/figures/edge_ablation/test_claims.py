"""Verdicts on the claims about edges, on made-up answers."""

import numpy as np
import pytest

from util.edges.edge import FULL, at_layer, random_name
from util.figures.edge_ablation import numbers
from util.figures.edge_ablation.numbers import ADDED, REMOVED
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, NO_PREMISE

MARGINS = {1: 0.15, 2: 0.15, 3: 0.1, 4: 0.2, 5: 0.1}


def rows(n, draws=3, **right):
    """Answers to n queries: the whole model has all right, each ablation so many of the first."""
    return {
        name: {"right": np.tile(np.arange(n) < count, (draws, 1)), "query": np.arange(n)}
        for name, count in ({FULL: n} | right).items()
    }


def task(n=200, only=100, added=100, removed=200):
    """A task that the whole model has right: without contextualisation, with it, and without it alone."""
    return rows(n, **{ADDED[1]: only, ADDED[0]: added, REMOVED[1]: removed})


THERE = dict.fromkeys(["a", "b", "c"], 300)
MATTERS, IDLE = task(added=180, removed=120), task()


def explained(answers):
    return numbers.explained(answers, 300, 0.15)


def differs(tasks):
    return numbers.differs(tasks, THERE, 0.15)


def test_a_circuit_explains_most_and_more_than_random_ones_do():
    random = {random_name(draw): rows(250, x=40)["x"] for draw in range(1, 21)}
    assert explained(rows(250, found=245) | random).verdict == HOLDS
    lost = explained(rows(250, found=150) | random)
    assert lost.verdict == DOES_NOT_HOLD and lost.parts[0].value == pytest.approx(0.4)
    assert len(explained(rows(250, found=245)).parts) == 1, "no other circuit is as large"
    alike = {random_name(draw): rows(250, x=245)["x"] for draw in range(1, 21)}
    assert explained(rows(250, found=245) | alike).verdict == CANNOT_BE_TOLD
    few = explained(rows(20, found=19) | {name: rows(20, x=3)["x"] for name in random})
    assert few.verdict == CANNOT_BE_TOLD and (few.parts[0].needed or 0) > 20


def test_a_loss_is_sure_only_after_all_are_counted():
    """Six of forty are significantly lost alone, not as the best of thirty."""
    pair = rows(40)[FULL], rows(40, x=34)["x"]
    same = {str(number): (pair[0], pair[0]) for number in range(29)}
    assert [*numbers.sure_losses({"it": pair})] == ["it"] and not numbers.sure_losses({"it": pair, **same})


def test_tasks_differ_only_where_adding_and_removing_both_say_so():
    assert differs({"a": MATTERS, "b": IDLE, "c": IDLE}).verdict == HOLDS
    assert differs({"a": IDLE, "b": IDLE}).verdict == DOES_NOT_HOLD
    added_alone = differs({"a": task(added=180), "b": IDLE})
    assert added_alone.verdict == DOES_NOT_HOLD
    found = differs({"a": MATTERS, "b": IDLE})
    assert found.parts[0].name.startswith("a against b") and found.note == "the clearest of 2 ordered pairs of tasks"
    assert differs({"a": MATTERS}).verdict == NO_PREMISE


def test_what_contextualisation_brings_back_is_a_share_of_the_whole_models_accuracy():
    found = numbers.brings_back({"a": task(only=100, added=120)}, THERE, 0.3)
    assert found.parts[0].value == pytest.approx(0.1) and found.verdict == DOES_NOT_HOLD
    assert numbers.brings_back({"a": MATTERS, "b": IDLE}, THERE, 0.1).verdict == HOLDS


def test_ambiguity_is_judged_on_all_prompts_by_log_probability():
    rng = np.random.default_rng(0)

    def lost(mean):
        query, loss = np.arange(195), rng.normal(mean, 0.5, (3, 195))
        return {REMOVED[0]: {"log_prob": loss * 0, "query": query}, REMOVED[1]: {"log_prob": -loss, "query": query}}

    found = numbers.more_if_ambiguous({0: lost(0.1), 7: lost(0.8)}, 195, 0.2)
    assert found.verdict == HOLDS and found.parts[0].value == pytest.approx(0.7, abs=0.1)
    assert numbers.more_if_ambiguous({0: lost(0.1), 7: lost(0.1)}, 195, 0.2).verdict == DOES_NOT_HOLD


def layers(n=200, **right):
    named = {
        "context_upper": at_layer("CONTEXT from", 2), "context_lower": at_layer("CONTEXT below", 2),
        "agg_upper": at_layer("AGG from", 2), "agg_lower": at_layer("AGG below", 2),
    }  # fmt: skip
    return rows(n) | {named[name]: rows(n, x=count)["x"] for name, count in right.items()}


def test_order_needs_a_loss_in_the_other_half():
    """A model that never contextualises does not contextualise first."""

    def verdict(halves, of_task=MATTERS):
        return numbers.first_then("a", of_task, halves, 4, 3, 300, MARGINS).verdict

    assert verdict(layers(context_lower=120, context_upper=195, agg_upper=60, agg_lower=195)) == HOLDS
    idle = layers(context_lower=200, context_upper=200, agg_upper=60, agg_lower=195)
    assert verdict(idle) == DOES_NOT_HOLD and verdict(idle, IDLE) == NO_PREMISE
    assert verdict(layers(context_lower=195, context_upper=120, agg_upper=60, agg_lower=195)) == DOES_NOT_HOLD


def test_prompts_of_one_query_are_one_unit():
    once = task(60, only=20, added=40)
    again = {name: {"right": np.tile(row["right"], 5), "query": np.tile(row["query"], 5)} for name, row in once.items()}
    assert numbers.brings_back({"a": again}, THERE, 0.1) == numbers.brings_back({"a": once}, THERE, 0.1)
