"""Heads as arguments: pairs (layer, head) of whole numbers, the layer counted among those that have attention."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from util.stats.heads import Head
from util.study.checked import as_list


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


def named_heads(text: str) -> tuple[Head, ...]:
    """Returns heads by their names, such as "L5H1,L11H3", or of a JSON list [[layer, head], ...].

    text: the names, the list, or a file whose name ends in .json and that holds either. Raises ValueError for what
    names no heads, and OSError for a file that cannot be read.
    """
    if text.endswith(".json"):
        text = Path(text).read_text(encoding="utf-8").strip()
    entries = json.loads(text) if text.startswith("[") else text.split(",")
    heads = [re.fullmatch(r"\s*L(\d+)H(\d+)\s*", entry) if isinstance(entry, str) else entry for entry in entries]
    if None in heads:
        raise ValueError(f"{entries[heads.index(None)]!r} is no head; write L5H1,L11H3")
    return checked_heads([tuple(map(int, head.groups())) if isinstance(head, re.Match) else head for head in heads])


def plain(heads: Iterable[Head]) -> list[list[int]]:
    """Returns heads as JSON has them."""
    return [list(head) for head in heads]


Heads = Annotated[tuple[Head, ...], BeforeValidator(checked_heads)]
