"""Many edited runs of the same prompts at the price of a few: every layer is called once, for all runs together.

A run that is edited from layer l on is the base run below it, so it joins the batch there. Where prompts are the same,
and unedited, before a position, keys and values of the base run stand for those tokens. In the last layer only the last
token goes on, and of the unembedding only the rows of the answers are needed. For all single-head patches of a model
(L x H of them) that is one pass of a growing batch instead of L x H passes.

No layer is re-implemented: the model's own layers are called again with the arguments that the base run gave them, and
the engine's instruments make the edits. Whether that is right for a class is found out by comparing with whole forward
passes, once for each model; where it is not, whole forward passes are run, in batches, and the result says so.

Not for two threads on one model: for the end of a run its layers and its unembedding are bypassed.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import Cache, DynamicCache, PreTrainedModel

from util import memory
from util.attention import instrument, support
from util.handshake import input_device, prepare
from util.instruments import Instrument, PatchHeads

BUDGET = 2**30  # bytes of activations at a time


class Place(NamedTuple):
    """Where in the work an edit is: the layer; which prompts; their rows `examples` [N] in the batch; and the tokens
    `queries` of the call: an instrument's row 0 is token queries.start, while keys count from the first token."""

    layer: int
    prompts: slice
    examples: Tensor
    queries: range

    @property
    def tokens(self) -> slice:
        return slice(self.queries.start, self.queries.stop)


@dataclass(frozen=True)
class Edit:
    """What is done to one run of every prompt: start, the model's own number of the first layer that is edited, and
    what to attach at each place."""

    start: int
    instruments: Callable[[Place], Sequence[Instrument]]


@dataclass(frozen=True)
class Replayed:
    """What follows the last token: logits [E, N, A] of every edit, and base [N, A] without any.

    path: how they were computed, "replayed layers", or "whole forward passes" and why.
    """

    logits: Tensor
    base: Tensor
    path: str


