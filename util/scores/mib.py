"""Files of the MIB circuit track (Mueller et al. 2025): importance scores of edges, and prompts with counterfactuals.

`importances.json`, in a folder named `{task}_{model}`, has the graph's sizes (`cfg`), whether each node is in the
circuit (`nodes`), and of each edge the score and whether it is in the circuit (`edges`), both by name. Names are those
of `ComponentGraph`.

The prompts are on a hub that this suite does not ask; `pairs` reads local copies. Whoever has none needs nothing of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from util.prompts import row_files
from util.prompts.prompt import with_bos
from util.records.checked import Text, checked
from util.scores.graph import ComponentGraph

FILE = "importances.json"


def importances_file(folder: Path, task: str, model: str) -> Path:
    """Where the track has the scores of a task and model: `{folder}/{task}_{model}/importances.json`.

    Raises ValueError for a name that is empty or has a slash.
    """
    for name, given in {"task": task, "model": model}.items():
        if not given or set(given) & set("/\\"):
            raise ValueError(f"{name} = {given!r}: give a name without slashes, such as 'ioi' and 'gpt2'")
    return Path(folder) / f"{task}_{model}" / FILE


@dataclass(frozen=True)
class Importances:
    """What a file of importances says.

    scores [U, V]: of edges, 0 where none is. edges [U, V], nodes [U + 1]: which are in the circuit. d_model: the width
    of the residual stream, which nothing here depends on.
    """

    graph: ComponentGraph
    d_model: int
    scores: NDArray[np.float64]
    edges: NDArray[np.bool_]
    nodes: NDArray[np.bool_]

    @classmethod
    def of(
        cls, graph: ComponentGraph, d_model: int, scores: ArrayLike, circuit: NDArray[np.bool_] | None = None
    ) -> Importances:
        """The importances of scores [U, V] with a circuit [U, V] and its nodes, or else with the whole graph.

        Raises ValueError for scores and circuits that the graph refuses.
        """
        edges = graph.edges if circuit is None else graph.checked_circuit(circuit)
        return cls(graph, d_model, graph.checked_scores(scores), edges, graph.nodes_of(edges))

    def write(self, file: Path) -> Path:
        """Write the file, and the folder it is in; returns its path. `read` gives every number back to the bit.

        Raises ValueError for scores [U, V] that are not finite.
        """
        graph = self.graph
        cfg = {
            "n_layers": graph.layers,
            "n_heads": graph.heads,
            "parallel_attn_mlp": graph.parallel,
            "d_model": self.d_model,
        }
        nodes = {name: {"in_graph": bool(chosen)} for name, chosen in zip(graph.nodes, self.nodes, strict=True)}
        scores, chosen = graph.checked_scores(self.scores)[graph.edges].tolist(), self.edges[graph.edges].tolist()
        edges = {
            name: {"score": score, "in_graph": in_graph}
            for name, score, in_graph in zip(graph.names(), scores, chosen, strict=True)
        }
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"cfg": cfg, "nodes": nodes, "edges": edges}, allow_nan=False), encoding="utf-8")
        return file


def read(file: Path) -> Importances:
    """The importances of a file; all of it is checked before anything is given back.

    Entries besides those that `Importances.write` writes are left out. Raises ValueError, with the name of the file,
    for what is no JSON, for a missing or unknown node or edge, for one that is there twice, for a score that is no
    finite number, for another type, and where cfg is of another shape than the edges.
    """
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"), object_pairs_hook=_without_repetition)
        return _importances(content)
    except ValueError as error:  # JSON's own errors are of this kind
        raise ValueError(f"{file}: {error}") from None


def _without_repetition(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file. Raises ValueError for a name that it has twice: JSON takes the last."""
    made = dict(entries)
    if len(made) < len(entries):
        names = [name for name, _ in entries]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there more than once")
    return made


def _importances(content: Any) -> Importances:
    cfg, nodes, edges = (_entry(content, name, dict, "the file") for name in ("cfg", "nodes", "edges"))
    layers, heads, d_model = (_entry(cfg, name, int, "cfg") for name in ("n_layers", "n_heads", "d_model"))
    if min(layers, heads, d_model) < 1:
        raise ValueError(f"cfg has a size below 1: {cfg}")
    graph = ComponentGraph(layers, heads, parallel=_entry(cfg, "parallel_attn_mlp", bool, "cfg"))
    if graph.size > 2 * len(edges):  # before any array is made: what cfg says may be anything
        raise ValueError(f"cfg is of a graph with {graph.size} edges, and the file has {len(edges)}")
    _check_names("nodes", nodes, graph.nodes)
    _check_names("edges", edges, names := graph.names())
    scores, chosen = np.zeros(graph.shape), np.zeros(graph.shape, bool)
    scores[graph.edges] = [_score(edges[name], name) for name in names]
    chosen[graph.edges] = [_entry(edges[name], "in_graph", bool, name) for name in names]
    kept = np.array([_entry(nodes[name], "in_graph", bool, name) for name in graph.nodes])
    return Importances(graph, d_model, scores, chosen, kept)


def _entry(place: Any, name: str, kind: type, title: str) -> Any:
    """An entry of an object of the file, of one type: True is no number."""
    if not isinstance(place, dict) or name not in place:
        raise ValueError(f"{title} has no {name!r}")
    if type(place[name]) is not kind:
        raise ValueError(f"{name!r} of {title} is {str(place[name])[:40]}, and not of type {kind.__name__}")
    return place[name]


