"""Importance scores of units by token type, and runs of models with some of them pruned (Bakalova et al., COLM 2025).

The score of a unit estimates how far the loss changes where the unit is pruned. All units of a model are scored by a
forward pass of the donors, then one of the prompts and its backward pass: the loss has a gradient g at the output o of
every head. What a head would put out without a unit, o', is then known in closed form, layer by layer, with the softmax
of the head computed again; the unit does g (o' - o) to the loss of a prompt.

The loss is the mean negative log-probability of the answer's tokens, of each prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from util.edges.edge import kinds
from util.edges.splicing import Ablated, Group, States, Store, outcomes_of
from util.engine.attention import input_device, instrument
from util.engine.batches import TOKEN_BUDGET, Batch, Row, logits_at, run_rows, shared_budget
from util.engine.call import Call, Instrument, in_double
from util.engine.finite import check_finite
from util.engine.instruments import Splice
from util.scores.units import SORTS, Circuit, Sort, plain_types, removes

METHOD, REDUCE = "local_exact", "sum_then_abs"  # what the scores are called in records and files
CELLS = 2**21  # numbers in one tensor of cells and kinds
Floats = NDArray[np.floating]


# ------------------------------------------------------------------------------------------------ pruned runs


class DonorHeads(Instrument):
    """Replace the outputs z of some heads at some tokens by those of donors.

    where: by layer [B, T, H]. Donors are rows [B] of the same batch, or have run before: z, by layer [B, T, H, dv].
    """

    def __init__(
        self, where: dict[int, Tensor], rows: Tensor | None = None, z: dict[int, Tensor] | None = None
    ) -> None:
        self.where, self.rows, self.z = where, rows, z
        self.layers = frozenset(where)

    def visit(self, call: Call, out: Tensor) -> Tensor:
        if self.z is not None:
            donors = self.z[call.layer]
        else:
            assert self.rows is not None
            donors = out.detach()[self.rows.to(out.device)]
        return torch.where(self.where[call.layer].to(out.device)[..., None], donors, out)


@dataclass(frozen=True)
class Donors:
    """What plain runs of donors leave, by layer: states, keys and values [B, Hkv, T, d]; z, outputs [B, T, H, dv]."""

    states: States
    z: dict[int, Tensor]


class PrunedRun(Ablated):
    """Prompts and their donors (corruption 0) in a model of which a circuit is left.

    In lock-step a prompt's rows are [donor, prompt], or the prompt alone where nothing is pruned.
    Raises ValueError for a circuit of a model of another size, for prompts without a donor of corruption 0, for kinds
    of edges that overlap, and what `Ablated` raises.
    """

    def __init__(self, model: PreTrainedModel, groups: Sequence[Group], circuit: Circuit) -> None:
        super().__init__(model, groups, circuit.start)
        there = len(self.found.layers), self.found.heads
        if circuit.heads.shape[:2] != there or circuit.edges.shape[:2] != there:
            raise ValueError(f"the circuit has {circuit.heads.shape[:2]} layers and heads, the model {there}")
        if any(0 not in group.donors for group in groups):
            raise ValueError("a prompt has no donor of corruption 0, which pruned units are read from")
        known: dict[Any, tuple[Tensor, Tensor]] = {}
        both = []
        for group, removed in zip(groups, self.codes, strict=True):
            key = group.base.types, group.base.examples, group.base.slots
            if key not in known:
                known[key] = self._kinds(circuit, group, removed)
            both.append(known[key])
        self.codes = [codes for codes, _ in both]  # kinds, and beyond these again the kinds of removed cells
        self.types = [types for _, types in both]
        self.present = torch.cat([codes.unique() for codes, _ in known.values()]).unique()
        self.set_circuit(circuit)

    @staticmethod
    def _kinds(circuit: Circuit, group: Group, removed: Tensor) -> tuple[Tensor, Tensor]:
        """The kind of every cell [T, T], from 1, beyond these again for removed ones; the types [T] of heads."""
        edges: Any = circuit.edges.kinds
        codes = torch.from_numpy(kinds((), edges, group.base))
        codes = torch.where(codes > 0, codes - 1, codes) + (len(edges) + 1) * (removed == 1)
        names: Any = circuit.heads.kinds
        places = [names.index(name) if name in names else len(names) for name in plain_types(group.base)]
        return codes, torch.tensor(places)

    def set_circuit(self, circuit: Circuit) -> None:
        """Prune another circuit of the same units and start."""
        self.circuit = circuit
        layers, heads, count = circuit.edges.shape
        dead = torch.from_numpy(~circuit.living_edges).long()
        removed = torch.from_numpy(removes(circuit.start, layers, heads)).long()
        self.tables, self.dead_heads = {}, {}
        for place, layer in enumerate(self.found.layers):
            table = torch.zeros(heads, 2 * (count + 1), dtype=torch.long)
            table[:, 1 : count + 1] = dead[place]
            table[:, count + 1 :] = removed[place, :, None]
            table[:, count + 2 :] |= dead[place]
            self.tables[layer] = table
            none = torch.zeros(heads, 1, dtype=torch.bool)  # of tokens that are no type of heads
            self.dead_heads[layer] = torch.cat([torch.from_numpy(~circuit.living_heads[place]), none], 1)
        cut = any(bool(table[:, self.present].any()) for table in self.tables.values())
        patched = any(bool(table.any()) for table in self.dead_heads.values())
        self.donors = (0,) if cut or patched else ()

    def instruments(self, numbers: Sequence[int]) -> list[Instrument]:
        """What acts on `batch(numbers)`."""
        if not self.donors:
            return []
        donors = torch.arange(2 * len(numbers)) // 2 * 2  # of each row, itself for a donor
        own = self._padded(numbers)
        codes = torch.stack([torch.zeros_like(own), own], 1).flatten(0, 1)
        where = {}
        for layer, dead in self.swapped(numbers).items():
            where[layer] = torch.stack([torch.zeros_like(dead), dead], 1).flatten(0, 1)
        return [Splice(codes, self.tables, donors[:, None]), DonorHeads(where, rows=donors)]

    def beside(self, numbers: Sequence[int], donors: Donors) -> list[Instrument]:
        """What acts on `batch(numbers, donors=False)` once the donors have run."""
        if not self.donors:
            return []
        rows = torch.arange(len(numbers))[:, None]
        splice = Splice(self._padded(numbers), self.tables, rows, states=donors.states)
        return [splice, DonorHeads(self.swapped(numbers), z=donors.z)]

    def apart(self, numbers: Sequence[int], store: Store | None = None) -> list[Instrument]:
        """What acts on `batch(numbers, donors=False)` once the donors have run before it."""
        return self.beside(numbers, self.run_donors(numbers, store)) if self.donors else []

    def renewable(self, numbers: Sequence[int], more: int = 0) -> bool:
        """No: heads are pruned at most of the tokens, so that none of the prompt is as in the plain run."""
        return False

    def swapped(self, numbers: Sequence[int]) -> dict[int, Tensor]:
        """By layer, where the outputs of heads are those of donors [B, T, H]; only layers where any is."""
        types = self.padded_types(numbers)
        return {layer: dead.T[types] for layer, dead in self.dead_heads.items() if bool(dead.any())}

    def padded_types(self, numbers: Sequence[int]) -> Tensor:
        """The place of each token's type among the kinds of head units [B, T], their number where it is none."""
        width = max(self.lengths[number] for number in numbers)
        types = torch.full((len(numbers), width), len(self.circuit.heads.kinds))
        for place, number in enumerate(numbers):
            size = self.lengths[number]
            types[place, :size] = self.types[number][:size]
        return types

    def run_donors(self, numbers: Sequence[int], store: Store | None = None) -> Donors:
        """Run the donors of these prompts alone. store: keeps what they leave, which is the same for every circuit."""
        ids = [self.groups[number].donors[0].ids[: self.lengths[number]] for number in numbers]

        def run() -> dict[int, tuple[Tensor, Tensor, Tensor]]:
            watch = _Watch()
            with torch.no_grad():
                batch = Batch.of([*map(Row, ids)], range(len(ids)))
                _forward(self.model, self.model.base_model, batch, [watch])
            return {layer: (call.key, call.value, watch.z[layer]) for layer, call in watch.calls.items()}

        found = run() if store is None else store.get(("donors of pruned units", *ids), run)
        states = {layer: (key, value) for layer, (key, value, _) in found.items()}
        return Donors(states, {layer: z for layer, (_, _, z) in found.items()})

    def losses(self, numbers: Sequence[int], donors: Donors, *watching: Instrument) -> tuple[Tensor, Tensor]:
        """The loss of each prompt [B], and the log-probabilities [B, V] of its next token, beside donors that ran."""
        batch = self.batch(numbers, donors=False)
        sizes = [len(self.groups[number].target) for number in numbers]
        owners = torch.tensor([place for place, size in enumerate(sizes) for _ in range(size)])
        steps = torch.tensor([step for size in sizes for step in range(size)])
        first = torch.tensor([self.groups[number].length - 1 for number in numbers])
        places, which = (first[owners] + steps).unique(return_inverse=True)
        instruments = [*self.beside(numbers, donors), *watching]
        with logits_at(self.model, places) as options:
            out = _forward(self.model, self.model, batch, instruments, **options)
        logits = out.logits[owners.to(out.logits.device), which.to(out.logits.device)]
        ids = [self.groups[number].base.ids for number in numbers]
        check_finite(logits.detach(), "the logits", self.model, [ids[o] for o in owners.tolist()])
        said = in_double(logits).log_softmax(-1)
        targets = torch.tensor([token for number in numbers for token in self.groups[number].target])
        scores = said.gather(1, targets.to(said.device)[:, None])[:, 0]
        lost = scores.new_zeros(len(numbers)).index_add(0, owners.to(said.device), -scores)
        return lost / torch.tensor(sizes, device=said.device), said[(steps == 0).to(said.device)].detach()


