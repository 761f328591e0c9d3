"""The rule that says which roles heads have, on made-up arrays whose answer is known."""

import numpy as np
import pytest

from util.roles.rules import LEAST, LEVEL, Effect, Evidence, Role, Score
from util.stats.intervals import POWER, detectable, mean_interval, mean_intervals
from util.stats.tests import mean_p

N, LAYERS, HEADS = 32, 3, 4
STRONG, QUIET, WEAK = (1, 2), (2, 0), (0, 3)  # attends and matters; attends only; matters only


def evidence(seed=0, attending=(STRONG, QUIET), mattering=(STRONG, WEAK), clusters=None, size=0.5):
    """Noise everywhere; some heads attend, and cutting some costs `size`."""
    rng = np.random.default_rng(seed)
    score = rng.normal(0.1, 0.02, (N, LAYERS, HEADS))
    for head in attending:
        score[(slice(None), *head)] += 0.4
    whole = Score(score, np.full((N, 1, 1), 0.2), "attention", clusters)
    heads = whole.chosen()
    effect = rng.normal(0, 0.05, (len(whole.halves[1]), len(heads)))
    for place, head in enumerate(heads):
        effect[:, place] += size * (head in mattering)
    return Evidence(Role.INDUCTION, whole, Effect(heads, effect, np.zeros(1), "nats"))


def names(found):
    return {one.head for one in found.heads()}


def test_a_head_has_a_role_where_it_attends_and_matters():
    assert evidence().score.chosen() == [STRONG, QUIET]
    assert names(evidence()) == {STRONG}


def test_a_head_that_does_not_attend_is_not_even_tested():
    found = evidence(attending=(QUIET,))
    assert found.score.chosen() == [QUIET] and names(found) == set()
    assert found.p()[WEAK] == found.p()[STRONG] == 1


@pytest.mark.parametrize(("size", "has"), [(0.2, True), (0.001, False), (0.0, False), (-0.5, False)])
def test_effects_below_the_least_are_none(size, has):
    assert (STRONG in names(evidence(size=size))) == has


def test_a_constant_effect_at_the_least_is_none_and_just_above_is_one():
    score = Score(np.ones((N, LAYERS, HEADS)) * 0.5, np.zeros((1, 1, 1)), "attention")
    heads, half = score.chosen(), (len(score.halves[1]), LAYERS * HEADS)
    assert len(heads) == LAYERS * HEADS
    for value, count in ((LEAST, 0), (1.01 * LEAST, LAYERS * HEADS)):
        effect = Effect(heads, np.full(half, value), np.zeros(1), "nats")
        assert len(Evidence(Role.MOVER, score, effect).heads()) == count


def test_an_effect_that_its_control_has_too_is_none():
    found = evidence()
    control = Effect(found.effect.heads, found.effect.value, found.effect.value, "nats")
    assert Evidence(Role.INDUCTION, found.score, control).heads() == []


def test_the_score_must_hold_on_both_halves():
    found = evidence()
    first, second = found.score.halves
    faded = found.score.value.copy()
    faded[(second, *STRONG)] = 0.1
    assert names(Evidence(Role.INDUCTION, Score(faded, found.score.null, "attention"), found.effect)) == set()
    unseen = found.score.value.copy()
    unseen[(first, *STRONG)] = 0.1
    assert Score(unseen, found.score.null, "attention").chosen() == [QUIET]


def test_p_is_the_larger_of_the_two_and_corrected_for_the_heads_that_were_tested():
    found, second = evidence(), evidence().score.halves[1]
    place = found.effect.heads.index(STRONG)
    one = mean_p(found.score.excess(second)[(slice(None), *STRONG)])
    other = mean_p(found.effect.excess[:, place] - LEAST)
    assert len(found.effect.heads) == 2 and found.p()[STRONG] == pytest.approx(2 * 2 * max(one, other))


