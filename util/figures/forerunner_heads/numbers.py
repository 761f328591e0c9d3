"""Numbers of forerunner token heads, from arrays alone (Cho et al. 2025, section 4, Fig. 5, 6 and 22-25, Tables 1, 2).

A reading has magnitude [N, L, H], the copy magnitude A[y_q, s_q] behind one ending of the prompts, control [N, L, H],
the attention of other tokens to the one before them, and n_t [N], tokens of the prompt with its ending. A head is a
forerunner token head on a prompt when its magnitude exceeds c / n_t (strictly), c = 5 times uniform attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from util.prompts.prompt import LabelledTokens
from util.show.part import Arrays
from util.stats.answers import TERMS, chosen, label_mass, right, which_label
from util.stats.heads import Bools, Floats, top
from util.stats.intervals import Interval, accuracy, halves, mean_interval, mean_intervals, resampled

Cells = NDArray[np.int64]  # [C, 2]: query, key
Part = tuple[float, float]  # of the layers: from this ratio of their number up to that one


TITLES = {  # the steps that can be cut, as in the paper: rows 2-5 of Table 1, and Table 2
    "xi_to_si": "x_i -> s_i",
    "xq_to_sq": "x_q -> s_q",
    "si_to_yi": "s_i -> y_i",
    "yi_to_sq": "y_i -> s_q",
    "si_to_si": "s_i -> s_j, i < j",
}
CUTS = tuple(TITLES)  # the order decides the seeds of random cells
EVERYWHERE: Part = (0.0, 1.0)
QUARTERS: tuple[Part, ...] = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


class Condition(NamedTuple):
    """An entry of the tables: what is cut (None: nothing), in which part of the layers; draw: 0 for random cells."""

    cut: str | None
    part: Part = EVERYWHERE
    draw: int | None = None


WHOLE = Condition(None)


def conditions() -> list[Condition]:
    """The conditions of a table: every cut in every part of the layers, and its random cells in all layers."""
    return [
        WHOLE,
        *(Condition(cut, part) for cut in CUTS for part in (EVERYWHERE, *QUARTERS)),
        *(Condition(cut, draw=0) for cut in CUTS),
    ]


def cells(cut: str, tokens: LabelledTokens, special: int = 1) -> Cells:
    """The cells [C, 2] (query, key) of one cut in a prompt that ends at the query's forerunner.

    special: how many special tokens stand in front, which are taken from no reader. The lists of the authors' code
    differ: there `xi_to_si` cuts the query's forerunner and the BOS token as well, `xq_to_sq` and `si_to_si` cut the
    forerunners from themselves, and a label is its first token alone.
    """
    *s, s_q = tokens.forerunners
    *y, _ = tokens.label_tokens
    *x, x_q = map(range, [special, *(label.stop for label in y)], [*s, s_q])  # with their templates
    pairs: dict[str, Iterable[tuple[int, Sequence[int]]]] = {
        "xi_to_si": zip(s, x, strict=True),
        "xq_to_sq": [(s_q, x_q)],
        "si_to_yi": [(token, [forerunner]) for label, forerunner in zip(y, s, strict=True) for token in label],
        "yi_to_sq": [(s_q, label) for label in y],
        "si_to_si": [(forerunner, s[:i]) for i, forerunner in enumerate([*s, s_q])],
    }
    listed = [(reader, key) for reader, keys in pairs[cut] for key in keys]
    return np.array(listed, dtype=np.int64).reshape(-1, 2)


def control_cells(cut: Cells, length: int, seed: Sequence[int]) -> Cells:
    """As many cells as `cut` [C, 2] has, of a prompt of `length` tokens: its matched control.

    Uniform over what a later token may read of an earlier one, without the cells of the cut; as no token is cut from
    itself, none is left with nothing to attend to.
    """
    free = np.tri(length, k=-1, dtype=bool)
    free[tuple(cut.T)] = False
    eligible = np.argwhere(free)
    drawn = np.random.default_rng(seed).permutation(len(eligible))[: len(cut)]
    return eligible[np.sort(drawn)]


def layer_range(layers: Sequence[int], part: Part) -> list[int]:
    """The layers of a range of ratios: numbers from int(r0 L) up to, without it, int(r1 L) of L layers."""
    low, high = (int(ratio * len(layers)) for ratio in part)
    return list(layers[low:high])


Numbers = dict[str, Any]
Maps = dict[str, Floats]  # by layer [L], or by head [L, H]
THRESHOLD = 5.0
SHARE = 0.75  # of the prompts on which a head must exceed the threshold, to be called frequent
STRONGEST = 5  # forerunner heads that are shown by name
LEAST = 0.01  # nats: a smaller rise of label mass is none, as in `roles.rules`
FORERUNNER, PREVIOUS_TOKEN, NEITHER = "forerunner head", "previous-token head", "neither"  # verdicts


# ------------------------------------------------------------------------------------------------ counts


def threshold(n_t: NDArray[np.integer], c: float, dtype: DTypeLike) -> Floats:
    """c / n_t of every prompt, [N, 1, 1]. In the magnitudes' own dtype: 0.1 as float32 exceeds 0.1 as float64."""
    return np.divide(c, n_t, dtype=dtype)[:, None, None]


