"""Indirect object identification: what each head carries, by patching it (Cohen, project 41; Wang et al. 2022)."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import instrument, support
from util.engine.batches import check_context
from util.engine.call import Instrument
from util.engine.handshake import input_device, prepare
from util.engine.instruments import AddHeads, CaptureHeads, PatchHeads
from util.engine.replay import Edit, Place, Replayed, direct_effects, replay
from util.figures.ioi_patching import measures
from util.figures.planted_controls import planted_model
from util.load_model_and_data import origin
from util.models import planted
from util.models.embedded_words import HELD_OUT_FRAMES, HELD_OUT_NAMES
from util.prompts.ioi import (
    CORRUPTIONS,
    IOIPair,
    IOIPrompts,
    IOITokens,
    group_by_shape,
    ioi_prompts,
    ioi_tokens,
    pair_from_texts,
)
from util.records import cache
from util.records.runs import LazyModel, ModelSource, Run, model_request, twin_request
from util.stats.heads import Head

STEM = "ioi_patching"
FEWEST = 8  # pairs of prompts: a half of them chooses heads, the other half needs intervals
UNTRAINED = 16  # pairs for the untrained twin
CIRCUIT = 128  # pairs for sets of heads
PATHS = 32  # pairs for path patching
BLOCK = 4096  # heads patched, all pairs together, in one cached block: seconds to a minute, which a kill can cost
WHOLE = "whole"  # the run of all heads, beside sets of heads
EXAMPLE = (
    "When Mike and Emma went to the cafe, Emma gave a coffee to",
    "When Mike and Emma went to the cafe, Mike gave a coffee to",
)


def request(
    model: str = "embedded",
    texts: tuple[str, str] = EXAMPLE,
    names: tuple[str, str] = ("Mike", "Emma"),
    prompts: int = 128,
    corruption: str = "s2_swap",
    seed: int = 0,
    **which: Any,
) -> cache.Request:
    """What to measure. texts: base and source of the example; names: the answer of the base, and its repeated name.

    prompts, corruption: of the generated data set, see `prompts.ioi`; the embedded model gets frames and names that
    it was not trained on. which: see `model_request`. Raises ValueError for texts and names that make no pair, an
    unknown corruption and fewer than FEWEST prompts, TypeError for numbers that are no integers.
    """
    if len(texts) != 2 or len(names) != 2:
        raise ValueError(f"texts {texts!r}, names {names!r}: give base and source, and the answer and the other name")
    pair_from_texts(*texts, *names)
    if corruption not in CORRUPTIONS:
        raise ValueError(f"corruption = {corruption!r}: choose one of {', '.join(CORRUPTIONS)}")
    prompts, seed = index(prompts), index(seed)
    if prompts < FEWEST:
        raise ValueError(f"prompts = {prompts}: at least {FEWEST} pairs are needed, heads are chosen on half of them")
    return {
        "stem": STEM,
        "schema": 3,
        "method_version": 1,
        **model_request(model, **which),
        "texts": list(texts),
        "names": list(names),
        "prompts": prompts,
        "corruption": corruption,
        "held_out": Path(origin(model)).resolve() == Path(origin("embedded")).resolve(),
        "seed": seed,
    }


def check(request: cache.Request, model: ModelSource = None, folder: str | Path | None = None) -> None:
    """Raises before any work what the request's generated data set would raise: of words that a tokenizer splits.

    Nothing is loaded where the data set was measured already.
    """
    run = _Pairs(request, model, folder, redo=False)
    if cache.load({**run.asked, **POPULATION}, run.folder, run.expected) is None:
        check_context(run.pair[0], [len(tokens.base) for tokens in run.tokens])


def heads_in_stack(heads: Iterable[Head], layers: Sequence[int], count: int) -> list[Head]:
    """Heads by the model's own layer numbers, of heads by their place in the stack of layers that have attention.

    layers: the model's own numbers of these layers; count: heads of each. Raises ValueError for a head that there is
    not, or that comes twice, TypeError for a place that is no integer.
    """
    places = [(index(layer), index(head)) for layer, head in heads]
    wrong = [place for place in places if not (0 <= place[0] < len(layers) and 0 <= place[1] < count)]
    if wrong or len(set(places)) < len(places):
        raise ValueError(
            f"the model has {len(layers)} layers of {count} heads, from 0: "
            + (f"there is no head {wrong[0]}" if wrong else f"a head comes twice in {places}")
        )
    return [(layers[layer], head) for layer, head in places]


# ------------------------------------------------------------------------------------------------ runs


@torch.inference_mode()
def heads_of(model: PreTrainedModel, ids: Tensor) -> dict[int, Tensor]:
    """The outputs z of all heads at all positions, by layer [N, T, H, dv]."""
    with instrument(model, heads := CaptureHeads()):
        model.base_model(ids.to(input_device(model)), use_cache=False)
    return heads.z


def patch_map(
    model: PreTrainedModel, ids: Tensor, values: Mapping[int, Tensor], answers: Tensor, first: int = 0
) -> tuple[np.ndarray, np.ndarray, str]:
    """Logit differences with one head at a time replaced, at all positions from `first` on.

    ids [N, T]; values: by layer, what the heads' outputs [N, T, H, dv] become; answers [N, 2]. Returns [N, L, H], those
    of the base run [N], and how they were computed.
    """
    found = prepare(model)

    def edit(layer: int, head: int) -> Edit:
        def instruments(place: Place) -> list[PatchHeads]:
            if place.layer != layer:
                return []
            value = values[layer][place.prompts, place.tokens, head : head + 1]
            return [PatchHeads(layer, head, value, examples=place.examples)]

        return Edit(layer, instruments)

    edits = [edit(layer, head) for layer in found.layers for head in range(found.heads)]
    seen: Replayed = replay(model, ids, edits, answers, first)
    scores, base = (part[..., 0] - part[..., 1] for part in (seen.logits, seen.base))
    return scores.view(len(found.layers), found.heads, -1).permute(2, 0, 1).numpy(), base.numpy(), seen.path


def permuted(values: Mapping[int, Tensor], seed: int) -> dict[int, Tensor]:
    """Every head's outputs [1, T, H, dv] shuffled over tokens and dimensions together, by a permutation of its own."""
    shuffled = {}
    for layer, z in values.items():
        heads = z[0].transpose(0, 1).flatten(1)
        order = [np.random.default_rng((seed, layer, h)).permutation(heads.shape[1]) for h in range(len(heads))]
        mixed = heads.gather(1, torch.from_numpy(np.stack(order)).to(heads.device))
        shuffled[layer] = mixed.view(z.shape[2], z.shape[1], z.shape[3]).transpose(0, 1)[None]
    return shuffled