@pytest.mark.parametrize("seed", range(5))
def test_roles_go_with_the_heads_when_these_are_permuted(seed):
    found = evidence(seed)
    order = np.random.default_rng(seed).permutation(LAYERS * HEADS)  # new place -> old place
    value = found.score.value.reshape(N, -1)[:, order].reshape(N, LAYERS, HEADS)
    score = Score(value, found.score.null, "attention")
    moved = {old: divmod(int(np.flatnonzero(order == old[0] * HEADS + old[1])[0]), HEADS) for old in found.effect.heads}
    heads = score.chosen()
    assert set(heads) == set(moved.values())
    back = [list(moved.values()).index(head) for head in heads]
    effect = Effect(heads, found.effect.value[:, back], np.zeros(1), "nats")
    permuted = {one.head: one for one in Evidence(Role.INDUCTION, score, effect).heads()}
    assert set(permuted) == {moved[head] for head in names(found)}
    for one in found.heads():
        assert permuted[moved[one.head]].effect == pytest.approx(one.effect)
        assert permuted[moved[one.head]].score == pytest.approx(one.score)


def errors(models, score_mean, clusters, *, skewed):
    """In how many models of noise any head has a role: effects are at their null, and so is the score, or far above."""
    wrong = 0
    for seed in range(models):
        rng = np.random.default_rng(seed)

        def noise(size, rng=rng):
            """Values [N, ...] with mean 0; those of a cluster are nearly one."""
            size = (len(clusters), *size)
            drawn = rng.exponential(1, size) - 1 if skewed else rng.normal(0, 1, size)
            return drawn[clusters] + 0.1 * rng.normal(0, 1, size)

        score = Score(score_mean + 0.1 * noise((LAYERS, HEADS)), np.full(1, 0.2), "attention", clusters)
        heads = score.chosen()
        effect = LEAST + 0.05 * noise((len(heads),))[score.halves[1]]
        wrong += bool(Evidence(Role.INDUCTION, score, Effect(heads, effect, np.zeros(1), "nats")).heads())
    return wrong


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("clusters", [np.arange(N), np.repeat(np.arange(16), 2)], ids=["prompts", "pairs of prompts"])
def test_noise_alone_gives_a_role_in_fewer_models_than_the_level(clusters, skewed):
    """All heads are tested where their score is beyond doubt; few are where it is at its null."""
    models = 400
    tested = errors(models, 0.8, clusters, skewed=skewed)
    assert tested <= models * LEVEL
    assert errors(models, 0.2, clusters, skewed=skewed) <= models * LEVEL
    if not skewed:  # the test is no empty one: it errs at times
        assert tested > 0


@pytest.mark.parametrize(("n", "tested"), [(8, 2), (12, 133), (16, 4), (64, 45)])
def test_an_effect_that_would_be_seen_is_seen_in_four_of_five_samples(n, tested):
    """The smallest such effect is that which samples of noise say on average; other samples have it."""
    rng, samples = np.random.default_rng(0), 1000
    noise = mean_intervals(rng.normal(0, 0.05, (n, samples)), comparisons=tested)
    smallest = LEAST + np.mean([detectable(noise[place], n, tested) for place in range(samples)])
    low = mean_intervals(rng.normal(smallest, 0.05, (n, samples)), comparisons=tested).low
    assert (low > LEAST).mean() == pytest.approx(POWER, abs=0.05)


def test_the_smallest_effect_is_that_of_the_heads_that_may_have_been_missed():
    found = evidence(mattering=(STRONG,))
    missed, has = (found.effect.heads.index(head) for head in (QUIET, STRONG))
    interval = mean_interval(found.effect.excess[:, missed], comparisons=2)
    assert found.n == N // 2 and found.detectable == LEAST + detectable(interval, N // 2, 2)
    wide = found.effect.value.copy()
    wide[:, has] += np.linspace(-1, 1, N // 2) * 0.3  # the head still has its role, and is known less well
    other = Evidence(Role.INDUCTION, found.score, Effect(found.effect.heads, wide, np.zeros(1), "nats"))
    assert names(other) == {STRONG} and other.detectable == found.detectable
    assert evidence(mattering=(STRONG, QUIET)).detectable is not None and evidence(attending=()).detectable is None


def test_prompts_of_one_cluster_count_once():
    """A score that four copies of few prompts have is no better known than that of the few."""
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(8), 4)
    values = np.repeat(rng.normal(0.24, 0.06, (8, LAYERS, HEADS)), 4, axis=0)
    as_many = Score(values, np.full(1, 0.2), "attention")
    as_few = Score(values, np.full(1, 0.2), "attention", clusters)
    assert len(as_few.chosen()) < len(as_many.chosen())
    first, second = as_few.halves
    assert not set(clusters[first]) & set(clusters[second])


