"""How often 95 % intervals hold what they should, simulated on the shapes of each figure's data.

Samples are drawn from populations whose true value is known, with the number of prompts, the clusters and the kind of
distribution that the figure has; coverage is the share of samples whose interval holds the true value. Intervals that
hold together for all heads count where all of them hold theirs. A round is a sample of every case.
"""

from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from util.figures.edge_ablation import numbers as edges
from util.figures.forerunner_heads import numbers as forerunner
from util.figures.ioi_patching import numbers as ioi
from util.stats.intervals import accuracy, mean_interval
from util.stats.verdicts import Effect

ROUNDS = 1000  # samples
LEVELS = stats.norm.ppf(np.linspace(0.02, 0.98, 270))  # of heads, in units of a prompt's spread
OFTEN = stats.norm.cdf(LEVELS / np.hypot(1, 0.3))  # how often each passes
TRUE_SHARES = np.r_[0.44, 0.24, -0.26, np.zeros(267)]


def holds(interval, truth):
    """Whether (value, low, high) holds the truth; rounding aside."""
    return bool(interval[1] - 1e-9 <= truth <= interval[2] + 1e-9)


def reading(random, prompts):
    """Copy magnitudes [N, 1, 270] and n_t [N]: heads differ in how often they pass, prompts in how many pass."""
    passes = LEVELS + 0.3 * random.standard_normal((prompts, 1)) + random.standard_normal((prompts, 270)) > 0
    return {"magnitude": passes[:, None] * 0.2 + 0.01, "n_t": np.full(prompts, 100)}


def losses(spread, random, prompts):
    """What an ablation costs in nats, [N]: skewed, as log-probabilities of rare answers are; mean 2."""
    return random.lognormal(np.log(2) - spread**2 / 2, spread, prompts)


def rare(random, prompts):
    """What an ablation changes in nats, [N]: next to nothing, but much on one prompt of 25, in either direction."""
    large = random.choice([-1, 1], prompts) * (random.random(prompts) < 0.04)
    return random.normal(0, 0.02, prompts) + large


def patches(random, clusters, heads):
    """Logit differences of base [N], source [N] and patched runs [N, heads], and the clusters [N] of two prompts."""
    number = np.repeat(np.arange(clusters), 2)
    shared = random.standard_normal((clusters, 1 + heads))[number]
    base = 4 + shared[:, 0] + random.standard_normal(2 * clusters)
    whole = -8 + shared[:, 0] + random.standard_normal(2 * clusters)
    own = 0.2 * (shared[:, 1:] + random.standard_normal((2 * clusters, heads)))
    return base, base + whole, base[:, None] + (TRUE_SHARES[:heads] * whole[:, None] + own), number


def answers(random, queries, full, kept):
    """Which prompts are right with the circuit and with the whole model, [D, N] each, and the query of each prompt [N]:
    three draws of donors, a fifth of the queries asked twice."""
    query = np.arange(queries) % int(0.8 * queries)
    knack = stats.norm.cdf(random.standard_normal(queries))[query]
    right = np.tile(knack < full, (3, 1))
    stays = random.random((3, queries)) < kept
    return right & stays, right, query


def mean(draw, size, truth, random):
    return holds(mean_interval(draw(random, size)), truth)


def heads(prompts, measure, truth, random):
    return holds(measure(reading(random, prompts)), truth)


def right(share, random):
    return holds(accuracy(random.random(40) < share), share)


def shares(clusters, heads, random):
    base, source, patched, number = patches(random, clusters, heads)
    found = ioi.normalised(patched, base, source, number)
    return bool(((found.low <= TRUE_SHARES[:heads]) & (TRUE_SHARES[:heads] <= found.high)).all())


def logit_difference(random):
    base, _, _, number = patches(random, 64, 1)
    return holds(mean_interval(base, clusters=number), 4.0)


def kept(queries, share, interval, truth, random):
    """share: of the right answers that the circuit keeps; of all nine tenths are right."""
    return holds(interval(*answers(random, queries, 0.9, share)), truth)


def explained(circuit, whole, query):
    return edges.score({"right": circuit}, {"right": whole, "query": query})


def claim(circuit, whole, query):
    lost = edges.by_query(whole.astype(float) - circuit, query)
    return Effect.of((lost, edges.by_query(whole, query))).interval()


def cases():
    """By figure and interval, a sample of it, which says whether the interval holds the truth."""
    found: dict[tuple[str, str], Any] = {}
    for n in (64, 256):
        for what, measure, truth in (
            ("above threshold on a prompt", forerunner.heads_on_a_prompt, float(OFTEN.sum())),
            ("on three quarters of the prompts", forerunner.frequent_heads, int((OFTEN >= 0.75).sum())),
        ):
            found["01", f"heads {what}, {n} prompts"] = partial(heads, n, measure, truth)
    for n, spread in ((8, 0.5), (24, 0.5), (24, 1.0)):
        name = f"cost of a cut in nats, {n} prompts, log-normal with sigma {spread}"
        found["01", name] = partial(mean, partial(losses, spread), n, 2.0)
    for n in (24, 64):
        found["01", f"change by a cut in nats, {n} prompts, rare and large"] = partial(mean, rare, n, 0.0)
    for share in (0.5, 0.8, 0.95):
        found["02", f"accuracy {share}, 40 queries"] = partial(right, share)
    found["02", "prefix-matching score, 5 sequences"] = partial(mean, lambda r, n: r.normal(0.9, 0.01, n), 5, 0.9)
    for number, name in ((1, "one head"), (270, "270 heads together")):
        for clusters in (16, 64):
            found["03", f"share of the effect, {name}, {2 * clusters} pairs"] = partial(shares, clusters, number)
    found["03", "mean logit difference, 128 pairs"] = logit_difference
    for n in (32, 250):
        for what, share, interval, truth in (
            ("accuracy of a circuit", 0.8, lambda circuit, whole, query: accuracy(circuit, len(set(query))), 0.9 * 0.8),
            ("share that a circuit explains", 0.9, explained, 0.9),
            ("a claim's interval", 0.95, claim, 1 - 0.95),
        ):
            found["04", f"{what}, {n} prompts"] = partial(kept, n, share, interval, truth)
    return found


def simulate(samples, seed=0):
    """The coverage of every case, with its own Wilson interval."""
    rows = []
    for number, ((figure, interval), sample) in enumerate(cases().items()):
        random = np.random.default_rng((seed, number))
        share, low, high = accuracy(np.array([sample(random) for _ in range(samples)]))
        rows.append({"figure": figure, "interval": interval, "coverage": share, "low": low, "high": high})
        print(f"{figure}  {interval:64} {share:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    return {"samples": samples, "cases": rows}