def answers(
    model: PreTrainedModel,
    groups: Sequence[Group],
    circuit: Circuit,
    whole: np.ndarray | None = None,
    token_budget: int = TOKEN_BUDGET,
    two_pass: bool = False,
    store: Store | None = None,
) -> dict[str, np.ndarray]:
    """What a pruned model says after each prompt, [N] each, see `splicing.outcomes`; whole: [N, V].

    two_pass: run the donors before the prompts, not beside them; store: keeps what they leave for the next circuit of
    these prompts. Raises what `PrunedRun` raises.
    """
    return outcomes_of(PrunedRun(model, groups, circuit), whole, token_budget, two_pass, store)


class _Watch(Instrument):
    """Keeps the calls of all layers and the outputs of their heads, z [B, T, H, dv].

    graph: the outputs of the first layer are where the graph of a backward pass begins.
    """

    def __init__(self, graph: bool = False) -> None:
        self.graph = graph
        self.calls: dict[int, Call] = {}
        self.z: dict[int, Tensor] = {}

    def visit(self, call: Call, out: Tensor) -> Tensor:
        if self.graph and not self.z:
            out = out.detach().requires_grad_()
        self.calls[call.layer] = call
        self.z[call.layer] = out
        return out


def _forward(
    model: PreTrainedModel, module: Any, batch: Batch, instruments: Sequence[Instrument], **options: Any
) -> Any:
    inputs = {name: tensor.to(input_device(model)) for name, tensor in batch.inputs.items()}
    with instrument(model, *instruments):
        return module(**inputs, use_cache=False, **options)


