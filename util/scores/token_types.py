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
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from util.edges.edge import kinds, together
from util.edges.splicing import Ablated, Group, Numbers, of_layouts, outcomes_of, progress
from util.edges.states import Store
from util.engine.batches import TOKEN_BUDGET, Batch, Row, called, logits_at
from util.engine.call import Call, Instrument, in_double
from util.engine.finite import check_finite
from util.engine.instruments import ByLayer, CaptureCalls, CaptureHeads, CaptureStates, Splice
from util.prompts.prompt import TypedTokens
from util.scores.pruning import SORTS, Circuit, Sort, plain_types
from util.stats.heads import Floats

METHOD, REDUCE = "local_exact", "sum_then_abs"  # what the scores are called in records and files
CELLS = 2**21  # numbers in one tensor of cells and kinds


# ------------------------------------------------------------------------------------------------ pruned runs

Donors = dict[int, tuple[Tensor, Tensor, Tensor]]  # of plain runs: keys, values [B, Hkv, T, d], outputs z [B, T, H, dv]


class DonorHeads(Instrument):
    """Replace the outputs of some heads at some tokens by those of donors that have run before.

    where: by layer [B, T, H].
    """

    def __init__(self, where: ByLayer, donors: Donors) -> None:
        self.where, self.donors = where, donors
        self.layers = frozenset(where)

    def visit(self, call: Call, out: Tensor) -> Tensor:
        return torch.where(self.where[call.layer].to(out.device)[..., None], self.donors[call.layer][2], out)


class PrunedRun(Ablated):
    """Prompts and their donors (corruption 0) in a model of which a circuit is left.

    Raises ValueError for a circuit of a model of another size, for prompts without a donor of corruption 0, for kinds
    of edges that overlap, and what `Ablated` raises.
    """

    def __init__(
        self, model: PreTrainedModel, groups: Sequence[Group], circuit: Circuit, store: Store | None = None
    ) -> None:
        super().__init__(model, groups, circuit.start, store)
        shape = len(self.support.layers), self.support.heads
        if circuit.living_heads.shape[:2] != shape:
            raise ValueError(f"the circuit has {circuit.living_heads.shape[:2]} layers and heads, the model {shape}")
        if any(0 not in group.donors for group in groups):
            raise ValueError("a prompt has no donor of corruption 0, which pruned units are read from")
        self.no_type = len(circuit.types)

        def codes(tokens: TypedTokens) -> Tensor:  # kinds from 1, and beyond these again the kinds of removed cells
            none = together((), tokens)
            edges, removed = kinds(none, circuit.kinds, tokens), circuit.start.codes(tokens) == 1
            return torch.from_numpy(np.where(edges > 0, edges - 1, edges) + (len(circuit.kinds) + 1) * removed)

        def types(tokens: TypedTokens) -> Tensor:  # their number where a token is of none of them
            places = {name: place for place, name in enumerate(circuit.types)}
            return torch.tensor([places.get(name, self.no_type) for name in plain_types(tokens)])

        self.codes, self.types = of_layouts(groups, codes), of_layouts(groups, types)
        self.set_circuit(circuit)

    def set_circuit(self, circuit: Circuit) -> None:
        """Prune another circuit of the same units and start."""
        none = torch.zeros(len(self.acts), self.support.heads, 1, dtype=torch.bool)  # cells and tokens of no kind
        cells = torch.cat([none, torch.from_numpy(~circuit.living_edges)], 2)
        tables = torch.cat([cells, cells | self.acts[..., None]], 2)
        heads = torch.cat([torch.from_numpy(~circuit.living_heads), none], 2)
        self.tables = dict(zip(self.support.layers, tables.long(), strict=True))
        self.dead_heads = dict(zip(self.support.layers, heads, strict=True))
        present = torch.cat([codes.unique() for codes in self.codes]).unique()
        self.donors = (0,) if tables[..., present].any() or heads.any() else ()

    def instruments(self, numbers: Numbers) -> list[Instrument]:
        """What acts on a pass of these prompts, whose donors run now."""
        return self.beside(numbers, self.run_donors(numbers)) if self.donors else []

    def beside(self, numbers: Numbers, donors: Donors) -> list[Instrument]:
        """What acts on a pass of these prompts once the donors have run."""
        if not self.donors:
            return []
        states = {layer: (key, value) for layer, (key, value, _) in donors.items()}
        splice = Splice(self.padded(numbers), self.tables, [states])
        return [splice, DonorHeads(self.swapped(numbers), donors)]

    def renewable(self, numbers: Numbers, more: int = 0) -> bool:
        """No: heads are pruned at most of the tokens, so that none of the prompt is as in the plain run."""
        return False

    def swapped(self, numbers: Numbers) -> ByLayer:
        """By layer, where the outputs of heads are those of donors [B, T, H]; only layers where any is."""
        types = self.padded_types(numbers)
        return {layer: dead.T[types] for layer, dead in self.dead_heads.items() if bool(dead.any())}

    def padded_types(self, numbers: Numbers) -> Tensor:
        """The place of each token's type among the types of head units [B, T], their number where it is none."""
        types = [self.types[number][: self.lengths[number]] for number in numbers]
        return nn.utils.rnn.pad_sequence(types, batch_first=True, padding_value=self.no_type)

    def run_donors(self, numbers: Numbers) -> Donors:
        """What donors of these prompts leave when they run alone, which is the same for every circuit."""
        ids = self.ids(numbers, 0)

        @torch.no_grad()
        def run() -> Donors:
            states, heads = CaptureStates(), CaptureHeads()
            called(self.model, self.model.base_model, Batch.of([*map(Row, ids)]), states, heads)
            return {layer: (*pair, heads.z[layer]) for layer, pair in states.states.items()}

        return self.store.get(("donors of pruned units", *ids), run)

    def losses(self, numbers: Numbers, donors: Donors, *watching: Instrument) -> tuple[Tensor, Tensor]:
        """The loss of each prompt [B], and the log-probabilities [B, V] of its next token, beside donors that ran."""
        owners, steps, places, which = self.answer_places(numbers)
        ids = self.ids(numbers)
        with logits_at(self.model, places):
            out = called(self.model, self.model, Batch.of([*map(Row, ids)]), *self.beside(numbers, donors), *watching)
        device = out.logits.device
        owners, logits = owners.to(device), out.logits[owners.to(device), which.to(device)]
        check_finite(logits.detach(), "the logits", self.model, [ids[owner] for owner in owners.tolist()])
        log_probs = in_double(logits).log_softmax(-1)
        targets = torch.tensor([token for number in numbers for token in self.groups[number].target])
        scores = log_probs.gather(1, targets.to(device)[:, None])[:, 0]
        lost = scores.new_zeros(len(numbers)).index_add(0, owners, -scores)
        return lost / owners.bincount(), log_probs[(steps == 0).to(device)].detach()


