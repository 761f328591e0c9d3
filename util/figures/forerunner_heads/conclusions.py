"""What the stored values of forerunner token heads say."""

from collections.abc import Sequence

import numpy as np

from util.figures.forerunner_heads import measures
from util.figures.forerunner_heads.results.ablation import LEAST
from util.show.conclusions import Conclusions, Values, in_words, listed, none_or, sign, told, written
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
    """The primary endpoint, which heads read the token before a label, which cuts cost something, and single heads.

    values: of data/values/forerunner_heads.json.
    """
    causal = [*_cuts(values), *_more(values), *_single_heads(values)] if "task" in values else []
    return [*_heads(values), *causal]


def _heads(values: Values) -> list[str]:
    frequent, judged = values["frequent_heads"], values["specificity"]["judged"]
    series = [(name, words) for name, words in SERIES.items() if name in frequent]
    if not judged["chosen"]:
        primary = "no forerunner head, which would read the token before a label more than other previous tokens."
    else:
        primary = (
            f"{none_or(judged['confirmed'])} of {in_words(judged['chosen'])} forerunner heads, chosen on one half of "
            "the prompts, are confirmed on the other. These read what stands before a label more than other previous "
            "tokens."
        )
    said = [
        f"Primary endpoint: {primary}",
        f"{written(frequent['correct'])} of {np.size(values['counts']['correct'])} heads are frequent: they read the "
        "token before the label on three of four prompts; "
        f"{listed([f'{written(frequent[name])} {words}' for name, words in series])}.",
    ]
    if not judged["chosen"]:
        return said
    meaning = ""
    if 2 * judged["than_wrong"] < judged["confirmed"]:
        which = "They" if not judged["than_wrong"] else "Most of them"
        meaning = f" {which} read what stands before a label, be it right or wrong."
    return [
        *said,
        f"More than behind another word it is read by {none_or(judged['than_other'])} of the forerunner heads, more "
        f"than behind a wrong label by {none_or(judged['than_wrong'])}.{meaning}",
    ]


def _cuts(values: Values) -> list[str]:
    """What demonstrations teach, and what the cuts change of it."""
    chosen, ablation = values["chosen"]["ablation"], values["ablation"]
    name, gained = f"`{chosen['dataset']}` with {chosen['k']} demonstrations", ablation["gained"]
    if chosen["done"]:
        said = [
            f"The model does {name} from its demonstrations. "
            + _changed("log P(right label | labels)", ablation["together"]["which label"]["cut"])
        ]
    else:
        first = values["task"][0]
        said = [
            f"Which label: no in-context learning to explain. Of {in_words(len(values['task']))} combinations of data "
            f"set and number of demonstrations none is done from its demonstrations; those of {name} change "
            f"log P(right label | labels) by {written(first['over_none'])} nats ({first['n']} prompts)."
        ]
    mass = gained["label mass"]
    if mass[1] > LEAST:
        said.append(
            f"Demonstrations raise the label mass, log P(any label), by {written(mass)} nats on {name}. "
            + _changed("It", ablation["together"]["label mass"]["cut"])
        )
    return said


def _more(values: Values) -> list[str]:
    """What `make claims` found of the cut of the labels from their forerunners: the changes with each seed."""
    more = values.get("claims")
    if more is None:
        return []
    seeds, prompts = len(more["settings"]["seeds"]), more["settings"]["prompts"]
    each = [
        f"`{place.replace(', k = ', '` with ')} demonstrations, label mass {_by_seed(cut['label mass'])}, "
        f"log P(right label | labels) {_by_seed(cut['which label'])}"
        for place, cut in ((place, changes["si_to_yi"]) for place, changes in more["changes"].items())
    ]
    return [
        f"On {prompts} prompts each, with {in_words(seeds)} seeds, cutting {READS['si_to_yi']} changes, in nats: "
        f"{'; '.join(each)}."
    ]


def _by_seed(changes: Sequence[Sequence[float]]) -> str:
    """The changes with each seed, and how many have an interval that is beyond 0."""
    means = [change for change, _, _ in changes]
    return f"{min(means):.2f} to {max(means):.2f} ({in_words(sum(map(bool, map(sign, changes))))} beyond 0)"


def _changed(what: str, together: Values) -> str:
    """Which cuts change something, and which do not; the intervals hold for all cuts together."""
    costly, others = list[str](), list[str]()
    for cut, read in READS.items():
        parts = [part for part in together if sign(together[part][cut])]
        everywhere = f"{read} ({written(together[EVERYWHERE][cut])} nats)"
        if EVERYWHERE in parts or not parts:
            (costly if parts else others).append(everywhere)
        else:
            most = max(parts, key=lambda part: abs(together[part][cut][0]))
            costly.append(f"{read} in the {QUARTERS[most]} quarter of the layers ({written(together[most][cut])} nats)")
    said = f"{what} changes without {listed(costly)}" if costly else f"{what} is not shown to change without any step"
    return f"{said}; no change was detected without {listed(others)}." if others else f"{said}."


def _single_heads(values: Values) -> list[str]:
    """Which single heads do it; nothing is said where none was seen to: few prompts are asked."""
    done = values["chosen"]["head effects"]["done"]
    effects = values["head effects"]["which label" if done else "label mass"]
    high, low = (np.array(effects[end], dtype=float) for end in ("high", "low"))  # NaN: not cut
    cut, costly = int(np.isfinite(high).sum()), int((low > 0).sum())
    what = "the right label" if done else "label mass"
    read = values["induction"]
    shares, null = (
        Intervals(*(np.array(curve[name], dtype=float) for name in ("mean", "low", "high")))
        for curve in (read["likelihood"]["best head"], read["null"])
    )
    beyond = measures.beyond_chance(shares, null)
    said = []
    if costly:
        cost = f"{in_words(costly)} cost{'s' * (costly < 2)} {what}"
        said.append(f"Of {cut} heads that were cut one at a time {cost} more than other cells.")
    if beyond:
        layers = f"{in_words(len(beyond))} of {len(null.value)} layers"
        said.append(f"In {layers} the best head prefers the label of the query beyond chance.")
    return [" ".join(said)] if said else []