def above_threshold(reading: Arrays, c: float = THRESHOLD) -> Bools:
    """Whether each head is a forerunner token head on each prompt, [N, L, H]."""
    magnitude = reading["magnitude"]
    return magnitude > threshold(reading["n_t"], c, magnitude.dtype)


def head_counts(reading: Arrays, c: float = THRESHOLD) -> NDArray[np.int64]:
    """On how many of the N prompts each head is one: the heat map of Fig. 22-25, [L, H]."""
    return above_threshold(reading, c).sum(axis=0)


def frequent_heads(reading: Arrays, c: float = THRESHOLD) -> Interval:
    """How many heads exceed the threshold on at least SHARE of the prompts, three whole numbers.

    The 95 % interval is a percentile bootstrap over prompts, widened to hold the number itself.
    """
    passes = above_threshold(reading, c).reshape(len(reading["n_t"]), -1).astype(np.float64)
    number = int((passes.sum(axis=0) >= SHARE * len(passes)).sum())
    redrawn = (resampled(len(passes), 2000) @ passes >= SHARE * len(passes)).sum(axis=1)
    low, high = np.quantile(redrawn, [0.025, 0.975])
    return Interval(number, min(number, int(np.floor(low))), max(number, int(np.ceil(high))))


def heads_on_a_prompt(reading: Arrays, c: float = THRESHOLD) -> Interval:
    """How many heads exceed the threshold on a prompt: the mean over prompts with its interval."""
    passes = above_threshold(reading, c)
    return mean_interval(passes.sum(axis=(1, 2)), within=(0, passes[0].size))


def curve(values: ArrayLike, most: float = 1) -> Maps:
    """The mean over prompts of values [N, L] from 0 to `most`, with its intervals: mean, low and high, [L] each."""
    means = mean_intervals(values, within=(0, most))
    return {"mean": means.value, "low": means.low, "high": means.high}


def counts(arrays: Mapping[str, Arrays], settings: Any) -> Numbers:
    """On how many prompts each head exceeds the threshold, and how many heads do on three of four, by ending."""
    c, n_t = settings.threshold, arrays["correct"]["n_t"]
    lengths = [arrays[ending]["label_lengths"] for ending in ("correct", "wrong")]
    return {
        "counts": {name: head_counts(reading, c) for name, reading in arrays.items()},
        "frequent_heads": {name: frequent_heads(reading, c) for name, reading in arrays.items()},
        "prompts": {name: len(reading["n_t"]) for name, reading in arrays.items()},
        "tokens": [int(n_t.min()), int(n_t.max())],
        "several_tokens": float(np.mean(np.greater(lengths, 1))),
    }