# ------------------------------------------------------------------------------------------------ scores


@dataclass(frozen=True)
class Scored:
    """A circuit's scores, and what it answers.

    heads, edges: nats [L, H, K], the mean over prompts of the size of what each unit does to the loss, as in the
    reference code. losses and right [N]: mean NLL, and whether the first token is right.
    """

    heads: Floats
    edges: Floats
    losses: Floats
    right: NDArray[np.bool_]

    def of(self, sort: Sort) -> Floats:
        """The scores of a sort of units."""
        return self.heads if sort == "head" else self.edges


def scores(
    model: PreTrainedModel,
    groups: Sequence[Group],
    circuit: Circuit,
    token_budget: int = TOKEN_BUDGET,
    store: Store | None = None,
) -> Scored:
    """The scores of all units of a circuit's model, measured in the circuit; those of dead units are 0.

    store: keeps what donors leave, for the next circuit of these prompts. Raises what `PrunedRun` raises.
    """
    run, n = PrunedRun(model, groups, circuit), len(groups)
    losses, right = np.zeros(n), np.zeros(n, bool)
    totals = {sort: np.zeros(circuit.units(sort).shape) for sort in SORTS}

    def visit(batch: Batch) -> None:
        numbers = [int(number) for number in batch.numbers]
        parts, lost, said = _estimated(run, numbers, store)
        losses[numbers] = lost.detach().cpu().numpy()
        right[numbers] = said.argmax(-1).cpu().numpy() == [groups[number].target[0] for number in numbers]
        for sort, layer, effects in parts:  # only now: a batch without memory is run again
            check_finite(effects, f"the scores of {sort} units", model, [groups[number].base.ids for number in numbers])
            totals[sort][layer] += effects.abs().sum(0).cpu().numpy()

    rows = [Row(group.base.ids[:length]) for group, length in zip(groups, run.lengths, strict=True)]
    with _frozen(model), tqdm(total=n, unit="prompt", leave=False, delay=5) as bar:
        run_rows(model, rows, visit, shared_budget(token_budget, 2), bar)
    return Scored(totals["head"] / n, totals["edge"] / n, losses, right)


