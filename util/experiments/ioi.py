"""Indirect object identification: what each head carries, by patching it (Cohen, project 41; Wang et al. 2022)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util import cache, paths
from util.attention import AddHeads, CaptureHeads, PatchHeads, instrument, support
from util.embedded import planted
from util.embedded.words import HELD_OUT_FRAMES, HELD_OUT_NAMES
from util.experiments.runs import ModelSource, expectation, model_request, obtain, provenance
from util.handshake import input_device, prepare
from util.inference import check_context
from util.load_model_and_data import load_ICL_model
from util.replay import Edit, Place, Replayed, replay
from util.tasks.ioi import IOIPair, group_by_shape, ioi_prompts, ioi_tokens, pair_from_texts

STEM = "ioi_patching"
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
        "schema": 1,
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
    folder = Path(folder) if folder is not None else paths.material()

    def compute() -> tuple[dict[str, Any], dict[str, Any]]:
        net, tokenizer = obtain(model, asked)
        prepare(net)
        tokens = ioi_tokens(pair_from_texts(*asked["texts"], *asked["names"]), tokenizer)
        check_context(net, [len(tokens.base)])
        base, source, answers = (torch.tensor([ids]) for ids in (tokens.base, tokens.source, tokens.answers))
        with torch.inference_mode():
            both = torch.cat([base, source]).to(input_device(net))
            logits = net(both, use_cache=False).logits[:, -1].float().cpu()
        z, own = heads_of(net, source), heads_of(net, base)
        patched, plain, how = patch_map(net, base, z, answers, tokens.first)
        shuffled, _, _ = patch_map(net, base, permuted(own, asked["seed"]), answers)
        pairs = logits[:, list(tokens.answers)]
        data = {
            "log_softmax": logits.log_softmax(1).numpy(),
            "scores": (pairs[:, 0] - pairs[:, 1]).numpy(),
            "base": np.array(tokens.base),
            "source": np.array(tokens.source),
            "tokens": [tokenizer.decode([token]) for token in tokens.source],
            "answers": np.array(tokens.answers),
            "first": tokens.first,
            "z": np.stack([part[0].float().cpu().numpy() for part in z.values()]),
            "norms": np.stack(
                [torch.linalg.vector_norm(part[0].float(), dim=(0, 2)).cpu().numpy() for part in own.values()]
            ),
            "unpatched": plain,
            "permuted": shuffled[0],
            "patched": patched[0],
            "layers": list(support(net).layers),
            "path": how,
        }
        return data, provenance(asked, (net, tokenizer), asked["texts"])

    own = {name: value for name, value in asked.items() if name not in ("prompts", "corruption", "held_out")}
    return cache.load_or_compute(own | {"part": "example"}, compute, folder, expectation(asked, model), redo)


# ------------------------------------------------------------------------------------------------ many pairs


def population(
    asked: cache.Request, model: ModelSource = None, folder: str | Path | None = None, redo: bool = False
) -> cache.Record:
    """The record of a generated data set of pairs. Its data, all logit differences of the base's answers IO and S:

    base, source [N]; denoised [N, L, H]: the source run (which the corruption has made) with one head from the base;
    noised [N, L, H]: the base run with one head from the source; attribution [N, L, H]: the first-order estimate of
    noised minus base; clusters [N]: which frame and pair of names; order [N], an index into `orders`; dropped and
    rejected: what `ioi_prompts` left out, and why; path.
    """
    folder = Path(folder) if folder is not None else paths.material()

    def compute() -> tuple[dict[str, Any], dict[str, Any]]:
        net, tokenizer = obtain(model, asked)
        kept = {"frames": sorted(HELD_OUT_FRAMES), "names": sorted(HELD_OUT_NAMES)} if asked["held_out"] else {}
        drawn = ioi_prompts(tokenizer, asked["prompts"], asked["seed"], asked["corruption"], **kept)
        data = measure(net, tokenizer, drawn.pairs)
        data |= {"dropped": dict(drawn.dropped), "rejected": dict(drawn.words.rejected)}
        texts = [prompt.text for pair in drawn.pairs for prompt in (pair.base, pair.source)]
        return data, provenance(asked, (net, tokenizer), texts)

    own = {name: value for name, value in asked.items() if name not in ("texts", "names")}
    return cache.load_or_compute(own | {"part": "population"}, compute, folder, expectation(asked, model), redo)


def measure(model: PreTrainedModel, tokenizer: Any, pairs: Sequence[IOIPair]) -> dict[str, Any]:
    """The arrays of `population` for given pairs."""
    found = prepare(model)
    tokens = [ioi_tokens(pair, tokenizer) for pair in pairs]
    check_context(model, [len(each.base) for each in tokens])
    shape = (len(pairs), len(found.layers), found.heads)
    maps = {name: np.empty(shape, np.float32) for name in ("denoised", "noised", "attribution")}
    runs = {name: np.empty(len(pairs), np.float32) for name in ("base", "source")}
    for (_, first), numbers in tqdm(group_by_shape(tokens).items(), desc="prompts by shape", leave=False):
        base, source, answers = (
            torch.tensor([getattr(tokens[i], name) for i in numbers]) for name in ("base", "source", "answers")
        )
        z, other = heads_of(model, base), heads_of(model, source)
        maps["noised"][numbers], runs["base"][numbers], how = patch_map(model, base, other, answers, first)
        maps["denoised"][numbers], runs["source"][numbers], _ = patch_map(model, source, z, answers, first)
        maps["attribution"][numbers] = attribution(model, base, z, other, answers)
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


def planted_control(
    asked: cache.Request, folder: str | Path | None = None, **options: Any
) -> tuple[cache.Record, planted.Planted]:
    """The same data set put to heads that are known: `planted.ioi`, on the embedded model's tokenizer.

    options: those of the planted circuit (backup, family, copies, noise, seed).
    """
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    names = [tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in sorted(HELD_OUT_NAMES)]
    truth = planted.ioi(len(tokenizer), names, **{"bos": tokenizer.bos_token_id} | options)
    pair = load_ICL_model((truth.model, tokenizer), verbose=False)
    name = " ".join(["given:planted ioi", *(f"{key}={value}" for key, value in sorted(options.items()))])
    return population({**asked, **model_request(name), "held_out": True}, pair, folder), truth