def replay(
    model: PreTrainedModel,
    ids: Tensor,
    edits: Sequence[Edit],
    answers: Tensor,
    first: int = 0,
    log_probabilities: bool = False,
    budget: int = BUDGET,
) -> Replayed:
    """The logits of `answers` [N, A] after prompts `ids` [N, T] under each edit alone, float32 (float64 if it is).

    first: no edit touches a token before it, and what it patches in is the base run's there. log_probabilities: these
    instead of logits, which takes the whole unembedding. budget: bytes of one batch. Raises ValueError for ids or
    answers of another shape, for a `first` outside the prompt, and for what instruments refuse; MemoryError where one
    run of one prompt takes more than the budget.
    """
    prepare(model)
    if ids.ndim != 2 or answers.ndim != 2 or len(ids) != len(answers) or not 0 <= first < ids.shape[1]:
        raise ValueError(
            f"ids {tuple(ids.shape)}, answers {tuple(answers.shape)}, first = {first}: give [N, T], [N, A] and a "
            "position of the prompt; prompts of different lengths go into calls of their own"
        )
    plan = _plan(model)
    first = first if plan.cached else 0
    length = ids.shape[1] - (first if plan.replays else 0)
    needed = _row_bytes(model, length, ids.shape[1])
    rows = budget // needed
    if not rows:
        raise MemoryError(
            f"one run of {length} tokens takes {needed / 1e6:.0f} MB, the budget is {budget / 1e6:.0f} MB; raise it, "
            "or take shorter prompts"
        )
    # as many prompts as fit with all edits, or else one, and as many edits as fit with these
    together = max(1, min(len(ids), rows // max(1, len(edits))))
    order = sorted(range(len(edits)), key=lambda i: edits[i].start)
    run = _Run(model, plan, log_probabilities)
    parts = []
    for start in range(0, len(ids), together):
        part = slice(start, min(start + together, len(ids)))
        some = max(1, rows // together)
        chunks = [[edits[i] for i in order[at : at + some]] for at in range(0, len(order), some)]
        parts.append(run(ids[part], part, chunks, answers[part], first))
    base, logits = (torch.cat(found, dim=-2) for found in zip(*parts, strict=True))
    back = torch.argsort(torch.tensor(order, dtype=torch.long))
    return Replayed(logits[back], base, plan.path)


def direct_effects(
    model: PreTrainedModel, ids: Tensor, writes: Mapping[int, Tensor], answers: Tensor
) -> tuple[Tensor, Tensor] | None:
    """What heads tell the output directly: the logits of `answers` [N, A] where their writes change, and nothing else.

    writes: by layer [N, H, d], what each head adds more to the residual stream of the last token. The final norm and
    the unembedding see the stream of the base run with one such change: no later layer takes part, so that one pass
    serves all heads. Returns logits [L, H, N, A] and base [N, A]; None for a class whose stream does not keep what
    heads write as it is (a norm behind attention, a multiplier), or whose layers cannot be bypassed.
    """
    prepare(model)
    plan = _plan(model)
    if not plan.replays or not _keeps_writes(model, plan):
        return None
    run = _Run(model, plan, False)
    with torch.inference_mode(), run.unembedding(answers) as columns:
        with _recorded(plan.layers) as calls:
            model.base_model(ids.to(input_device(model)), use_cache=False)
        out = calls[-1].out
        last = _first(out)[:, -1:]  # [N, 1, d]
        changed = [last + part.to(last)[:, None] for layer in writes.values() for part in layer.unbind(1)]
        found = [run.read(run.end(part, out), columns) for part in changed]
        base = run.read(run.end(last, out), columns)
    return torch.stack(found).unflatten(0, (len(writes), -1)), base


@torch.inference_mode()
def _keeps_writes(model: PreTrainedModel, plan: "_Plan") -> bool:
    """Whether what attention writes reaches the end unchanged.

    Beside a huge vector that one layer is made to write, all that norms let through vanishes.
    """
    found = support(model)
    if any(found.projections.get(layer) is None for layer in found.layers):
        return False
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.get_text_config(decoder=True).vocab_size, (1, 3), generator=generator)
    ids = ids.repeat(len(found.layers) + 1, 1).to(input_device(model))
    with _recorded(plan.layers) as calls:
        model.base_model(ids[:1], use_cache=False)
    last = _first(calls[-1].out)[0, -1]
    huge = torch.randn(last.shape, generator=generator).to(last) * 1e4 * last.std()

    def writing(row: int) -> Callable[..., Tensor]:
        def hook(_: nn.Module, __: Any, out: Tensor) -> Tensor:
            out = out.clone()
            out[row] += huge.to(out)
            return out

        return hook

    hooks = [found.projections[layer].register_forward_hook(writing(row)) for row, layer in enumerate(found.layers)]  # type: ignore[union-attr]
    try:
        with _recorded(plan.layers) as calls:
            model.base_model(ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    ends = _first(calls[-1].out)[:, -1]
    gaps = (ends[:-1] - ends[-1] - huge).norm(dim=1) / huge.norm()
    return bool((gaps < 0.05).all())


def _row_bytes(model: PreTrainedModel, length: int, keys: int) -> int:
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    kept = 3 * keys * width * model.dtype.itemsize  # keys and values of all tokens, and what makes them
    return max(memory.estimate(model, [length], 1).activations.values()) + kept


# ------------------------------------------------------------------------------------------------ the calls of layers


class _Stop(Exception):
    pass


class _Before(DynamicCache):
    """What stands for the cache in a replayed call: the keys and values of the tokens before, for all rows.

    keys, values: [N, H, P, d], of which the rows of the call are repetitions, or None. stop: do not go on with the
    layer once its own keys and values are here.
    """

    def __init__(self, keys: Tensor | None, values: Tensor | None, stop: bool = False) -> None:
        super().__init__()
        self.before, self.stop = (keys, values), stop
        self.own: tuple[Tensor, Tensor]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self.own = key_states, value_states
        if self.stop:
            raise _Stop
        return self.together()

    def together(self) -> tuple[Tensor, ...]:
        """Keys and values of all tokens."""
        return tuple(
            own if before is None else torch.cat([_repeated(before, len(own)), own], dim=2)
            for before, own in zip(self.before, self.own, strict=True)
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.before[0] is None else self.before[0].shape[2]


def _repeated(tensor: Tensor, rows: int) -> Tensor:
    """As many rows, in the order of the tensor's, one round after the other."""
    if len(tensor) == 1:
        return tensor.expand(rows, *tensor.shape[1:])
    return tensor.repeat(rows // len(tensor), *[1] * (tensor.ndim - 1))


def _leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple | list) else None
    if items is None:
        yield path, tree
    else:
        for key, branch in items:
            yield from _leaves(branch, (*path, key))


def _mapped(function: Callable[[tuple[Any, ...], Any], Any], tree: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, branch, (*path, key)) for key, branch in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(function, branch, (*path, i)) for i, branch in enumerate(tree))
    return function(path, tree)


@dataclass
class _Call:
    """How the base run called a layer: the hidden states [N, S, d] that went in and came out, and what came with it."""

    hidden: Tensor
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    out: Any = None

    @property
    def rest(self) -> tuple[Any, Any]:
        return self.arguments, self.keywords

    def again(self, layer: nn.Module, hidden: Tensor, cache: Cache | None, scaled: set[tuple[Any, ...]]) -> Tensor:
        """The same call for other hidden states [R, S, d], R a multiple of N."""

        def fitted(path: tuple[Any, ...], value: Any) -> Any:
            if isinstance(value, Cache):
                return cache
            if isinstance(value, Tensor) and path in scaled:
                return _repeated(value, value.shape[0] * len(hidden) // len(self.hidden))
            return value

        arguments, keywords = _mapped(fitted, self.rest)
        if "hidden_states" in keywords:
            out = layer(*arguments, **keywords | {"hidden_states": hidden})
        else:
            out = layer(hidden, *arguments[1:], **keywords)
        return _first(out)


def _first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


def _as(out: Any, hidden: Tensor) -> Any:
    """Hidden states in the form in which a layer returned `out`."""
    return (hidden, *out[1:]) if isinstance(out, tuple) else hidden


@contextmanager
def _recorded(layers: nn.ModuleList) -> Iterator[list[_Call]]:
    """The calls of the layers in the forward passes inside."""
    calls: list[_Call] = []

    def before(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        hidden = keywords["hidden_states"] if "hidden_states" in keywords else arguments[0]
        calls.append(_Call(hidden, arguments, dict(keywords)))

    def after(_: nn.Module, arguments: tuple[Any, ...], out: Any) -> None:
        calls[-1].out = out

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    hooks += [layer.register_forward_hook(after) for layer in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _bypassed(layers: nn.ModuleList, out: Any) -> Iterator[None]:
    """Layers that return `out` without doing anything."""
    old = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = lambda *_, **__: out
    try:
        yield
    finally:
        for layer, forward in zip(layers, old, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


class _FewRows(nn.Module):
    """An unembedding of some tokens, in float32 or better: differences of logits are lost in 16 bits."""

    def __init__(self, head: nn.Linear, tokens: Tensor) -> None:
        super().__init__()
        dtype = torch.promote_types(head.weight.dtype, torch.float32)
        self.weight = nn.Parameter(head.weight[tokens].to(dtype), requires_grad=False)
        self.bias = None if head.bias is None else nn.Parameter(head.bias[tokens].to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x.to(self.weight.dtype), self.weight, self.bias)


# ------------------------------------------------------------------------------------------------ one batch of prompts


class _Run:
    def __init__(self, model: PreTrainedModel, plan: "_Plan", log_probabilities: bool) -> None:
        self.model, self.plan, self.log_probabilities = model, plan, log_probabilities

    @torch.inference_mode()
    def __call__(
        self, ids: Tensor, prompts: slice, chunks: Sequence[Sequence[Edit]], answers: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        """Base [N, A] and edited [E, N, A] logits."""
        ids = ids.to(input_device(self.model))
        with self.unembedding(answers) as columns:
            if self.plan.replays:
                base = _Base(self.model, self.plan, ids, prompts, first)
                whole = self.read(self.end(_first(base.calls[-1].out)[:, -1:], base.calls[-1].out), columns)
                found = [self.read(self.end(base.run(edits), base.calls[-1].out), columns) for edits in chunks]
            else:
                whole = self.read(self.model(ids, use_cache=False).logits[:, -1], columns)
                found = [self.read(self.whole(ids, prompts, edits), columns) for edits in chunks]
        edited = torch.cat(found) if found else whole[:0]
        return whole, edited.unflatten(0, (-1, len(ids)))

    def whole(self, ids: Tensor, prompts: slice, edits: Sequence[Edit]) -> Tensor:
        """The same by whole forward passes of all rows."""
        attached = [
            each
            for number, edit in enumerate(edits)
            for layer in support(self.model).layers
            if layer >= edit.start
            for each in edit.instruments(Place(layer, prompts, _examples(number, len(ids)), range(ids.shape[1])))
        ]
        with instrument(self.model, *attached):
            return self.model(ids.repeat(len(edits), 1), use_cache=False).logits[:, -1]

    def end(self, hidden: Tensor, out: Any) -> Tensor:
        """The logits [R, A] behind the last layer's hidden states [R, 1, d]."""
        with _bypassed(self.plan.layers, _as(out, hidden)):
            ids = torch.zeros(len(hidden), 1, dtype=torch.long, device=input_device(self.model))
            return self.model(ids, use_cache=False).logits[:, -1]

    def read(self, logits: Tensor, columns: Tensor) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.log_probabilities:
            logits = logits.log_softmax(1)
        columns = columns.to(logits.device)
        return logits.gather(1, columns.repeat(len(logits) // len(columns), 1)).cpu()

    @contextmanager
    def unembedding(self, answers: Tensor) -> Iterator[Tensor]:
        """Where in the logits the answers [N, A] are, while only they are computed, if that is possible."""
        head = self.model.get_output_embeddings()
        few = not self.log_probabilities and type(head) is nn.Linear and head.weight.device.type != "meta"
        if not few:
            yield answers
            return
        tokens, columns = answers.unique(return_inverse=True)
        self.model.set_output_embeddings(_FewRows(head, tokens.to(head.weight.device)))
        try:
            yield columns
        finally:
            self.model.set_output_embeddings(head)


def _examples(number: int, prompts: int) -> Tensor:
    return torch.arange(prompts) + number * prompts


class _Base:
    """The base run of a batch of prompts, to be gone on with from any layer."""

    def __init__(self, model: PreTrainedModel, plan: "_Plan", ids: Tensor, prompts: slice, first: int) -> None:
        self.model, self.plan, self.prompts, self.rows = model, plan, prompts, len(ids)
        self.queries = range(first, ids.shape[1])
        cache = DynamicCache() if plan.cached else None
        options = {"past_key_values": cache, "use_cache": plan.cached}
        if first:
            model.base_model(ids[:, :first], **options)
        self.prefix = [_kept(cache, number, first) for number in range(len(plan.layers))]
        with _recorded(plan.layers) as self.calls:
            model.base_model(ids[:, first:], **options)
        self.last: _Call | None = None
        if plan.trims and len(self.queries) > 1:
            assert cache is not None
            cache.crop(-1)
            out = self.calls[-1].out
            passed = _first(out)[:, -1:]
            with _bypassed(plan.layers[:-1], _as(out, passed)), _recorded(plan.layers) as calls:
                model.base_model(ids[:, -1:], **options)
            self.last = calls[-1]

    def run(self, edits: Sequence[Edit]) -> Tensor:
        """The last token's hidden states [E N, 1, d] after the last layer; edits in the order of their start."""
        hidden: Tensor | None = None
        entered = 0
        for number, (layer, call) in enumerate(zip(self.plan.layers, self.calls, strict=True)):
            coming = sum(edit.start == number for edit in edits)
            if coming:
                fresh = call.hidden.repeat(coming, 1, 1)
                hidden = fresh if hidden is None else torch.cat([hidden, fresh])
                entered += coming
            if hidden is None:
                continue
            keys, values = self.prefix[number]
            scaled = self.plan.scaled[number]
            if self.last is not None and number == len(self.plan.layers) - 1:
                before = _Before(keys, values, stop=True)
                with suppress(_Stop):  # up to its keys and values for all tokens, then all of it for the last one
                    call.again(layer, hidden, before, scaled)
                keys, values = (part[:, :, :-1] for part in before.together())
                hidden, call = hidden[:, -1:], self.last
                queries = self.queries[-1:]
            else:
                queries = self.queries
            attached = [
                each
                for place, edit in enumerate(edits[:entered])
                for each in edit.instruments(Place(number, self.prompts, _examples(place, self.rows), queries))
            ]
            cache = _Before(keys, values) if self.plan.cached else None
            with instrument(self.model, *attached):
                hidden = call.again(layer, hidden, cache, scaled)
        if hidden is None:
            raise ValueError(f"an edit starts at a layer that there is not; the model has {len(self.plan.layers)}")
        return hidden[:, -1:]


def _kept(cache: Cache | None, number: int, first: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
    if cache is None or not first:
        return None, None
    layer: Any = cache.layers[number]
    return layer.keys, layer.values


# ------------------------------------------------------------------------------------------------ what a model allows


@dataclass(frozen=True, eq=False)
class _Plan:
    """How runs of a model are gone on with: whether its layers are called again, and that in words; these layers.

    scaled: the arguments of each layer's call that have a row for every prompt; cached: keys and values of a prefix can
    be kept; trims: the last layer can be left once its keys and values are known.
    """

    replays: bool
    path: str
    layers: nn.ModuleList
    scaled: tuple[set[tuple[Any, ...]], ...]
    cached: bool
    trims: bool


_PLANS: "weakref.WeakKeyDictionary[nn.Module, _Plan]" = weakref.WeakKeyDictionary()


def path(model: PreTrainedModel) -> str:
    """How a model's runs are computed; found out once, by comparing them on a short prompt."""
    prepare(model)
    return _plan(model).path


def _plan(model: PreTrainedModel) -> _Plan:
    if model not in _PLANS:
        _PLANS[model] = _found(model)
    return _PLANS[model]


def _found(model: PreTrainedModel) -> _Plan:
    found, config = support(model), model.config.get_text_config(decoder=True)
    count = config.num_hidden_layers
    lists = [m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    whole = _Plan(False, _why("its layers are not in one list"), nn.ModuleList(), (), False, False)
    if len(lists) != 1:
        return whole
    cached = len(found.layers) == count  # other layers keep a state of all tokens, not keys
    trims = cached and not any(hasattr(module, "_hf_hook") for module in model.modules())
    ids = torch.randint(config.vocab_size, (2, 6), generator=torch.Generator().manual_seed(0))
    answers = torch.tensor([[0, 1], [2, 3]])
    edits = [_probe(layer) for layer in found.layers]
    plan = _Plan(True, "replayed layers", lists[0], _scaled(model, lists[0], ids, cached), cached, trims)
    coarse = model.dtype in (torch.bfloat16, torch.float16) or getattr(model, "is_quantized", False)
    for first in (2, 0):
        try:
            ours = _Run(model, plan, False)(ids, slice(0, 2), [edits], answers, first if cached else 0)
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            return replace(whole, path=_why(f"{type(error).__name__}: {error}"))
        theirs = _Run(model, whole, False)(ids, slice(0, 2), [edits], answers, 0)
        for mine, reference in zip(ours, theirs, strict=True):
            difference = (mine - reference).abs()
            # in 16 bits a rounding error may send a token of a mixture of experts to another expert
            gap = float(difference.median() if coarse else difference.max())
            if not gap <= (5e-2 if coarse else 1e-4) * max(1.0, float(reference.abs().max())):
                return replace(whole, path=_why(f"its layers, called alone, change the logits by {gap:.2g}"))
    return plan


def _why(reason: str) -> str:
    return f"whole forward passes ({reason})"


def _probe(layer: int) -> Edit:
    def instruments(place: Place) -> list[Instrument]:
        positions = torch.tensor([t - place.queries.start for t in (3, 5) if t in place.queries])
        return [PatchHeads(layer, 0, 0.0, positions, examples=place.examples)] if place.layer == layer else []

    return Edit(layer, instruments)


def _scaled(
    model: PreTrainedModel, layers: nn.ModuleList, ids: Tensor, cached: bool
) -> tuple[set[tuple[Any, ...]], ...]:
    """Of each layer the paths of those arguments that have twice as many rows for twice as many prompts."""
    shapes: list[list[dict[tuple[Any, ...], torch.Size]]] = []
    for rows in (ids[:1], ids):
        rows = rows.to(input_device(model))
        cache = DynamicCache() if cached else None
        with torch.inference_mode(), _recorded(layers) as calls:
            for part in (rows[:, :3], rows[:, 3:5], rows[:, 5:])[: 3 if cached else 1]:
                model.base_model(part, past_key_values=cache, use_cache=cached)
        shapes.append([{p: v.shape for p, v in _leaves(call.rest) if isinstance(v, Tensor)} for call in calls])
    scaled: list[set[tuple[Any, ...]]] = [set() for _ in layers]
    for number, (one, two) in enumerate(zip(*shapes, strict=True)):
        own = {p for p in one if len(one[p]) and two[p][0] == 2 * one[p][0]}
        scaled[number % len(layers)] |= own - {(0, 0), (1, "hidden_states")}
    return tuple(scaled)