Part = tuple[Sort, int, Tensor]  # sort, place of the layer, effects [B, H, K]: sums over tokens


def _estimated(run: PrunedRun, numbers: Sequence[int], store: Store | None) -> tuple[list[Part], Tensor, Tensor]:
    """What all units do to some prompts, the losses [B] and the log-probabilities [B, V] of the next token."""
    donors = run.run_donors(numbers, store)
    watch = _Watch(graph=True)
    with torch.enable_grad():
        lost, said = run.losses(numbers, donors, watch)
        found = torch.autograd.grad(lost.sum(), list(watch.z.values()))
    gradients = dict(zip(watch.z, found, strict=True))
    del found
    swapped, types = run.swapped(numbers), run.padded_types(numbers)
    codes = run._padded(numbers)
    parts: list[Part] = []
    with torch.no_grad():
        for place, layer in enumerate(run.found.layers):
            call, z = _detached(watch.calls.pop(layer)), watch.z.pop(layer).detach()
            gradient = gradients.pop(layer)
            if layer in swapped:
                gradient = gradient.masked_fill(swapped[layer].to(gradient.device)[..., None], 0)
            change = in_double(((donors.z.pop(layer) - z) * gradient).sum(-1))  # [B, T, H]
            own = nn.functional.one_hot(types, len(run.circuit.heads.kinds) + 1)[..., :-1].to(change)
            parts.append(("head", place, torch.einsum("bth,btk->bhk", change, own)))
            effects = _edge_effects(call, donors.states.pop(layer), gradient, codes, run.tables[layer])
            parts.append(("edge", place, effects))
    return parts, lost.detach(), said


def _detached(call: Call) -> Call:
    call_ = copy(call)
    for name in ("query", "key", "value"):
        object.__setattr__(call_, name, getattr(call, name).detach())
    return call_


