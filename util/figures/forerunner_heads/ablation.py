"""Disconnecting attention: what in-context learning loses without a step of its circuit (Cho et al. 2025, Tables 1, 2).

An ablation "a -> b" forbids the tokens b to attend to the tokens a, in every head of a range of layers. Every ablation
is compared with as many other cells of the same prompt, drawn at random, and with no demonstrations at all.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from util.engine.attention import support
from util.engine.instruments import Knockout
from util.engine.label_scores import Scoring, knockouts, label_log_probs, label_reads, nothing, scoring
from util.engine.replay import Edit, Place, replay
from util.figures.forerunner_heads.measures import TaskCheck, task_check
from util.figures.forerunner_heads.study import StaiccRun, changed
from util.figures.forerunner_heads.study import request as forerunner_request
from util.load_model_and_data import staicc_prompts
from util.prompts.prompt import LabelledTokens, Prompt, with_bos
from util.records import cache
from util.records.runs import ModelSource
from util.records.study import plain_heads
from util.stats.answers import gold_log_probability, majority_right, right, vote_right
from util.stats.intervals import accuracy, t_interval

Cells = NDArray[np.int64]  # [C, 2]: query, key

# what is cut -> the name in the paper: rows 2-5 of Table 1, Table 2, and one that the authors' code has beside them
CUTS = {
    "xi_to_si": "x_i -> s_i",
    "xq_to_sq": "x_q -> s_q",
    "si_to_yi": "s_i -> y_i",
    "yi_to_sq": "y_i -> s_q",
    "si_to_si": "s_i -> s_j, i < j",
    "si_to_yj": "s_i -> y_j, i <= j",
}
VARIANTS = ("corrected", "reference")
QUARTERS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
DRAWS = 5
NO_DEMONSTRATIONS = "k = 0: without demonstrations there is no step of the circuit to cut; left out"
QUERIES = 512  # of every data set
PROMPTS = 8  # of one record of head effects: what an interruption can cost at most


# ------------------------------------------------------------------------------------------------ cells


def cells(cut: str, tokens: LabelledTokens, variant: str = "corrected", special: int = 1) -> Cells:
    """The cells of one of CUTS in a prompt that ends at the query's forerunner.

    special: how many special tokens stand in front; no ablation takes them from a reader. The "reference" lists are
    those of the authors' code, which differ: `xi_to_si` cuts the query's forerunner and the BOS token as well,
    `xq_to_sq` and `si_to_si` the forerunners from themselves, and of a label of several tokens it knows the first.
    Raises ValueError for an unknown name, and where the reference would leave a token nothing to attend to.
    """
    if cut not in CUTS or variant not in VARIANTS:
        raise ValueError(f"cut = {cut!r}, variant = {variant!r}; there are {', '.join(CUTS)}; {', '.join(VARIANTS)}")
    own = variant == "corrected"
    s, y = tokens.forerunners, tokens.labels[:-1]
    ends = [start + (length if own else 1) for start, length in zip(y, tokens.label_lengths, strict=False)]
    starts = [special if own else 0, *ends]  # of the text before each forerunner, its template included
    if cut == "xi_to_si":
        found = [(s[i], t) for i in range(len(s) - own) for t in range(starts[i], s[i])]
    elif cut == "xq_to_sq":
        found = [(s[-1], t) for t in range(starts[-1], s[-1] + (not own))]
        if starts[-1] == 0 and not own:
            raise ValueError(
                "the reference's xq_to_sq leaves s_q nothing to attend to where there are no demonstrations"
            )
    elif cut == "si_to_yi":
        found = [(t, s[i]) for i in range(len(y)) for t in range(y[i], ends[i])]
    elif cut == "yi_to_sq":
        found = [(s[-1], t) for i in range(len(y)) for t in range(y[i], ends[i])]
    elif cut == "si_to_si":
        found = [(s[i], s[j]) for i in range(len(s)) for j in range(i + (not own))]
    else:
        found = [(t, s[j]) for i in range(len(y)) for t in range(y[i], ends[i]) for j in range(i + 1)]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def control_cells(cut: Cells, length: int, draws: int, seed: Sequence[int]) -> list[Cells]:
    """`draws` sets of as many cells as `cut` has, of a prompt of `length` tokens: its matched controls.

    Uniform over what a later token may read of an earlier one, without the cells of the cut; the sets share none, and
    as no token is cut from itself, none is left with nothing to attend to. More draws leave the first as they are.
    Raises ValueError where the prompt is too short for so many.
    """
    free = np.tri(length, k=-1, dtype=bool)
    free[tuple(cut.T)] = False
    eligible = np.argwhere(free)
    if len(eligible) < draws * len(cut):
        raise ValueError(
            f"{len(cut)} cells cannot be matched {draws} times in a prompt of {length} tokens, which has "
            f"{len(eligible)} others; take fewer draws"
        )
    drawn = np.random.default_rng(list(seed)).permutation(len(eligible))[: draws * len(cut)].reshape(draws, len(cut))
    return [eligible[np.sort(one)] for one in drawn]


def layer_range(layers: Sequence[int], part: tuple[float, float]) -> list[int]:
    """The layers of a range of ratios: numbers from int(r0 L) up to, without it, int(r1 L) of L layers."""
    low, high = (int(ratio * len(layers)) for ratio in part)
    return list(layers[low:high])


# ------------------------------------------------------------------------------------------------ accuracy tables


class Condition(NamedTuple):
    """An entry of the tables: what is cut (None: nothing), in which part of the layers; draw: or that control of it."""

    cut: str | None
    part: tuple[float, float] = (0.0, 1.0)
    draw: int | None = None


WHOLE = Condition(None)


def grid(
    cuts: Sequence[str] = tuple(CUTS)[:5],
    parts: Sequence[tuple[float, float]] = ((0.0, 1.0), *QUARTERS),
    controlled: Sequence[tuple[float, float]] = ((0.0, 1.0),),
    draws: int = DRAWS,
) -> list[Condition]:
    """The conditions of a table: every cut in every part of the layers, and its controls in the parts `controlled`."""
    drawn = [Condition(cut, part, draw) for cut in cuts for part in controlled for draw in range(draws)]
    return [WHOLE, *(Condition(cut, part) for cut in cuts for part in parts), *drawn]


def request(model: str = "embedded", prompts: int = 64, variant: str = "corrected", **options: Any) -> cache.Request:
    """What the tables measure; options: those of `forerunner.request`. Raises like it, and for an unknown variant."""
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; there are {', '.join(VARIANTS)}")
    own = {"schema": 3, "part": "ablation", "variant": variant}
    asked = forerunner_request(model, prompts=prompts, **options) | own
    return {name: value for name, value in asked.items() if name not in ("appended", "control_tokens")}


def like(asked: cache.Request, variant: str = "corrected", **options: Any) -> cache.Request:
    """What the tables measure of the model of a forerunner request, with other options of it; raises like `request`."""
    base = changed(asked, **options)
    names = "model prompts dataset k seed dtype quantized revision untrained_seed".split()
    return request(variant=variant, **{name: base[name] for name in names})


class _Run(StaiccRun):
    """What all conditions of a request share."""

    @cached_property
    def controls(self) -> dict[str, list[list[Cells]]]:
        """By cut: of each prompt, its draws."""
        return {}

    @cached_property
    def plan(self) -> Scoring:
        return scoring(*self.pair, self.prompts)

    @cached_property
    def special(self) -> int:
        return with_bos(self.prompts[0].text, self.pair[1]).spans.count(None)

    @cached_property
    def labels(self) -> dict[str, np.ndarray]:
        shown = np.array([p.demonstrations for p in self.prompts], np.int64).reshape(len(self.prompts), -1)
        return {"gold": self.plan.gold, "demonstrations": shown}

    @property
    def texts(self) -> list[str]:
        return [p.with_label() for p in self.prompts]

    def cells(self, condition: Condition, draws: int) -> list[Cells] | None:
        """Those of each prompt; draws: how many controls of it will be asked for, of which it is one."""
        if condition.cut is None:
            return None
        found = [cells(condition.cut, t, self.asked["variant"], self.special) for t in self.plan.tokens]
        if condition.draw is None:
            return found
        if condition.cut not in self.controls:
            seed, number = self.asked["seed"], tuple(CUTS).index(condition.cut)
            self.controls[condition.cut] = [
                control_cells(cut, len(ids), draws, (seed, number, i))
                for i, (cut, ids) in enumerate(zip(found, self.plan.ids, strict=True))
            ]
        return [drawn[condition.draw] for drawn in self.controls[condition.cut]]


class _Choice(_Run):
    """The last prompts of a data set, which no other part of the figure measures."""

    @cached_property
    def prompts(self) -> list[Prompt]:
        return staicc_prompts(self.asked["dataset"], self.asked["k"])[-self.asked["prompts"] :]


def choose_task(
    asked: cache.Request,
    datasets: Sequence[int | str],
    measured: int,
    prompts: int = 128,
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> list[TaskCheck]:
    """Try data sets in this order until the model does one; the last of the checks is that one, or none is done.

    A task is done where the accuracy with demonstrations, on the last `prompts` queries, lies above that of the
    majority label and above the vote of the demonstrations, by a one-sided 95 % Wilson bound that is corrected for all
    the data sets that might be tried (`measures.task_check`). The baselines need no model and are those of
    all queries. asked: a forerunner request; measured: how many of the first queries will be measured afterwards.
    Raises ValueError where these are not others than the last, without data sets, and without demonstrations.
    """
    if not datasets or not asked["k"]:
        raise ValueError("choosing a task needs at least one data set, and demonstrations (k of 1 or more)")
    if measured + prompts > QUERIES:
        raise ValueError(
            f"{measured} prompts to be measured and {prompts} to choose the task on share some: there are "
            f"{QUERIES} queries"
        )
    checks = []
    for dataset in datasets:
        one = {**like(asked, dataset=dataset, prompts=prompts), "part": "choice of a task"}
        shared = _Choice(one, model, folder, redo)

        def compute(shared: _Choice = shared) -> dict[str, Any]:
            found = label_log_probs(shared.pair[0], shared.plan, token_budget=shared.asked["token_budget"])
            return {**found, **shared.labels}

        answers = SCORES["accuracy"](shared.record({}, compute).data)
        everything = staicc_prompts(dataset, one["k"])
        gold = np.array([p.gold for p in everything])
        shown = np.array([p.demonstrations for p in everything], np.int64)
        vote = vote_right(gold, shown, len(everything[0].labels)).mean()
        checks.append(task_check(one["dataset"], answers, majority_right(gold).mean(), vote, len(datasets)))
        if checks[-1].done:
            break
    return checks


def run(
    asked: cache.Request,
    conditions: Sequence[Condition],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[Condition, cache.Record]:
    """The records of these conditions, each cached on its own, so that nothing that was measured is lost.

    A record's data: log_prob [N, C] of the labels after the query's forerunner, gold [N], demonstrations [N, k], and
    layers, the model's own numbers; of what is no control and spans all layers also text_loss [N], see
    `label_log_probs`. For the model, and for what is raised, see `forerunner.run`, `scoring` and `cells`.
    """
    shared = _Run(asked, model, folder, redo)
    draws = 1 + max((c.draw for c in conditions if c.draw is not None), default=-1)

    def compute(condition: Condition) -> dict[str, Any]:
        layers = list(support(shared.pair[0]).layers)
        part = layer_range(layers, condition.part)
        cut = shared.cells(condition, draws)
        found = label_log_probs(
            shared.pair[0],
            shared.plan,
            nothing if cut is None else knockouts(cut, dict.fromkeys(part)),
            token_budget=asked["token_budget"],
            text=condition.part == WHOLE.part and condition.draw is None,
        )
        return {**found, **shared.labels, "layers": layers}

    return {
        condition: shared.record(
            {"cut": condition.cut, "layers": list(condition.part), "draw": condition.draw}, partial(compute, condition)
        )
        for condition in tqdm(conditions, desc=f"{asked['dataset']}: ablations", leave=False)
    }


Interval = tuple[float, float, float]  # value, low, high
Table = dict[tuple[float, float], dict[str, Interval]]  # by part of the layers and cut

SCORES: dict[str, Callable[[Mapping[str, Any]], NDArray[Any]]] = {
    "log-probability": lambda data: gold_log_probability(data["log_prob"], data["gold"]),
    "accuracy": lambda data: right(data["log_prob"], data["gold"]),
    "text loss": lambda data: data["text_loss"],
}


def changes(
    records: Mapping[Condition, cache.Record], score: str = "log-probability", comparisons: int = 1
) -> tuple[Table, Table]:
    """What each ablation changes of one of SCORES, and what its controls change on average.

    The 95 % intervals are paired by prompt; comparisons: how many of them are to hold together (Bonferroni). Records
    that do not have the score ("text loss") are left out.
    """
    one = SCORES[score]
    scores = {
        c: np.asarray(one(r.data), np.float64)
        for c, r in records.items()
        if score != "text loss" or "text_loss" in r.data
    }
    cut: dict[tuple[tuple[float, float], str], list[NDArray[np.float64]]] = {}
    drawn: dict[tuple[tuple[float, float], str], list[NDArray[np.float64]]] = {}
    for condition, values in scores.items():
        if condition.cut is not None:
            kind = cut if condition.draw is None else drawn
            kind.setdefault((condition.part, condition.cut), []).append(values - scores[WHOLE])
    tables: tuple[Table, Table] = ({}, {})
    for table, found in zip(tables, (cut, drawn), strict=True):
        for (part, name), draws in found.items():
            table.setdefault(part, {})[name] = _interval(np.mean(draws, axis=0), comparisons)
    return tables


def _interval(values: NDArray[np.float64], comparisons: int = 1) -> Interval:
    value, low, high = (float(bound) for bound in t_interval(values, comparisons=comparisons))
    return value, low, high


def _text(interval: Interval, digits: int = 3) -> str:
    value, low, high = interval
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def worth_of_demonstrations(cut: Mapping[Condition, cache.Record], alone: Mapping[Condition, cache.Record]) -> str:
    """Accuracies of the whole model with and without demonstrations on the same queries, and the paired difference."""
    wholes = [records[WHOLE].data for records in (cut, alone)]
    answers = [np.asarray(SCORES["accuracy"](data)) for data in wholes]
    nats = [np.asarray(SCORES["log-probability"](data), np.float64) for data in wholes]
    texts = ["{:.3f} [{:.3f}, {:.3f}]".format(*accuracy(right_ones)) for right_ones in answers]
    gained, likelier = (_text(_interval(one - two)) for one, two in (np.asarray(answers, np.float64), np.asarray(nats)))
    return (
        f"accuracy with demonstrations {texts[0]}, without {texts[1]}, of {len(nats[0])} prompts: they change it by "
        f"{gained}, and the gold label's log-probability by {likelier} nats"
    )


def table(cut: Mapping[Condition, cache.Record], alone: Mapping[Condition, cache.Record]) -> str:
    """What cuts in all layers change, as text: accuracy, the gold label's log-probability (also of random cells and
    without demonstrations) and the loss on the text, with 95 % intervals."""
    lost, random = (part.get(WHOLE.part, {}) for part in changes(cut))
    columns: dict[str, Mapping[str, Interval]] = {
        "accuracy": changes(cut, "accuracy")[0][WHOLE.part],
        "gold label, nats": lost,
        "random cells, nats": random,
        "zero-shot, nats": changes(alone)[0].get(WHOLE.part, {}),
        "text loss, nats": changes(cut, "text loss")[0][WHOLE.part],
    }
    lines = ["cut in all layers".ljust(22) + "".join(f"{name:>26}" for name in columns)]
    for name in lost:
        cells = [_text(values[name]) if name in values else "" for values in columns.values()]
        lines.append(CUTS[name].ljust(22) + "".join(f"{text:>26}" for text in cells))
    return "\n".join(lines)


def causal_finding(lost: Table, controls: Table, done: bool, cut: str = "si_to_yi") -> str:
    """What cutting the labels from their forerunners in all layers tells, by its interval and that of its controls.

    A loss counts where the interval lies below 0 and below the controls' interval; a task that is not done tells
    nothing.
    """
    value, low, high = lost[WHOLE.part][cut]
    random = controls[WHOLE.part][cut]
    said = f"cut {CUTS[cut]} in all layers: {_text((value, low, high))} nats, random cells {_text(random)}: "
    if not done:
        return said + "task not done, so this tells nothing of in-context learning"
    if high < min(0.0, random[1]):
        return said + "the copying is used"
    if low > max(0.0, random[2]):
        return said + "without the copying the label is likelier"
    return said + "a causal null, the copying was not shown to be used"


# ------------------------------------------------------------------------------------------------ induction heads


def induction_reads(
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The record of what the query's forerunner reads of the labels (Fig. 6 left, middle).

    Its data: reads [N, L, H, k] and similarity [N, L, k], see `scoring.label_reads`; n_t, gold [N]; demonstrations
    [N, k]; classes.
    """
    shared = _Run({**asked, "part": "induction"}, model, folder, redo)

    def compute() -> dict[str, Any]:
        found = label_reads(shared.pair[0], shared.plan, asked["token_budget"])
        n_t = np.array([tokens.n_t for tokens in shared.plan.tokens])
        return {**found, **shared.labels, "n_t": n_t, "classes": len(shared.prompts[0].labels)}

    return shared.record({}, compute)