def layers(arrays: Mapping[str, Arrays], settings: Any) -> Numbers:
    """By ending and layer: how many heads exceed the threshold on a prompt, and the largest copy magnitude [L].

    Of all layers: heads on a prompt, and how many more of them behind the correct label than behind another ending,
    paired by prompt.
    """
    by_layer = {name: above_threshold(reading, settings.threshold).sum(axis=2) for name, reading in arrays.items()}
    heads = arrays["correct"]["magnitude"].shape[2]
    more = {name: by_layer["correct"] - by_layer[name] for name in ("wrong", "other word") if name in arrays}
    return {
        "mean_head_count": {name: curve(on_prompts, heads) for name, on_prompts in by_layer.items()},
        "mean_max_magnitude": {name: curve(reading["magnitude"].max(axis=2)) for name, reading in arrays.items()},
        "heads_on_a_prompt": {name: heads_on_a_prompt(reading, settings.threshold) for name, reading in arrays.items()},
        "more_heads": {name: mean_interval(on_prompts.sum(axis=1)) for name, on_prompts in more.items()},
    }


def grid(arrays: Arrays, settings: Any) -> Numbers:
    """On how many prompts of every data set each head exceeds the threshold, and how many heads on a prompt."""
    correct = {name: of_set["correct"] for name, of_set in arrays.items() if name != "left out"}
    on_a_prompt = {name: heads_on_a_prompt(one, settings.threshold) for name, one in correct.items()}
    return {
        "grid_counts": {name: {"correct": head_counts(one, settings.threshold)} for name, one in correct.items()},
        "grid_heads_on_a_prompt": {"correct": on_a_prompt},
        "grid_left_out": arrays["left out"],
    }


# ------------------------------------------------------------------------------------------------ specificity


def contrast(first: Floats, second: Floats) -> Maps:
    """First minus second, both [N, L, H], paired by prompt: means of both, difference, low and high, [L, H] each.

    With the copy magnitude and its control A[t, t-1] at other tokens this is a head's specificity: positive where it
    reads forerunners more than other previous tokens. With two endings it is the effect of what is appended. The 95 %
    intervals hold together for all heads (Bonferroni).
    """
    change = mean_intervals(np.subtract(first, second, dtype=np.float64), comparisons=first[0].size)
    means = {"first": first.mean(0, dtype=np.float64), "second": second.mean(0, dtype=np.float64)}
    return {**means, "difference": change.value, "low": change.low, "high": change.high}


def verdicts(reading: Arrays, c: float = THRESHOLD) -> NDArray[np.str_]:
    """The verdict on every head, as text [L, H].

    A frequent head reads the token before the label. It is a forerunner head when it does so more than at other tokens:
    the corrected interval of the contrast with the control lies above 0, and its magnitude is at least twice the
    control. Else it is, as far as these prompts tell, a previous-token head.
    """
    more = contrast(reading["magnitude"], reading["control"])
    frequent = head_counts(reading, c) >= SHARE * len(reading["n_t"])
    specific = frequent & (more["low"] > 0) & (more["first"] >= 2 * more["second"])
    return np.where(specific, FORERUNNER, np.where(frequent, PREVIOUS_TOKEN, NEITHER))


