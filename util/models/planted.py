"""Planted circuits: models whose weights are set by hand, so that it is known what each of their heads does.

They are ordinary GPT-2 and Llama models without a working MLP. Their residual stream is a set of orthogonal subspaces,
turned by a random rotation: a code for the token, slots that heads write to, an output that the unembedding reads, and
a rest, where decoy heads with random weights write and no circuit reads. A large constant keeps the norms before each
layer nearly linear. The attention of a circuit head is saturated: its weights are 0 or 1 up to about 1e-7, or equal
shares within 3 %.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from util.stats.heads import Head, heads_where

Floats = NDArray[np.float64]

FAMILIES = ("gpt2", "llama")
HEADS, WIDTH, CODE = 6, 96, 64  # number of heads per layer, width of a head, width of a token's code
CONTEXT = 2048
CONSTANT = 16.0  # in every residual vector, beside features of norm 1
MARGIN = 20.0  # nats by which a circuit's attention, and its prediction, wins
FAST = 12  # rotary pairs that encode positions; the others turn by at most 0.021 within CONTEXT and carry content
THETA = 1e20
FREQUENCIES = THETA ** -(2 * np.arange(FAST) / WIDTH)
CONTENT = [*range(FAST, WIDTH // 2), *range(WIDTH // 2 + FAST, WIDTH)]
_DECOY_QK, _DECOY_OV = 0.1, 0.3  # decoys attend nearly uniformly and write about as much as circuit heads


@dataclass(frozen=True)
class Planted:
    """A model and the facts that are known about it. The model is built when `model` is first read.

    heads: for each role, the heads that play it; those of a role, removed together, destroy the behaviour, unless the
    circuit says that it does not need them. Removing decoys does not. edges: the only routes between token types,
    (source, destination, relation).
    """

    build: Callable[[], PreTrainedModel]
    heads: Mapping[str, tuple[Head, ...]]
    decoys: tuple[Head, ...]
    edges: tuple[tuple[str, str, str], ...] = ()

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model, built when it is first read."""
        return self.build()

    def found_exactly(self, role: str, score: Floats, bound: float) -> bool:
        """Whether the heads with a score [L, H] of at least the bound are exactly the heads of a role."""
        return {*heads_where(score >= bound)} == {*self.heads[role]}

    @property
    def names(self) -> dict[Head, str]:
        """The role of every head that has one."""
        return {head: role for role, heads in self.heads.items() for head in heads}


# ------------------------------------------------------------------------------------------------ the circuits

# What the heads of planted circuits are called by the rule of `roles.rules`. An induction head is a label reader, too:
# labels of demonstrations follow their forerunners, which are one token mostly. So what it reads from the query's
# forerunner are the labels, and it makes them more probable.
ROLES: dict[str, tuple[str, ...]] = {
    "previous token": ("previous-token",),
    "induction": ("induction", "label reader"),
    "duplicate token": ("duplicate-token",),
    "inhibition": ("inhibition",),
    "mover": ("mover",),
    "negative mover": ("negative mover",),
    "forerunner": ("forerunner",),
    "label reader": ("label reader",),
}


def induction(vocabulary: int, **options: Any) -> Planted:
    """A previous-token head in layer 0 and an induction head in layer 1: [A][B] ... [A] -> [B] (Olsson et al. 2022).

    With BOS in front the pattern is exact: at a token that occurred before, the induction head attends equally to all
    tokens that followed it; at a new token it attends to BOS. options: see `Plan`, as for all circuits.
    """
    plan = Plan(vocabulary, 2, {"previous": CODE}, **options)
    plan.head("previous token", 0, offset=1, move={"token": "previous"})
    plan.head("induction", 1, match=("token", "previous"), move={"token": "out"})
    return plan.build()


