"""What heads, paths and edges carry in indirect object identification: from a study to arrays.

N is the number of pairs of prompts, T that of their tokens, L that of layers with attention, H that of the heads of
each, dv the size of a head's output z, U and V the numbers of senders and readers of a component graph. A logit
difference is the logit of the base's answer IO minus that of the repeated name S behind the last token; `answers`
[N, 2] are their tokens. A head is a position (layer, head) in arrays [L, H]; activations are dictionaries by the
model's own layer numbers. Pairs that share a frame and names are one cluster [N].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.batches import check_context, logits_at
from util.engine.call import Instrument, UnsupportedModel
from util.engine.components import Components, direct_effects
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureHeads, PatchHeads
from util.engine.replay import Runs, head_edit, plan_of, replay
from util.figures.ioi_patching import numbers
from util.figures.ioi_patching.numbers import Ints
from util.prompts.ioi import IOITokens, group_by_shape, ioi_tokens, pair_from_texts
from util.roles.name_roles import NamePairs
from util.scores.attribution import STEPS, Method, edge_scores, model_graph
from util.scores.exact import circuit_metrics, exact_scores, path_effects, stream_effects
from util.scores.graph import ComponentGraph, circuits_of
from util.stats.heads import Bools, Head, top
from util.study.model import digest, lists_digest
from util.study.records import chunks, joined
from util.study.study import Study

Arrays = dict[str, Any]
Activations = Mapping[int, Tensor]  # by the model's own layer number, [N, T, H, dv]
Block = Sequence[int]  # numbers of what is measured together
UNTRAINED, CIRCUIT, PATHS = 16, 128, 32  # pairs at most: of the twin, of sets of heads, of paths
WORDS = 5  # most probable next tokens that are kept
# What is measured together, and kept if a run is interrupted: seconds to a minute each.
PATCHED, SCORED, EDGES, CIRCUITS = 4096, 16, 128, 4  # heads of all pairs; pairs; edges; circuits, on all pairs
RANDOM = 2  # random rankings of edges


# ------------------------------------------------------------------------------------------------ runs of a model


@torch.inference_mode()
def heads_of(model: PreTrainedModel, ids: Tensor) -> dict[int, Tensor]:
    """The outputs z of all heads on prompts ids [N, T], by the model's own layer number [N, T, H, dv]."""
    with instrument(model, heads := CaptureHeads()):
        model.base_model(ids.to(input_device(model)), use_cache=False)
    return heads.z


@torch.inference_mode()
def last_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The logits [N, V] behind the last token of prompts ids [N, T], float32, on the CPU."""
    with logits_at(model, torch.tensor([ids.shape[1] - 1])):
        return model(ids.to(input_device(model)), use_cache=False).logits[:, -1].float().cpu()


@torch.inference_mode()
def logit_difference(model: PreTrainedModel, ids: Tensor, answers: Tensor, *instruments: Instrument) -> Tensor:
    """The logit differences [N] of runs with these instruments attached, float32 or better like those of `replay`."""
    run = Runs(model, plan_of(model, ids.shape[1]))
    with instrument(model, *instruments), run.unembedding(answers) as columns:
        pair = run.read(run.whole(ids.to(input_device(model)), slice(None)), columns).cpu()
    return pair[:, 0] - pair[:, 1]


def permuted(z: Activations, seed: int) -> dict[int, Tensor]:
    """Every head's outputs [1, T, H, dv], shuffled over tokens and dimensions together.

    Every head has a permutation of its own, which depends on the seed, its layer and its number.
    """
    shuffled = {}
    for layer, outputs in z.items():
        heads = outputs[0].transpose(0, 1)
        order = [np.random.default_rng((seed, layer, h)).permutation(heads[0].numel()) for h in range(len(heads))]
        mixed = heads.flatten(1).gather(1, torch.from_numpy(np.stack(order)).to(heads.device))
        shuffled[layer] = mixed.view_as(heads).transpose(0, 1)[None]
    return shuffled


def patch_map(
    model: PreTrainedModel, ids: Tensor, values: Activations, answers: Tensor, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The logit differences [N, L, H] with one head at a time replaced, and those of the base run [N].

    values: what the heads' outputs become, at all positions from `first` on.
    """
    support = prepare(model)
    edits = [head_edit(layer, head, values[layer]) for layer in support.layers for head in range(support.heads)]
    replayed = replay(model, ids, edits, answers, first)
    patched, base = (logits[..., 0] - logits[..., 1] for logits in replayed)
    return patched.view(len(support.layers), support.heads, -1).permute(2, 0, 1).numpy(), base.numpy()


