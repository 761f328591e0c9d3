"""Numbers of forerunner token heads, from arrays alone (Cho et al. 2025, section 4, Fig. 5, 6 and 22-25, Tables 1, 2).

A reading has magnitude [N, L, H], the copy magnitude A[y_q, s_q] behind one ending of the prompts, control [N, L, H],
the attention of other tokens to the one before them, and n_t [N], tokens of the prompt with its ending. A head is a
forerunner token head on a prompt when its magnitude exceeds c / n_t (strictly), c = 5 times uniform attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.stats.answers import TERMS, gold_log_probability, label_mass, right, which_label
from util.stats.heads import Head, top
from util.stats.intervals import Interval, Intervals, accuracy, mean_interval, mean_intervals, resampled
from util.stats.splits import halves
from util.stats.task_check import chosen

Floats = NDArray[np.floating]
Arrays = Mapping[str, Any]
Numbers = dict[str, Any]
Contrast = dict[str, NDArray[np.float64]]
THRESHOLD = 5.0
SHARE = 0.75  # of the prompts on which a head must exceed the threshold, to be called frequent
SINGLE = 8  # prompts on which heads are cut one at a time
LEAST = 0.01  # nats: a smaller rise of label mass is none, as in `roles.rules`
EVERYWHERE = "(0.0, 1.0)"  # all layers
FORERUNNER, PREVIOUS_TOKEN, NEITHER = "forerunner head", "previous-token head", "neither"  # verdicts
DESERVED = {"labels only": FORERUNNER, "any token": PREVIOUS_TOKEN, "never": NEITHER}  # by planted heads


# ------------------------------------------------------------------------------------------------ counts


def threshold(n_t: NDArray[np.integer], c: float = THRESHOLD, dtype: np.dtype | type = np.float64) -> Floats:
    """c / n_t of every prompt, [N]. In the magnitudes' own dtype: 0.1 as float32 exceeds 0.1 as float64."""
    return (np.asarray(c, dtype) / n_t.astype(dtype)).astype(dtype)


