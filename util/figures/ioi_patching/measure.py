"""What heads, paths and edges carry in indirect object identification: from a study to arrays.

N is the number of pairs of prompts, L that of layers with attention, H that of the heads of each, U and V those of the
senders and readers of a component graph. Logit differences are of the base's answers, see `patching`. Pairs that share
a frame and names are one cluster [N].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from util.engine.batches import check_context
from util.engine.call import UnsupportedModel
from util.engine.components import Components
from util.engine.handshake import prepare
from util.figures.ioi_patching import numbers
from util.figures.ioi_patching.numbers import Bools, Ints
from util.figures.ioi_patching.patching import (
    MAPS_AND_RUNS,
    ablated_outside,
    heads_of,
    last_logits,
    logit_difference,
    measure,
    patch_map,
    permuted,
)
from util.prompts.ioi import group_by_shape, ioi_tokens, pair_from_texts
from util.roles.name_pairs import NamePairs
from util.scores.attribution import Method, edge_scores, graph_of
from util.scores.circuits import circuit_metrics
from util.scores.evaluation import Circuits
from util.scores.exact import exact_scores
from util.scores.graph import ComponentGraph
from util.scores.paths import path_effects
from util.show import files
from util.stats.heads import Head, top
from util.study.model import digest, lists_digest
from util.study.study import Study

Arrays = dict[str, Any]
Block = Sequence[int]  # numbers of what is measured together
UNTRAINED, CIRCUIT, PATHS = 16, 128, 32  # pairs at most: of the twin, of sets of heads, of paths
WORDS = 5  # most probable next tokens that are kept
# What is measured together, and kept if a run is interrupted: seconds to a minute each.
PATCHED, SCORED, EDGES, CIRCUITS = 4096, 16, 128, 4  # heads of all pairs; pairs; edges; circuits, on all pairs
STEPS = 5  # of integrated gradients
RANDOM = 2  # random rankings of edges
TUTORIAL = "When Mary and John went to the store, {} gave a drink to"


# ------------------------------------------------------------------------------------------------ one pair


def example(study: Study) -> Arrays:
    """What a model does with the two texts of the settings, and what single heads change.

    log_softmax [2, V]: after base and source; scores [2]: their logit differences; answers [2]: tokens of the names;
    words: two lists, the most probable next tokens. source [T], tokens [T]: of the source, as numbers and as text;
    first: the position from which on the prompts differ. z [L, T, H, dv]: the outputs of all heads on the source; norms
    [L, H]: of the heads' outputs on the base. permuted, patched [L, H]: logit differences of the base run with one head
    shuffled, or from the source. Raises ValueError, before any forward pass, where the source has the answer's token
    not twice, and for a layer to show that there is not.
    """
    settings = study.settings

    def compute() -> Arrays:
        model, tokenizer = study.pair
        tokens = ioi_tokens(pair_from_texts(*settings.texts, *settings.names), tokenizer)
        check_context(model, [len(tokens.source)], "shorter texts")
        numbers.check_layer(len(prepare(model).layers), settings.shown_layer)
        numbers.places_of_name(np.array(tokens.source), tokens.answers[0], settings.names[0])
        base, source, answers = (torch.tensor([ids]) for ids in (tokens.base, tokens.source, tokens.answers))
        logits = last_logits(model, torch.cat([base, source]))
        z, base_z = heads_of(model, source), heads_of(model, base)
        patched, _ = patch_map(model, base, z, answers, tokens.first)
        shuffled, _ = patch_map(model, base, permuted(base_z, settings.seed), answers)
        pairs, log_softmax = logits[:, list(tokens.answers)], logits.log_softmax(1).numpy()
        likeliest = np.argsort(-log_softmax, axis=1, kind="stable")[:, :WORDS]
        norms = [torch.linalg.vector_norm(part[0].float(), dim=(0, 2)).cpu().numpy() for part in base_z.values()]
        return {
            "log_softmax": log_softmax,
            "scores": (pairs[:, 0] - pairs[:, 1]).numpy(),
            "answers": np.array(tokens.answers),
            "words": [[tokenizer.decode([int(token)]) for token in row] for row in likeliest],
            "source": np.array(tokens.source),
            "tokens": [tokenizer.decode([token]) for token in tokens.source],
            "first": tokens.first,
            "z": np.stack([part[0].float().cpu().numpy() for part in z.values()]),
            "norms": np.stack(norms),
            "permuted": shuffled[0],
            "patched": patched[0],
        }

    more = {"prompts": list(settings.texts), "names": list(settings.names), "seed": settings.seed}
    return study.record("IOI example", compute, lambda: settings.texts, **more).data


def tutorial(study: Study) -> dict[str, tuple[float, float]]:
    """The numbers of the nnsight tutorial on its pair of prompts, (value, 0) by id of data/published.

    There are none for a model that the tutorial does not measure.
    """
    published = files.published(study.figure.stem)
    if study.model.name != published["circuit"]["model"]:
        return {}
    texts = (TUTORIAL.format("Mary"), TUTORIAL.format("John"))
    own = study.replace(texts=texts, names=("John", "Mary"), shown_layer=None)
    return numbers.tutorial_values(example(own), [row["id"] for row in published["values"]])


# ------------------------------------------------------------------------------------------------ many pairs


def name_pairs(study: Study, **changes: Any) -> NamePairs:
    """The generated pairs of a study. changes: of corruption, prompts, seed. Raises ValueError for too many prompts."""
    names = ("corruption", "prompts", "seed", "held_out")
    drawn = {name: getattr(study.settings, name) for name in names} | changes
    return NamePairs(study.model, folder=study.folder, **drawn)


def _blocks(
    study: Study,
    what: str,
    pairs: NamePairs,
    blocks: Callable[[], Sequence[Block]],
    compute: Callable[[Block], Arrays],
    join: Callable[[list[Arrays]], Arrays],
    **asked: Any,
) -> Arrays:
    """What is measured of pairs in blocks, see `Study.blocks`."""

    def planned() -> Sequence[Block]:
        pairs.check()
        return blocks()

    asked |= {"prompts": pairs.prompts, "corruption": pairs.corruption, "seed": pairs.seed}
    asked |= {"held_out": pairs.holds_out, "lists": lists_digest(pairs.word_lists)}
    return study.blocks(f"IOI {what}", planned, compute, join, lambda: pairs.texts, **asked).data


def _in_order(pairs: NamePairs, names: Sequence[str], measured: Sequence[Arrays]) -> Arrays:
    """The named arrays [n, ...] of several blocks as one each, [N, ...] in the order of the `pairs`; clusters [N]."""
    order = np.argsort([number for block in measured for number in block["numbers"]])
    joined = {name: np.concatenate([block[name] for block in measured])[order] for name in names}
    return {**{name: array.astype(np.float32) for name, array in joined.items()}, "clusters": pairs.clusters}


def _some(pairs: NamePairs, most: int = CIRCUIT) -> list[list[int]]:
    """The numbers of the pairs that are measured together: of one shape, at most so many."""
    groups = group_by_shape(pairs.tokens).values()
    return [numbers[start : start + most] for numbers in groups for start in range(0, len(numbers), most)]


def _chunks(count: int, size: int) -> list[list[int]]:
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]


def maps(study: Study) -> Arrays:
    """What patching one head at a time changes in every pair.

    base, source [N]: logit differences; noised [N, L, H]: of the base run with one head from the source; denoised
    [N, L, H]: of the source run with one head from the base; attribution [N, L, H]: the first-order estimate of noised
    minus base; direct [N, L, H]: the part of it that goes to the output directly; probability [N]: of IO after the
    base; clusters [N].
    """
    pairs = name_pairs(study)

    def blocks() -> list[list[int]]:
        support = prepare(study.pair[0])
        return _some(pairs, max(1, PATCHED // (len(support.layers) * support.heads)))

    def compute(some: Block) -> Arrays:
        found = measure(study.pair[0], *pairs.batch(some), pairs.tokens[some[0]].first)
        return {**found, "numbers": list(some)}

    return _blocks(study, "maps", pairs, blocks, compute, partial(_in_order, pairs, MAPS_AND_RUNS))


def population(study: Study) -> Arrays:
    """The `maps` of the model, and of its untrained twin on 16 pairs at most, None if the control is switched off."""
    twin = study.twin(prompts=min(UNTRAINED, study.settings.prompts)) if study.settings.untrained_control else None
    return {"trained": maps(study), "untrained": None if twin is None else maps(twin)}


# ------------------------------------------------------------------------------------------------ sets of heads


def alone(study: Study, sets: Bools) -> Arrays:
    """The logit differences of fresh base prompts, 128 at most, where only the heads of a set work.

    sets [K, L, H]. whole [N]: of all heads; alone [K, N]; clusters [N]. Heads outside of a set are ablated at all
    positions: their outputs become the mean over prompts of one frame with three unrelated names.
    Source: Wang et al. 2022, section 2.1, p_ABC; there a head counts at some positions only.
    """
    pairs = name_pairs(
        study, seed=study.settings.seed + 1, prompts=min(CIRCUIT, study.settings.prompts), corruption="abc"
    )
    every = np.concatenate([np.ones_like(sets[:1]), sets])

    @cache
    def frames() -> list[Any]:
        """By frame: the numbers of its pairs, the base's tokens and answers, the mean of z over sources by layer."""
        groups = []
        for frame in sorted({pair.frame for pair in pairs.drawn.pairs}):
            some = [number for number, pair in enumerate(pairs.drawn.pairs) if pair.frame == frame]
            base, source, answers = pairs.batch(some)
            means = {layer: z.mean(0, keepdim=True) for layer, z in heads_of(study.pair[0], source).items()}
            groups.append((some, base, answers, means))
        return groups

    def compute(places: Block) -> Arrays:
        scores = np.empty(len(pairs.drawn.pairs), np.float32)
        for some, base, answers, means in frames():
            scores[some] = ablated_outside(study.pair[0], base, answers, means, every[places[0]])
        return {"scores": scores}

    def join(measured: list[Arrays]) -> Arrays:
        scores = np.stack([block["scores"] for block in measured])
        return {"whole": scores[0], "alone": scores[1:], "clusters": pairs.clusters}

    blocks = partial(_chunks, len(every), 1)
    return _blocks(study, "sets of heads", pairs, blocks, compute, join, sets=_digest(sets))


