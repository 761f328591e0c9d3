"""The rule that says which roles heads have, on made-up arrays whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from util.roles.rules import LEAST, LEVEL, Evidence, Role, Score
from util.stats.intervals import POWER, detectable, mean_interval, mean_intervals, mean_p

N, LAYERS, HEADS = 32, 3, 4
STRONG, QUIET, WEAK = (1, 2), (2, 0), (0, 3)  # attends and matters; attends only; matters only


def evidence(seed=0, attending=(STRONG, QUIET), mattering=(STRONG, WEAK), size=0.5):
    """Noise everywhere; some heads attend, and cutting some costs `size`."""
    rng = np.random.default_rng(seed)
    value = rng.normal(0.1, 0.02, (N, LAYERS, HEADS))
    for head in attending:
        value[(slice(None), *head)] += 0.4
    score = Score(value, np.full((N, 1, 1), 0.2))
    effect = rng.normal(0, 0.05, (len(score.halves[1]), len(score.chosen)))
    matters = np.array([head in mattering for head in score.chosen])
    return Evidence(Role.INDUCTION, score, effect + size * matters, np.zeros(1))


def names(found):
    return {*found.confirmed}


@pytest.mark.parametrize(
    "made, tested, having",
    [
        ({}, [STRONG, QUIET], {STRONG}),
        ({"attending": (QUIET,)}, [QUIET], set()),
        ({"attending": ()}, [], set()),
        ({"size": 0.2}, [STRONG, QUIET], {STRONG}),
        ({"size": 0.001}, [STRONG, QUIET], set()),
        ({"size": -0.5}, [STRONG, QUIET], set()),
    ],
)
def test_a_head_has_a_role_where_it_attends_and_matters(made, tested, having):
    found = evidence(**made)
    assert found.score.chosen == tested and names(found) == having
    assert {*found.not_confirmed} == {*tested} - having


def test_an_effect_that_its_control_has_too_is_none():
    found = evidence()
    assert replace(found, control=found.effect).confirmed == {}
    constant = np.full_like(found.effect, LEAST)  # equal values have no spread: at the least is none, above is one
    assert [len(replace(found, effect=size * constant).confirmed) for size in (1, 1.01)] == [0, 2]


@pytest.mark.parametrize("half, chosen", [(0, [QUIET]), (1, [STRONG, QUIET])])
def test_the_score_must_hold_on_both_halves(half, chosen):
    found = evidence()
    value = found.score.value.copy()
    value[(found.score.halves[half], *STRONG)] = 0.1
    faded = Score(value, found.score.null)
    assert faded.chosen == chosen
    assert not half or names(replace(found, score=faded)) == set()


@pytest.mark.parametrize("n, tested", [(8, 2), (12, 133), (16, 4), (64, 45)])
def test_an_effect_that_would_be_seen_is_seen_in_four_of_five_samples(n, tested):
    """The smallest such effect is that which samples of noise say on average; other samples have it."""
    rng, samples = np.random.default_rng(0), 1000
    noise = mean_intervals(rng.normal(0, 0.05, (n, samples)), comparisons=tested)
    smallest = LEAST + np.mean([detectable(noise[place], n, tested) for place in range(samples)])
    low = mean_intervals(rng.normal(smallest, 0.05, (n, samples)), comparisons=tested).low
    assert (low > LEAST).mean() == pytest.approx(POWER, abs=0.05)


def test_the_smallest_effect_is_that_of_the_heads_that_may_have_been_missed():
    """Not of those that have the role, which may be known less well."""
    found = evidence(mattering=(STRONG,))
    missed, having = map(found.heads.index, (QUIET, STRONG))
    expected = LEAST + detectable(mean_interval(found.effect[:, missed], comparisons=2), N // 2, 2)
    found.effect[:, having] += np.linspace(-1, 1, N // 2) * 0.3
    assert names(found) == {STRONG} and found.n == N // 2 and found.detectable == expected
    assert evidence(attending=()).detectable is None


def test_intervals_hold_together_and_are_listed_by_effect():
    """p is the larger of the two, corrected for the heads that were tested."""
    found = evidence(mattering=(STRONG, QUIET))
    assert [measured["effect"].value for measured in found.confirmed.values()] == pytest.approx(
        sorted(found.effect.mean(axis=0))[::-1]
    )
    expected, excess = mean_intervals(found.effect, comparisons=2), found.score.excess(1)
    for head, measured in found.confirmed.items():
        place = found.heads.index(head)
        assert measured["effect"] == pytest.approx(expected[place])
        assert measured["p"] == pytest.approx(
            2 * 2 * max(mean_p(excess[(slice(None), *head)]), mean_p(found.effect[:, place] - LEAST))
        )
        assert (
            measured["score"].low > measured["null"] == 0.2 and measured["effect"].low > LEAST
        )  # what is shown says what was decided
    [(head, failed)] = evidence().not_confirmed.items()
    assert head == QUIET and failed["p"] > LEVEL and failed["effect"].low < LEAST < 0.2 < failed["score"].low


@pytest.mark.parametrize("kind", ["normal", "skewed", "clustered"])
@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.001])
def test_p_is_that_of_the_interval(kind, alpha):
    """p <= alpha just where the interval at 1 - 2 alpha lies above 0."""
    rng = np.random.default_rng(3)
    values = rng.normal(0.3, 1, (24, 400)) if kind == "normal" else rng.exponential(1, (24, 400)) - 0.7
    clusters = rng.integers(0, 9, 24) if kind == "clustered" else None
    low = mean_intervals(values, 0.025 / alpha, clusters=clusters).low
    above = mean_p(values, clusters) <= alpha
    assert (above == (low > 0)).all() and 0 < above.sum() < 400