def forerunner(vocabulary: int, labels: Sequence[int], **options: Any) -> Planted:
    """One layer with three heads: they attend to the previous token at labels only, at any token, and never.

    labels: token ids. The first head makes the model predict, at a label, the token before it, and needs neither of the
    others. Where a head does not attend to the previous token, it attends to BOS. Exception: a label right after BOS
    attends to itself.
    """
    plan = Plan(vocabulary, 1, {"spare": CODE}, {"label": labels}, **options)
    plan.head("labels only", 0, offset=1, only="label", move={"token": "out"})
    plan.head("any token", 0, offset=1, move={"token": "spare"})
    plan.head("never", 0, sink=MARGIN, move={"token": "spare"})
    return plan.build()


def ioi(vocabulary: int, names: Sequence[int], backup: bool = False, **options: Any) -> Planted:
    """Indirect object identification (Wang et al. 2022): at the end of the sentence the model predicts IO.

    names: token ids. Layer 0 marks a name that occurred two or more tokens before (S2). In layer 1 one head copies the
    names without this mark (IO and S1), and the mover subtracts the marked name, so that IO is left. Patching the mover
    alone, from the run in which S2 was replaced by IO, has the whole effect; patching any other head has none. backup:
    add a head in layer 2 that does the mover's work if the mover did not.
    """
    plan = Plan(vocabulary, 2 + backup, {"marked": 1, "done": 1, "code": CODE}, {"name": names}, **options)
    _mark_repeated(plan, names)
    plan.head("copier", 1, prefer={"name": 1, "marked": -1}, move={"code": "out"}, scale=2)
    plan.head("mover", 1, prefer={"marked": 1}, move={"code": "out", "marked": "done"}, scale=-1)
    if backup:
        plan.head("mover", 2, prefer={"marked": 1}, unless="done", move={"code": "out"}, scale=-1)
    return plan.build()


def _mark_repeated(plan: "Plan", names: Sequence[int]) -> None:
    """Marks, in layer 0, a name that occurred two or more tokens before; names alone have a code to be moved."""
    plan.embedding[list(names), plan.place["code"]] = plan.codes[list(names)]
    plan.head("duplicate token", 0, match=("token", "token"), other=True, move={"name": "marked"})


def lookup(vocabulary: int, **options: Any) -> Planted:
    """A look-up in the demonstrations: after `x separator y end ... x separator` the model predicts the y of that x.

    It works for inputs, outputs and separators of one token each, if no input is also an output. In layer 0, heads copy
    to every token the tokens two places before it (at y: its x) and one place before it (at the last separator: the
    query). In layer 1, the last separator attends to the y whose x is the query.
    """
    plan = Plan(vocabulary, 2, {"input": CODE, "query": CODE}, **options)
    plan.head("input reader", 0, offset=2, move={"token": "input"})
    plan.head("query reader", 0, offset=1, move={"token": "query"})
    plan.head("look-up", 1, match=("query", "input"), move={"token": "out"})
    return plan.build((("x", "y", "same"), ("query", "last_separator", "same"), ("y", "last_separator", "any")))


def names(vocabulary: int, name_tokens: Sequence[int], **options: Any) -> Planted:
    """The circuit of Wang et al. 2022, section 3: duplicate-token, inhibition and (negative) mover heads.

    name_tokens: token ids of names. Layer 0 marks a name that occurred two or more tokens before (S2). In layer 1 the
    inhibition head reads the marked name. In layer 2 both movers attend to names, but not to the one that was read, so
    to IO: one writes the name for the output, the other, by a third as much, against it. options: see `Plan`.
    """
    slots = {"marked": 1, "read": CODE, "code": CODE}
    plan = Plan(vocabulary, 3, slots, {"name": name_tokens}, **options)
    _mark_repeated(plan, name_tokens)
    plan.head("inhibition", 1, prefer={"marked": 1}, move={"code": "read"})
    for role, scale in (("mover", 1.5), ("negative mover", -0.5)):
        plan.head(role, 2, prefer={"name": 1}, avoid=("read", "code"), move={"code": "out"}, scale=scale)
    return plan.build()