def specificity(arrays: Arrays, settings: Any) -> Numbers:
    """Heads that are chosen on one half of the prompts, and what they do on the other; beside them planted heads.

    chosen, confirmed: number of forerunner heads on the first half, and on both; than_wrong, than_other: of the
    confirmed ones, those that read the forerunner more behind the correct label (the corrected interval lies above 0);
    strongest: those that read it most beyond other tokens.
    """
    c, (choose, measure) = settings.threshold, halves(settings.prompts, settings.seed)
    first, correct = ({name: values[half] for name, values in arrays["correct"].items()} for half in (choose, measure))
    selected, planted = verdicts(first, c), arrays["planted"]
    against = {
        "than at other tokens": correct["control"],
        "than with a wrong label": arrays["wrong"]["magnitude"][measure],
        "than with another word": arrays["other word"]["magnitude"][measure],
    }
    held_out = {name: contrast(correct["magnitude"], other) for name, other in against.items()}
    than_control, than_wrong, than_other = held_out.values()
    confirmed = (selected == FORERUNNER) & (verdicts(correct, c) == FORERUNNER)
    judged = {
        "chosen": int((selected == FORERUNNER).sum()),
        "confirmed": int(confirmed.sum()),
        "than_wrong": int((confirmed & (than_wrong["low"] > 0)).sum()),
        "than_other": int((confirmed & (than_other["low"] > 0)).sum()),
        "strongest": top(np.where(confirmed, than_control["difference"], np.nan), min(STRONGEST, confirmed.sum())),
    }
    known = contrast(planted["magnitude"], planted["control"])
    return {
        "specificity": {"judged": judged, "held out": held_out, "verdicts": selected},
        "planted_verdicts": verdicts(planted, c),
        "planted": {"roles": planted["roles"], "first": known["first"], "second": known["second"]},
    }


# ------------------------------------------------------------------------------------------------ a task, and its cuts


def task(arrays: Arrays, settings: Any) -> Numbers:
    """The data sets that were tried, in this order, until the model did one, and the one that is measured."""
    check = chosen(arrays["checks"])
    return {
        "task": [{"done": one.done, **vars(one)} for one in arrays["checks"]],
        "chosen": {"ablation": {"dataset": check.name, "k": check.k, "done": check.done}},
        "task_check": str(check),
        "task_left_out": arrays["left out"],
    }


def scores(answer: Arrays) -> dict[str, Floats]:
    """The scores of every prompt, [N], that were measured.

    The gold label's log-probability is the sum of two: log P(gold | labels), which label it is, and log P(any label),
    the label mass. Demonstrations teach the first; the second says that a label comes.
    """
    log_prob, gold = answer["log_prob"].astype(np.float64), answer["gold"]
    measured: Numbers = {
        "which label": which_label(log_prob, gold),
        "label mass": label_mass(log_prob),
        "accuracy": right(log_prob, gold).astype(np.float64),
    }
    if "text_loss" in answer:
        measured["text loss"] = answer["text_loss"].astype(np.float64)
    return measured


def changes(answers: Mapping[Condition, Arrays], score: str, comparisons: int = 1) -> tuple[Numbers, Numbers]:
    """What each cut changes of a score, and what its random cells change: by part of the layers and cut.

    The 95 % intervals are paired by prompt; comparisons: how many of them are to hold together (Bonferroni). Conditions
    that do not have the score are left out.
    """
    whole, lost, random = scores(answers[WHOLE])[score], Numbers(), Numbers()
    for (cut, part, draw), answer in answers.items():
        under_cut = scores(answer)
        if cut is not None and score in under_cut:
            table = (lost if draw is None else random).setdefault(str(part), {})
            table[cut] = mean_interval(under_cut[score] - whole, comparisons=comparisons)
    return lost, random


def ablation(arrays: Arrays, settings: Any) -> Numbers:
    """What the model loses when a step of the circuit is cut, and what demonstrations are worth.

    random: of each score that demonstrations teach, what random cells change, as many as the labels' reads of their
    forerunners.
    """
    answers, ends = arrays["cut"], (arrays["cut"][WHOLE], arrays["alone"])
    shown, bare = map(scores, ends)
    singly = {score: changes(answers, score) for score in shown}
    together = {score: changes(answers, score, 2 * (len(answers) - 1)) for score in TERMS}
    gained = {score: mean_interval(shown[score] - values) for score, values in bare.items()}
    taught = {"which label": arrays["done"], "label mass": gained["label mass"].low > LEAST}
    entries = {
        **{score: lost for score, (lost, _) in singly.items()},
        "together": {score: {"cut": lost, "random": random} for score, (lost, random) in together.items()},
        "gained": gained,
        "random": {score: singly[score][1][str(EVERYWHERE)]["si_to_yi"] for score in taught if taught[score]},
    }
    return {"ablation": entries, "accuracies": [accuracy(right(end["log_prob"], end["gold"])) for end in ends]}


