"""What the stored values of edge ablation say."""

from itertools import combinations

import numpy as np

from util.prompts.word_pairs import CORRUPTIONS
from util.show.conclusions import Conclusions, Values, in_words, listed, told, written

OUTPUTS = "y->last_separator"  # the last separator reads the outputs of the demonstrations
READ_BY_OTHERS = "demonstrations that are read by each other or the query"
KINDS = {"head": "heads", "edge": "edges"}


def of(model: str) -> Conclusions:
    """What was found, of the committed models and of `model`."""
    return told("edge_ablation", sentences, model)


def sentences(values: Values) -> list[str]:
    """The primary endpoint, demonstrations, the circuit, what its edges carry, in which layers, how small it is.

    values: of data/values/edge_ablation.json.
    """
    said = [_primary(values), *_demonstrations(values), _circuit(values), *_other_circuits(values), _carried(values)]
    said.append(_layers(values))
    return said + (_pruning(values["pruning"]) if "pruning" in values else [])


def _primary(values: Values) -> str:
    """The endpoint that was fixed beforehand: what two circuits keep, by task; null where there is nothing to keep."""
    kept = {
        name: listed(
            [f"{row[name][0]:.2f} in `{task}`" for task, row in values["scores"].items() if row[name][0] is not None]
        )
        for name in ("CTX+AGG", "AGG-ONLY")
    }
    if not all(kept.values()):
        return "Primary endpoint: the whole model is no better than without any edges, so that circuits have no score."
    said = "; ".join(f"`{name}` keeps {tasks}" for name, tasks in kept.items())
    return f"Primary endpoint, the score of circuits: {said}."


def _demonstrations(values: Values) -> list[str]:
    """Where accuracy surely falls, by the paired tests that the title of the figure is made of.

    Of other tasks nothing is said: so few queries do not show small losses. The claims ask more.
    """
    said = []
    for circuit, what in (("QUERY-ONLY", "reading the demonstrations"), ("AGG-ONLY", READ_BY_OTHERS)):
        lost, accuracy = values["sure losses"][circuit], values["accuracy"]
        falls = [
            f"`{task}` (by {written(loss)}, from {accuracy[task]['FULL'][0]:.2f} to {accuracy[task][circuit][0]:.2f})"
            for task, loss in lost.items()
        ]
        if falls:
            said.append(f"Without {what} ({circuit}) accuracy surely falls in {listed(falls)}.")
    return said


def _circuit(values: Values) -> str:
    search, task = values["search"], values["request"]["dataset"]
    found, without = (search["scores"][name] for name in ("found", "without found"))
    if found[0] is None:
        accuracy, prompts = written(values["accuracy"][task]["FULL"]), values["request"]["prompts"]
        return f"No circuit of `{task}` was looked for: accuracy is {accuracy} ({prompts} prompts)."
    kept = listed([f"`{edge}`" for edge in search["kept"]])
    said = (
        f"For `{task}` {in_words(len(search['kept']))} of {len(values['costs'])} pairs of token types "
        f"{'is' if len(search['kept']) == 1 else 'are'} kept: {kept}. On other prompts the circuit scores "
        f"{written(found)}, all pairs but these {written(without)}"
    )
    if not search["random"]:
        return f"{said}."
    return f"{said}, the best of {len(search['random'])} random circuits of its size {max(search['random']):.2f}."


def _other_circuits(values: Values) -> list[str]:
    """The circuits that `make claims` found with other prompts and donors: what they share with the figure's."""
    by_draw = values.get("claims", {}).get("kept by draw", [])
    if not by_draw:
        return []
    circuits = [set(values["search"]["kept"]), *map(set, by_draw)]
    overlaps = [len(one & other) / len(one | other) for one, other in combinations(circuits, 2)]
    always = listed([f"`{edge}`" for edge in sorted(set.intersection(*circuits))])
    each = "; ".join(listed([f"`{edge}`" for edge in kept]) for kept in by_draw)
    return [
        f"On other prompts, with {in_words(len(by_draw))} draws of donors, the search keeps {each}. All "
        f"{in_words(len(circuits))} circuits have {always}; two of them share {min(overlaps):.2f} to "
        f"{max(overlaps):.2f} of their pairs."
    ]


def _carried(values: Values) -> str:
    probes = values["probes"]
    if OUTPUTS not in probes["edges"]:
        return "What the outputs carry was not measured."
    row = probes["accuracy"][probes["edges"].index(OUTPUTS)]
    by = [
        f"{accuracy:.2f} from {DONORS[number]}"
        for number, accuracy in zip(probes["corruptions"], row, strict=True)
        if number in DONORS
    ]
    return f"Accuracy where the outputs are read from a donor: {listed(by)}."


DONORS = {
    1: "other pairs of the task",
    2: "the same words in other pairs",
    3: "pairs with other inputs",
    4: "pairs with other outputs",
    5: "pairs of another rule",
}
assert {*DONORS} <= {*CORRUPTIONS}


def _layers(values: Values) -> str:
    windows = values["windows"]
    at = windows["at"]
    half = int(np.argmin(np.abs(np.array(at) - at[-1] / 2)))
    return (
        f"Accuracy is {written(windows['AGG below'][half])} without aggregation below layer {at[half]}, and "
        f"{written(windows['CONTEXT from'][half])} without contextualisation from there on. The whole model has "
        f"{written(values['accuracy'][values['request']['dataset']]['FULL'])}."
    )


def _pruning(pruning: Values) -> list[str]:
    said = []
    for task, curves in pruning["by_task"].items():
        kept = [
            f"{curve['result']:,} of {curve['units']:,} units of {KINDS[sort]} keep "
            f"{written(curve['explained'][str(curve['result'])])}"
            for sort, curve in curves.items()
            if curve["result"] is not None and curve["explained"][str(curve["result"])][0] is not None
        ]
        if kept:
            random = [accuracy for curve in curves.values() for accuracy in curve["random"]]
            beside = f"; random prunings have an accuracy of {max(random):.2f} at most" if random else ""
            said.append(f"`{task}`: {listed(kept)} of the accuracy{beside}.")
    for tasks, both in ((pruning.get("overlap") or {}).get("head") or {}).items():
        if both["shared"] is not None:
            said.append(
                f"{tasks.replace(', ', ' and ').capitalize()} share {both['shared']:.2f} of their units of heads, "
                f"random prunings {np.mean(both['random']):.2f}."
            )
    return said
