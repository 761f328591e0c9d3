"""Indirect object identification: what each head carries, by patching it (Cohen, project 41; Wang et al. 2022)."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util import cache
from util.attention import instrument, support
from util.embedded import planted
from util.embedded.words import HELD_OUT_FRAMES, HELD_OUT_NAMES
from util.experiments.runs import ModelSource, Run, model_request, plain_heads, planted_model
from util.handshake import input_device, prepare
from util.inference import check_context
from util.instruments import AddHeads, CaptureHeads, Instrument, PatchHeads
from util.replay import Edit, Place, Replayed, direct_effects, replay
from util.tasks.ioi import IOIPair, IOIPrompts, group_by_shape, ioi_prompts, ioi_tokens, pair_from_texts

STEM = "ioi_patching"
Head = tuple[int, int]  # (layer, head)
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

    prompts, corruption: of the generated data set, see `tasks.ioi`; the embedded model gets frames and names that
    it was not trained on. which: see `model_request`.
    """
    return {
        "stem": STEM,
        "schema": 2,
        "method_version": 1,
        **model_request(model, **which),
        "texts": list(texts),
        "names": list(names),
        "prompts": prompts,
        "corruption": corruption,
        "held_out": model == "embedded",
        "seed": seed,
    }


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
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The record of one pair of prompts: all five parts of the seed. Its data:

    log_softmax [2, V] after base and source; scores [2], their logit differences of the base's answers; base, source:
    ids [T], and tokens, the source's as text; answers [2]; first, where they differ; z [L, T, H, dv] of the source;
    norms [L, H] of the base's heads over all tokens; permuted [L, H], patched [L, H]: logit differences of the base run
    with one head shuffled, or from the source; layers; path, see `replay.Replayed`.
    Raises ValueError for texts that do not make a pair (`tasks.ioi.pair_from_texts`, `ioi_tokens`).
    """
    own = {name: value for name, value in asked.items() if name not in ("prompts", "corruption", "held_out")}
    run = _Example(own, model, folder, redo)

    def compute() -> dict[str, Any]:
        net, tokenizer = run.pair
        prepare(net)
        tokens = ioi_tokens(pair_from_texts(*asked["texts"], *asked["names"]), tokenizer)
        check_context(net, [len(tokens.base)])
        base, source, answers = (torch.tensor([ids]) for ids in (tokens.base, tokens.source, tokens.answers))
        with torch.inference_mode():
            both = torch.cat([base, source]).to(input_device(net))
            logits = net(both, use_cache=False).logits[:, -1].float().cpu()
        z, base_z = heads_of(net, source), heads_of(net, base)
        patched, plain, how = patch_map(net, base, z, answers, tokens.first)
        shuffled, _, _ = patch_map(net, base, permuted(base_z, asked["seed"]), answers)
        pairs = logits[:, list(tokens.answers)]
        return {
            "log_softmax": logits.log_softmax(1).numpy(),
            "scores": (pairs[:, 0] - pairs[:, 1]).numpy(),
            "base": np.array(tokens.base),
            "source": np.array(tokens.source),
            "tokens": [tokenizer.decode([token]) for token in tokens.source],
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


class _Example(Run):
    @property
    def texts(self) -> list[str]:
        return self.asked["texts"]


# ------------------------------------------------------------------------------------------------ many pairs


def population(
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The record of a generated data set of pairs. Its data, all logit differences of the base's answers IO and S:

    base, source [N]; denoised [N, L, H]: the source run (which the corruption has made) with one head from the base;
    noised [N, L, H]: the base run with one head from the source; attribution [N, L, H]: the first-order estimate of
    noised minus base; direct [N, L, H]: that part of it which goes to the output directly, see `direct_map`; clusters
    [N]: which frame and pair of names; order [N], an index into `orders`; dropped and
    rejected: what `ioi_prompts` left out, and why; path.
    """
    run = _Pairs(asked, model, folder, redo)

    def compute() -> dict[str, Any]:
        left_out = {"dropped": dict(run.drawn.dropped), "rejected": dict(run.drawn.words.rejected)}
        return measure(*run.pair, run.drawn.pairs) | left_out

    return run.record({"part": "population"}, compute)