def is_forerunner(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> NDArray[np.bool_]:
    """Whether each head is a forerunner token head on each prompt, [N, L, H]."""
    return magnitude > threshold(n_t, c, magnitude.dtype)[:, None, None]


def head_counts(reading: Arrays, c: float = THRESHOLD) -> NDArray[np.int64]:
    """On how many of the N prompts each head is one: the heat map of Fig. 22-25, [L, H]."""
    return is_forerunner(reading["magnitude"], reading["n_t"], c).sum(axis=0)


def frequent_heads(
    magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD, share: float = SHARE, draws: int = 2000
) -> Interval:
    """How many heads exceed c / n_t [N] on at least `share` of the prompts, three whole numbers.

    The 95 % interval is a percentile bootstrap over prompts, widened to hold the number itself. Raises ValueError for
    fewer than two prompts.
    """
    if len(magnitude) < 2:
        raise ValueError(f"an interval needs at least two prompts, got {len(magnitude)}")
    passes = is_forerunner(magnitude, n_t, c).reshape(len(magnitude), -1).astype(np.float64)
    weights = resampled(len(passes), draws)
    number = int((passes.sum(axis=0) >= share * len(passes)).sum())
    redrawn = (weights @ passes >= share * len(passes)).sum(axis=1)
    low, high = np.quantile(redrawn, [0.025, 0.975])
    return Interval(number, min(number, int(np.floor(low))), max(number, int(np.ceil(high))))


def heads_on_a_prompt(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> Interval:
    """How many heads exceed c / n_t [N] on a prompt: the mean over prompts with its interval."""
    return mean_interval(is_forerunner(magnitude, n_t, c).sum(axis=(1, 2)), within=(0, magnitude[0].size))


def curve(found: Intervals) -> dict[str, NDArray[np.float64]]:
    """A curve as the values file has it, [L] each."""
    return {"mean": found.value, "low": found.low, "high": found.high}


def counts(arrays: Mapping[str, Arrays], settings: Any) -> Numbers:
    """On how many prompts each head exceeds the threshold, and how many heads do on three of four, by ending."""
    found, n = arrays["correct"], len(arrays["correct"]["n_t"])
    return {
        "counts": {name: head_counts(reading, settings.threshold) for name, reading in arrays.items()},
        "frequent_heads": {
            name: frequent_heads(reading["magnitude"], reading["n_t"], settings.threshold)
            for name, reading in arrays.items()
        },
        "prompts": {name: len(reading["n_t"]) for name, reading in arrays.items()},
        "tokens": [int(found["n_t"].min()), int(found["n_t"].max())],
        "several_tokens": float(np.mean([one["label_lengths"] > 1 for one in arrays.values() if len(one["n_t"]) == n])),
        "moved": (found["magnitude"] * found["value_norm"]).mean(axis=0),
    }


def layers(arrays: Mapping[str, Arrays], settings: Any) -> Numbers:
    """By ending and layer: how many heads exceed the threshold on a prompt, and the largest copy magnitude [L].

    Of all layers: heads on a prompt, and how many more of them behind the correct label than behind another ending,
    paired by prompt; uniform: the mean magnitude of uniform attention, Fig. 5's null line.
    """
    passing = {name: is_forerunner(one["magnitude"], one["n_t"], settings.threshold) for name, one in arrays.items()}
    on_a_prompt = {name: found.sum(axis=(1, 2)) for name, found in passing.items()}
    others = [name for name in ("wrong", "other word") if name in arrays]
    return {
        "mean_head_count": {
            name: curve(mean_intervals(found.sum(axis=2), within=(0, found.shape[2])))
            for name, found in passing.items()
        },
        "mean_max_magnitude": {
            name: curve(mean_intervals(reading["magnitude"].max(axis=2), within=(0, 1)))
            for name, reading in arrays.items()
        },
        "heads_on_a_prompt": {
            name: mean_interval(found, within=(0, passing[name][0].size)) for name, found in on_a_prompt.items()
        },
        "more_heads": {name: mean_interval(on_a_prompt["correct"] - on_a_prompt[name]) for name in others},
        "uniform": float((1 / arrays["correct"]["n_t"]).mean()),
    }


def grid(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """On how many prompts of every data set each head exceeds the threshold, and how many heads on a prompt."""
    c, sets, names = settings.threshold, [name for name in arrays if name != "left out"], ("correct", "wrong")
    return {
        "grid_counts": {one: {name: head_counts(arrays[one][name], c) for name in names} for one in sets},
        "grid_heads_on_a_prompt": {
            name: {one: heads_on_a_prompt(arrays[one][name]["magnitude"], arrays[one][name]["n_t"], c) for one in sets}
            for name in names
        },
        "grid_left_out": arrays["left out"],
    }


def by_k(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """How many heads exceed the threshold on a prompt, by the number of demonstrations k, in the order of k.

    counts: with c / n_t, which falls as prompts grow, by ending; fixed: of the correct label, with one threshold for
    all k, that of the middle one; maps: counts [L, H] of the correct label; left out: why a k was not measured.
    """
    c, measured = settings.threshold, {k: found for k, found in arrays.items() if k != "left out"}
    correct = {k: found["correct"] for k, found in measured.items()}
    tokens = round(list(correct.values())[len(correct) // 2]["n_t"].mean())  # they decide the one threshold of all k
    found = {
        "counts": {
            name: {k: heads_on_a_prompt(one[name]["magnitude"], one[name]["n_t"], c) for k, one in measured.items()}
            for name in next(iter(measured.values()))
        },
        "fixed": {
            k: heads_on_a_prompt(one["magnitude"], np.full_like(one["n_t"], tokens), c) for k, one in correct.items()
        },
        "maps": {k: head_counts(one, c) for k, one in correct.items()},
    }
    return {"by_k": found, "k_left_out": arrays["left out"]}


# ------------------------------------------------------------------------------------------------ specificity


def contrast(first: Floats, second: Floats) -> Contrast:
    """First minus second, both [N, L, H], paired by prompt: means of both, difference, low and high, [L, H] each.

    With the copy magnitude and its control A[t, t-1] at other tokens this is a head's specificity: positive where it
    reads forerunners more than other previous tokens. With two endings it is the effect of what is appended. The 95 %
    intervals hold together for all heads (Bonferroni).
    """
    difference = first.astype(np.float64) - second.astype(np.float64)
    found = mean_intervals(difference, comparisons=int(np.prod(first.shape[1:])))
    means = {"first": first.mean(0, dtype=np.float64), "second": second.mean(0, dtype=np.float64)}
    return {**means, "difference": found.value, "low": found.low, "high": found.high}


def verdicts(reading: Arrays, c: float = THRESHOLD, share: float = SHARE) -> NDArray[np.str_]:
    """The verdict on every head, as text [L, H].

    A head that exceeds c / n_t on at least `share` of the prompts reads the token before the label. It is a forerunner
    head when it does so more than at other tokens: the corrected interval of the contrast with the control lies above
    0, and its magnitude is at least twice the control. Else it is, as far as these prompts tell, a previous-token head.
    """
    more = contrast(reading["magnitude"], reading["control"])
    frequent = head_counts(reading, c) >= share * len(reading["n_t"])
    specific = frequent & (more["low"] > 0) & (more["first"] >= 2 * more["second"])
    return np.where(specific, FORERUNNER, np.where(frequent, PREVIOUS_TOKEN, NEITHER))


def judged(selected: NDArray[np.str_], kept: NDArray[np.str_], against: Sequence[Contrast], most: int = 5) -> Numbers:
    """What heads with verdicts `selected` [L, H] do on held-out prompts, where their verdicts are `kept` [L, H].

    against: the contrasts of the magnitude behind the correct label with other previous tokens, a wrong label and
    another word. chosen, confirmed: number of forerunner heads on the first half, and on both; than_wrong, than_other:
    of the confirmed ones, those that read the forerunner more behind the correct label (the corrected interval lies
    above 0); strongest: the most specific heads, by the first contrast.
    """
    than_control, than_wrong, than_other = against
    confirmed = (selected == FORERUNNER) & (kept == FORERUNNER)
    difference = np.where(confirmed, than_control["difference"], np.nan)
    return {
        "chosen": int((selected == FORERUNNER).sum()),
        "confirmed": int(confirmed.sum()),
        "than_wrong": int((confirmed & (than_wrong["low"] > 0)).sum()),
        "than_other": int((confirmed & (than_other["low"] > 0)).sum()),
        "strongest": top(difference, min(most, int(confirmed.sum()))),
    }


def specificity(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """Heads that are chosen on one half of the prompts, and what they do on the other; beside them planted heads."""
    c, (choose, measure) = settings.threshold, halves(settings.prompts, settings.seed)
    first, correct = ({name: arrays["correct"][name][half] for name in ("magnitude", "control", "n_t")}
                      for half in (choose, measure))  # fmt: skip
    selected, planted = verdicts(first, c), arrays["planted"]
    against = {
        "than at other tokens": contrast(correct["magnitude"], correct["control"]),
        "than with a wrong label": contrast(correct["magnitude"], arrays["wrong"]["magnitude"][measure]),
        "than with another word": contrast(correct["magnitude"], arrays["other word"]["magnitude"][measure]),
    }
    found = judged(selected, verdicts(correct, c), list(against.values()))
    known = contrast(planted["magnitude"], planted["control"])
    return {
        "specificity": {"judged": found, "held out": against, "chosen on": len(choose), "verdicts": selected},
        "planted_verdicts": verdicts(planted, c),
        "planted": {"roles": planted["roles"], "first": known["first"], "second": known["second"]},
    }


def planted_errors(arrays: Mapping[str, Sequence[Arrays]], settings: Any) -> Numbers:
    """How often planted heads are misjudged, by the noise on their weights: [misjudged heads, all such heads].

    A false alarm is a decoy, or the head that never reads the previous token, with a verdict other than "neither"; a
    miss is one of the other two without the verdict it deserves.
    """
    found: Numbers = {}
    for noise, models in arrays.items():
        errors: dict[str, list[bool]] = {"false alarms": [], "misses": []}
        for one in models:
            verdict = verdicts(one, settings.threshold)
            heads = [(layer, head, DESERVED[role]) for layer, head, role in one["roles"]]
            for layer, head, right_one in [*heads, *((*decoy, NEITHER) for decoy in one["decoys"])]:
                kind = "false alarms" if right_one == NEITHER else "misses"
                errors[kind].append(bool(verdict[layer, head] != right_one))
        found[noise] = {kind: [sum(wrong), len(wrong)] for kind, wrong in errors.items()}
    return {"planted_errors": found}


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def task(arrays: Arrays, settings: Any) -> Numbers:
    """The data sets that were tried, in this order, until the model did one, and the one that is measured."""
    check = chosen(arrays["checks"])
    place = {"dataset": check.name, "k": check.k, "done": check.done}
    return {
        "task": [{"done": one.done, **vars(one)} for one in arrays["checks"]],
        "chosen": dict.fromkeys(("ablation", "induction", "head effects"), place),
        "task_check": str(check),
        "task_left_out": arrays["left out"],
    }


def scores(answer: Arrays) -> dict[str, NDArray[np.float64]]:
    """The scores of every prompt, [N], that were measured.

    The gold label's log-probability is the sum of two: log P(gold | labels), which label it is, and log P(any label),
    the label mass. Demonstrations teach the first; the second says that a label comes.
    """
    log_prob, gold = answer["log_prob"].astype(np.float64), answer["gold"]
    found: dict[str, Any] = {
        "which label": which_label(log_prob, gold),
        "label mass": label_mass(log_prob),
        "log-probability": gold_log_probability(answer["log_prob"], gold).astype(np.float64),
        "accuracy": right(answer["log_prob"], gold).astype(np.float64),
    }
    if answer.get("text_loss") is not None:
        found["text loss"] = np.asarray(answer["text_loss"], np.float64)
    return found


def changes(answers: Mapping[Any, Arrays], score: str, comparisons: int = 1) -> tuple[Numbers, Numbers]:
    """What each cut changes of a score, and what its random cells change on average: by part of the layers and cut.

    answers: by condition (cut, part, draw), see `cuts.Condition`. The 95 % intervals are paired by prompt; comparisons:
    how many of them are to hold together (Bonferroni). Conditions that do not have the score are left out.
    """
    measured = {condition: scores(answer) for condition, answer in answers.items()}
    (whole,) = (found[score] for (cut, _, _), found in measured.items() if cut is None)
    draws: tuple[Numbers, Numbers] = {}, {}
    for (cut, part, draw), found in measured.items():
        if cut is not None and score in found:
            table = draws[draw is not None].setdefault(str(part), {})
            table.setdefault(cut, []).append(found[score] - whole)
    lost, random = (
        {
            part: {cut: mean_interval(np.mean(one, axis=0), comparisons=comparisons) for cut, one in cuts.items()}
            for part, cuts in table.items()
        }
        for table in draws
    )
    return lost, random


def told(what: str, lost: Numbers, random: Numbers) -> str:
    """What cutting the labels from their forerunners in all layers costs, by its interval and that of random cells.

    A loss counts where the interval lies below 0 and below the interval of random cells. what: that may lose.
    """
    change, control = (table[EVERYWHERE]["si_to_yi"] for table in (lost, random))
    cost, controls = (Interval(-one[0], -one[2], -one[1]) for one in (change, control))
    if change[2] < min(0.0, control[1]):
        return f"costs {what} {cost} nats, random cells {controls}"
    if change[1] > max(0.0, control[2]):
        return f"gains {what} {change} nats, random cells {control}"
    return f"is not shown to cost {what} more than random cells: {cost} nats, {controls}"


def ablation(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """What the model loses when a step of the circuit is cut, and what demonstrations are worth.

    findings: what the cut of the labels from their forerunners tells of both scores, where their premises are met.
    """
    answers, alone = arrays["cut"], arrays["alone"]
    (whole,) = (answer for (cut, _, _), answer in answers.items() if cut is None)
    shown, bare = scores(whole), scores(alone)
    gained = {score: mean_interval(shown[score] - values) for score, values in bare.items() if score in shown}
    singly = {score: changes(answers, score) for score in shown}
    together = {score: changes(answers, score, 2 * (len(answers) - 1)) for score in TERMS}
    start = "cutting the labels' reads of their forerunners"
    findings = ["Which label: no in-context learning to explain"]
    if arrays["done"]:
        findings = [f"Which label: {start} {told('the right label', *singly['which label'])}"]
    if gained["label mass"].low > LEAST:
        findings.append(f"Label mass: {start} {told('labels', *singly['label mass'])}")
    found = {
        **{score: lost for score, (lost, _) in singly.items()},
        "together": {score: {"cut": lost, "random": random} for score, (lost, random) in together.items()},
        "gained": gained,
        "findings": findings,
    }
    accuracies = [accuracy(right(answer["log_prob"], answer["gold"])) for answer in (whole, alone)]
    return {"ablation": found, "accuracies": accuracies, "random_cells": {s: singly[s][1] for s in TERMS}}


# ------------------------------------------------------------------------------------------------ induction heads


def reads(arrays: Arrays) -> tuple[Floats, Floats, Floats]:
    """Induction heads as Cho et al. count them (Fig. 6 left, middle), from reads [N, L, H, k], A[s_q, y_i]: [N, L, H].

    The sum of the reads; that of demonstrations with the query's own label minus the others; and the share of the
    query's label in what is read, 0 where nothing is.
    """
    found = arrays["reads"]
    same = (arrays["demonstrations"] == arrays["gold"][:, None])[:, None, None, :]
    total, of_same = found.sum(axis=-1), np.where(same, found, 0).sum(axis=-1)
    return total, 2 * of_same - total, of_same / (total + 1e-5)


def similarity_share(arrays: Arrays) -> NDArray[np.float64]:
    """The share of the query's label in the similarity [N, L, k] of the forerunners s_i to s_q, [N, L].

    "Vanilla attention" of Fig. 6 middle. Negative similarities count as none; with them a share would have no meaning.
    """
    weight = np.maximum(arrays["similarity"], 0)
    same = (arrays["demonstrations"] == arrays["gold"][:, None])[:, None, :]
    return np.where(same, weight, 0).sum(axis=-1) / (weight.sum(axis=-1) + 1e-5)


def induction_counts(arrays: Arrays, c: float = THRESHOLD) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each head is an induction head, and one of the query's label, on each prompt, two of [N, L, H].

    The thresholds are c / n_t for the sum of the reads and c / (n_t classes) for the difference. They are not scaled by
    k in the authors' code, although uniform attention gives k / n_t: from k = c on it passes.
    """
    total, more, _ = reads(arrays)
    least = threshold(arrays["n_t"], c, total.dtype)[:, None, None]
    return total > least, more > least / arrays["classes"]


def best_head_null(arrays: Arrays, draws: int = 100, seed: int = 0) -> Intervals:
    """The share of a layer's best head on each prompt, were it blind to labels: its mean and 95 % range, [L].

    The maximum over heads is large by chance alone. In each draw the labels of every prompt's demonstrations are
    shuffled, so that their composition and what the heads read stay as they are.
    """
    rng, found = np.random.default_rng(seed), arrays["reads"]
    same = arrays["demonstrations"] == arrays["gold"][:, None]
    total, best = found.sum(axis=-1) + 1e-5, []
    for _ in range(draws):
        of_same = np.einsum("nlhk,nk->nlh", found, rng.permuted(same, axis=1).astype(found.dtype))
        best.append((of_same / total).max(axis=2).mean(axis=0, dtype=np.float64))
    low, high = np.quantile(best, [0.025, 0.975], axis=0)
    return Intervals(np.mean(best, axis=0), low, high)


def induction(arrays: Arrays, settings: Any) -> Numbers:
    """Induction heads by layer [L], and the share of the query's own label in what is read.

    null: what the best head has by chance; levels: the share of uniform attention, and the largest one that is possible
    (where no demonstration has the query's label, no head has any); most_frequent: on what share of prompts the most
    frequent induction head of the query's label is one, with its standard error.
    """
    some, correct = induction_counts(arrays, settings.threshold)
    _, _, share = reads(arrays)
    same, frequent = arrays["demonstrations"] == arrays["gold"][:, None], float(correct.mean(axis=0).max())
    heads = {"induction heads": some, "of the query's label": correct}
    shares = {
        "best head": share.max(axis=2),
        "mean of heads": share.mean(axis=2),
        "similarity of states": similarity_share(arrays),
    }
    return {
        "induction": {
            "heads": {
                name: curve(mean_intervals(one.sum(axis=2), within=(0, one.shape[2]))) for name, one in heads.items()
            },
            "likelihood": {name: curve(mean_intervals(one, within=(0, 1))) for name, one in shares.items()},
            "null": curve(best_head_null(arrays)),
            "levels": {"uniform": float(same.mean()), "ceiling": float(same.any(axis=1).mean())},
        },
        "most_frequent": [frequent, float(np.sqrt(frequent * (1 - frequent) / len(correct)))],
    }


# ------------------------------------------------------------------------------------------------ single heads


def on_map(found: Contrast, heads: Iterable[Head], shape: Sequence[int]) -> Contrast:
    """The contrast of some heads [M] as maps of all heads [L, H]: NaN where a head is not among them."""
    at = tuple(np.array(list(heads), int).reshape(-1, 2).T)
    maps = {name: np.full(shape, np.nan) for name in found}
    for name, values in found.items():
        maps[name][at] = values
    return maps


def effects(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """What labels lose when one head is cut, beyond other cells: by score, maps [L, H], NaN where it was not cut."""
    gold, heads, worth = np.repeat(arrays["gold"], len(arrays["heads"])), arrays["heads"], {}
    cut, control = (arrays[name].astype(np.float64) for name in ("cut", "control"))
    for name in TERMS:
        without, other = (
            (which_label(flat, gold) if name == "which label" else label_mass(flat)).reshape(one.shape[:2])
            for one, flat in ((one, one.reshape(-1, one.shape[-1])) for one in (cut, control))
        )
        worth[name] = on_map(contrast(other, without), heads, arrays["moved"].shape)
    return {"head effects": worth}
