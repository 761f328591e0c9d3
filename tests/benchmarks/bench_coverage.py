"""How often 95 % intervals hold what they should, simulated on the shapes of each figure's data.

Samples are drawn from populations whose true value is known, with the number of prompts, the clusters and the kind of
distribution that the figure has; coverage is the share of samples whose interval holds the true value. Intervals that
hold together for all heads count where all of them hold theirs. A round is a sample of every case.

    python -m tests.benchmarks.bench_coverage [--rounds 1000] [--save data/benchmarks/coverage.json]
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import stats

from tests.benchmarks.report import command_line, finish
from util.figures.edge_ablation import measures as edges
from util.figures.forerunner_heads import measures as forerunner
from util.figures.ioi_patching import measures as ioi
from util.stats import verdicts
from util.stats.intervals import accuracy, mean_interval

Random = np.random.Generator


class Case(NamedTuple):
    """A figure's interval: what it is of, and a sample of it, which says whether the interval holds the truth."""

    figure: str
    interval: str
    sample: Callable[[Random], bool]


def holds(interval, truth: float) -> bool:
    """Whether (value, low, high) holds the truth; rounding aside."""
    return bool(interval[1] - 1e-9 <= truth <= interval[2] + 1e-9)


# ------------------------------------------------------------------------------------------------ populations


def head_counts(random: Random, prompts: int) -> tuple[np.ndarray, np.ndarray]:
    """Copy magnitudes [N, 1, 270] and n_t [N]: heads differ in how often they pass, prompts in how many pass."""
    level = stats.norm.ppf(np.linspace(0.02, 0.98, 270))
    passes = level + 0.3 * random.standard_normal((prompts, 1)) + random.standard_normal((prompts, 270)) > 0
    return passes[:, None] * 0.2 + 0.01, np.full(prompts, 100)


TRUE_COUNT = float(stats.norm.cdf(stats.norm.ppf(np.linspace(0.02, 0.98, 270)) / np.hypot(1, 0.3)).sum())
TRUE_FREQUENT = int((stats.norm.cdf(stats.norm.ppf(np.linspace(0.02, 0.98, 270)) / np.hypot(1, 0.3)) >= 0.75).sum())


def losses(random: Random, prompts: int, spread: float) -> np.ndarray:
    """What an ablation costs in nats, [N]: skewed, as log-probabilities of rare answers are; mean 2."""
    return random.lognormal(np.log(2) - spread**2 / 2, spread, prompts)


def rare(random: Random, prompts: int) -> np.ndarray:
    """What an ablation changes in nats, [N]: next to nothing, but much on one prompt of 25, in either direction."""
    large = random.choice([-1, 1], prompts) * (random.random(prompts) < 0.04)
    return random.normal(0, 0.02, prompts) + large


def patches(random: Random, clusters: int, heads: int) -> tuple[np.ndarray, ...]:
    """Logit differences of base [N], source [N] and patched runs [N, heads], and the clusters [N] of two prompts."""
    number = np.repeat(np.arange(clusters), 2)
    shared = random.standard_normal((clusters, 1 + heads))[number]
    base = 4 + shared[:, 0] + random.standard_normal(2 * clusters)
    whole = -8 + shared[:, 0] + random.standard_normal(2 * clusters)
    effect = TRUE_SHARES[:heads] * whole[:, None] + 0.2 * (
        shared[:, 1:] + random.standard_normal((2 * clusters, heads))
    )
    return base, base + whole, base[:, None] + effect, number


TRUE_SHARES = np.r_[0.44, 0.24, -0.26, np.zeros(267)]


def answers(random: Random, queries: int, full: float, kept: float) -> tuple[np.ndarray, ...]:
    """Which prompts are right with the circuit and with the whole model, [D, N] each, and the query of each prompt [N]:
    three draws of donors, a fifth of the queries asked twice."""
    query = np.arange(queries) % int(0.8 * queries)
    knack = stats.norm.cdf(random.standard_normal(queries))[query]
    right = np.tile(knack < full, (3, 1))
    stays = random.random((3, queries)) < kept
    return right & stays, right, query


# ------------------------------------------------------------------------------------------------ cases