def labels(vocabulary: int, label_tokens: Sequence[int], **options: Any) -> Planted:
    """The circuit of Cho et al. 2025, Figure 1: labels copy their forerunners, and the query's forerunner finds them.

    label_tokens: the first tokens of labels. In layer 0 a head attends from labels, and from no other token, to the
    token before. In layer 1 a head attends from every token to the labels whose forerunner is the same token, and
    makes them more probable: by 3 nats together, so that a label in the minority gains, too. options: see
    `Plan`.
    """
    plan = Plan(vocabulary, 2, {"forerunner": CODE}, {"label": label_tokens}, **options)
    plan.head("forerunner", 0, offset=1, only="label", move={"token": "forerunner"})
    plan.head("label reader", 1, match=("token", "forerunner"), move={"token": "out"}, scale=3 / MARGIN)
    return plan.build()


# ------------------------------------------------------------------------------------------------ their weights


class Plan:
    """A plan of a circuit: the features of the residual stream and the heads that read and write them.

    `head` adds a head to the plan; `build` makes a model of it. vocabulary: the number of tokens. layers: the number of
    layers. slots: the width of each slot that heads write to, by name. flags: by name, the tokens that have a feature
    of width 1. family: "gpt2" (embedded positions) or "llama" (rotary positions). bos: the id of BOS. seed: decides the
    codes, the decoys, and which head plays which role. Raises ValueError for an unknown family.
    """

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        slots: Mapping[str, int],
        flags: Mapping[str, Sequence[int]] | None = None,
        *,
        family: str = "gpt2",
        bos: int = 0,
        seed: int = 0,
    ) -> None:
        marked = {"bos": [bos], **(flags or {})}
        if family not in FAMILIES:
            raise ValueError(f"family {family!r} of {FAMILIES}")
        self.family, self.layers, self.bos = family, layers, bos
        self.rng = np.random.default_rng(seed)
        flagged = dict.fromkeys(marked, 1)
        features = {"constant": 1, **flagged, "position": 2 * FAST, "token": CODE, "out": CODE, **slots}
        self.place, end = {}, 0
        for name, width in features.items():
            self.place[name], end = slice(end, end + width), end + width
        self.size = HEADS * WIDTH - 1  # one dimension less than the model, because layer norms remove the mean
        self.place["junk"] = slice(end, self.size)
        self.codes, self.gap = _codes(vocabulary, self.rng)
        self.embedding = np.zeros((vocabulary, self.size))
        self.embedding[:, self.place["constant"]] = CONSTANT
        self.embedding[:, self.place["token"]] = self.codes
        self.embedding[bos, self.place["token"]] = 0  # reading BOS moves nothing
        for name, ids in marked.items():
            self.embedding[list(ids), self.place[name]] = 1
        self.roles: dict[str, tuple[Head, ...]] = {}
        self.free = [list(self.rng.permutation(HEADS)) for _ in range(layers)]
        self.weights: dict[Head, tuple[Floats, Floats, Floats, Floats]] = {}

    def read(self, name: str) -> Floats:
        """The matrix [size, width] that reads the feature of that name; it reads the constant as 1."""
        place = self.place[name]
        matrix = np.eye(self.size)[:, place]
        return matrix / CONSTANT if name == "constant" else matrix

    def head(
        self,
        role: str,
        layer: int,
        *,
        move: Mapping[str, str],
        scale: float = 1.0,
        offset: int | None = None,
        match: tuple[str, str] | None = None,
        other: bool = False,
        prefer: Mapping[str, float] | None = None,
        avoid: tuple[str, str] | None = None,
        only: str | None = None,
        unless: str | None = None,
        sink: float = 0.0,
    ) -> None:
        """Give a role to a free head of a layer.

        Which tokens the head attends to:

        - offset: the token that many places before;
        - match: (query feature, key feature); tokens whose key feature equals the query's query feature. other: only
          those two or more places before;
        - prefer: tokens with these features, by weight; avoid: but not those whose key feature equals the query's query
          feature;
        - otherwise BOS. So it is too if the query lacks the feature `only` or has the feature `unless`. sink: the
          attention score of BOS, in nats; match and prefer set it.

        What the head writes: move maps each feature that it reads to the feature that it writes; scale multiplies what
        goes to the output.
        """
        terms: list[tuple[Floats, Floats]] = []  # (query [size, n], key [size, n])
        constant, kernel, distance = self.read("constant"), np.zeros(FAST), 0
        if offset is not None:
            distances = np.arange(1, CONTEXT)[:, None]
            kernel[:] = MARGIN / (1 - np.cos(distances * FREQUENCIES)).sum(1).min()
            distance = offset
        if only is not None:
            terms.append((2 * kernel.sum() * (constant - self.read(only)), self.read("bos")))
        if match is not None:
            nats = (22 if other else 2) * MARGIN / self.gap
            terms.append((nats * self.read(match[0]), self.read(match[1])))
            sink = nats - MARGIN
            if other:  # the token itself matches too; the kernel separates it from those two or more places before
                kernel[:8] = -1.5 * MARGIN
                sink = nats - 10.7 * MARGIN
        for name, weight in (prefer or {}).items():
            terms.append((2 * MARGIN * weight * constant, self.read(name)))
            sink = MARGIN
            if unless is not None:
                terms.append((-4 * MARGIN * weight * self.read(unless), self.read(name)))
        terms.append((sink * constant, self.read("bos")))
        if avoid is not None:
            terms.append((-2 * MARGIN / self.gap * self.read(avoid[0]), self.read(avoid[1])))
        query, key = self._positions(kernel, distance, but_bos=other or only is not None)
        of_query, of_key = map(np.hstack, zip(*terms, strict=True))
        dims = CONTENT[: of_query.shape[1]]
        query[:, dims], key[:, dims] = of_query, of_key
        reading = np.hstack([self.read(source) for source in move])
        writing = np.hstack([self.read(target) * (scale if target == "out" else 1.0) for target in move.values()])
        value, out, width = np.zeros((self.size, WIDTH)), np.zeros((WIDTH, self.size)), reading.shape[1]
        value[:, :width], out[:width] = reading, writing.T
        place = (layer, int(self.free[layer].pop()))
        self.roles[role] = (*self.roles.get(role, ()), place)
        self.weights[place] = (query, key, value, out)

    def _positions(self, kernel: Floats, distance: int, but_bos: bool) -> tuple[Floats, Floats]:
        """Query and key maps whose product is sum_j kernel_j cos(frequency_j (m - n - distance)) at query m, key n.

        but_bos: make the product 0 if the key is BOS, so that the sink alone decides there.
        """
        query, key = np.zeros((self.size, WIDTH)), np.zeros((self.size, WIDTH))
        j = np.arange(FAST)
        key[self.place["bos"].start, j] = -float(but_bos)
        cosine, sine = kernel * np.cos(distance * FREQUENCIES), kernel * np.sin(distance * FREQUENCIES)
        if self.family == "llama":  # rotary embeddings turn the pairs (j, j + WIDTH / 2) of query and key
            source = self.place["constant"].start
            query[source, j], query[source, WIDTH // 2 + j] = cosine / CONSTANT, -sine / CONSTANT
            key[source, j] = 1 / CONSTANT
            return query, key
        waves = self.place["position"].start + 2 * j
        scale = np.sqrt(FAST)  # all position features together have norm 1
        query[waves, j], query[waves + 1, j] = scale * cosine, scale * sine
        query[waves, WIDTH // 2 + j], query[waves + 1, WIDTH // 2 + j] = -scale * sine, scale * cosine
        key[waves, j] = key[waves + 1, WIDTH // 2 + j] = scale
        return query, key

    def build(self, edges: Sequence[tuple[str, str, str]] = ()) -> Planted:
        """The planned circuit with its model; every head without a role becomes a decoy. edges: see `Planted`."""
        decoys = [head for head in np.ndindex(self.layers, HEADS) if head not in self.weights]
        readable = np.ones((self.size, 1))
        readable[self.place["constant"]] = 0
        for head in decoys:
            maps = [readable * self.rng.normal(size=(self.size, WIDTH)) for _ in range(3)]
            out = np.zeros((WIDTH, self.size))
            junk = self.place["junk"]
            out[:, junk] = self.rng.normal(size=(WIDTH, junk.stop - junk.start)) / WIDTH
            self.weights[head] = (_DECOY_QK * maps[0], _DECOY_QK * maps[1], _DECOY_OV * maps[2], out)
        return Planted(self._model, self.roles, tuple(decoys), tuple(edges))

    def _model(self) -> PreTrainedModel:
        vocabulary, width = len(self.embedding), HEADS * WIDTH
        turned = self.rng.normal(size=(width, width))
        turned[:, 0] = 1
        basis = np.linalg.qr(turned)[0][:, 1:].T  # [size, width], orthogonal to the vector of ones
        positions = np.zeros((CONTEXT, self.size))
        if self.family == "gpt2":
            angles = np.arange(CONTEXT)[:, None] * FREQUENCIES
            waves = np.stack([np.cos(angles), np.sin(angles)], axis=2) / np.sqrt(FAST)
            positions[:, self.place["position"]] = waves.reshape(CONTEXT, -1)
        norm = np.sqrt(np.mean((self.embedding**2).sum(1)) + np.mean((positions**2).sum(1)))
        read = norm / np.sqrt(width)  # undoes the scaling by the norm before each layer
        readout = np.zeros((vocabulary, self.size))
        readout[:, self.place["out"]] = MARGIN / self.gap * self.codes
        model = _empty(self.family, vocabulary, self.layers, self.bos)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.fill_(float(parameter.ndim == 1 and name.endswith("weight")))  # norms 1, all else 0
            _fill(model.get_input_embeddings().weight, self.embedding @ basis)
            _fill(model.get_output_embeddings().weight, read * readout @ basis)
            if self.family == "gpt2":
                _fill(model.transformer.wpe.weight, positions @ basis)
            for (layer, head), (query, key, value, out) in self.weights.items():
                *readers, writer = _maps(model, layer)
                place = slice(head * WIDTH, (head + 1) * WIDTH)
                for reader, matrix in zip(readers, (np.sqrt(WIDTH) * query, key, value), strict=True):
                    _fill(reader[:, place], read * basis.T @ matrix)
                _fill(writer[place], out @ basis)
        return model.eval()


def _fill(parameter: Tensor, values: Floats) -> None:
    parameter.copy_(torch.from_numpy(values))


def _maps(model: Any, layer: int) -> list[Tensor]:
    """Views [D, D] of a layer's weights: what rows are multiplied by for query, key and value, and outputs of heads."""
    if isinstance(model, GPT2LMHeadModel):
        attention = model.transformer.h[layer].attn
        return [*attention.c_attn.weight.chunk(3, dim=1), attention.c_proj.weight]
    attention = model.model.layers[layer].self_attn
    return [getattr(attention, f"{part}_proj").weight.T for part in "qkvo"]


def _empty(family: str, vocabulary: int, layers: int, bos: int) -> Any:
    shared: dict[str, Any] = {
        **{"vocab_size": vocabulary, "bos_token_id": bos, "eos_token_id": bos, "tie_word_embeddings": False},
        **{"hidden_size": HEADS * WIDTH, "num_hidden_layers": layers, "num_attention_heads": HEADS},
        "max_position_embeddings": CONTEXT,
    }
    if family == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_inner=8, **shared))
    rope = {"rope_type": "default", "rope_theta": THETA}
    return LlamaForCausalLM(LlamaConfig(intermediate_size=8, rope_parameters=rope, **shared))


def _codes(vocabulary: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """A unit vector for every token [vocabulary, CODE], and a lower bound on 1 minus the cosine of any two of them.

    The vectors are the words of a random linear binary code, the best of 20. The smallest distance between two words of
    such a code is the smallest weight of a word other than 0.
    """
    bits = (vocabulary - 1).bit_length()
    words = (np.arange(2**bits)[:, None] >> np.arange(bits) & 1).astype(np.float32)
    drawn = (words @ rng.integers(0, 2, (bits, CODE)).astype(np.float32) % 2 for _ in range(20))
    best = max(drawn, key=lambda code: float(code[1:].sum(1).min()))
    return (1 - 2 * best[:vocabulary].astype(float)) / np.sqrt(CODE), 2 * float(best[1:].sum(1).min()) / CODE