def circuit(study: Study) -> Arrays:
    """What sets of heads do `alone` that `population` chooses, and the kind and size of each, see `curve_sets`."""
    settings = study.settings
    chosen = numbers.chosen_on_a_half(study.arrays("population")["trained"], settings)
    names, sets = numbers.curve_sets(chosen, settings.random_sets, settings.seed)
    return {**alone(study, sets), "names": names}


# ------------------------------------------------------------------------------------------------ paths


def paths_between(study: Study, heads: Sequence[Head]) -> Arrays:
    """What K heads tell each other and the output, on fresh pairs, 32 at most.

    direct [N, K] and edges [N, K, K, 4]: changes of the logit difference, see `scores.paths`; base, source [N];
    clusters [N]. Raises ValueError for no head, one that there is not, and one that comes twice, and UnsupportedModel
    for a class whose layers cannot be taken apart.
    """
    pairs = name_pairs(study, seed=study.settings.seed + 1, prompts=min(PATHS, study.settings.prompts))

    def compute(some: Block) -> Arrays:
        model, (base, source, answers) = study.pair[0], pairs.batch(some)
        found = path_effects(model, base, source, answers, heads)
        return {
            "direct": found.direct.numpy(),
            "edges": found.edges.numpy(),
            "base": logit_difference(model, base, answers).numpy(),
            "source": logit_difference(model, source, answers).numpy(),
            "numbers": list(some),
        }

    join, asked = partial(_in_order, pairs, ("direct", "edges", "base", "source")), [list(head) for head in heads]
    return _blocks(study, "paths", pairs, partial(_some, pairs), compute, join, heads=asked)