def attribution(
    model: PreTrainedModel, ids: Tensor, base: Mapping[int, Tensor], source: Mapping[int, Tensor], answers: Tensor
) -> np.ndarray:
    """Attribution patching: (z_source - z_base) times the gradient of the logit difference on the base run, [N, L, H].

    First order in the change (Nanda 2023; Kramar et al. 2024, without its corrections): two passes for all heads.
    """
    deltas = {layer: torch.zeros_like(z, requires_grad=True) for layer, z in base.items()}
    with torch.enable_grad(), instrument(model, *(AddHeads(layer, delta) for layer, delta in deltas.items())):
        logits = model(ids.to(input_device(model)), use_cache=False).logits[:, -1]
        pair = logits.gather(1, answers.to(logits.device))
        gradients = torch.autograd.grad((pair[:, 0] - pair[:, 1]).sum(), list(deltas.values()))
    layers = [
        ((source[layer] - base[layer]) * gradient).sum(dim=(1, 3))
        for layer, gradient in zip(deltas, gradients, strict=True)
    ]
    return torch.stack([part.float().cpu() for part in layers], dim=1).numpy()


def direct_map(
    model: PreTrainedModel, ids: Tensor, base: Mapping[int, Tensor], source: Mapping[int, Tensor], answers: Tensor
) -> np.ndarray:
    """The change of the logit difference by what each head alone tells the output directly, [N, L, H].

    The last token's residual stream of the base run gets one head's write of the source instead of the base's; the
    final norm and the unembedding see the change, later layers do not. NaN where `replay.direct_effects` has none.
    """
    found = prepare(model)
    changes = {layer: source[layer][:, -1:] - base[layer][:, -1:] for layer in found.layers}
    seen = direct_effects(model, ids, changes, answers)
    if seen is None:
        return np.full((len(ids), len(found.layers), found.heads), np.nan, np.float32)
    scores, plain = (part[..., 0, 0] - part[..., 0, 1] for part in seen)
    return (scores - plain).permute(2, 0, 1).numpy()


