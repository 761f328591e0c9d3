"""Many edited runs of the same prompts at the price of a few: every layer is called once, for all runs together.

A run that is edited from layer l on is the base run below it, so it joins the batch there. Where prompts are the same,
and unedited, before a position, keys and values of the base run stand for those tokens. In the last layer only the last
token goes on, and of the unembedding only the rows of the answers are needed. For all single-head patches of a model
(L x H of them) that is one pass of a growing batch instead of L x H passes.

No layer is re-implemented: the model's own layers are called again with the arguments that the base run gave them, and
the engine's instruments make the edits. Whether that is right for a class is found out by comparing with whole forward
passes, once for each model; where it is not, whole forward passes are run, in batches, and the `Plan` says why.
`BaseRuns` saves less and changes no bit: whole forward passes of the same batches, whose layers before the edits give
what they gave in an unedited run.

Not for two threads on one model: for the end of a run its layers and its unembedding are bypassed.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import DynamicCache, PreTrainedModel

from util.engine import memory
from util.engine.attention import input_device, instrument, once, plain_weight, random_ids, support
from util.engine.batches import logits_at
from util.engine.call import (
    CACHE,
    Before,
    Instrument,
    LayerCall,
    Path,
    Stop,
    at_least_float32,
    bypassed,
    first_of,
    in_place_of,
    recorded,
    scaled_arguments,
)
from util.engine.finite import check_finite
from util.engine.handshake import (
    FAILURES,
    check_ids,
    check_length,
    out_of_memory,
    prepare,
    tolerance,
    well_past,
)
from util.engine.instruments import PatchHeads

BUDGET = 2**30  # bytes of activations at a time
KEPT = 2**30  # bytes of layer outputs that `BaseRuns` keeps
SHORT = 6  # tokens of the prompt on which ways to run a model are compared
REPLAYED = "replayed layers"


class Place(NamedTuple):
    """Where in the work an edit is: which prompts; their rows `examples` [N] in the batch; and the tokens `queries` of
    the call: an instrument's row 0 is token queries.start, while keys count from the first token."""

    prompts: slice
    examples: Tensor
    queries: range

    @property
    def tokens(self) -> slice:
        return slice(self.queries.start, self.queries.stop)


@dataclass(frozen=True)
class Edit:
    """What is done to one run of every prompt: start, the model's own number of the layer that is edited, and what to
    attach to it at each place.

    hidden: the hidden states [N, T, d] with which the run enters that layer, None for those of the base run.
    """

    start: int
    instruments: Callable[[Place], Sequence[Instrument]]
    hidden: Tensor | None = None


def head_edit(layer: int, head: int, z: Tensor) -> Edit:
    """A run in which a head puts out what it has in z [N, T, H, dv]."""
    output = z[:, :, head : head + 1].clone()  # z is not kept

    def instruments(place: Place) -> list[PatchHeads]:
        return [PatchHeads(layer, head, output[place.prompts, place.tokens], examples=place.examples)]

    return Edit(layer, instruments)