def paths(study: Study) -> Arrays:
    """The `paths_between` the strongest heads that `population` chooses, and these heads; or why there are none."""
    if refused := taken_apart(study)["refused"]:
        return {"refused": refused}
    chosen = numbers.chosen_on_a_half(study.arrays("population")["trained"], study.settings)
    heads = sorted(top(np.abs(chosen), min(study.settings.path_heads, chosen.size)))
    return {**paths_between(study, heads), "refused": "", "heads": heads}


def taken_apart(study: Study) -> Arrays:
    """The component graph [layers, heads, whether these are parallel]; refused: why there is none, else empty."""

    def compute() -> Arrays:
        model, tokenizer = study.pair
        try:
            found = graph_of(Components(model, torch.tensor([tokenizer(study.settings.texts[0]).input_ids])))
        except UnsupportedModel as error:
            return {"graph": [], "refused": str(error)}
        return {"graph": [found.layers, found.heads, found.parallel], "refused": ""}

    return study.record("IOI components", compute, lambda: study.settings.texts[:1], text=study.settings.texts[0]).data


# ------------------------------------------------------------------------------------------------ edges


def edges(study: Study) -> Arrays:
    """Scores of all edges of the component graph on some pairs; exact effects and circuits on fresh ones.

    graph, refused: see `taken_apart`, which is all for a class whose layers cannot be. means: by method, the mean score
    of every edge [U, V]; "exact" is among them where all edges were measured on the pairs that scores are of, too.
    drawn [E, 2]: sender and reader of the edges whose exact effects were measured; effects [N, E]: how far the logit
    difference falls. circuits: for every ranking, by signed scores and by absolute ones, its sizes [K], its runs [K, N]
    and those without any edge [N]. full [N]: logit differences of the base run; clusters [N].
    """
    settings = study.settings
    count = min(settings.edge_pairs, settings.prompts)
    scored, judged = (name_pairs(study, prompts=count, seed=settings.seed + later) for later in (0, 1))
    apart = taken_apart(study)
    if apart["refused"]:
        return apart
    means: dict[str, Any] = {method: _edge_scores(study, scored, method) for method in numbers.METHODS}
    graph = ComponentGraph(*apart["graph"])
    drawn = numbers.drawn_edges(graph, means, settings.exact_edges, settings.seed)
    effects = _exact_effects(study, judged, drawn)
    if len(drawn) == graph.size:
        means[numbers.EXACT] = np.zeros(graph.shape)
        exact = _exact_effects(study, scored, drawn)["effects"].mean(0, dtype=np.float64)
        means[numbers.EXACT][tuple(drawn.T)] = exact
    rankings = dict(means)
    for place in range(1, RANDOM + 1):
        rankings[f"random {place}"] = np.random.default_rng((settings.seed, place)).standard_normal(graph.shape)
    circuits = {
        name: {
            by: _circuit_runs(study, judged, Circuits.of(graph, scores, absolute=by == "CMD")) for by in ("CPR", "CMD")
        }
        for name, scores in rankings.items()
    }
    return {**apart, "means": means, "drawn": drawn, "circuits": circuits, **effects}


