"""What the parts of the study cost, see `records.estimates`.

With donors that run apart, an ablation computes those tokens alone that it changes and that the answer depends on. The
shares of the tokens below are counted: they hardly depend on the model, as token types decide them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from util.edges.ablation import cuts
from util.edges.edge import CIRCUITS, TYPE_PAIRS
from util.edges.splicing import NEW_TOKENS, STORED
from util.figures.edge_ablation.plan import DOUBTED, PROBED, Plan
from util.figures.edge_ablation.pruning_study import PruningStudy
from util.figures.edge_ablation.results import COMPLETENESS
from util.figures.edge_ablation.study import Study
from util.prompts import lengths
from util.records.estimates import (
    NOTHING,
    RECORD,
    Part,
    Shape,
    Work,
    loading,
    plain_runs,
    together,
    with_control,
)

CIRCUIT = 0.3  # of the tokens, the mean of the circuits that tasks are compared by
SINGLE = 0.85  # where one type pair is removed
SEARCHED = 0.95  # in a search, where most edges are there still
FOUND = 0.2  # in a circuit that was found, and in random ones as large
WINDOW = 0.4  # in some layers alone
PROBE = 0.5  # in a circuit of which one edge is read from elsewhere
DOUBT = 0.6  # in the circuits that are shown ambiguous demonstrations
ROUNDS = 13  # of pruning a fifth of the units, until the accuracy falls
RUN = 0.002  # seconds of a prompt in one ablation, in which its cells are listed
DRAWING = 0.01  # seconds in which a prompt is drawn with its donor
TYPES = 8  # of heads' tokens


def plan_parts(plan: Plan, shape: Shape) -> dict[str, Part]:
    """The parts of notebook 04, by the names of the plan's methods."""
    study, corruptions = plan.study, len(plan.corruptions)
    layer_cuts = len(cuts(shape.layers, plan.layer_cuts))
    again = NOTHING
    if plan.untrained_control or plan.other_models:  # other models are taken to be of this one's size
        again = (loading() + compare(study, shape, written=False)).times(
            plan.untrained_control + len(plan.other_models)
        )
    verified = 2 + plan.random_circuits + 2 * len(COMPLETENESS)
    # donors of a probed edge run inside the circuit, beside plain ones
    donors, probed = 1 + 1.6 * corruptions, 1 + corruptions * len(PROBED)
    works = {
        "circuits": loading() + together([compare(one, shape, written=True) for one in plan.by_task.values()]),
        "single_edges": ablations(study, shape, len(TYPE_PAIRS), SINGLE),
        "search": search(study, shape),
        "planted": with_control(NOTHING, 5.8),
        "verified": ablations(study, shape, verified, FOUND),
        "windows": ablations(study, shape, 2 * layer_cuts, WINDOW),
        "pruning": together([pruning(plan.pruner(task), shape) for task in plan.pruned_tasks]),
        "probes": ablations(plan.probing, shape, probed, PROBE, donors=donors),
        "ambiguity": together([ablations(one, shape, len(DOUBTED), DOUBT) for one in plan.by_count.values()]),
        "models": again,
    }
    needing: dict[str, Callable[[], object]] = {  # what another part has measured
        "verified": lambda: plan.verified(plan.search()),
        "models": lambda: plan.models(plan.circuits()),
    }
    return {name: Part(work, needing.get(name, getattr(plan, name))) for name, work in works.items()}


def length_of(study: Study, shape: Shape) -> float:
    """The tokens of a prompt, its answer but the last token included."""
    return lengths.word_pairs(study.task, study.k, few=shape.small_vocabulary)


def ablations(study: Study, shape: Shape, count: float, share: float, donors: float = 1.0) -> Work:
    """Prompts under so many ablations, each of which changes a share of their tokens, with every draw of donors.

    donors: runs of donors for each prompt and draw. Where they run beside the prompts, all tokens run every time.
    """
    length, draws = length_of(study, shape), len(study.donor_seeds)
    plain = plain_runs(shape, study.prompts, length)
    runs = draws * count
    if study.two_pass:
        edited = plain.times(1 + draws * donors + runs * share)
        kept = min(STORED, shape.states(study.prompts * length * (1 + draws * donors)))
    else:
        edited, kept = plain.times(draws + runs * (1 + donors)), 0
    more = Work(
        unembedded=2 * runs * study.prompts,
        seconds=RUN * runs * study.prompts + DRAWING * draws * study.prompts,
        passes=2 * runs,
        stored=runs * RECORD,
    )
    # what is kept of plain runs lies beside a batch, whose own keys and values are read and written
    room = (
        plain.room
        + kept
        + 3 * shape.states(min(2048, study.prompts * length))
        + 2 * 4 * study.prompts * shape.vocabulary
    )
    return edited + more + Work(room=room)


def compare(study: Study, shape: Shape, *, written: bool) -> Work:
    """The usual circuits, and what is written out in each of them with the first draw of donors."""
    circuits = len(CIRCUITS)
    work = ablations(study, shape, circuits, CIRCUIT)
    if not written:
        return work
    length = length_of(study, shape)
    prompted = plain_runs(shape, study.prompts, length, share=CIRCUIT).times(circuits)
    new = study.prompts * circuits * NEW_TOKENS
    told = Work(
        tokens=0.5 * new,
        unembedded=0.5 * new,
        passes=0.5 * circuits * NEW_TOKENS * max(1, study.prompts * length / 2048),
        seconds=3 * RUN * circuits * study.prompts,
    )
    alone = plain_runs(shape, study.prompts, 5)
    return work + prompted + told + alone


def search(study: Study, shape: Shape) -> Work:
    """Every type pair taken out again, after each was removed alone for the map."""
    first = study.replace(donor_seeds=study.donor_seeds[:1])
    return ablations(first, shape, len(TYPE_PAIRS), SEARCHED)


def pruning(study: PruningStudy, shape: Shape) -> Work:
    """Rounds of pruning heads, then edges, each scored by a run and its gradient; then circuits on fresh prompts."""
    length, draws = length_of(study.study, shape), len(study.study.donor_seeds)
    share = 1 - study.per_round
    every = math.log(max(2, TYPES * shape.all_heads)) / -math.log(max(0.01, share))
    rounds = 2 + min(every, ROUNDS * math.log(0.8) / math.log(max(0.01, share)))
    scored = plain_runs(shape, study.search.prompts, length)
    shown = plain_runs(shape, study.study.prompts, length)
    circuits = (min(study.points, rounds) + 1) * draws + study.random
    batch = min(2048 / 2, study.search.prompts * length)
    # all layers' activations are kept for the gradient: some ten of the stream's width, and what the MLP has
    graph = batch * shape.layers * shape.item * 30 * shape.width
    kinds = len(TYPE_PAIRS) + 4
    numbers = study.search.prompts * length**2 * shape.all_heads  # pairs of tokens in all heads
    work = Work(
        seconds=2 * rounds * 2.5e-9 * numbers * kinds + DRAWING * (study.search.prompts + draws * study.study.prompts),
        passes=2 * rounds * 2 + 4 * circuits,
        unembedded=2 * rounds * study.search.prompts * 2 + 2 * circuits * study.study.prompts * 2,
        stored=2 * rounds * (RECORD + 6 * 8 * shape.all_heads * (kinds + TYPES)) + 2 * circuits * RECORD,
        room=scored.room
        + graph
        + min(STORED, 3 * shape.states(study.search.prompts * length + draws * study.study.prompts * length)),
    )
    return scored.times(2 * rounds * 2 + 1) + shown.times(2 * circuits + 2 * draws) + work