def replay(
    model: PreTrainedModel,
    ids: Tensor,
    edits: Sequence[Edit],
    answers: Tensor,
    first: int = 0,
    log_probabilities: bool = False,
    budget: int = BUDGET,
) -> tuple[Tensor, Tensor]:
    """The logits of `answers` [N, A] after prompts `ids` [N, T]: under each edit alone [E, N, A], and without any.

    They are float32 (float64 with a float64 model), on the CPU. first: no edit touches a token before it, and what it
    patches in is the base run's there. log_probabilities: these instead of logits, which takes the whole unembedding:
    of as many runs at a time as half of the budget holds. budget: bytes of one batch. Raises ValueError for ids or
    answers of another shape, for a `first` outside the prompt, and for what instruments refuse; MemoryError where one
    run of one prompt takes more than the budget.
    """
    if ids.ndim != 2 or answers.ndim != 2 or len(ids) != len(answers) or not 0 <= first < ids.shape[1]:
        raise ValueError(
            f"ids {tuple(ids.shape)}, answers {tuple(answers.shape)}, first = {first}: give [N, T], [N, A] and a "
            "position of the prompt; prompts of different lengths go into calls of their own"
        )
    check_length(model, ids.shape[1])
    check_ids(model, ids.flatten())
    plan = plan_of(model, ids.shape[1])
    first = first if plan.cached else 0
    length = ids.shape[1] - (first if plan.replays else 0)
    needed = row_bytes(model, length, ids.shape[1])
    rows = budget // needed
    if not rows:
        raise MemoryError(
            f"one run of {length} tokens takes {needed / 1e6:.0f} MB, the budget is {budget / 1e6:.0f} MB; raise it, "
            "or take shorter prompts"
        )
    # as many prompts as fit with all edits, or else one, and as many edits as fit with these
    together = max(1, min(len(ids), rows // max(1, len(edits))))
    some = max(1, rows // together)
    order = sorted(range(len(edits)), key=lambda i: edits[i].start)
    chunks = [[edits[i] for i in order[at : at + some]] for at in range(0, len(order), some)]
    run = Runs(model, plan, log_probabilities, budget // 2)
    slices = [slice(start, start + together) for start in range(0, len(ids), together)]
    parts = [run(ids[part], part, chunks, answers[part], first) for part in slices]
    base, logits = (torch.cat(values, dim=-2) for values in zip(*parts, strict=True))
    check_finite(base, "the logits", model, ids)
    check_finite(logits.movedim(1, 0), "the logits of edited runs", model, ids)
    back = torch.argsort(torch.tensor(order, dtype=torch.long))
    return logits[back], base


def row_bytes(model: PreTrainedModel, length: int, keys: int) -> int:
    """The memory in bytes that one run of one prompt takes: `length` tokens that are computed, which read `keys`."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]  # Gemma 4
    width = heads * max(getattr(layer, "head_dim", None) or config.hidden_size // heads for layer in layers)
    kept = 3 * keys * width * model.dtype.itemsize  # keys and values of all tokens, and what makes them
    return max(memory.estimate(model, [length], 1).activations.values()) + kept


# ------------------------------------------------------------------------------------------------ one batch of prompts


class Runs:
    """Runs of a model as its plan allows them, and what follows their last token: logits, or log-probabilities.

    budget: bytes of the logits of whole vocabularies at a time, where log-probabilities are asked for.
    """

    def __init__(
        self, model: PreTrainedModel, plan: "Plan", log_probabilities: bool = False, budget: int = BUDGET // 2
    ) -> None:
        self.model, self.plan, self.log_probabilities, self.budget = model, plan, log_probabilities, budget

    @torch.inference_mode()
    def __call__(
        self, ids: Tensor, prompts: slice, chunks: Sequence[Sequence[Edit]], answers: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        """Base [N, A] and edited [E, N, A] logits."""
        ids = ids.to(input_device(self.model))
        with self.unembedding(answers) as columns:
            if self.plan.replays:
                run = _Base(self.model, self.plan, ids, prompts, first)
                out = run.calls[-1].out
                base = self.ends(first_of(out)[:, -1:], out, columns)
                edited = [self.ends(run.edited(edits), out, columns) for edits in chunks]
            else:
                runs = (self.whole(ids, prompts, edits) for edits in ((), *chunks))
                base, *edited = (self.read(logits, columns).cpu() for logits in runs)
        return base, torch.cat([base[:0], *edited]).unflatten(0, (-1, len(ids)))

    def whole(self, ids: Tensor, prompts: slice, edits: Sequence[Edit] = ()) -> Tensor:
        """The logits [R, V] behind the last tokens alone, by a whole pass over all edits of ids [N, T], or none.

        Raises ValueError for edits of hidden states.
        """
        if any(edit.hidden is not None for edit in edits):
            raise ValueError(f"hidden states cannot be edited: the model runs by {self.plan.path}")
        rows = torch.arange(len(ids))
        attached = [
            one
            for number, edit in enumerate(edits)
            for one in edit.instruments(Place(prompts, rows + number * len(ids), range(ids.shape[1])))
        ]
        last = torch.tensor([ids.shape[1] - 1])
        with instrument(self.model, *attached), logits_at(self.model, last):
            return self.model(ids.repeat(max(1, len(edits)), 1), use_cache=False).logits[:, -1]

    def ends(self, hidden: Tensor, out: Any, columns: Tensor) -> Tensor:
        """What is read behind hidden states [R, 1, d], on the CPU: logits of a few tokens, or log-probabilities.

        The latter take the logits of all tokens. Behind a run for every head these are gigabytes, so they are computed
        of some runs at a time.
        """
        prompts, at_once = len(columns), len(hidden)  # those of a run stay together
        if self.log_probabilities:
            vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
            size = self.model.dtype.itemsize
            logit = size + 2 * max(4, size)  # bytes: as it is, in float32 or better, normalised
            at_once = prompts * max(1, self.budget // (prompts * vocabulary * logit))
        return torch.cat([self.read(self.end(some, out), columns).cpu() for some in hidden.split(at_once)])

    def end(self, hidden: Tensor, out: Any) -> Tensor:
        """The logits [R, A] behind the last layer's hidden states [R, 1, d]."""
        with bypassed(self.plan.layers, in_place_of(out, hidden)):
            ids = torch.zeros(len(hidden), 1, dtype=torch.long, device=input_device(self.model))
            return self.model(ids, use_cache=False).logits[:, -1]

    def read(self, logits: Tensor, columns: Tensor) -> Tensor:
        """The logits, or log-probabilities, [R, C] of the columns [N, C] of logits [R, V], on their device."""
        logits = at_least_float32(logits)
        if self.log_probabilities:
            logits = logits.log_softmax(1)
        columns = columns.to(logits.device)
        return logits.gather(1, columns.repeat(len(logits) // len(columns), 1))

    @contextmanager
    def unembedding(self, answers: Tensor) -> Iterator[Tensor]:
        """Where in the logits the answers [N, A] are, while only they are computed, if that is possible."""
        head = self.model.get_output_embeddings()
        if self.log_probabilities or plain_weight(head) is None:
            yield answers
            return
        tokens, columns = answers.unique(return_inverse=True)
        try:
            self.model.set_output_embeddings(FewRows(head, tokens.to(head.weight.device)))
            yield columns
        finally:
            self.model.set_output_embeddings(head)


class FewRows(nn.Module):
    """The unembedding of some tokens only, in float32 or better, because 16 bits lose small differences of logits."""

    def __init__(self, head: nn.Linear, tokens: Tensor) -> None:
        super().__init__()
        self.weight = at_least_float32(head.weight.detach()[tokens])
        self.bias = None  # else a parameter, as BERT, which keeps a second one, wants it
        if head.bias is not None:
            self.bias = nn.Parameter(at_least_float32(head.bias.detach()[tokens]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits [N, S, A] of the A chosen tokens, for x [N, S, d]."""
        # tied to the embeddings, it may be on another device than the last layer, and accelerate's hook is not on it
        return linear(x.to(self.weight), self.weight, self.bias)


class _Base:
    """The base run of a batch of prompts, to be gone on with from any layer."""

    def __init__(self, model: PreTrainedModel, plan: "Plan", ids: Tensor, prompts: slice, first: int) -> None:
        self.model, self.plan, self.prompts, self.rows = model, plan, prompts, torch.arange(len(ids))
        self.queries = range(first, ids.shape[1])
        cache = DynamicCache() if plan.cached else None
        self.calls = plan.base_run(model, ids, first, cache)
        self.last: LayerCall | None = None
        if plan.trims and len(self.queries) > 1:
            assert cache is not None
            cache.crop(-1)
            out = self.calls[-1].out
            passed = first_of(out)[:, -1:]
            with bypassed(plan.layers[:-1], in_place_of(out, passed)), plan.recorded() as calls:
                model.base_model(ids[:, -1:], **{CACHE: cache}, use_cache=True)
            self.last = calls[-1]

    def edited(self, edits: Sequence[Edit]) -> Tensor:
        """The last token's hidden states [E N, 1, d] after the last layer; edits in the order of their start."""
        if edits[-1].start >= len(self.calls):
            raise ValueError(f"an edit starts at a layer that there is not; the model has {len(self.calls)}")
        hidden = self.calls[0].hidden[:0]
        for number, call in enumerate(self.calls):
            entering, before = [edit for edit in edits if edit.start == number], len(hidden)
            if entering:
                hidden = torch.cat([hidden.to(call.hidden), *(self.entering(edit, call) for edit in entering)])
            if not len(hidden):
                continue
            queries = self.queries
            if self.last is not None and number == len(self.calls) - 1:
                cache = Before(*call.prefix, stop=True)
                with suppress(Stop):  # up to its keys and values for all tokens, then all of it for the last one
                    call.again(hidden, cache)
                keys, values = (part[:, :, :-1] for part in cache.together())
                call = replace(self.last, prefix=(keys, values))
                hidden, queries = hidden[:, -1:], queries[-1:]
            attached = [
                one
                for place, edit in enumerate(entering)
                for one in edit.instruments(Place(self.prompts, self.rows + before + place * len(self.rows), queries))
            ]
            with instrument(self.model, *attached):
                hidden = call.again(hidden)
        return hidden[:, -1:]

    def entering(self, edit: Edit, call: LayerCall) -> Tensor:
        """The hidden states [N, S, d] with which a run enters the layer of this call."""
        if edit.hidden is None:
            return call.hidden
        return edit.hidden[self.prompts, self.queries.start : self.queries.stop].to(call.hidden)


# ------------------------------------------------------------------------------------------------ what a model allows


@dataclass(frozen=True, eq=False)
class Plan:
    """How runs of a model are gone on with, in words: by REPLAYED layers, or by whole passes and why; these layers.

    scaled: the arguments of each layer's call that have a row for every prompt; cached: keys and values of a prefix can
    be kept; trims: the last layer can be left once its keys and values are known.
    """

    path: str
    layers: nn.ModuleList
    scaled: tuple[Collection[Path], ...] = ()
    cached: bool = False
    trims: bool = False

    @property
    def replays(self) -> bool:
        """Whether the layers are called again."""
        return self.path == REPLAYED

    @contextmanager
    def recorded(self) -> Iterator[list[LayerCall]]:
        """A list of all calls of the layers inside the block, which can be repeated behind it for more rows."""
        with recorded(self.layers) as calls:
            yield calls
        for call, scaled in zip(calls, self.scaled, strict=True):
            call.scaled = scaled

    def base_run(self, model: PreTrainedModel, ids: Tensor, first: int, cache: DynamicCache | None) -> list[LayerCall]:
        """Run prompts [N, T] on an empty cache, or on none, which does only where `first` is 0.

        Returns all calls of layers for the tokens from `first` on, with the keys and values of those before as prefix.
        """
        options = {CACHE: cache, "use_cache": cache is not None}
        prefix: list[tuple[Any, Any]] = []
        if first and cache is not None:
            model.base_model(ids[:, :first], **options)
            prefix = [(layer.keys, layer.values) for layer in cache.layers]
        with self.recorded() as calls:
            model.base_model(ids[:, first:], **options)
        for call, keys_and_values in zip(calls, prefix, strict=bool(prefix)):
            call.prefix = keys_and_values
        return calls


def plan_of(model: PreTrainedModel, length: int = SHORT) -> Plan:
    """Returns how runs of a prepared model are gone on with, for prompts of `length` tokens.

    The lengths at which the model's config switches its attention divide all lengths into ranges. The plan of a range
    is found out once, well past the switch that it begins with, so that it does not matter which length is asked for
    first. Raises an error of memory as it is: nothing is found then.
    """
    passed = [switch for switch in support(model).switches if switch < length]
    return plan_at(model, well_past(model, passed[-1]) if passed else SHORT)


@once
def plan_at(model: PreTrainedModel, length: int) -> Plan:
    """Returns the plan that is right on a random prompt of `length` tokens."""
    known, count = support(model), model.config.get_text_config(decoder=True).num_hidden_layers
    lists = [m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(lists) != 1:
        return _whole_passes("its layers are not in one list")
    cached = len(known.layers) == count  # other layers keep a state of all tokens, not keys
    trims = cached and not any(hasattr(module, "_hf_hook") for module in model.modules())
    ids, answers = random_ids(model, 2, length), torch.tensor([[0, 1], [2, 3]])
    layers = known.layers if length == SHORT else {known.layers[0], known.layers[-1]}  # long prompts are dear
    edits = [_probe(layer, length) for layer in sorted(layers)]
    beside = {switch - 1 for switch in known.switches if 1 < switch < length - 4}  # a prefix short of a switch
    runs: list[Tensor] = []
    try:
        plan = Plan(REPLAYED, lists[0], scaled_arguments(model, lists[0], ids, cached), cached, trims)
        for first in sorted({length - 4, 0, *beside} if cached else {0}):
            runs += Runs(model, plan)(ids, slice(0, 2), [edits], answers, first)
    except FAILURES as error:
        if out_of_memory(error):
            raise
        return _whole_passes(f"{type(error).__name__}: {error}")
    references = Runs(model, _whole_passes("as a reference"))(ids, slice(0, 2), [edits], answers, 0)
    for logits, reference in zip(runs, cycle(references), strict=False):
        gap, bound = tolerance(model, logits, reference)
        if not gap <= bound:
            return _whole_passes(f"its layers, called alone, change the logits by {gap:.2g}")
    return plan


def _whole_passes(reason: str) -> Plan:
    return Plan(f"whole forward passes ({reason})", nn.ModuleList())


def _probe(layer: int, length: int) -> Edit:
    def instruments(place: Place) -> list[Instrument]:
        positions = torch.tensor([t - place.queries.start for t in (length - 3, length - 1) if t in place.queries])
        return [PatchHeads(layer, 0, 0.0, positions, examples=place.examples)]

    return Edit(layer, instruments)


# ------------------------------------------------------------------------------------------------ whole forward passes


class BaseRuns:
    """What layers returned in unedited runs of batches, so that edited runs of them start where they are edited.

    Masks, positions, later layers and the unembedding are the model's own, so that results do not change by a bit. Kept
    is what goes into the first edited layer of each run, while there is room. limit: bytes.
    """

    def __init__(self, model: PreTrainedModel, limit: int = KEPT) -> None:
        prepare(model)
        self._layers, self._kept, self._room = startable(model), dict[tuple[Hashable, int], Any](), limit

    @contextmanager
    def run(self, batch: Hashable, attached: Sequence[Instrument]) -> Iterator[None]:
        """Let one forward pass of a batch, with these instruments attached, start where they allow it.

        batch: any name of it.
        """
        first = min((0 if one.layers is None else min(one.layers) for one in attached), default=0)
        if self._layers is None or not first:
            yield
            return
        start = max((at for at in range(1, first + 1) if (batch, at) in self._kept), default=0)

        def keep(_: nn.Module, __: Any, out: Any) -> None:
            if start < first and first_of(out).nbytes <= self._room:
                self._room -= first_of(out).nbytes
                self._kept[batch, first] = out

        below = bypassed(self._layers[:start], self._kept.get((batch, start)))
        with self._layers[first - 1].register_forward_hook(keep), below:
            yield


@once
def startable(model: PreTrainedModel) -> nn.ModuleList | None:
    """Returns the layers of a prepared model whose runs may start at any of them; None where the logits change."""
    plan, ids = plan_of(model), random_ids(model, 2, SHORT)
    if not plan.replays:
        return None
    with torch.inference_mode(), recorded(plan.layers) as calls:
        whole = model(ids, use_cache=False).logits
    try:
        for start in range(1, len(plan.layers)):
            with torch.inference_mode(), bypassed(plan.layers[:start], calls[start - 1].out):
                if not torch.equal(model(ids, use_cache=False).logits, whole):
                    return None
    except FAILURES as error:
        if out_of_memory(error):
            raise
        return None
    return plan.layers