# ------------------------------------------------------------------------------------------------ head by head


def head_effects(
    asked: cache.Request,
    heads: Sequence[tuple[int, int]],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, np.ndarray]:
    """What each head's copying is worth: the gold label's log-probability without it; cached in blocks of prompts.

    heads: which, as places (layer, head) of the model's attention layers, each once. whole [N]: the value of the whole
    model; cut [N, M]: where in this head alone no label y_i of the demonstrations may read its forerunner s_i; control
    [N, M]: where each may not read another token, drawn at random. In nats, over the whole vocabulary; of a
    label of several tokens, its first. Raises ValueError for a head twice, IndexError for one that the model does not
    have.
    """
    if len(set(heads)) != len(heads) or not heads:
        raise ValueError(f"give each head once, and at least one: {list(heads)}")
    ordered = plain_heads(heads)  # so that their order does not matter for the cache
    shared = _Run({**asked, "part": "head effects", "heads": ordered}, model, folder, redo)

    def compute(part: range) -> dict[str, Any]:
        found = support(shared.pair[0])
        effects = []
        for number in part:
            own = cells("si_to_yi", shared.plan.tokens[number], special=shared.special)
            both = own, other_keys(own, shared.special, (asked["seed"], number))
            edits = [_head_cut(found.layers[layer], head, which) for which in both for layer, head in ordered]
            first = min((int(which[:, 0].min()) for which in both if len(which)), default=0)
            ids, gold = torch.tensor([shared.plan.ids[number]]), shared.plan.answers[number, [shared.plan.gold[number]]]
            effects.append(replay(shared.pair[0], ids, edits, torch.from_numpy(gold)[None], first, True))
        shape = 2, len(ordered), len(part)
        cut, control = torch.cat([each.logits[:, 0] for each in effects], 1).reshape(shape).movedim(-1, 1).numpy()
        whole = torch.cat([each.base[0] for each in effects]).numpy()
        return {"whole": whole, "cut": cut, "control": control}

    starts = range(0, asked["prompts"], PROMPTS)
    parts = [range(start, min(start + PROMPTS, asked["prompts"])) for start in starts]
    records = [
        shared.record({"block": [part.start, part.stop]}, partial(compute, part))
        for part in tqdm(parts, desc=f"{asked['dataset']}: heads", unit="block", leave=False)
    ]
    together = {name: np.concatenate([r.data[name] for r in records]) for name in ("whole", "cut", "control")}
    back = [ordered.index([int(layer), int(head)]) for layer, head in heads]
    return {name: values if name == "whole" else values[:, back] for name, values in together.items()}


def _head_cut(layer: int, head: int, which: Cells) -> Edit:
    """These cells of one prompt cut in one head."""

    def instruments(place: Place) -> list[Knockout]:
        here = [(q - place.queries.start, k) for q, k in which.tolist() if q in place.queries]
        if place.layer != layer or not here:
            return []
        together = [(example, *cell) for example in place.examples.tolist() for cell in here]
        return [Knockout(torch.tensor(together), layer, head)]

    return Edit(layer, instruments)


def other_keys(cut: Cells, special: int, seed: Sequence[int]) -> Cells:
    """The same readers with another earlier token each, drawn at random; a reader that has no other keeps out."""
    rng, found = np.random.default_rng(list(seed)), []
    for query, key in cut.tolist():
        choices = [t for t in range(special, query) if t != key]
        if choices:
            found.append((query, int(rng.choice(choices))))
    return np.array(found, dtype=np.int64).reshape(-1, 2)