def answers(
    model: PreTrainedModel,
    groups: Sequence[Group],
    circuit: Circuit,
    token_budget: int = TOKEN_BUDGET,
    store: Store | None = None,
) -> dict[str, np.ndarray]:
    """What a pruned model says after each prompt, [N] each, see `splicing.outcomes`.

    store: keeps what donors leave for the next circuit of these prompts. Raises what `PrunedRun` raises.
    """
    return outcomes_of(PrunedRun(model, groups, circuit, store), None, token_budget)


# ------------------------------------------------------------------------------------------------ scores


def scores(
    model: PreTrainedModel,
    groups: Sequence[Group],
    circuit: Circuit,
    token_budget: int = TOKEN_BUDGET,
    store: Store | None = None,
) -> dict[str, Floats]:
    """The scores of all units of a circuit's model, measured in the circuit, and what it answers.

    head, edge: nats [L, H, K], the mean over prompts of the size of what each unit does to the loss, as in the
    reference code; those of dead units are 0. losses and right [N]: mean NLL, and whether the first token is right.
    store: keeps what donors leave, for the next circuit of these prompts. Raises what `PrunedRun` raises.
    """
    run, n = PrunedRun(model, groups, circuit, store), len(groups)
    losses, right = np.zeros(n), np.zeros(n, bool)
    totals = {sort: np.zeros(circuit.living(sort).shape) for sort in SORTS}

    def visit(numbers: list[int]) -> None:
        parts, lost, log_probs = _estimated(run, numbers)
        losses[numbers] = lost.cpu().numpy()
        right[numbers] = log_probs.argmax(-1).cpu().numpy() == [groups[number].target[0] for number in numbers]
        for sort, layer, effects in parts:  # only now: a batch without memory is run again
            check_finite(effects, f"the scores of {sort} units", model, [groups[number].base.ids for number in numbers])
            totals[sort][layer] += effects.abs().sum(0).cpu().numpy()

    with _frozen(model), progress(n) as bar:
        run.run(visit, max(1, token_budget // 2), bar)
    return {**{sort: total / n for sort, total in totals.items()}, "losses": losses, "right": right}


Part = tuple[Sort, int, Tensor]  # sort, place of the layer, effects [B, H, K]: sums over tokens


def _estimated(run: PrunedRun, numbers: Numbers) -> tuple[list[Part], Tensor, Tensor]:
    """What all units do to some prompts, the losses [B] and the log-probabilities [B, V] of the next token."""
    donors, captured = dict(run.run_donors(numbers)), CaptureCalls(leaf=True)
    with torch.enable_grad():
        lost, log_probs = run.losses(numbers, donors, captured)
        gradients = dict(zip(captured.z, torch.autograd.grad(lost.sum(), list(captured.z.values())), strict=True))
    swapped, types, codes = run.swapped(numbers), run.padded_types(numbers), run.padded(numbers)
    parts: list[Part] = []
    with torch.no_grad():
        for place, (layer, dead) in enumerate(run.dead_heads.items()):
            call, z = captured.calls.pop(layer), captured.z.pop(layer).detach()
            call = replace(call, query=call.query.detach(), key=call.key.detach(), value=call.value.detach())
            gradient, (*states, donor_z) = gradients.pop(layer), donors.pop(layer)
            if layer in swapped:
                gradient = gradient.masked_fill(swapped[layer].to(gradient.device)[..., None], 0)
            change = in_double(((donor_z - z) * gradient).sum(-1))  # [B, T, H]
            of_type = nn.functional.one_hot(types, dead.shape[1])[..., :-1].to(change)
            parts.append(("head", place, torch.einsum("bth,btk->bhk", change, of_type)))
            parts.append(("edge", place, _edge_effects(call, states, gradient, codes, run.tables[layer])))
    return parts, lost.detach(), log_probs


def _edge_effects(call: Call, donor: Sequence[Tensor], gradient: Tensor, codes: Tensor, table: Tensor) -> Tensor:
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
    donor: Sequence[Tensor],
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