def _edge_effects(call: Call, donor: tuple[Tensor, Tensor], gradient: Tensor, codes: Tensor, table: Tensor) -> Tensor:
    """The effects [B, H, C] of every kind of edge in a layer: sums over the tokens that read.

    donor: keys and values; gradient: [B, T, H, dv]. codes: the kinds of cells [B, T, T], and table: whether they are
    pruned [H, 2 (1 + C)], see `PrunedRun`.
    """
    kinds_and_none = table.shape[1] // 2  # kind 0 is none
    batch, tokens = codes.shape[:2]
    rows_at_once = max(1, CELLS // (batch * tokens * max(kinds_and_none, 2 * table.shape[0])))
    sums = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(tokens).split(rows_at_once):
        cells = nn.functional.one_hot(codes[:, rows] % kinds_and_none, kinds_and_none).double()  # [B, R, T, 1 + C]
        sums = sums + _row_effects(call, donor, gradient[:, rows], codes[:, rows], table, cells, rows).sum(2)
    return sums[..., 1:]


def _row_effects(
    call: Call,
    donor: tuple[Tensor, Tensor],
    gradient: Tensor,
    codes: Tensor,
    table: Tensor,
    cells: Tensor,
    rows: Tensor,
) -> Tensor:
    """The effects by the token that reads, of the tokens `rows` [R]: [B, H, R, 1 + C], first of the cells of no kind.

    gradient: [B, R, H, dv]; codes: [B, R, T]; cells: [B, R, T, 1 + C], 1 where a cell is of a kind.

    A cell has a score s, and u, the product of its value and the gradient. They are the prompt's, or the donor's where
    the cell is pruned. The product of the head's output and the gradient is the mean of u with the weights w = exp(s).
    A sink has a weight, and u = 0.

    All cells of other kinds and the sink have the mean M. A kind's cells change it by the sum of their w (u - M),
    divided by the sum of all weights. They do so with their own s and u, and with the donor's: the effect is the
    difference.
    """
    scores, sink = call.joint_scores(donor[0], rows)
    own_scores, donor_scores = scores.chunk(2, dim=-1)
    own_u, donor_u = (in_double(_products(gradient, values)) for values in (call.value, donor[1]))
    pruned = table.bool()[:, codes].transpose(0, 1).to(scores.device)  # [B, H, R, T]
    now, u = torch.where(pruned, donor_scores, own_scores), torch.where(pruned, donor_u, own_u)
    cells = cells.to(scores.device)
    highest = torch.maximum(scores.amax(-1, keepdim=True), sink)  # weights down to exp(-700) of it have all digits
    w, donor_w = (now - highest).exp(), (donor_scores - highest).exp()
    weight, product = _by_kind(w, cells), _by_kind(w * u, cells)
    donor_weight, donor_product = _by_kind(donor_w, cells), _by_kind(donor_w * donor_u, cells)
    # The others are summed. Subtracted from all, they would have no digits left beside a kind with nearly all weight.
    others = 1 - torch.eye(cells.shape[-1]).to(cells)
    other_weight = weight @ others + (sink - highest).exp()
    other_mean = (product @ others) / other_weight.clamp(min=torch.finfo(other_weight.dtype).tiny)
    before = (product - weight * other_mean) / (weight + other_weight)
    after = (donor_product - donor_weight * other_mean) / (donor_weight + other_weight)
    return after - before


def _products(gradient: Tensor, values: Tensor) -> Tensor:
    """The products [B, H, R, S] of gradients [B, R, H, dv] and values [B, Hkv, S, dv], which heads may share."""
    shared = gradient.shape[2] // values.shape[1]
    by_head = gradient.transpose(1, 2).unflatten(1, (-1, shared))  # [B, Hkv, shared, R, dv]
    return (by_head @ values[:, :, None].transpose(-1, -2)).flatten(1, 2)


def _by_kind(numbers: Tensor, cells: Tensor) -> Tensor:
    """Sums [B, H, R, C] of numbers [B, H, R, S] over the cells of each kind [B, R, S, C]."""
    return (numbers.transpose(1, 2) @ cells).transpose(1, 2)


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block no weight wants a gradient, so that a backward pass keeps nothing for one."""
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    for weights in trained:
        weights.requires_grad_(False)
    try:
        yield
    finally:
        for weights in trained:
            weights.requires_grad_(True)