def direct_map(model: PreTrainedModel, ids: Tensor, base: Activations, source: Activations, answers: Tensor) -> Any:
    """The change [N, L, H] of the logit difference by what each head alone tells the output directly.

    The last token's residual stream of the base run gets one head's write of the source instead of the base's. The
    final norm and the unembedding see the change, later layers do not. All NaN for a class of models for which
    `direct_effects` returns None.
    """
    support = prepare(model)
    changes = {layer: source[layer][:, -1:] - base[layer][:, -1:] for layer in support.layers}
    effects = direct_effects(model, ids, changes, answers)
    if effects is None:
        return np.full((len(ids), len(support.layers), support.heads), np.nan, np.float32)
    changed, plain = (logits[..., 0, 0] - logits[..., 0, 1] for logits in effects)
    return (changed - plain).permute(2, 0, 1).numpy()


# ------------------------------------------------------------------------------------------------ one pair


def _texts(study: Study) -> tuple[IOITokens, Tensor, Tensor, Tensor]:
    """The two texts of the settings as tokens; base and source [1, T] and the answers [1, 2] as tensors.

    Raises ValueError for texts that do not go together, and for those that are longer than the context.
    """
    model, tokenizer = study.pair
    tokens = ioi_tokens(pair_from_texts(*study.settings.texts, *study.settings.names), tokenizer)
    check_context(model, [len(tokens.source)], "shorter texts")
    return tokens, torch.tensor([tokens.base]), torch.tensor([tokens.source]), torch.tensor([tokens.answers])


def example(study: Study) -> Arrays:
    """What a model does with the two texts of the settings, and what single heads change.

    log_softmax [2, V]: after base and source; scores [2]: their logit differences; answers [2]: tokens of the names;
    words: two lists, the most probable next tokens. source [T], tokens [T]: of the source, as numbers and as text;
    z [L, T, H, dv]: the outputs of all heads on the source; norms
    [L, H]: of the heads' outputs on the base. permuted, patched [L, H]: changes of the base run's logit difference with
    one head shuffled, or from the source.
    """
    settings = study.settings

    def compute() -> Arrays:
        model, tokenizer = study.pair
        tokens, base, source, answers = _texts(study)
        logits = last_logits(model, torch.cat([base, source]))
        z, base_z = heads_of(model, source), heads_of(model, base)
        pairs, log_softmax = logits[:, list(tokens.answers)], logits.log_softmax(1).numpy()
        likeliest = np.argsort(-log_softmax, axis=1, kind="stable")[:, :WORDS]
        shuffled = permuted(base_z, settings.seed)
        # each beside the base run of its own map: a model in 16 bits rounds `logits`, which would shift all heads alike
        maps = {"permuted": patch_map(model, base, shuffled, answers)}
        maps["patched"] = patch_map(model, base, z, answers, tokens.first)
        norms = [torch.linalg.vector_norm(part[0].float(), dim=(0, 2)).cpu().numpy() for part in base_z.values()]
        return {
            "log_softmax": log_softmax,
            "scores": (pairs[:, 0] - pairs[:, 1]).numpy(),
            "answers": np.array(tokens.answers),
            "words": [[tokenizer.decode([int(token)]) for token in row] for row in likeliest],
            "source": np.array(tokens.source),
            "tokens": [tokenizer.decode([token]) for token in tokens.source],
            "z": np.stack([part[0].float().cpu().numpy() for part in z.values()]),
            "norms": np.stack(norms),
            **{name: changed[0] - plain[0] for name, (changed, plain) in maps.items()},
        }

    texts, names = list(settings.texts), list(settings.names)
    return study.record("IOI example 2", compute, lambda: texts, prompts=texts, names=names, seed=settings.seed).data


def streams(study: Study) -> Arrays:
    """What is carried at each token of the texts of the settings by the stream and by what is added to it.

    effects [3, layers, T]: changes of the logit difference, see `scores.exact.stream_effects`; base, source: these;
    tokens [T]: of the source, as text. Or refused: why a class has none.
    """
    settings = study.settings
    if refused := taken_apart(study)["refused"]:
        return {"refused": refused}

    def compute() -> Arrays:
        model, tokenizer = study.pair
        tokens, base, source, answers = _texts(study)
        effects, plain = stream_effects(model, base, source, answers)
        return {
            "effects": effects[:, :, 0].numpy(),
            "base": float(plain[0]),
            "source": float(logit_difference(model, source, answers)[0]),
            "tokens": [tokenizer.decode([token]) for token in tokens.source],
            "refused": "",
        }

    texts, names = list(settings.texts), list(settings.names)
    return study.record("IOI streams", compute, lambda: texts, prompts=texts, names=names).data