def _edge_scores(study: Study, pairs: NamePairs, method: Method) -> Any:
    def compute(some: Block) -> Arrays:
        scores = edge_scores(study.pair[0], *pairs.batch(some), method, STEPS)
        return {"sum": scores.double().sum(0).numpy(), "count": len(some)}

    def join(measured: list[Arrays]) -> Arrays:
        total = sum(block["sum"] for block in measured) / sum(block["count"] for block in measured)
        return {"scores": total.astype(np.float32)}

    asked = {"method": method, "steps": 1 if method == numbers.EAP else STEPS}
    return _blocks(study, "edge scores", pairs, partial(_some, pairs, SCORED), compute, join, **asked)["scores"]


def _by_shape(pairs: NamePairs, run: Callable[..., torch.Tensor]) -> np.ndarray:
    """What run(base, source, answers) gives of all pairs, [N, ...] in their order."""
    groups = group_by_shape(pairs.tokens).values()
    found = [{"runs": run(*pairs.batch(some)).numpy(), "numbers": some} for some in groups]
    return _in_order(pairs, ["runs"], found)["runs"]


def _exact_effects(study: Study, pairs: NamePairs, places: Ints) -> Arrays:
    def compute(some: Block) -> Arrays:
        chosen = [(int(sender), int(reader)) for sender, reader in places[list(some)]]
        return {"effects": _by_shape(pairs, partial(exact_scores, study.pair[0], edges=chosen))}

    def join(measured: list[Arrays]) -> Arrays:
        full = _by_shape(pairs, lambda base, _, answers: logit_difference(study.pair[0], base, answers))
        effects = np.concatenate([block["effects"] for block in measured], 1)
        return {"effects": effects, "full": full, "clusters": pairs.clusters}

    blocks = partial(_chunks, len(places), EDGES)
    return _blocks(study, "exact effects of edges", pairs, blocks, compute, join, edges=_digest(places))


def _circuit_runs(study: Study, pairs: NamePairs, circuits: Circuits) -> Arrays:
    every = np.concatenate([circuits.edges, np.zeros_like(circuits.edges[:1])])

    def compute(some: Block) -> Arrays:
        run = partial(circuit_metrics, study.pair[0], circuits=[*every[list(some)]])
        return {"runs": _by_shape(pairs, lambda *batch: run(*batch).T)}

    def join(measured: list[Arrays]) -> Arrays:
        runs = np.concatenate([block["runs"] for block in measured], 1).T
        return {"runs": runs[:-1], "empty": runs[-1]}

    blocks, asked = partial(_chunks, len(every), CIRCUITS), _digest(circuits.edges)
    runs = _blocks(study, "circuits of edges", pairs, blocks, compute, join, circuits=asked)
    return {"sizes": circuits.sizes, **runs}


def _digest(array: NDArray[Any]) -> str:
    packed = np.packbits(array) if array.dtype == bool else array
    return digest([str(array.shape), packed.tobytes().hex()])