class _Pairs(Run):
    """The generated pairs of a request, which do not depend on its example."""

    def __init__(self, asked: cache.Request, model: ModelSource, folder: str | Path | None, redo: bool) -> None:
        own = {name: value for name, value in asked.items() if name not in ("texts", "names")}
        super().__init__(own, model, folder, redo)

    @cached_property
    def drawn(self) -> IOIPrompts:
        asked = self.asked
        kept = {"frames": sorted(HELD_OUT_FRAMES), "names": sorted(HELD_OUT_NAMES)} if asked["held_out"] else {}
        return ioi_prompts(self.pair[1], asked["prompts"], asked["seed"], asked["corruption"], **kept)

    @property
    def texts(self) -> list[str]:
        return [prompt.text for pair in self.drawn.pairs for prompt in (pair.base, pair.source)]


def measure(model: PreTrainedModel, tokenizer: Any, pairs: Sequence[IOIPair]) -> dict[str, Any]:
    """The arrays of `population` for given pairs."""
    found = prepare(model)
    tokens = [ioi_tokens(pair, tokenizer) for pair in pairs]
    check_context(model, [len(each.base) for each in tokens])
    shape = (len(pairs), len(found.layers), found.heads)
    maps = {name: np.empty(shape, np.float32) for name in ("denoised", "noised", "attribution", "direct")}
    runs = {name: np.empty(len(pairs), np.float32) for name in ("base", "source")}
    for (_, first), numbers in tqdm(group_by_shape(tokens).items(), desc="prompts by shape", leave=False):
        base, source, answers = (
            torch.tensor([getattr(tokens[i], name) for i in numbers]) for name in ("base", "source", "answers")
        )
        z, other = heads_of(model, base), heads_of(model, source)
        maps["noised"][numbers], runs["base"][numbers], how = patch_map(model, base, other, answers, first)
        maps["denoised"][numbers], runs["source"][numbers], _ = patch_map(model, source, z, answers, first)
        maps["attribution"][numbers] = attribution(model, base, z, other, answers)
        maps["direct"][numbers] = direct_map(model, base, z, other, answers)
    kinds = {kind: number for number, kind in enumerate(sorted({_cluster(pair) for pair in pairs}))}
    return {
        **maps,
        **runs,
        "clusters": np.array([kinds[_cluster(pair)] for pair in pairs]),
        "order": np.array([pair.order == "BABA" for pair in pairs], np.int64),
        "orders": ["ABBA", "BABA"],
        "path": how,
    }


def _cluster(pair: IOIPair) -> tuple[str, str]:
    return pair.frame, " ".join(sorted(pair.base.labels))


# ------------------------------------------------------------------------------------------------ circuits