# ------------------------------------------------------------------------------------------------ many pairs


def name_pairs(study: Study, **changes: Any) -> NamePairs:
    """The generated pairs of a study. changes: of corruption, prompts, seed. Raises ValueError for too many prompts."""
    s = study.settings
    drawn = {"corruption": s.corruption, "prompts": s.prompts, "seed": s.seed, "held_out": s.held_out, **changes}
    return NamePairs(study.model, folder=study.folder, **drawn)


def _fresh(study: Study, most: int, **changes: Any) -> NamePairs:
    """Pairs that chose nothing, at most so many.

    Some share frame and names with one that did: one in a hundred with all names, one in five of the embedded model.
    """
    settings = study.settings
    return name_pairs(study, seed=settings.seed + 1, prompts=min(most, settings.prompts), **changes)


def _blocks(
    study: Study,
    what: str,
    pairs: NamePairs,
    blocks: Callable[[], Sequence[Block]],
    compute: Callable[[Block], Arrays],
    join: Callable[[list[Arrays]], Arrays],
    **request: Any,
) -> Arrays:
    """What is measured of pairs in blocks, see `Study.blocks`, and their clusters [N]."""

    def planned() -> Sequence[Block]:
        pairs.check()
        return blocks()

    def with_clusters(measured: list[Arrays]) -> Arrays:
        return {**join(measured), "clusters": pairs.clusters}

    return study.blocks(
        f"IOI {what}",
        planned,
        compute,
        with_clusters,
        lambda: pairs.texts,
        prompts=pairs.prompts,
        corruption=pairs.corruption,
        seed=pairs.seed,
        held_out=pairs.holds_out,
        lists=lists_digest(pairs.word_lists),
        **request,
    ).data


def _alike(pairs: NamePairs, most: int = CIRCUIT) -> list[Block]:
    """The numbers of the pairs that are measured together: of one shape, at most so many."""
    return [some for group in group_by_shape(pairs.tokens).values() for some in chunks(group, most)]


def _of_all(pairs: NamePairs, run: Callable[..., Tensor]) -> np.ndarray:
    """What run(base, source, answers) gives of all pairs, [N, ...] in their order."""
    groups = list(group_by_shape(pairs.tokens).values())
    return torch.cat([run(*pairs.batch(some)) for some in groups]).numpy()[np.argsort(np.concatenate(groups))]


