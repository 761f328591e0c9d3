"""The instruments: what can be attached to the attention of a model for the length of a `with instrument(...)` block.

Each sees every attention call of the layers it names. Indices are checked before the first forward pass where the model
suffices, otherwise in the first call, against its shapes.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from util.engine.call import Call, Instrument, Support, take, writable


def _layers(layers: int | Iterable[int] | None) -> frozenset[int] | None:
    return None if layers is None else frozenset([layers] if isinstance(layers, int) else layers)


def _index(name: str, values: Tensor | Sequence[int], dims: tuple[int, ...]) -> Tensor:
    index = torch.as_tensor(values).cpu()
    if index.ndim not in dims or index.dtype.is_floating_point or index.dtype == torch.bool:
        raise ValueError(
            f"{name}: expected integers with {' or '.join(map(str, dims))} dimensions, got {tuple(index.shape)}"
        )
    if index.numel() and int(index.min()) < 0:
        raise ValueError(f"{name}: negative index {int(index.min())}; count positions from 0")
    return index.long()


def _check_index(name: str, index: Tensor, size: int, batch: int | None = None) -> None:
    if index.numel() and int(index.max()) >= size:
        raise ValueError(f"{name}: index {int(index.max())} is out of range for size {size}")
    if batch is not None and index.shape[0] != batch:
        raise ValueError(f"{name}: given for {index.shape[0]} examples, the batch has {batch}")


def _check_positions(name: str, positions: Tensor | None, queries: int, examples: int) -> None:
    """Query positions [P], or [B, P] for every example; None, all of them, is always right."""
    if positions is not None:
        _check_index(name, positions, queries, examples if positions.ndim == 2 else None)


class CaptureRows(Instrument):
    """Attention weights of chosen query rows, all heads, knockouts included.

    rows: [R], or [B, R] for rows of each example. keys: None (all), [R, K], or [B, R, K]: the keys kept of each row.
    After the forward pass `weights[layer]` is [B, H, R, S], or [B, H, R, K]: float32 (float64 in a float64 model), on
    the layer's device, with a storage of its own.
    """

    def __init__(self, rows: Tensor, keys: Tensor | None = None, layers: int | Iterable[int] | None = None) -> None:
        self.rows = _index("CaptureRows rows", rows, (1, 2))
        self.keys = None if keys is None else _index("CaptureRows keys", keys, (2, 3))
        self.layers = _layers(layers)
        self.weights: dict[int, Tensor] = {}

    def check_call(self, call: Call) -> None:
        _check_positions("CaptureRows rows", self.rows, call.queries, call.batch)
        if self.keys is not None:
            _check_index("CaptureRows keys", self.keys, call.keys, call.batch if self.keys.ndim == 3 else None)
            if self.keys.shape[-2] != self.rows.shape[-1]:
                raise ValueError(f"CaptureRows keys: {self.keys.shape[-2]} rows of keys for {self.rows.shape[-1]} rows")

    def visit(self, call: Call, out: Tensor) -> Tensor:
        weights = call.weights(self.rows)
        if self.keys is not None:
            keys = self.keys.to(weights.device)
            keys = keys if keys.ndim == 3 else keys[None]
            weights = weights.gather(-1, keys[:, None].expand(*weights.shape[:3], -1))
        dtype = torch.float64 if weights.dtype == torch.float64 else torch.float32
        self.weights[call.layer] = weights.to(dtype, copy=True)
        return out


class ScoreRows(Instrument):
    """The attention that chosen query rows give to chosen keys, summed up as it is computed: no matrix is kept.

    rows: [R]; cells: by name, which keys of which row count, [R, S] of booleans or weights. After the forward pass
    `scores[name][layer]` is [B, H]: float32 (float64 in a float64 model), on the layer's device.
    """

    def __init__(self, rows: Tensor, cells: Mapping[str, Tensor], layers: int | Iterable[int] | None = None) -> None:
        self.rows = _index("ScoreRows rows", rows, (1,))
        self.names = tuple(cells)
        self.cells = torch.stack([torch.as_tensor(cells[name]) for name in self.names], dim=-1)
        self.layers = _layers(layers)
        self.scores: dict[str, dict[int, Tensor]] = {name: {} for name in self.names}

    def check_call(self, call: Call) -> None:
        _check_positions("ScoreRows rows", self.rows, call.queries, call.batch)
        if self.cells.shape[:2] != (len(self.rows), call.keys):
            raise ValueError(
                f"ScoreRows cells: {tuple(self.cells.shape[:2])} for {len(self.rows)} rows of {call.keys} keys"
            )

    def visit(self, call: Call, out: Tensor) -> Tensor:
        total, start = None, 0
        for rows in call.chunks(self.rows):
            weights = call.weights(rows)
            weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
            cells = self.cells[start : start + len(rows)].to(weights)
            part = weights.flatten(2) @ cells.flatten(0, 1)
            total, start = part if total is None else total + part, start + len(rows)
        assert total is not None
        for name, scores in zip(self.names, total.unbind(-1), strict=True):
            self.scores[name][call.layer] = scores.clone()
        return out


class CaptureHeads(Instrument):
    """Outputs z of every head before the output projection (and before a gate, where the class has one).

    positions: None (all), [P], or [B, P]. After the forward pass `z[layer]` is [B, P, H, dv], a copy. Patches that were
    entered before it are seen, later ones are not.
    """

    def __init__(self, positions: Tensor | None = None, layers: int | Iterable[int] | None = None) -> None:
        self.positions = None if positions is None else _index("CaptureHeads positions", positions, (1, 2))
        self.layers = _layers(layers)
        self.z: dict[int, Tensor] = {}

    def check_call(self, call: Call) -> None:
        _check_positions("CaptureHeads positions", self.positions, call.queries, call.batch)

    def visit(self, call: Call, out: Tensor) -> Tensor:
        self.z[call.layer] = out.clone() if self.positions is None else take(out, self.positions, dim=1)
        return out


class CaptureValues(Instrument):
    """Values v that the heads read at chosen keys: what attention weighs, before it does.

    keys: None (all), [K], or [B, K]. After the forward pass `values[layer]` is [B, K, H, dv], a copy; a value that
    several heads share stands there for each of them. Without knockouts, attention times these values is z.
    """

    def __init__(self, keys: Tensor | None = None, layers: int | Iterable[int] | None = None) -> None:
        self.keys = None if keys is None else _index("CaptureValues keys", keys, (1, 2))
        self.layers = _layers(layers)
        self.values: dict[int, Tensor] = {}

    def check_call(self, call: Call) -> None:
        if self.keys is not None:
            _check_index("CaptureValues keys", self.keys, call.keys, call.batch if self.keys.ndim == 2 else None)

    def visit(self, call: Call, out: Tensor) -> Tensor:
        values = call.value if self.keys is None else take(call.value, self.keys, dim=2)
        shared = call.query.shape[1] // values.shape[1]
        self.values[call.layer] = values.transpose(1, 2).repeat_interleave(shared, dim=2)
        return out


class CaptureStates(Instrument):
    """Keys and values as attention takes them: what a `Splice` of another forward pass can read.

    After the forward pass `states[layer]` is the pair of keys [B, Hkv, S, d] and values [B, Hkv, S, dv], copies.
    """

    def __init__(self, layers: int | Iterable[int] | None = None) -> None:
        self.layers = _layers(layers)
        self.states: dict[int, tuple[Tensor, Tensor]] = {}

    def visit(self, call: Call, out: Tensor) -> Tensor:
        self.states[call.layer] = call.key.clone(), call.value.clone()
        return out


class PatchHeads(Instrument):
    """Replace the output z of some heads of one layer.

    examples: the E examples of the batch that are patched, None for all. value: a number, or a tensor that broadcasts
    to [E, P, len(heads), dv] (a donor run's z, a mean). Or value None and from_rows [E]: each of them takes the z of
    that example of the same batch (a permutation, a donor in lock-step). positions: None (all), [P], or [E, P].
    """

    def __init__(
        self,
        layer: int,
        heads: int | Iterable[int],
        value: float | Tensor | None = None,
        positions: Tensor | None = None,
        from_rows: Tensor | None = None,
        examples: Tensor | None = None,
    ) -> None:
        if (value is None) == (from_rows is None):
            raise ValueError("PatchHeads: give either a value or from_rows")
        self.layers = _layers(layer)
        self.heads = _index("PatchHeads heads", [heads] if isinstance(heads, int) else list(heads), (1,))
        self.value = value
        self.positions = None if positions is None else _index("PatchHeads positions", positions, (1, 2))
        self.from_rows = None if from_rows is None else _index("PatchHeads from_rows", from_rows, (1,))
        self.examples = None if examples is None else _index("PatchHeads examples", examples, (1,))

    def attach(self, support: Support) -> None:
        super().attach(support)
        _check_index("PatchHeads heads", self.heads, support.heads)

    def check_call(self, call: Call) -> None:
        examples = call.batch if self.examples is None else len(self.examples)
        if self.examples is not None:
            _check_index("PatchHeads examples", self.examples, call.batch)
        _check_positions("PatchHeads positions", self.positions, call.queries, examples)
        if self.from_rows is not None:
            _check_index("PatchHeads from_rows", self.from_rows, call.batch, examples)
        if isinstance(self.value, Tensor):
            positions = call.queries if self.positions is None else self.positions.shape[-1]
            place = (examples, positions, len(self.heads), call.value.shape[-1])
            fits = self.value.ndim <= 4 and all(
                a in (1, b) for a, b in zip(self.value.shape[::-1], place[::-1], strict=False)
            )
            if not fits:
                raise ValueError(f"PatchHeads value: {tuple(self.value.shape)} does not broadcast to {place}")

    def visit(self, call: Call, out: Tensor) -> Tensor:
        device = out.device
        positions = torch.arange(call.queries) if self.positions is None else self.positions
        examples = torch.arange(call.batch) if self.examples is None else self.examples
        positions = positions.expand(len(examples), -1).to(device)[:, :, None]
        heads, examples = self.heads.to(device)[None, None], examples.to(device)[:, None, None]
        if self.from_rows is not None:
            value: float | Tensor = out[self.from_rows.to(device)[:, None, None], positions, heads]
        elif isinstance(self.value, Tensor):
            value = self.value.to(device, out.dtype)
        else:
            value = out.new_tensor(self.value)
        out = writable(out)
        out[examples, positions, heads] = value
        return out


class SumHeads(Instrument):
    """The outputs z of every head, summed over chosen tokens as they are computed: nothing else is kept.

    weights: [B, T], how often each token counts. by_position: sum over the batch alone. After the forward pass
    `sums[layer]` is [H, dv], or [T, H, dv]: float64, on the layer's device.
    """

    def __init__(self, weights: Tensor, layers: int | Iterable[int] | None = None, by_position: bool = False) -> None:
        self.weights, self.layers, self.by_position = weights, _layers(layers), by_position
        self.sums: dict[int, Tensor] = {}

    def check_call(self, call: Call) -> None:
        if self.weights.shape != (call.batch, call.queries):
            raise ValueError(
                f"SumHeads weights: {tuple(self.weights.shape)} for {call.batch} rows of {call.queries} tokens"
            )

    def visit(self, call: Call, out: Tensor) -> Tensor:
        what = "bt,bthd->thd" if self.by_position else "bt,bthd->hd"
        self.sums[call.layer] = torch.einsum(what, self.weights.to(out.device, torch.float64), out.double())
        return out


class AddHeads(Instrument):
    """Add to the outputs z of all heads of one layer, at all positions.

    delta: broadcasts to [B, T, H, dv]. The gradient of zeros is that of z itself, later layers included.
    """

    def __init__(self, layer: int, delta: Tensor) -> None:
        self.layers = _layers(layer)
        self.delta = delta

    def visit(self, call: Call, out: Tensor) -> Tensor:
        return out + self.delta.to(out.device, out.dtype)


class Knockout(Instrument):
    """Forbid chosen (query, key) cells; softmax renormalises over the keys that are left.

    cells: [C, 2] (query, key), the same for every example, or [C, 3] (example, query, key). layers and heads: None for
    all. Several knockouts act together, on the union of their cells. Raises ValueError when a row would lose every key
    it may see; warns when a cell could not be seen in the first place (above the diagonal, outside the window).
    """

    def __init__(
        self,
        cells: Tensor,
        layers: int | Iterable[int] | None = None,
        heads: int | Iterable[int] | None = None,
    ) -> None:
        self.cells = _index("Knockout cells", cells, (2,))
        if self.cells.shape[1] not in (2, 3):
            raise ValueError(f"Knockout cells: rows of (query, key) or (example, query, key), got {tuple(cells.shape)}")
        self.layers = _layers(layers)
        heads = [heads] if isinstance(heads, int) else heads
        self.heads = None if heads is None else _index("Knockout heads", list(heads), (1,))
        self._warned = False

    def attach(self, support: Support) -> None:
        super().attach(support)
        if self.heads is not None:
            _check_index("Knockout heads", self.heads, support.heads)

    def check_call(self, call: Call) -> None:
        example, query, key = self.cells_for(call.batch).unbind(1)
        _check_index("Knockout examples", example, call.batch)
        _check_index("Knockout queries", query, call.queries)
        _check_index("Knockout keys", key, call.keys)

    def cells_for(self, batch: int) -> Tensor:
        """The cells as (example, query, key) [C', 3]."""
        if self.cells.shape[1] == 3:
            return self.cells
        examples = torch.arange(batch).repeat_interleave(len(self.cells))
        return torch.cat([examples[:, None], self.cells.repeat(batch, 1)], dim=1)

    def apply(self, call: Call, rows: Tensor, own: Tensor, additive: Tensor) -> Tensor:
        """Close this knockout's cells in the additive mask of `rows` ([R] or [B, R]); `own` is the model's mask."""
        rows = rows.cpu().expand(call.batch, -1)
        example, query, key = self.cells_for(call.batch).unbind(1)
        cell, place = (rows[example] == query[:, None]).nonzero(as_tuple=True)
        if not len(cell):
            return additive
        example, place, key = (t.to(additive.device) for t in (example[cell], place, key[cell]))
        lowest = torch.finfo(additive.dtype).min
        heads = 1 if self.heads is None and additive.shape[1] == 1 else call.query.shape[1]
        closed = additive.expand(call.batch, heads, -1, -1).clone()
        if self.heads is None:
            closed[example, :, place, key] = lowest
        else:
            closed[example[:, None], self.heads.to(additive.device)[None], place[:, None], key[:, None]] = lowest
        self._check_effect(own > lowest, closed > lowest, (example, place, key))
        return closed

    def _check_effect(self, before: Tensor, after: Tensor, cells: tuple[Tensor, Tensor, Tensor]) -> None:
        if bool((before.any(-1).expand(after.shape[:3]) & ~after.any(-1)).any()):
            raise ValueError("Knockout: the cells leave some row without any key; keep at least one cell of every row")
        example, place, key = cells
        if not self._warned and not bool(before.expand(after.shape)[example, :, place, key].any(-1).all()):
            self._warned = True
            warnings.warn("Knockout: some cells were masked already and have no effect", stacklevel=2)


CHANNELS = ("kv", "k", "v")


class Splice(Instrument):
    """Let chosen queries read chosen keys, values or both from other rows of the same batch (resample ablation).

    codes: [B, T, S] integers from 0 to U, the kind of every (query, key) cell of every example, 0 for none. tables: by
    layer [H, U + 1] integers from 0 to D, where a head reads cells of a kind from: 0 the example itself, m its donor
    number m; layers without a table are left alone. donors: [B, D], the rows of the batch that are an example's
    donors. channel: what comes from there, keys and values ("kv"), keys ("k") or values ("v") alone.

    Queries are an example's own, the softmax runs over what is read, and donors are read in the same layer of the same
    forward pass, where splices of their own may have changed them; or, with states, those of `CaptureStates`, in an
    earlier one, of which donors are the rows. A token always reads itself. places [B, T]: the keys that the queries
    are themselves, by default the first T. Raises ValueError for indices out of range, and for cells of a query and
    itself that are not of kind 0.
    """

    def __init__(
        self,
        codes: Tensor,
        tables: dict[int, Tensor],
        donors: Tensor,
        channel: str = "kv",
        states: Mapping[int, tuple[Tensor, Tensor]] | None = None,
        places: Tensor | None = None,
    ) -> None:
        if channel not in CHANNELS:
            raise ValueError(f"Splice: unknown channel {channel!r}; there are {', '.join(CHANNELS)}")
        self.codes, self.donors = _index("Splice codes", codes, (3,)), _index("Splice donors", donors, (2,))
        self.tables = {layer: _index("Splice table", table, (2,)) for layer, table in tables.items()}
        self.layers, self.channel, self.states = frozenset(self.tables), channel, states
        kinds = int(self.codes.max()) + 1 if self.codes.numel() else 1
        for table in self.tables.values():
            _check_index("Splice table", table, self.donors.shape[1] + 1)
            if table.shape[1] < kinds or bool(table[:, 0].any()):
                raise ValueError(
                    f"Splice table {tuple(table.shape)}: a column for each of {kinds} kinds, zeros for kind 0"
                )
        rows = len(self.codes) if states is None else min((len(pair[0]) for pair in states.values()), default=0)
        _check_index("Splice donors", self.donors, rows, len(self.codes))
        if places is None:
            themselves = self.codes.diagonal(dim1=1, dim2=2)
        else:
            themselves = self.codes.gather(2, _index("Splice places", places, (2,))[..., None])
        if bool(themselves.any()):
            raise ValueError("Splice codes: a token reads itself in its own run; the diagonal must be 0")

    def attach(self, support: Support) -> None:
        super().attach(support)
        if wrong := [tuple(table.shape) for table in self.tables.values() if table.shape[0] != support.heads]:
            raise ValueError(f"Splice tables {wrong}: the model has {support.heads} heads in a layer")

    def check_call(self, call: Call) -> None:
        if self.codes.shape != (call.batch, call.queries, call.keys):
            raise ValueError(
                f"Splice codes {tuple(self.codes.shape)}: the batch is {(call.batch, call.queries, call.keys)}"
            )

    def rows_of(self, call: Call) -> Tensor:
        """The (example, query) pairs [C, 2] that read anything from a donor in this layer."""
        spliced = self.tables[call.layer].any(0)
        return spliced[self.codes].any(-1).nonzero()

    def only(self, examples: Tensor, call: Call) -> "Splice":
        """The same for some examples of a call, whose donors may be among the others."""
        part = copy(self)
        part.codes, part.donors = self.codes[examples], self.donors[examples]
        part.states = {call.layer: (call.key, call.value)} if self.states is None else self.states
        return part

    def apply(self, call: Call, rows: Tensor, additive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values [B, Hkv, (1 + D) S, d], and a mask [B, H or 1, R, (1 + D) S] that opens one of 1 + D each."""
        device, closed = call.query.device, additive.new_tensor(torch.finfo(additive.dtype).min)
        table = self.tables[call.layer]
        table = table[:1] if bool((table == table[:1]).all()) else table  # one mask will do for heads that choose alike
        source = table.to(device)[:, take(self.codes, rows, dim=1).to(device)].transpose(0, 1)  # [B, H or 1, R, S]
        there = (call.key, call.value) if self.states is None else self.states[call.layer]
        masks, keys, values = [], [call.key], [call.value]
        for number in range(self.donors.shape[1] + 1):
            masks.append(torch.where(source == number, additive, closed))
            if number:
                donor = self.donors[:, number - 1].to(device)
                keys.append(there[0][donor] if "k" in self.channel else call.key)
                values.append(there[1][donor] if "v" in self.channel else call.value)
        return torch.cat(keys, 2), torch.cat(values, 2), torch.cat(masks, 3)
