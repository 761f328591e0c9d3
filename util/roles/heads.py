"""Heads as arguments: pairs (layer, head) of whole numbers, the layer counted among those that have attention."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator

from util.records.checked import as_list
from util.stats.heads import Head


def checked_head(value: Any, name: str = "head") -> Head:
    """Returns (layer, head) as plain integers.

    Raises ValueError, which names the argument, for anything but two whole numbers from 0 on.
    """
    problem = f"{name} = {value!r}: a head is (layer, head), two whole numbers from 0 on"
    try:
        layer, place = value
        whole = operator.index(layer), operator.index(place)
    except (TypeError, ValueError):
        raise ValueError(problem) from None
    if min(whole) < 0 or bool in (type(layer), type(place)):
        raise ValueError(problem)
    return whole


def checked_heads(values: Any, name: str = "heads") -> tuple[Head, ...]:
    """Returns a set of heads in the one form that requests have for it: sorted, each once.

    Raises what `checked_head` raises.
    """
    return tuple(sorted({checked_head(value, name) for value in as_list(values)}))


def plain(heads: Iterable[Head]) -> list[list[int]]:
    """Returns heads as JSON has them."""
    return [list(head) for head in heads]


Heads = Annotated[tuple[Head, ...], BeforeValidator(checked_heads)]