def cases() -> Iterator[Case]:
    """Every kind of interval that figures show, on its figure's shapes."""
    for prompts in (64, 256):
        yield Case(
            "01",
            f"heads above threshold on a prompt, {prompts} prompts",
            partial(_on_a_prompt, prompts),
        )
        yield Case(
            "01",
            f"heads on three quarters of the prompts, {prompts} prompts",
            partial(_frequent, prompts),
        )
    for prompts, spread in ((8, 0.5), (24, 0.5), (24, 1.0)):
        yield Case(
            "01",
            f"cost of a cut in nats, {prompts} prompts, log-normal with sigma {spread}",
            partial(_cost, prompts, spread),
        )
    for prompts in (24, 64):
        yield Case("01", f"change by a cut in nats, {prompts} prompts, rare and large", partial(_rare, prompts))
    for share in (0.5, 0.8, 0.95):
        yield Case(
            "02",
            f"accuracy {share}, 40 queries",
            partial(_wilson, share),
        )
    yield Case("02", "prefix-matching score, 5 sequences", lambda r: holds(mean_interval(r.normal(0.9, 0.01, 5)), 0.9))
    yield Case("02", "loss on plain text, 64 texts", lambda r: holds(mean_interval(r.gamma(25, 0.2, 64)), 5.0))
    for heads, name in ((1, "one head"), (270, "270 heads together")):
        for clusters in (16, 64):
            yield Case("03", f"share of the effect, {name}, {2 * clusters} pairs", _shares(clusters, heads))
    yield Case("03", "mean logit difference, 128 pairs", _difference)
    for queries in (32, 250):
        yield Case("04", f"accuracy of a circuit, {queries} prompts", _kept(queries, 0.9, 0.8, _accuracy))
        yield Case("04", f"share that a circuit explains, {queries} prompts", _kept(queries, 0.9, 0.9, _ratio))
        yield Case("04", f"accuracy lost, {queries} prompts", _kept(queries, 0.9, 0.95, _lost))
        yield Case("04", f"a claim's interval, {queries} prompts", _kept(queries, 0.9, 0.95, _claim))


def _on_a_prompt(prompts: int, random: Random) -> bool:
    return holds(forerunner.heads_on_a_prompt(*head_counts(random, prompts)), TRUE_COUNT)


def _frequent(prompts: int, random: Random) -> bool:
    return holds(forerunner.frequent_heads(*head_counts(random, prompts)), TRUE_FREQUENT)


def _cost(prompts: int, spread: float, random: Random) -> bool:
    return holds(mean_interval(losses(random, prompts, spread)), 2.0)


def _rare(prompts: int, random: Random) -> bool:
    return holds(mean_interval(rare(random, prompts)), 0.0)


def _wilson(share: float, random: Random) -> bool:
    return holds(accuracy(random.random(40) < share), share)


def _shares(clusters: int, heads: int) -> Callable[[Random], bool]:
    def sample(random: Random) -> bool:
        base, source, patched, number = patches(random, clusters, heads)
        found = ioi.normalised(patched, base, source, number)
        return bool(((found.low <= TRUE_SHARES[:heads]) & (TRUE_SHARES[:heads] <= found.high)).all())

    return sample


def _difference(random: Random) -> bool:
    base, _, _, number = patches(random, 64, 1)
    return holds(mean_interval(base, clusters=number), 4.0)


def _kept(queries: int, full: float, kept: float, judge: Callable[..., bool]) -> Callable[[Random], bool]:
    return lambda random: judge(*answers(random, queries, full, kept), full, kept)


def _accuracy(circuit, whole, query, full: float, kept: float) -> bool:
    return holds(accuracy(circuit, len(set(query))), full * kept)


def _ratio(circuit, whole, query, full: float, kept: float) -> bool:
    return holds(edges.ratio(circuit, whole, query), kept)


def _lost(circuit, whole, query, full: float, kept: float) -> bool:
    return holds(edges.deficit(circuit, whole, query), full * (1 - kept))


def _claim(circuit, whole, query, full: float, kept: float) -> bool:
    lost = edges.by_query(whole.astype(float) - circuit, query)
    return holds(verdicts.interval([verdicts.Sample.of(lost)]), full * (1 - kept))


def simulate(samples: int, seed: int = 0) -> list[dict]:
    """The coverage of every case, with its own Wilson interval."""
    rows = []
    for number, case in enumerate(cases()):
        random = np.random.default_rng((seed, number))
        share, low, high = accuracy(np.array([case.sample(random) for _ in range(samples)]))
        rows.append({"figure": case.figure, "interval": case.interval, "coverage": share, "low": low, "high": high})
        print(f"{case.figure}  {case.interval:64} {share:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    return rows


def main() -> None:
    options = command_line(__doc__, 1000).parse_args()
    cases = simulate(options.rounds)
    finish({"samples": options.rounds, "cases": cases}, (), options.save)


if __name__ == "__main__":
    main()