def circuit(
    asked: cache.Request,
    sets: Mapping[str, Sequence[Head]],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> dict[str, np.ndarray]:
    """Logit differences [N] of the base prompts where each set of heads alone does its work, and "whole": all heads.

    Every head outside of a set is ablated at all positions: its outputs become their mean over prompts of one frame
    with three unrelated names (Wang et al. 2022, section 2.1, p_ABC; there a head counts at some positions only). Each
    set is cached on its own. Raises ValueError for a head that there is not.
    """
    run = _Circuit({**asked, "corruption": "abc"}, model, folder, redo)
    every = {"whole": None} | {name: plain_heads(heads) for name, heads in sets.items()}
    return {
        name: run.record({"part": "circuit", "kept": heads}, partial(run.scores, heads)).data["scores"]
        for name, heads in tqdm(every.items(), desc="circuits", leave=False)
    }


class _Circuit(_Pairs):
    """What all sets share: the prompts, and the mean outputs of heads; made when the first result is missing."""

    @cached_property
    def groups(self) -> list[tuple[list[int], Tensor, Tensor, dict[int, Tensor]]]:
        """By frame: the numbers of its prompts, their ids and answers, the mean of z by layer [1, T, H, dv]."""
        pairs = self.drawn.pairs
        tokens = [ioi_tokens(pair, self.pair[1]) for pair in pairs]
        found = []
        for frame in sorted({pair.frame for pair in pairs}):
            numbers = [i for i, pair in enumerate(pairs) if pair.frame == frame]
            base, source, answers = (
                torch.tensor([getattr(tokens[i], name) for i in numbers]) for name in ("base", "source", "answers")
            )
            means = {layer: z.mean(0, keepdim=True) for layer, z in heads_of(self.pair[0], source).items()}
            found.append((numbers, base, answers, means))
        return found

    def scores(self, kept: list[list[int]] | None) -> dict[str, Any]:
        model, found = self.pair[0], prepare(self.pair[0])
        there = {(layer, head) for layer in found.layers for head in range(found.heads)}
        gone = set() if kept is None else there - {(layer, head) for layer, head in kept}
        if kept is not None and len(gone) != len(there) - len(kept):
            raise ValueError(f"the model has layers {found.layers} of {found.heads} heads, not all of {kept}")
        scores = np.empty(len(self.drawn.pairs), np.float32)
        for numbers, base, answers, means in self.groups:
            patches = []
            for layer in found.layers:
                if heads := sorted(head for at, head in gone if at == layer):
                    patches.append(PatchHeads(layer, heads, means[layer][:, :, heads]))
            scores[numbers] = _difference(model, base, answers, *patches).numpy()
        return {"scores": scores}


def path_patching(
    asked: cache.Request,
    senders: Sequence[Head],
    receivers: Sequence[Head],
    model: ModelSource = None,
    folder: str | Path | None = None,
    redo: bool = False,
) -> cache.Record:
    """The record of `path_effects` on a generated data set: direct [N, S], to the output; edges [N, S], to receivers.

    Also base and source [N], the logit differences of both runs. Raises like `population`.
    """
    run = _Pairs(asked, model, folder, redo)
    edges = {"senders": [list(map(int, s)) for s in senders], "receivers": [list(map(int, r)) for r in receivers]}

    def compute() -> dict[str, Any]:
        net, tokenizer = run.pair
        tokens = [ioi_tokens(pair, tokenizer) for pair in run.drawn.pairs]
        found = {name: np.empty((len(tokens), len(senders)), np.float32) for name in ("direct", "edges")}
        runs = {name: np.empty(len(tokens), np.float32) for name in ("base", "source")}
        for numbers in group_by_shape(tokens).values():
            ids = {name: torch.tensor([getattr(tokens[i], name) for i in numbers]) for name in ("base", "source")}
            answers = torch.tensor([tokens[i].answers for i in numbers])
            z = {name: heads_of(net, of) for name, of in ids.items()}
            for name, to in (("direct", ()), ("edges", receivers)):
                found[name][numbers] = path_effects(net, ids["base"], z["base"], z["source"], answers, senders, to)
            for name, of in ids.items():
                runs[name][numbers] = _difference(net, of, answers).numpy()
        return {**found, **runs}

    return run.record({"part": "paths", **edges}, compute)


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
    receivers: Sequence[Head] = (),
) -> np.ndarray:
    """Path patching: the change of the logit difference by what each sender tells the receivers, [N, senders].

    base, source: all heads' outputs in both runs, by layer [N, T, H, dv]. A first run takes the sender from the source
    and freezes all other heads to the base, so that what it says spreads through MLPs and norms alone; it gives the
    outputs that the receivers would have had. A second one patches those in, all else free (Wang et al. 2022, appendix
    B; there the receivers' queries, keys or values are patched one kind at a time, here all three together). Without
    receivers the first run's logits count: the direct path to the output.
    """
    found = prepare(model)
    difference = partial(_difference, model, ids, answers)
    plain, changes = difference(), []
    for layer, head in senders:
        z = {at: base[at].clone() for at in found.layers if at >= layer}
        z[layer][:, :, head] = source[layer][:, :, head]
        heard = CaptureHeads()  # before the patches, which freeze
        seen = difference(heard, *(PatchHeads(at, range(found.heads), value) for at, value in z.items()))
        if receivers:
            later = [(at, h) for at, h in receivers if at > layer]
            seen = difference(*(PatchHeads(at, h, heard.z[at][:, :, [h]]) for at, h in later))
        changes.append(seen - plain)
    return torch.stack(changes, dim=1).numpy()


def planted_control(
    asked: cache.Request, folder: str | Path | None = None, **options: Any
) -> tuple[cache.Record, planted.Planted]:
    """The same data set put to heads that are known: `planted.ioi`, on the embedded model's tokenizer.

    options: those of the planted circuit (backup, family, copies, noise, seed).
    """

    def names(tokenizer: Any) -> list[int]:
        return [tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in sorted(HELD_OUT_NAMES)]

    pair, truth, which = planted_model(planted.ioi, options, names)
    return population({**asked, **which, "held_out": True}, pair, folder), truth