# ------------------------------------------------------------------------------------------------ induction heads


def same_label(arrays: Arrays) -> Bools:
    """Which demonstrations have the query's own label, [N, k]."""
    return arrays["demonstrations"] == arrays["gold"][:, None]


def reads(arrays: Arrays) -> tuple[Floats, Floats, Floats]:
    """Induction heads as Cho et al. count them (Fig. 6 left, middle), from reads [N, L, H, k], A[s_q, y_i]: [N, L, H].

    The sum of the reads; that of demonstrations with the query's own label minus the others; and the share of the
    query's label in what is read, 0 where nothing is.
    """
    attention = arrays["reads"]
    total, of_same = attention.sum(axis=-1), np.where(same_label(arrays)[:, None, None], attention, 0).sum(axis=-1)
    return total, 2 * of_same - total, of_same / (total + 1e-5)


def similarity_share(arrays: Arrays) -> Floats:
    """The share of the query's label in the similarity [N, L, k] of the forerunners s_i to s_q, [N, L].

    "Vanilla attention" of Fig. 6 middle. Negative similarities count as none; with them a share would have no meaning.
    """
    weight = np.maximum(arrays["similarity"], 0)
    return np.where(same_label(arrays)[:, None], weight, 0).sum(axis=-1) / (weight.sum(axis=-1) + 1e-5)


def best_head_null(arrays: Arrays) -> Maps:
    """The share of a layer's best head on each prompt, were it blind to labels: its mean and 95 % range.

    The maximum over heads is large by chance alone. In each of 100 draws the labels of every prompt's demonstrations
    are shuffled, so that their composition and what the heads read stay as they are.
    """
    rng, attention, same = np.random.default_rng(0), arrays["reads"], same_label(arrays)
    total, best = attention.sum(axis=-1) + 1e-5, []
    for _ in range(100):
        of_same = np.einsum("nlhk,nk->nlh", attention, rng.permuted(same, axis=1).astype(attention.dtype))
        best.append((of_same / total).max(axis=2).mean(axis=0, dtype=np.float64))
    low, high = np.quantile(best, [0.025, 0.975], axis=0)
    return {"mean": np.mean(best, axis=0), "low": low, "high": high}


def induction(arrays: Arrays, settings: Any) -> Numbers:
    """The share of the query's own label in what is read, by layer [L].

    null: what the best head has by chance; levels: the share of uniform attention, and the largest one that is possible
    (where no demonstration has the query's label, no head has any); most_frequent: on what share of prompts the most
    frequent induction head of the query's label is one, with its standard error. Such a head reads the labels like the
    query's by c / (n_t classes) more than the others, as in the authors' code.
    """
    _, more, share = reads(arrays)
    least = threshold(arrays["n_t"], settings.threshold, more.dtype) / arrays["classes"]
    same, frequent = same_label(arrays), float((more > least).mean(axis=0).max())
    shares = {
        "best head": share.max(axis=2),
        "mean of heads": share.mean(axis=2),
        "similarity of states": similarity_share(arrays),
    }
    return {
        "induction": {
            "likelihood": {name: curve(one) for name, one in shares.items()},
            "null": best_head_null(arrays),
            "levels": {"uniform": float(same.mean()), "ceiling": float(same.any(axis=1).mean())},
        },
        "most_frequent": [frequent, float(np.sqrt(frequent * (1 - frequent) / len(more)))],
    }
