"""Controls of notebooks 00, 01 and 04 that could have failed, on each model whose values are stored.

00: outputs of heads replaced by zeros, where the notebook takes their mean. 01: reads of the previous token blocked at
random other tokens, as many as the labels' reads of their forerunners. 04: circuits that keep both pairs by which the
last token reads the examples and the query, and random other pairs up to the number of the circuit that was searched.
"""

from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np

from tests.stored import values
from util.edges.ablation import Ablation
from util.edges.edge import ALWAYS, CIRCUITS, FULL, NONE, TYPE_PAIRS
from util.figures.edge_ablation.numbers import scores_of
from util.figures.edge_ablation.runs import answers as answers_of_circuits
from util.figures.forerunner_heads import measure as forerunner
from util.figures.forerunner_heads.numbers import WHOLE, Condition, scores
from util.figures.toy_induction_head import measure as toy
from util.show.part import STORED
from util.stats.intervals import mean_interval
from util.study.study import Study

ROUNDS = 20  # circuits
DATASET, K, PROMPTS = "trec", 16, 24
AGGREGATION, COPY = ("y->last_separator", "query->last_separator"), "x->y:same"


def zeros(name, folder):
    """Nats by which the in-context-learning score changes without sets of heads, by what replaces their outputs."""
    means = toy.position_means

    def nothing(*arguments):
        return {layer: np.zeros_like(mean) for layer, mean in means(*arguments).items()}

    numbers = {"means": Study("toy_induction_head", name).numbers("in_context")}
    with mock.patch.object(toy, "position_means", nothing):
        study = Study("toy_induction_head", name, folder=folder, untrained_control=False)
        numbers["zeros"] = study.numbers("in_context")
    return {
        f"00 score {ablated}, {by}, nats": list(change)
        for by, found in numbers.items()
        for ablated, change in found["in context"]["change"].items()
    }


def previous_tokens(cut, length, seed):
    """Cells [C, 2] of random tokens and the ones before them, none of which is in a cut; see `control_cells`."""
    used = set(cut.ravel().tolist())
    free = [token for token in range(2, length) if token not in used and token - 1 not in used]
    chosen = np.random.default_rng(seed).choice(free, len(cut), replace=False)
    return np.stack([chosen, chosen - 1], axis=1)


def reads(name, folder):
    """Nats by which label mass and which label change without the labels' reads of forerunners, and without others."""
    study = Study("forerunner_heads", name, ablated=PROMPTS, folder=folder, untrained_control=False)
    data = forerunner.Data(DATASET, K, PROMPTS, 0)
    cuts = {"s_i -> y_i": Condition("si_to_yi"), "other reads of previous tokens": Condition("si_to_yi", draw=0)}
    with mock.patch.object(forerunner, "control_cells", previous_tokens):
        found = forerunner.answers(study, data, [WHOLE, *cuts.values()])
    whole = scores(found[WHOLE])
    return {
        f"01 {score} without {cut}, nats": list(mean_interval(scores(found[condition])[score] - whole[score]))
        for cut, condition in cuts.items()
        for score in ("label mass", "which label")
    }


def circuits(name, folder, count):
    """The scores of the circuit that was searched, of both pairs alone, and of these with random others."""
    study = Study("edge_ablation", name, folder=folder, untrained_control=False)
    pairs = {str(pair): pair for pair in TYPE_PAIRS}
    kept = values("edge_ablation", name)["search"]["kept"]
    others, random = sorted(pairs.keys() - {*AGGREGATION}), np.random.default_rng(0)
    drawn: set[tuple[str, ...]] = set()
    while len(drawn) < count:
        drawn.add(tuple(sorted(random.choice(others, len(kept) - len(AGGREGATION), replace=False).tolist())))
    asked = {
        f"04 score of {AGGREGATION[0]} and {AGGREGATION[1]}": AGGREGATION,
        "04 score of the searched circuit": kept,
    }
    asked |= {f"with {', '.join(more)}": (*AGGREGATION, *more) for more in sorted(drawn)}
    ablations = {some: Ablation(kept=(*ALWAYS, *(pairs[pair] for pair in kept_))) for some, kept_ in asked.items()}
    found = scores_of(
        answers_of_circuits(study, {FULL: Ablation(kept=CIRCUITS[FULL]), NONE: Ablation(kept=ALWAYS), **ablations})
    )
    numbers: dict[str, object] = {some: list(found[some]) for some in asked if some.startswith("04")}
    for title, with_copy in (("with", True), ("without", False)):
        of = [found[some].value for some in asked if some.startswith("with") and (COPY in asked[some]) == with_copy]
        span = f"{min(of):.2f} to {max(of):.2f}" if of else "none"
        numbers[f"04 of {count} circuits with these two and random pairs, those {title} {COPY}"] = f"{len(of)}: {span}"
    return numbers


def simulate(count):
    """The numbers of all models, by number and model."""
    numbers: dict[str, dict[str, object]] = {}
    for name in STORED:
        with TemporaryDirectory() as folder:
            for measured in (zeros(name, folder), reads(name, folder), circuits(name, folder, count)):
                for number, value in measured.items():
                    numbers.setdefault(number, {})[name] = value
        print(name, {number: found.get(name) for number, found in numbers.items()}, flush=True)
    return {"numbers": numbers}
