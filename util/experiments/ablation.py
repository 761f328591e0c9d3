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

from util import cache
from util.attention import support
from util.experiments.forerunner import StaiccRun
from util.experiments.forerunner import request as forerunner_request
from util.experiments.runs import ModelSource
from util.instruments import Knockout
from util.measures.forerunner import gold_log_probability, right
from util.measures.statistics import t_interval
from util.prompts import LabelledTokens, with_bos
from util.replay import Edit, Place, replay
from util.scoring import Scoring, knockouts, label_log_probs, label_reads, nothing, scoring

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


def changes(records: Mapping[Condition, cache.Record], score: str = "log-probability") -> tuple[Table, Table]:
    """What each ablation changes of one of SCORES, and what its controls change on average.

    The 95 % intervals are paired by prompt. Records that do not have the score ("text loss") are left out.
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
            value, low, high = (float(v) for v in t_interval(np.mean(draws, axis=0)))
            table.setdefault(part, {})[name] = (value, low, high)
    return tables


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
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> dict[str, np.ndarray]:
    """What each head's copying is worth: the gold label's log-probability without it; cached in blocks of prompts.

    whole [N]: that of the whole model; cut [N, L, H]: where in this head alone no label y_i of the demonstrations may
    read its forerunner s_i; control [N, L, H]: where each may not read another token, drawn at random. In nats, over
    the whole vocabulary; of a label of several tokens, its first.
    """
    shared = _Run({**asked, "part": "head effects"}, model, folder, redo)

    def compute(part: range) -> dict[str, Any]:
        found = support(shared.pair[0])
        effects = []
        for number in part:
            own = cells("si_to_yi", shared.plan.tokens[number], special=shared.special)
            both = own, other_keys(own, shared.special, (asked["seed"], number))
            edits = [
                _head_cut(layer, head, which) for which in both for layer in found.layers for head in range(found.heads)
            ]
            first = min((int(which[:, 0].min()) for which in both if len(which)), default=0)
            ids, gold = torch.tensor([shared.plan.ids[number]]), shared.plan.answers[number, [shared.plan.gold[number]]]
            effects.append(replay(shared.pair[0], ids, edits, torch.from_numpy(gold)[None], first, True))
        shape = 2, len(found.layers), found.heads, len(part)
        cut, control = torch.cat([each.logits[:, 0] for each in effects], 1).reshape(shape).movedim(-1, 1).numpy()
        whole = torch.cat([each.base[0] for each in effects]).numpy()
        return {"whole": whole, "cut": cut, "control": control}

    starts = range(0, asked["prompts"], PROMPTS)
    parts = [range(start, min(start + PROMPTS, asked["prompts"])) for start in starts]
    records = [
        shared.record({"block": [part.start, part.stop]}, partial(compute, part))
        for part in tqdm(parts, desc=f"{asked['dataset']}: heads", unit="block", leave=False)
    ]
    return {name: np.concatenate([record.data[name] for record in records]) for name in ("whole", "cut", "control")}


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
