"""What the stored values of forerunner token heads say."""

import numpy as np

from util.figures.conclusions import Conclusions, Values, in_words, listed, none_or, sign, told, written
from util.figures.forerunner_heads import measures
from util.stats.intervals import Intervals

EVERYWHERE = "(0.0, 1.0)"
QUARTERS = {"(0.0, 0.25)": "first", "(0.25, 0.5)": "second", "(0.5, 0.75)": "third", "(0.75, 1.0)": "last"}
SERIES = {"wrong": "behind a wrong label", "other word": "behind another word", "untrained": "with untrained weights"}
READS = {
    "xq_to_sq": "the query's reads of its own text",
    "si_to_yi": "the labels' reads of their forerunners",
    "yi_to_sq": "the query's reads of the labels",
    "xi_to_si": "the demonstrations' reads of their own texts",
    "si_to_si": "what forerunners read of each other",
}


def of(model: str) -> Conclusions:
    """What was found, of the committed models and of `model`."""
    return told("forerunner_heads", sentences, model)


def sentences(values: Values) -> list[str]:
    """Which heads read the token before a label, which cuts cost something, whether single heads do it.

    values: of data/values/forerunner_heads.json.
    """
    causal = [*_cuts(values), _single_heads(values)] if "task" in values else []
    return [*_heads(values), *causal]


def _heads(values: Values) -> list[str]:
    frequent, judged = values["frequent_heads"], values["specificity"]["judged"]
    series = [(name, words) for name, words in SERIES.items() if name in frequent]
    said = [
        f"{written(frequent['correct'])} of {np.size(values['counts']['correct'])} heads are frequent: they read the "
        "token before the label on three of four prompts; "
        f"{listed([f'{written(frequent[name])} {words}' for name, words in series])}."
    ]
    if not judged["chosen"]:
        return [*said, "None of them is a forerunner head, which reads it more than other previous tokens."]
    meaning = ""
    if 2 * judged["than_wrong"] < judged["confirmed"]:
        which = "They" if not judged["than_wrong"] else "Most of them"
        meaning = f" {which} read what stands before a label, be it right or wrong."
    return [
        *said,
        f"{in_words(judged['chosen']).capitalize()} of them read it more than other previous tokens on one half of the "
        f"prompts, {none_or(judged['confirmed'])} of these on the other half, too: the forerunner heads. "
        f"{none_or(judged['than_other']).capitalize()} read it more than behind another word, "
        f"{none_or(judged['than_wrong'])} more than behind a wrong label.{meaning}",
    ]


def _cuts(values: Values) -> list[str]:
    *_, tried = values["task"]
    name = values["chosen"]["ablation"]
    if ": task done" in tried:
        said = [
            f"Steps were cut on `{name}`: accuracy there is above the majority label and the vote of the "
            "demonstrations. Whether demonstrations help was not asked."
        ]
    else:
        said = [
            f"It does none of the {in_words(len(values['task']))} data sets that were tried; "
            f"`{name}` was cut all the same."
        ]
    together = values["ablation"]["corrected intervals"]
    costly, others = list[str](), list[str]()
    for cut, read in READS.items():
        certain = [part for part in together if sign(together[part][cut]) < 0]
        if EVERYWHERE in certain:
            costly.append(f"{read} {written(together[EVERYWHERE][cut])}")
        elif certain:
            most = min(certain, key=lambda part: together[part][cut][0])
            costly.append(f"{read} in the {QUARTERS[most]} quarter of the layers {written(together[most][cut])}")
        else:
            others.append(f"{read} {written(together[EVERYWHERE][cut])}")
    if costly:
        said.append(f"The gold label's log-probability changes for certain, in nats, without {listed(costly)}.")
    if others:
        said.append(f"It does not for certain without {listed(others)}.")
    return [*said[:-1], f"{said[-1]} These intervals hold for all cuts together."]


def _single_heads(values: Values) -> str:
    high = np.array(values["head effects"]["high"], dtype=float)  # NaN: not cut
    cut, costly = int(np.isfinite(high).sum()), int((high < 0).sum())
    read = values["induction"]
    shares, null = (
        Intervals(*(np.array(curve[name], dtype=float) for name in ("mean", "low", "high")))
        for curve in (read["likelihood"]["best head"], read["null"])
    )
    beyond = measures.beyond_chance(shares, null)
    alone = (
        f"Of {cut} heads that were cut one at a time {none_or(costly)} cost{'s' * (costly < 2)} more than other cells."
    )
    return (
        f"{alone} In {none_or(len(beyond))} of {len(null.value)} layers the best head prefers "
        "the label of the query beyond chance."
    )
