"""The instruments, which capture or edit a model's attention inside a `with instrument(...)` block.

An instrument sees every attention call of its layers. Numbers of layers and heads are checked before the first forward
pass, all other indices in the first call, against its shapes.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import reduce
from operator import add

import torch
from torch import Tensor

from util.engine.call import (
    Call,
    Heads,
    Instrument,
    Layers,
    Stop,
    Support,
    at_least_float32,
    check_range,
    in_double,
    take,
    writable,
)

ByLayer = dict[int, Tensor]
States = dict[int, tuple[Tensor, Tensor]]  # keys and values [B, Hkv, T, d] by layer


class CaptureRows(Instrument):
    """Capture the attention weights of chosen query rows in all heads, after knockouts.

    rows: [R], the same for all examples, or [B, R]. keys: the keys that are kept of each row, [R, K] or [B, R, K]; None
    for all. After the forward pass `weights[layer]` is [B, H, R, S] or [B, H, R, K]: float32 (float64 in a float64
    model), a copy on the layer's device.
    """

    def __init__(self, rows: Tensor, keys: Tensor | None = None, layers: Layers | None = None) -> None:
        super().__init__(layers)
        self.rows = self.index("rows", rows, "queries")
        self.keys = self.index("keys", keys, "keys", dims=2)
        if self.keys is not None and self.keys.shape[-2] != self.rows.shape[-1]:
            raise ValueError(f"CaptureRows keys: {self.keys.shape[-2]} rows of keys for {self.rows.shape[-1]} rows")
        self.weights: ByLayer = {}

    def visit(self, call: Call, out: Tensor) -> Tensor:
        weights = call.weights(self.rows)
        if self.keys is not None:
            keys = self.keys.to(weights.device).expand(call.batch, -1, -1)
            weights = weights.take_along_dim(keys[:, None], -1)
        self.weights[call.layer] = weights.to(torch.promote_types(weights.dtype, torch.float32), copy=True)
        return out


class ScoreRows(Instrument):
    """Sum the attention that chosen query rows give to chosen keys, while it is computed, so that no matrix is kept.

    rows: [R]; cells: by name, which keys count in each row, [R, S] booleans or weights. After the forward pass
    `scores[name][layer]` is [B, H]: float32 (float64 in a float64 model), on the layer's device.
    """

    def __init__(self, rows: Tensor, cells: Mapping[str, Tensor]) -> None:
        self.rows = self.index("rows", rows, "queries", by_example=False)
        self.cells = torch.stack([torch.as_tensor(one) for one in cells.values()], dim=-1)
        self.scores: dict[str, ByLayer] = {name: {} for name in cells}

    def visit(self, call: Call, out: Tensor) -> Tensor:
        chunks = call.chunks(self.rows)

        def sums(rows: Tensor, cells: Tensor) -> Tensor:
            weights = at_least_float32(call.weights(rows))
            return weights.flatten(2) @ cells.to(weights).flatten(0, 1)  # [B, H, names]

        total = reduce(add, map(sums, chunks, self.cells.split([len(rows) for rows in chunks])))
        for by_layer, scores in zip(self.scores.values(), total.unbind(-1), strict=True):
            by_layer[call.layer] = scores.clone()
        return out


class CaptureHeads(Instrument):
    """Capture the outputs z of all heads before the output projection (and before a gate, where the class has one).

    positions: None (all), [P], or [B, P]. After the forward pass `z[layer]` is [B, P, H, dv], a copy. It includes the
    edits of instruments that were attached before this one, not of later ones. copy: false for z itself, all of it,
    which is in the graph of a backward pass.
    """

    def __init__(self, positions: Tensor | None = None, layers: Layers | None = None, copy: bool = True) -> None:
        super().__init__(layers)
        self.positions, self.copy = self.index("positions", positions, "queries"), copy
        self.z: ByLayer = {}

    def visit(self, call: Call, out: Tensor) -> Tensor:
        chosen = out if self.positions is None else take(out, self.positions, dim=1)
        self.z[call.layer] = chosen.clone() if chosen is out and self.copy else chosen
        return out


class CaptureCalls(Instrument):
    """Capture the attention calls themselves and what heads put out, all in the graph of a backward pass.

    After the forward pass `calls[layer]` is the call, and `z[layer]` the outputs [B, T, H, dv], not copied. leaf: the
    graph begins with the outputs of the first layer. stop: leave the first layer before its call is answered, by Stop.
    """

    def __init__(self, layers: Layers | None = None, *, leaf: bool = False, stop: bool = False) -> None:
        super().__init__(layers)
        self.leaf, self.stop = leaf, stop
        self.calls: dict[int, Call] = {}
        self.z: ByLayer = {}

    def check_call(self, call: Call) -> None:
        self.calls[call.layer] = call
        if self.stop:
            raise Stop

    def visit(self, call: Call, out: Tensor) -> Tensor:
        self.z[call.layer] = out.detach().requires_grad_() if self.leaf and not self.z else out
        return self.z[call.layer]


class CaptureStates(Instrument):
    """Capture the keys and values that attention reads, so that a `Splice` in another forward pass can read them.

    After the forward pass `states[layer]` is a pair of copies: keys [B, Hkv, S, d] and values [B, Hkv, S, dv].
    """

    def __init__(self) -> None:
        self.states: States = {}

    def visit(self, call: Call, out: Tensor) -> Tensor:
        self.states[call.layer] = call.key.clone(), call.value.clone()
        return out


class PatchHeads(Instrument):
    """Replace the output z of some heads of one layer.

    examples: the E examples of the batch that are patched, None for all. positions: None (all), [P], or [E, P].
    value: a number, or a tensor that broadcasts to [E, P, len(heads), dv] (the z of a donor run, a mean).
    """

    def __init__(
        self,
        layer: int,
        heads: Heads,
        value: float | Tensor,
        positions: Tensor | None = None,
        examples: Tensor | None = None,
    ) -> None:
        super().__init__(layer)
        self.heads = self.index("heads", heads, "heads", by_example=False)
        self.value = value
        self.positions = self.index("positions", positions, "queries")
        self.examples = self.index("examples", examples, "batch", by_example=False)

    def examples_in(self, call: Call) -> int:
        return call.batch if self.examples is None else len(self.examples)

    def visit(self, call: Call, out: Tensor) -> Tensor:
        device = out.device
        positions = torch.arange(call.queries) if self.positions is None else self.positions
        examples = torch.arange(call.batch) if self.examples is None else self.examples
        positions = positions.expand(len(examples), -1).to(device)[:, :, None]
        value, out = torch.as_tensor(self.value, dtype=out.dtype, device=device), writable(out)
        out[examples.to(device)[:, None, None], positions, self.heads.to(device)] = value
        return out


class SumHeads(Instrument):
    """Sum the outputs z of every head over tokens while they are computed, so that nothing else is kept.

    weights: [B, T], the weight of each token in the sum. by_position: sum over the batch, but not over positions. After
    the forward pass `sums[layer]` is [H, dv], or [T, H, dv] by position: float64, on the layer's device (the CPU, if
    that has no float64).
    """

    def __init__(self, weights: Tensor, layers: Layers | None = None, by_position: bool = False) -> None:
        super().__init__(layers)
        self.weights, self.by_position = weights, by_position
        self.sums: ByLayer = {}

    def check_call(self, call: Call) -> None:
        if self.weights.shape != (call.batch, call.queries):  # einsum repeats one row for the whole batch
            raise ValueError(
                f"SumHeads weights: {tuple(self.weights.shape)} for {call.batch} rows of {call.queries} tokens"
            )

    def visit(self, call: Call, out: Tensor) -> Tensor:
        equation = "bt,bthd->thd" if self.by_position else "bt,bthd->hd"
        wide = in_double(out)
        self.sums[call.layer] = torch.einsum(equation, self.weights.to(wide.device, torch.float64), wide)
        return out


class Knockout(Instrument):
    """Forbid chosen (query, key) cells of attention. The softmax is taken over the keys that are left.

    cells: [C, 2] (query, key), the same for every example, or [C, 3] (example, query, key). layers and heads: None for
    all. Several knockouts forbid the union of their cells. Raises ValueError when a row would lose every key that it
    may see. Warns when the model masks a cell anyway (above the diagonal, outside the window).
    """

    def __init__(
        self,
        cells: Tensor,
        layers: Layers | None = None,
        heads: Heads | None = None,
    ) -> None:
        super().__init__(layers)
        self.cells = self.index("cells", cells, dims=2, by_example=False)
        if self.cells.shape[1] not in (2, 3):
            raise ValueError(f"Knockout cells: rows of (query, key) or (example, query, key), got {tuple(cells.shape)}")
        axes = (("keys", "keys"), ("queries", "queries"), ("examples", "batch"))
        for column, (name, axis) in zip(self.cells.T.flip(0), axes, strict=False):
            self.index(name, column, axis, by_example=False)
        self.heads = self.index("heads", heads, "heads", by_example=False)
        self._warned = False

    def cells_for(self, batch: int) -> Tensor:
        """The cells as (example, query, key) [C', 3]."""
        if self.cells.shape[1] == 3:
            return self.cells
        examples = torch.arange(batch).repeat_interleave(len(self.cells))
        return torch.cat([examples[:, None], self.cells.repeat(batch, 1)], dim=1)

    def apply(self, call: Call, rows: Tensor, unedited: Tensor, additive: Tensor) -> Tensor:
        """The additive mask [B, H, R, S] of rows [R] or [B, R] with this knockout's cells forbidden.

        unedited: the model's mask before any edit; additive: the mask after the edits before this one. Raises
        ValueError where a row would lose every key that it may see.
        """
        rows = rows.cpu().expand(call.batch, -1)
        example, query, key = self.cells_for(call.batch).unbind(1)
        cell, place = (rows[example] == query[:, None]).nonzero(as_tuple=True)
        if not len(cell):
            return additive
        example, place, key = (t.to(additive.device) for t in (example[cell], place, key[cell]))
        lowest = torch.finfo(additive.dtype).min
        heads = 1 if self.heads is None and additive.shape[1] == 1 else call.query.shape[1]
        closed = additive.expand(call.batch, heads, -1, -1).clone()
        chosen = torch.arange(heads) if self.heads is None else self.heads
        closed[example[:, None], chosen.to(additive.device), place[:, None], key[:, None]] = lowest
        before, after = unedited > lowest, closed > lowest  # which keys each row may see [B or 1, H or 1, R, S]
        if (before.any(-1) & ~after.any(-1)).any():
            raise ValueError("Knockout: the cells leave some row without any key; keep at least one cell of every row")
        visible = before.expand(after.shape)[example, :, place, key].any(-1)
        if not self._warned and not visible.all():
            self._warned = True
            warnings.warn("Knockout: some cells were masked already and have no effect", stacklevel=1)
        return closed


class Splice(Instrument):
    """Let chosen queries read chosen keys and values from an earlier forward pass (resample ablation).

    codes: [B, T, S] integers from 0 to U, the kind of every (query, key) cell of every example; 0 means no kind.
    tables: by layer [H, U + 1] integers from 0 to D, the source from which a head reads cells of a kind: 0 is the
    example itself, m is its donor number m. Layers without a table are not changed.
    donors: the keys and values of D earlier passes (`CaptureStates.states`), in which row i is a donor of example i.
    places: [B, T], the index of each query among the keys, by default 0 to T - 1.

    Queries are always those of the example itself, and the softmax is taken over the keys that are read. A token always
    reads itself from its own run. Raises ValueError for indices out of range, and where the cell of a token and itself
    is not of kind 0.
    """

    def __init__(
        self,
        codes: Tensor,
        tables: ByLayer,
        donors: Sequence[States],
        places: Tensor | None = None,
    ) -> None:
        super().__init__(tables)
        self.donors = donors
        self.codes = self.index("codes", codes, dims=3, by_example=False)
        self.tables = {layer: self.index("table", table, dims=2, by_example=False) for layer, table in tables.items()}
        kinds = int(self.codes.max()) + 1
        for table in self.tables.values():
            check_range("Splice table", table, len(donors) + 1)
            if table.shape[1] < kinds or table[:, 0].any():
                raise ValueError(
                    f"Splice table {tuple(table.shape)}: a column for each of {kinds} kinds, zeros for kind 0"
                )
        places = torch.arange(self.codes.shape[1])[None] if places is None else self.index("places", places)
        if self.codes.gather(2, places.expand(len(self.codes), -1)[..., None]).any():
            raise ValueError("Splice codes: a token reads itself in its own run; the diagonal must be 0")

    def attach(self, support: Support) -> None:
        super().attach(support)
        wrong = [tuple(table.shape) for table in self.tables.values() if table.shape[0] != support.heads]
        if wrong:
            raise ValueError(f"Splice tables {wrong}: the model has {support.heads} heads in a layer")

    def check_call(self, call: Call) -> None:
        super().check_call(call)
        if self.codes.shape != (call.batch, call.queries, call.keys):
            raise ValueError(
                f"Splice codes {tuple(self.codes.shape)}: the batch is {(call.batch, call.queries, call.keys)}"
            )

    def rows_of(self, call: Call) -> Tensor:
        """The (example, query) pairs [C, 2] that read at least one cell from a donor in this layer, in order."""
        spliced = self.tables[call.layer].any(0)
        return spliced[self.codes].any(-1).nonzero()

    def with_values(self, layer: int, change: Callable[[Tensor], Tensor]) -> "Splice":
        """The same splice in one layer, of donors whose values are changed."""
        other, donors = copy(self), [donor[layer] for donor in self.donors]
        other.donors = [{layer: (keys, change(values))} for keys, values in donors]
        return other

    def apply(self, call: Call, rows: Tensor, additive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values [B, Hkv, (1 + D) S, d] of example and donors, and a mask [B, H or 1, R, (1 + D) S].

        For each cell the mask opens the key of its source only, and the additive mask [B or 1, H or 1, R, S] applies.
        """
        device = call.query.device
        closed = additive.new_tensor(torch.finfo(additive.dtype).min)
        table = self.tables[call.layer]
        if (table == table[:1]).all():  # all heads read from the same sources: one mask is enough
            table = table[:1]
        codes = take(self.codes, rows, dim=1).to(device)
        source = table.to(device)[:, codes].transpose(0, 1)  # [B, H or 1, R, S]
        states = [(call.key, call.value), *(donor[call.layer] for donor in self.donors)]
        keys, values = (torch.cat(parts, 2) for parts in zip(*states, strict=True))
        masks = [torch.where(source == number, additive, closed) for number in range(len(states))]
        return keys, values, torch.cat(masks, 3)
