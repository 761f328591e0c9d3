"""What the values of forerunner token heads say of a model, the primary endpoint first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from util.figures.forerunner_heads.numbers import EVERYWHERE, LEAST
from util.show.part import Values
from util.show.words import in_words, listed, none_or, say, sign, written

QUARTERS = {"(0.0, 0.25)": "first", "(0.25, 0.5)": "second", "(0.5, 0.75)": "third", "(0.75, 1.0)": "last"}
SERIES = {"wrong": "behind a wrong label", "other word": "behind another word", "untrained": "with untrained weights"}
READS = {
    "xq_to_sq": "the query's reads of its own text",
    "si_to_yi": "the labels' reads of their forerunners",
    "yi_to_sq": "the query's reads of the labels",
    "xi_to_si": "the demonstrations' reads of their own texts",
    "si_to_si": "what forerunners read of each other",
}
PLACE = "`{dataset}` with {k} {k:demonstration|demonstrations}"


def conclude(values: Values) -> Iterator[str]:
    """Which heads read the token before a label, which cuts cost something, and who reads labels like the query's."""
    yield from _heads(values)
    if "task" in values:
        yield from _cuts(values)
        yield from _more_prompts(values)
        if beyond := beyond_chance(values):
            where = f"{in_words(len(beyond))} of {len(values['induction']['null']['mean'])} layers"
            yield f"In {where} the best head prefers the label of the query beyond chance."


def _heads(values: Values) -> Iterator[str]:
    frequent, judged = values["frequent_heads"], values["specificity"]["judged"]
    if judged["chosen"]:
        yield (
            f"Primary endpoint: {none_or(judged['confirmed'])} of {in_words(judged['chosen'])} forerunner heads, "
            "chosen on one half of the prompts, are confirmed on the other. These read what stands before a label "
            "more than other previous tokens."
        )
    else:
        yield (
            "Primary endpoint: no forerunner head, which would read the token before a label more than other previous "
            "tokens."
        )
    others = [f"{written(frequent[name])} {words}" for name, words in SERIES.items() if name in frequent]
    yield (
        f"{written(frequent['correct'])} of {np.size(values['counts']['correct'])} heads are frequent: they read the "
        f"token before the label on three of four prompts; {listed(others)}."
    )
    if judged["chosen"]:
        meaning = ""
        if 2 * judged["than_wrong"] < judged["confirmed"]:
            which = "Most of them" if judged["than_wrong"] else "They"
            meaning = f" {which} read what stands before a label, be it right or wrong."
        yield (
            f"More than behind another word it is read by {none_or(judged['than_other'])} of the forerunner heads, "
            f"more than behind a wrong label by {none_or(judged['than_wrong'])}.{meaning}"
        )


def _cuts(values: Values) -> Iterator[str]:
    """What demonstrations teach, and what the cuts change of it."""
    place, together = values["chosen"]["ablation"], values["ablation"]["together"]
    name, mass = say(PLACE, **place), values["ablation"]["gained"]["label mass"]
    if place["done"]:
        changed = _changed("log P(right label | labels)", together["which label"]["cut"])
        yield f"The model does {name} from its demonstrations. {changed}"
    else:
        first = values["task"][0]
        yield (
            f"Which label: no in-context learning to explain. Of {in_words(len(values['task']))} combinations of data "
            f"set and number of demonstrations none is done from its demonstrations; those of {name} change "
            f"log P(right label | labels) by {written(first['over_none'])} nats ({first['n']} prompts)."
        )
    if mass[1] > LEAST:
        yield (
            f"Demonstrations raise the label mass, log P(any label), by {written(mass)} nats on {name}. "
            + _changed("It", together["label mass"]["cut"])
        )


def _changed(what: str, together: Values) -> str:
    """Which cuts change something, and which do not; the intervals hold for all cuts together."""
    costly, others = list[str](), list[str]()
    for cut, read in READS.items():
        parts = [part for part in together if sign(together[part][cut])]
        if EVERYWHERE in parts or not parts:
            (costly if parts else others).append(f"{read} ({written(together[EVERYWHERE][cut])} nats)")
        else:
            most = max(parts, key=lambda part: abs(together[part][cut][0]))
            costly.append(f"{read} in the {QUARTERS[most]} quarter of the layers ({written(together[most][cut])} nats)")
    start = f"changes without {listed(costly)}" if costly else "is not shown to change without any step"
    return f"{what} {start}" + (f"; no change was detected without {listed(others)}." if others else ".")


def _more_prompts(values: Values) -> Iterator[str]:
    """What `make claims` has of the cut of the labels from their forerunners: the changes with each seed."""
    if "claims" not in values:
        return
    settings, places = values["claims"]["settings"], list[str]()
    for place, changes in values["claims"]["changes"].items():
        (dataset, k), cut = place.split(", k = "), changes["si_to_yi"]
        name = say(PLACE, dataset=dataset, k=int(k))
        mass, which = _by_seed(cut["label mass"]), _by_seed(cut["which label"])
        places.append(f"{name}, label mass {mass}, log P(right label | labels) {which}")
    yield (
        f"On {settings['prompts']} prompts each, with {in_words(len(settings['seeds']))} seeds, cutting "
        f"{READS['si_to_yi']} changes, in nats: {'; '.join(places)}."
    )


def _by_seed(changes: Sequence[Sequence[float]]) -> str:
    """The changes with each seed, and how many have an interval that is beyond 0."""
    means = [change[0] for change in changes]
    return f"{min(means):.2f} to {max(means):.2f} ({in_words(sum(map(bool, map(sign, changes))))} beyond 0)"


def beyond_chance(values: Values) -> list[int]:
    """The layers whose best head prefers the query's label more than the range of shuffled labels."""
    best, null = values["induction"]["likelihood"]["best head"], values["induction"]["null"]
    return np.flatnonzero(np.greater(best["low"], null["high"])).tolist()