@pytest.mark.parametrize("seed", range(20))
def test_a_head_has_the_role_just_where_the_intervals_that_are_shown_say_so(seed):
    """Of effects around what has to be exceeded, some are listed: those whose intervals lie above it."""
    rng = np.random.default_rng(seed)
    score = Score(0.8 + 0.01 * rng.normal(0, 1, (N, LAYERS, HEADS)), np.full(1, 0.2), "attention")
    heads = score.chosen()
    effect = LEAST + rng.uniform(0, 0.06, len(heads)) + 0.05 * rng.normal(0, 1, (len(score.halves[1]), len(heads)))
    found = Evidence(Role.INDUCTION, score, Effect(heads, effect, np.zeros(1), "nats"))
    above = mean_intervals(effect, comparisons=len(heads)).low > LEAST
    assert names(found) == {head for head, is_above in zip(heads, above, strict=True) if is_above}
    assert 0 < above.sum() < len(heads)


def test_evidence_of_other_prompts_or_heads_is_refused():
    found = evidence()
    with pytest.raises(ValueError, match="the second half has 16 prompts"):
        Evidence(Role.INDUCTION, found.score, Effect(found.effect.heads, found.effect.value[:-1], np.zeros(1), "nats"))
    with pytest.raises(ValueError, match="the first half chooses"):
        Evidence(Role.INDUCTION, found.score, Effect([STRONG, WEAK], found.effect.value, np.zeros(1), "nats"))


def test_intervals_hold_together_and_are_listed_by_effect():
    found = evidence(mattering=(STRONG, QUIET))
    listed = found.heads()
    assert [one.effect.value for one in listed] == sorted((one.effect.value for one in listed), reverse=True)
    expected = mean_intervals(found.effect.excess, comparisons=2)
    for one in listed:
        assert one.effect == pytest.approx(expected[found.effect.heads.index(one.head)])
        assert one.score.low > one.null and one.effect.low > LEAST  # what is shown says what was decided
        assert one.null == 0.2 and one.name == f"L{one.head[0]}H{one.head[1]}" and one.p <= LEVEL
    [failed] = evidence().not_confirmed()
    assert failed.head == QUIET and failed.p > LEVEL and failed.effect.low < LEAST < 0.2 < failed.score.low
    assert found.not_confirmed() == []


@pytest.mark.parametrize("kind", ["normal", "skewed", "clustered"])
@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.001])
def test_p_is_that_of_the_interval(kind, alpha):
    """p <= alpha just where the interval at 1 - 2 alpha lies above 0."""
    rng = np.random.default_rng(3)
    values = rng.normal(0.3, 1, (24, 400)) if kind == "normal" else rng.exponential(1, (24, 400)) - 0.7
    clusters = rng.integers(0, 9, 24) if kind == "clustered" else None
    low = mean_intervals(values, level=1 - 2 * alpha, clusters=clusters).low
    said = mean_p(values, clusters) <= alpha
    assert (said == (low > 0)).all() and 0 < said.sum() < 400


def test_p_of_equal_values_and_of_too_few():
    assert mean_p(np.full((4, 2), [0.5, -0.5])).tolist() == [0, 1] and mean_p(np.zeros(4)) == 1
    with pytest.raises(ValueError, match="at least two"):
        mean_p([0.3])