def maps(study: Study) -> Arrays:
    """What patching one head at a time changes in every pair.

    base, source [N]: logit differences; noised [N, L, H]: of the base run with one head from the source; denoised
    [N, L, H]: of the source run with one head from the base; direct [N, L, H]: the part of noised minus base that goes
    to the output directly; probability [N]: of IO after the base; clusters [N].
    """
    pairs = name_pairs(study)

    def blocks() -> list[Block]:
        support = prepare(study.pair[0])
        return _alike(pairs, max(1, PATCHED // (len(support.layers) * support.heads)))

    def compute(some: Block) -> Arrays:
        model, (base, source, answers) = study.pair[0], pairs.batch(some)
        first, z, source_z = pairs.tokens[some[0]].first, heads_of(model, base), heads_of(model, source)
        noised, intact = patch_map(model, base, source_z, answers, first)
        denoised, corrupted = patch_map(model, source, z, answers, first)
        return {
            "noised": noised,
            "denoised": denoised,
            "direct": direct_map(model, base, z, source_z, answers),
            "base": intact,
            "source": corrupted,
            "probability": last_logits(model, base).softmax(1).gather(1, answers)[:, 0].numpy(),
            "numbers": list(some),
        }

    arrays = ("denoised", "noised", "direct", "base", "source", "probability")
    return _blocks(study, "maps", pairs, blocks, compute, joined(*arrays, by="numbers"))


def population(study: Study) -> Arrays:
    """The `maps` of the model, and of its untrained twin on 16 pairs at most, None if the control is switched off."""
    settings, trained = study.settings, maps(study)
    untrained = maps(study.twin(prompts=min(UNTRAINED, settings.prompts))) if settings.untrained_control else None
    return {"trained": trained, "untrained": untrained}


# ------------------------------------------------------------------------------------------------ sets of heads


def alone(study: Study, sets: Bools) -> Arrays:
    """The logit differences of fresh base prompts, 128 at most, where only the heads of a set work.

    sets [K, L, H]. whole [N]: of all heads; alone [K, N]; clusters [N]. Heads outside of a set are ablated at all
    positions: their outputs become the mean over prompts of one frame with three unrelated names.
    Source: Wang et al. 2022, section 2.1, p_ABC; there a head counts at some positions only.
    """
    pairs = _fresh(study, CIRCUIT, corruption="abc")
    kept = np.concatenate([np.ones_like(sets[:1]), sets])

    @cache
    def frames() -> list[Any]:
        """By frame: the numbers of its pairs, the base's tokens and answers, the mean of z over sources by layer."""
        groups, of_pairs = [], np.array([pair.frame for pair in pairs.drawn])
        for frame in np.unique(of_pairs):
            some = np.flatnonzero(of_pairs == frame).tolist()
            base, source, answers = pairs.batch(some)
            means = [z.mean(0, keepdim=True) for z in heads_of(study.pair[0], source).values()]
            groups.append((some, base, answers, means))
        return groups

    def compute(places: Block) -> Arrays:
        model, scores = study.pair[0], np.empty(len(pairs.drawn), np.float32)
        for some, base, answers, means in frames():
            patches = [
                PatchHeads(layer, gone, mean[:, :, gone])
                for layer, mean, works in zip(prepare(model).layers, means, kept[places[0]], strict=True)
                if (gone := np.flatnonzero(~works).tolist())
            ]
            scores[some] = logit_difference(model, base, answers, *patches).numpy()
        return {"scores": scores}

    def join(measured: list[Arrays]) -> Arrays:
        whole, *scores = (block["scores"] for block in measured)
        return {"whole": whole, "alone": np.stack(scores)}

    blocks = partial(chunks, range(len(kept)), 1)
    return _blocks(study, "sets of heads", pairs, blocks, compute, join, sets=_digest(sets))


def circuit(study: Study) -> Arrays:
    """What sets of heads do `alone` that `population` chooses, and the kind and size of each, see `curve_sets`."""
    settings, chosen = study.settings, study.numbers("population")["population"]["chosen"]
    names, sets = numbers.curve_sets(chosen, settings.random_sets, settings.seed)
    return {**alone(study, sets), "names": names}


# ------------------------------------------------------------------------------------------------ paths


def paths_between(study: Study, heads: Sequence[Head]) -> Arrays:
    """What K heads tell each other and the output, on fresh pairs, 32 at most.

    direct [N, K] and edges [N, K, K, 4]: changes of the logit difference, see `scores.exact.path_effects`; base, source
    [N]; clusters [N]. Raises ValueError for no head, one that there is not, and one that comes twice, and
    UnsupportedModel for a class whose layers cannot be taken apart.
    """
    pairs = _fresh(study, PATHS)

    def compute(some: Block) -> Arrays:
        model, (base, source, answers) = study.pair[0], pairs.batch(some)
        direct, edges = path_effects(model, base, source, answers, heads)
        return {
            "direct": direct.numpy(),
            "edges": edges.numpy(),
            "base": logit_difference(model, base, answers).numpy(),
            "source": logit_difference(model, source, answers).numpy(),
            "numbers": list(some),
        }

    join, named = joined("direct", "edges", "base", "source", by="numbers"), [list(head) for head in heads]
    return _blocks(study, "paths", pairs, partial(_alike, pairs), compute, join, heads=named)


def paths(study: Study) -> Arrays:
    """The `paths_between` the strongest heads that `population` chooses, and these heads; or why there are none."""
    if refused := taken_apart(study)["refused"]:
        return {"refused": refused}
    chosen = study.numbers("population")["population"]["chosen"]
    heads = sorted(top(np.abs(chosen), min(study.settings.path_heads, chosen.size)))
    return {**paths_between(study, heads), "refused": "", "heads": heads}


def taken_apart(study: Study) -> Arrays:
    """The component graph [layers, heads, whether these are parallel]; refused: why there is none, else empty."""
    text = study.settings.texts[0]

    def compute() -> Arrays:
        model, tokenizer = study.pair
        try:
            graph = model_graph(Components(model, torch.tensor([tokenizer(text).input_ids])).model)
        except UnsupportedModel as error:
            return {"graph": [], "refused": str(error)}
        return {"graph": [graph.layers, graph.heads, graph.parallel], "refused": ""}

    return study.record("IOI components", compute, lambda: [text], text=text).data


# ------------------------------------------------------------------------------------------------ edges


def edges(study: Study) -> Arrays:
    """Scores of all edges of the component graph on some pairs; exact effects and circuits on fresh ones.

    graph, refused: see `taken_apart`, which is all for a class whose layers cannot be. means: by method, the mean score
    of every edge [U, V]. drawn [E, 2]: sender and reader of the edges whose exact effects were measured; effects
    [N, E]: how far the logit difference falls. circuits: for every ranking, by signed scores and by absolute ones, its
    sizes [K], its runs [K, N] and those without any edge [N]. full [N]: logit differences of the base run; clusters
    [N].
    """
    settings, apart = study.settings, taken_apart(study)
    if apart["refused"]:
        return apart
    count = min(settings.edge_pairs, settings.prompts)
    scored, judged = name_pairs(study, prompts=count), _fresh(study, count)
    graph = ComponentGraph(*apart["graph"])
    means: dict[str, Any] = {method: _edge_scores(study, scored, method) for method in numbers.METHODS}
    drawn = numbers.drawn_edges(graph, means, settings.exact_edges, settings.seed)
    rankings = dict(means)
    for place in range(1, RANDOM + 1):
        rankings[f"random {place}"] = np.random.default_rng((settings.seed, place)).standard_normal(graph.shape)
    circuits = {
        name: {
            by: _circuit_runs(study, judged, circuits_of(graph, scores, absolute=by == "CMD")) for by in ("CPR", "CMD")
        }
        for name, scores in rankings.items()
    }
    return {**apart, "means": means, "drawn": drawn, "circuits": circuits, **_exact_effects(study, judged, drawn)}


def _edge_scores(study: Study, pairs: NamePairs, method: Method) -> Any:
    def compute(some: Block) -> Arrays:
        scores = edge_scores(study.pair[0], *pairs.batch(some), method, STEPS)
        return {"sum": scores.double().sum(0).numpy(), "count": len(some)}

    def join(measured: list[Arrays]) -> Arrays:
        total = sum(block["sum"] for block in measured) / sum(block["count"] for block in measured)
        return {"scores": total.astype(np.float32)}

    blocks, steps = partial(_alike, pairs, SCORED), 1 if method == numbers.EAP else STEPS
    return _blocks(study, "edge scores", pairs, blocks, compute, join, method=method, steps=steps)["scores"]


def _exact_effects(study: Study, pairs: NamePairs, places: Ints) -> Arrays:
    def compute(some: Block) -> Arrays:
        chosen = [(int(sender), int(reader)) for sender, reader in places[list(some)]]
        return {"effects": _of_all(pairs, partial(exact_scores, study.pair[0], edges=chosen))}

    def join(measured: list[Arrays]) -> Arrays:
        full = _of_all(pairs, lambda base, _, answers: logit_difference(study.pair[0], base, answers))
        return {"full": full, **joined("effects", axis=1)(measured)}

    blocks = partial(chunks, range(len(places)), EDGES)
    return _blocks(study, "exact effects of edges", pairs, blocks, compute, join, edges=_digest(places))


def _circuit_runs(study: Study, pairs: NamePairs, circuits: Bools) -> Arrays:
    kept = np.concatenate([circuits, np.zeros_like(circuits[:1])])

    def compute(some: Block) -> Arrays:
        run = partial(circuit_metrics, study.pair[0], circuits=kept[list(some)])
        return {"runs": _of_all(pairs, lambda *batch: run(*batch).T)}

    def join(measured: list[Arrays]) -> Arrays:
        runs = np.concatenate([block["runs"] for block in measured], 1).T
        return {"runs": runs[:-1], "empty": runs[-1]}

    blocks, request = partial(chunks, range(len(kept)), CIRCUITS), _digest(circuits)
    runs = _blocks(study, "circuits of edges", pairs, blocks, compute, join, circuits=request)
    return {"sizes": circuits.sum(axis=(1, 2)), **runs}


def _digest(array: NDArray[Any]) -> str:
    packed = np.packbits(array) if array.dtype == bool else array
    return digest([str(array.shape), packed.tobytes().hex()])