def _score(edge: Any, name: str) -> float:
    """The score of an edge. Whole numbers are written without a point by some."""
    if isinstance(edge, dict) and type(edge.get("score")) is int and abs(edge["score"]) < 2**53:
        return float(edge["score"])
    score = _entry(edge, "score", float, name)
    if not isfinite(score):
        raise ValueError(f"the score of {name} is {score}")
    return score


def _check_names(kind: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises ValueError for names that are missing, and for those that the graph does not have."""
    known = set(names)
    for problem, found in (
        ("missing", [name for name in names if name not in given]),
        ("unknown", [name for name in given if name not in known]),
    ):
        if found:
            raise ValueError(f"{kind}: {len(found)} {'is' if len(found) == 1 else 'are'} {problem}, first {found[0]!r}")


# ------------------------------------------------------------------------------------------------ prompts


@checked
class Columns:
    """Where a row has its base prompt, source prompt, answer and wrong answer.

    "prompt" is a column; "metadata.subject" an entry of it; "choices.label[answerKey]" the entry of a list whose number
    stands in the column answerKey. Raises ValueError for another form.
    """

    base: Text
    source: Text
    answer: Text
    wrong: Text

    def __post_init__(self) -> None:
        for place in (self.base, self.source, self.answer, self.wrong):
            _split(place)


def _split(place: str) -> tuple[str, str | None]:
    """A column, and the column that says which entry of it is meant, if any."""
    parts = re.fullmatch(r"([^\[\]]+)(?:\[([^\[\]]+)\])?", place)
    if parts is None:
        raise ValueError(f'{place!r}: give a column as "prompt", "metadata.subject" or "choices.label[answerKey]"')
    return parts[1], parts[2]


# The track's counterfactuals by task. The data were not available to us: the columns of answers are our assumption.
_SYMBOLS = Columns(
    "prompt",
    "symbol_counterfactual.prompt",
    "choices.label[answerKey]",
    "symbol_counterfactual.choices.label[symbol_counterfactual.answerKey]",
)
COLUMNS: dict[str, Columns] = {
    # S2 becomes IO: the source prompt's answer is S
    "ioi": Columns("prompt", "s2_io_flip_counterfactual.prompt", "metadata.indirect_object", "metadata.subject"),
    "mcqa": _SYMBOLS,
    "arc": _SYMBOLS,
    "arithmetic": Columns("prompt", "random_counterfactual.prompt", "label", "random_counterfactual.label"),
}


@dataclass(frozen=True)
class Pairs:
    """Base prompts, source prompts, answers to the base prompts and wrong answers: texts, as many of each.

    An answer is as the data have it: whether a blank comes before it is for the caller to know.
    """

    base: tuple[str, ...]
    source: tuple[str, ...]
    answers: tuple[str, ...]
    wrong: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.base)

    def check_aligned(self, tokenizer: Any) -> None:
        """Raises ValueError, with the first of them, if prompts of a pair differ in their number of tokens.

        Patching goes token by token, so that such a pair cannot be used.
        """
        sizes = [
            [len(with_bos(text, tokenizer).ids) for text in pair] for pair in zip(self.base, self.source, strict=True)
        ]
        unequal = [(row, *pair) for row, pair in enumerate(sizes) if pair[0] != pair[1]]
        if unequal:
            row, base, source = unequal[0]
            raise ValueError(
                f"{len(unequal)} of {len(self)} pairs have unequal numbers of tokens; the first is row {row}, with "
                f"{base} and {source}: {self.base[row]!r} and {self.source[row]!r}"
            )


def pairs(file: Path, columns: Columns | str, limit: int | None = None, split: str | None = None) -> Pairs:
    """The pairs of prompts of a local file, in its order.

    file: one of the kinds of `row_files.rows`. columns: where a row has what, or a task of COLUMNS. limit: so many rows
    at most. split: of a folder with several. Raises ValueError for an unknown task, no rows, and for a row without a
    column, with another type in it, or with an empty text; and what `row_files.rows` raises.
    """
    if isinstance(columns, str):
        if columns not in COLUMNS:
            raise ValueError(f"task {columns!r}: give Columns, or one of {', '.join(COLUMNS)}")
        columns = COLUMNS[columns]
    if limit is not None and limit < 1:
        raise ValueError(f"limit = {limit}: give a number of rows, or None for all")
    rows = list(islice(row_files.rows(Path(file), split), limit))
    if not rows:
        raise ValueError(f"{file}: there are no rows")
    found: list[list[str]] = []
    for place in (columns.base, columns.source, columns.answer, columns.wrong):
        try:
            found.append([_text(row, place, number) for number, row in enumerate(rows)])
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    return Pairs(*map(tuple, found))


def _text(row: Any, place: str, number: int) -> str:
    """The text of a row at a place, see `Columns`. Whole numbers are written out. number: of the row, from 0."""
    column, index = _split(place)
    value = _value(row, column, number)
    if index is not None:
        which = _value(row, index, number)
        if type(which) is not int or not isinstance(value, Sequence) or not 0 <= which < len(value):
            raise ValueError(f"row {number}: {index} is {which!r}, which is no place in {column}, {value!r}")
        value = value[which]
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"row {number}: {place} is {str(value)[:40]!r}, and no text")
    return value


def _value(row: Any, column: str, number: int) -> Any:
    """What a row has in a column, or in an entry of it."""
    value = row
    for name in column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            there = ", ".join(map(str, value)) if isinstance(value, Mapping) else f"no entries ({str(value)[:40]})"
            raise ValueError(f"row {number} has no column {column!r}: where {name!r} should be, it has {there}")
        value = value[name]
    return value