# ------------------------------------------------------------------------------------------------ one pair


def example(
    request: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The record of one pair of prompts: all five parts of the seed. Its data:

    log_softmax [2, V] after base and source; scores [2], their logit differences of the base's answers; base, source:
    ids [T], and tokens, the source's as text; next_words [2], the most probable next tokens; answers [2]; first, where
    the prompts differ; z [L, T, H, dv] of the source;
    norms [L, H] of the base's heads over all tokens; permuted [L, H], patched [L, H]: logit differences of the base run
    with one head shuffled, or from the source; layers; path, see `replay.Replayed`.
    Raises ValueError for texts that do not make a pair (`prompts.ioi.pair_from_texts`, `ioi_tokens`).
    """
    own = {name: value for name, value in request.items() if name not in ("prompts", "corruption", "held_out")}
    run = _Example(own, model, folder, redo)

    def compute() -> dict[str, Any]:
        net, tokenizer = run.pair
        prepare(net)
        tokens = ioi_tokens(pair_from_texts(*request["texts"], *request["names"]), tokenizer)
        check_context(net, [len(tokens.base)])
        base, source, answers = (torch.tensor([ids]) for ids in (tokens.base, tokens.source, tokens.answers))
        with torch.inference_mode():
            both = torch.cat([base, source]).to(input_device(net))
            logits = net(both, use_cache=False).logits[:, -1].float().cpu()
        z, base_z = heads_of(net, source), heads_of(net, base)
        patched, plain, how = patch_map(net, base, z, answers, tokens.first)
        shuffled, _, _ = patch_map(net, base, permuted(base_z, request["seed"]), answers)
        pairs = logits[:, list(tokens.answers)]
        return {
            "log_softmax": logits.log_softmax(1).numpy(),
            "scores": (pairs[:, 0] - pairs[:, 1]).numpy(),
            "base": np.array(tokens.base),
            "source": np.array(tokens.source),
            "tokens": [tokenizer.decode([token]) for token in tokens.source],
            "next_words": [tokenizer.decode([int(token)]) for token in logits.argmax(1)],
            "answers": np.array(tokens.answers),
            "first": tokens.first,
            "z": np.stack([part[0].float().cpu().numpy() for part in z.values()]),
            "norms": np.stack(
                [torch.linalg.vector_norm(part[0].float(), dim=(0, 2)).cpu().numpy() for part in base_z.values()]
            ),
            "unpatched": plain,
            "permuted": shuffled[0],
            "patched": patched[0],
            "layers": list(support(net).layers),
            "path": how,
        }

    return run.record({"part": "example"}, compute)


TUTORIAL = "When Mary and John went to the store, {} gave a drink to"


def tutorial(
    request: cache.Request,
    published: Mapping[str, Any],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, tuple[float, float]]:
    """The numbers of the nnsight tutorial on its pair of prompts, (value, 0) by id of data/published."""
    texts = [TUTORIAL.format(name) for name in ("Mary", "John")]
    data = example({**request, "texts": texts, "names": ["John", "Mary"]}, model, folder, redo).data
    return measures.tutorial_values(data, [row["id"] for row in published["values"]])


class _Example(Run):
    @property
    def texts(self) -> list[str]:
        return self.asked["texts"]


# ------------------------------------------------------------------------------------------------ many pairs

POPULATION = {"part": "population"}
MAPS = ("denoised", "noised", "attribution", "direct")  # [N, L, H]
RUNS = ("base", "source", "probability")  # [N]


def population(
    request: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The record of a generated data set of pairs. Its data, all logit differences of the base's answers IO and S:

    base, source [N]; denoised [N, L, H]: the source run (which the corruption has made) with one head from the base;
    noised [N, L, H]: the base run with one head from the source; attribution [N, L, H]: the first-order estimate of
    noised minus base; direct [N, L, H]: that part of it which goes to the output directly, see `direct_map`;
    probability [N]: of IO after the base; clusters [N]: which frame and pair of names; order [N], an index into
    `orders`; dropped and rejected: what `ioi_prompts` left out, and why; path.

    It is measured in cached blocks of pairs, so that an interrupted run, a redo too, goes on where it stopped.
    """
    run = _Pairs(request, model, folder, redo)

    def compute() -> dict[str, Any]:
        found, pairs = prepare(run.pair[0]), run.drawn.pairs
        check_context(run.pair[0], [len(tokens.base) for tokens in run.tokens])
        shape = (len(found.layers), found.heads)
        data: dict[str, Any] = {name: np.empty((len(pairs), *shape), np.float32) for name in MAPS}
        data |= {name: np.empty(len(pairs), np.float32) for name in RUNS}
        for numbers in tqdm(blocks(run.tokens, shape[0] * shape[1]), desc="blocks of prompts", leave=False):
            block = run.block(numbers)
            for name in (*MAPS, *RUNS):
                data[name][numbers] = block[name]
        kinds = {kind: number for number, kind in enumerate(sorted({_cluster(pair) for pair in pairs}))}
        return data | {
            "clusters": np.array([kinds[_cluster(pair)] for pair in pairs]),
            "order": np.array([pair.order == "BABA" for pair in pairs], np.int64),
            "orders": ["ABBA", "BABA"],
            "path": block["path"],
            "dropped": dict(run.drawn.dropped),
            "rejected": dict(run.drawn.words.rejected),
        }

    record = run.record(POPULATION, compute)
    run.forget_blocks()
    return record


def untrained(
    request: cache.Request, model: LazyModel | None = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The `population` of the model's untrained twin, on UNTRAINED pairs at most: the negative control."""
    asked = {**twin_request(request), "prompts": min(UNTRAINED, request["prompts"])}
    return population(asked, model and model.twin(), folder, redo)


def blocks(tokens: Sequence[IOITokens], heads: int) -> list[list[int]]:
    """The numbers of the pairs that are measured together: of one shape, at most BLOCK patched heads."""
    most = max(1, BLOCK // heads)
    return [
        numbers[start : start + most]
        for numbers in group_by_shape(tokens).values()
        for start in range(0, len(numbers), most)
    ]


class _Pairs(Run):
    """The generated pairs of a request, which do not depend on its example."""

    def __init__(self, asked: cache.Request, model: ModelSource, folder: str | Path | None, redo: bool) -> None:
        own = {name: value for name, value in asked.items() if name not in ("texts", "names")}
        super().__init__(own, model, folder, redo)
        self.used: list[cache.Request] = []  # requests of blocks

    @cached_property
    def drawn(self) -> IOIPrompts:
        asked = self.asked
        kept = {"frames": sorted(HELD_OUT_FRAMES), "names": sorted(HELD_OUT_NAMES)} if asked["held_out"] else {}
        return ioi_prompts(self.pair[1], asked["prompts"], asked["seed"], asked["corruption"], **kept)

    @cached_property
    def tokens(self) -> list[IOITokens]:
        return [ioi_tokens(pair, self.pair[1]) for pair in self.drawn.pairs]

    @property
    def texts(self) -> list[str]:
        return [prompt.text for pair in self.drawn.pairs for prompt in (pair.base, pair.source)]

    def batch(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The ids [N, T] of base and source and the answers [N, 2] of pairs of one length."""
        names = ("base", "source", "answers")
        base, source, answers = (torch.tensor([getattr(self.tokens[i], name) for i in numbers]) for name in names)
        return base, source, answers

    def block(self, numbers: list[int]) -> dict[str, Any]:
        """What some pairs of one shape give; never measured again where it is there, not even by redo."""
        known = ("revision", "weights", "dtype", "tokenizer_digest", "prompt_digest", "code_digest")
        request = {**self.asked, **POPULATION, "block": numbers}

        def compute() -> tuple[dict[str, Any], dict[str, Any]]:
            return measure(self.pair[0], *self.batch(numbers), self.tokens[numbers[0]].first), dict(self.origin)

        self.used.append(request)
        expected = {name: self.origin[name] for name in known}
        return cache.load_or_compute(request, compute, self.folder / "blocks", expected).data

    def forget_blocks(self) -> None:
        """Blocks are superfluous once the whole record is there."""
        if cache.record_path({**self.asked, **POPULATION}, self.folder).exists():
            for request in self.used:
                file = cache.record_path(request, self.folder / "blocks")
                with suppress(OSError):
                    file.unlink(missing_ok=True)
                    Path(f"{file}.lock").unlink(missing_ok=True)


def measure(model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor, first: int) -> dict[str, Any]:
    """The arrays MAPS and RUNS of `population` for pairs of one shape, ids [N, T] and answers [N, 2]."""
    z, other = heads_of(model, base), heads_of(model, source)
    noised, intact, how = patch_map(model, base, other, answers, first)
    denoised, corrupted, _ = patch_map(model, source, z, answers, first)
    return {
        "noised": noised.astype(np.float32),
        "denoised": denoised.astype(np.float32),
        "attribution": attribution(model, base, z, other, answers),
        "direct": direct_map(model, base, z, other, answers),
        "base": intact.astype(np.float32),
        "source": corrupted.astype(np.float32),
        "probability": _probability(model, base, answers[:, 0]),
        "path": how,
    }


@torch.inference_mode()
def _probability(model: PreTrainedModel, ids: Tensor, tokens: Tensor) -> np.ndarray:
    """The probability [N] of one token after each prompt."""
    logits = model(ids.to(input_device(model)), use_cache=False).logits[:, -1].float().cpu()
    return logits.softmax(1).gather(1, tokens[:, None])[:, 0].numpy()


def _cluster(pair: IOIPair) -> tuple[str, str]:
    return pair.frame, " ".join(sorted(pair.base.labels))


# ------------------------------------------------------------------------------------------------ circuits


def circuit(
    request: cache.Request,
    sets: Mapping[Any, Sequence[Head]],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[Any, np.ndarray]:
    """Logit differences [N] of the base prompts where each set of heads alone does its work, and WHOLE: all heads.

    N is CIRCUIT at most. sets: by any name but WHOLE; a head is its place in arrays [L, H]. Every head outside of a set
    is ablated at all positions: its outputs become their mean over prompts of one frame with three unrelated names
    (Wang et al. 2022, section 2.1, p_ABC; there a head counts at some positions only). Each set is cached on its own.
    Raises ValueError for a set called WHOLE, and before the first forward pass for a head that there is not or that
    comes twice.
    """
    if WHOLE in sets:
        raise ValueError(f"{WHOLE!r} is the run of all heads; call this set of heads something else")
    asked = {**request, "corruption": "abc", "prompts": min(CIRCUIT, request["prompts"])}
    run = _Circuit(asked, model, folder, redo)
    every = {WHOLE: None} | {
        name: sorted([index(layer), index(head)] for layer, head in heads) for name, heads in sets.items()
    }
    run.sets = [heads for heads in every.values() if heads is not None]
    return {
        name: run.record({"part": "circuit", "kept": heads}, partial(run.scores, heads)).data["scores"]
        for name, heads in tqdm(every.items(), desc="circuits", leave=False)
    }


class _Circuit(_Pairs):
    """What all sets share: the prompts, and the mean outputs of heads; made when the first result is missing."""

    sets: list[list[list[int]]]

    @cached_property
    def groups(self) -> list[tuple[list[int], Tensor, Tensor, dict[int, Tensor]]]:
        """By frame: the numbers of its prompts, their ids and answers, the mean of z by layer [1, T, H, dv]."""
        found, pairs = prepare(self.pair[0]), self.drawn.pairs
        for heads in self.sets:
            heads_in_stack([(layer, head) for layer, head in heads], found.layers, found.heads)
        groups = []
        for frame in sorted({pair.frame for pair in pairs}):
            numbers = [i for i, pair in enumerate(pairs) if pair.frame == frame]
            base, source, answers = self.batch(numbers)
            means = {layer: z.mean(0, keepdim=True) for layer, z in heads_of(self.pair[0], source).items()}
            groups.append((numbers, base, answers, means))
        return groups

    def scores(self, kept: list[list[int]] | None) -> dict[str, Any]:
        model, found = self.pair[0], prepare(self.pair[0])
        scores = np.empty(len(self.drawn.pairs), np.float32)
        for numbers, base, answers, means in self.groups:
            patches = []
            for place, layer in enumerate(found.layers):
                stay = range(found.heads) if kept is None else {head for at, head in kept if at == place}
                if gone := [head for head in range(found.heads) if head not in stay]:
                    patches.append(PatchHeads(layer, gone, means[layer][:, :, gone]))
            scores[numbers] = _difference(model, base, answers, *patches).numpy()
        return {"scores": scores}


def path_patching(
    request: cache.Request,
    heads: Sequence[Head],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> cache.Record:
    """The record of what K heads tell each other and the output, on PATHS pairs at most; see `path_effects`.

    heads: places in arrays [L, H]. Its data: direct [N, K], of every sender to the output; edges [N, K, K], of sender
    to receiver, NaN where the receiver is in no later layer; base and source [N], the logit differences of both runs;
    clusters [N] as in `population`. Raises ValueError for a head that there is not or that comes twice.
    """
    run = _Pairs({**request, "prompts": min(PATHS, request["prompts"])}, model, folder, redo)
    plain = [[index(layer), index(head)] for layer, head in heads]

    def compute() -> dict[str, Any]:
        net = run.pair[0]
        found = prepare(net)
        stack = heads_in_stack(heads, found.layers, found.heads)
        count, pairs = len(run.tokens), run.drawn.pairs
        direct, edges = np.empty((count, len(stack)), np.float32), np.empty((count, len(stack), len(stack)), np.float32)
        runs = {name: np.empty(count, np.float32) for name in ("base", "source")}
        for numbers in tqdm(group_by_shape(run.tokens).values(), desc="paths", leave=False):
            base, source, answers = run.batch(numbers)
            z, other = heads_of(net, base), heads_of(net, source)
            direct[numbers], edges[numbers] = path_effects(net, base, z, other, answers, stack, [[h] for h in stack])
            for name, ids in (("base", base), ("source", source)):
                runs[name][numbers] = _difference(net, ids, answers).numpy()
        kinds = {kind: number for number, kind in enumerate(sorted({_cluster(pair) for pair in pairs}))}
        clusters = np.array([kinds[_cluster(pair)] for pair in pairs])
        return {"direct": direct, "edges": edges, **runs, "clusters": clusters}

    return run.record({"part": "paths", "heads": plain}, compute)


@torch.inference_mode()
def _difference(model: PreTrainedModel, ids: Tensor, answers: Tensor, *attached: Instrument) -> Tensor:
    """The logit differences [N] under instruments."""
    with instrument(model, *attached):
        logits = model(ids.to(input_device(model)), use_cache=False).logits[:, -1].float().cpu()
    pair = logits.gather(1, answers)
    return pair[:, 0] - pair[:, 1]


def path_effects(
    model: PreTrainedModel,
    ids: Tensor,
    base: Mapping[int, Tensor],
    source: Mapping[int, Tensor],
    answers: Tensor,
    senders: Sequence[Head],
    receivers: Sequence[Sequence[Head]],
) -> tuple[np.ndarray, np.ndarray]:
    """Path patching: the changes of the logit difference by what senders tell the output, and groups of receivers.

    base, source: all heads' outputs in both runs, by layer [N, T, H, dv]; senders and receivers: by the model's own
    layer numbers. A first run takes the sender from the source and freezes all other heads to the base, so that what it
    says spreads through MLPs and norms alone: its logits count for the direct path to the output [N, senders]. It also
    gives the outputs that receivers would have had. A second one patches those of one group in, all else free (Wang et
    al. 2022, appendix B; there the receivers' queries, keys or values are patched one kind at a time, here all three
    together): [N, senders, groups], NaN where no receiver of a group is in a later layer than the sender.
    """
    found = prepare(model)
    difference = partial(_difference, model, ids, answers)
    plain, direct = difference(), []
    edges = torch.full((len(ids), len(senders), len(receivers)), torch.nan)
    for row, (layer, head) in enumerate(senders):
        z = {at: base[at].clone() for at in found.layers if at >= layer}
        z[layer][:, :, head] = source[layer][:, :, head]
        heard = CaptureHeads()  # before the patches, which freeze
        frozen = [PatchHeads(at, range(found.heads), value) for at, value in z.items()]
        direct.append(difference(heard, *frozen) - plain)
        for column, group in enumerate(receivers):
            if later := [(at, h) for at, h in group if at > layer]:
                seen = difference(*(PatchHeads(at, h, heard.z[at][:, :, [h]]) for at, h in later))
                edges[:, row, column] = seen - plain
    return torch.stack(direct, dim=1).numpy(), edges.numpy()


def planted_control(
    request: cache.Request, folder: str | Path | None = None, **options: Any
) -> tuple[cache.Record, planted.Planted]:
    """The same data set put to heads that are known: `planted.ioi`, on the embedded model's tokenizer.

    options: those of the planted circuit (backup, family, copies, noise, seed).
    """

    def names(tokenizer: Any) -> list[int]:
        return [tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in sorted(HELD_OUT_NAMES)]

    pair, truth, which = planted_model(planted.ioi, options, names)
    return population({**request, **which, "held_out": True}, pair, folder), truth
