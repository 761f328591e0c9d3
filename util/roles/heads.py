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


def checked_heads(values: Any, name: str = "heads") -> tuple[Head, ...]:
    """Returns a set of heads in the one form that requests have for it: sorted, each once, of plain integers.

    Raises ValueError, which names the argument, for anything but pairs of whole numbers from 0 on.
    """
    heads = set[Head]()
    for value in as_list(values):
        try:
            layer, head = map(operator.index, value)
            if min(layer, head) < 0 or bool in map(type, value):
                raise ValueError
        except (TypeError, ValueError):
            message = f"{name} = {value!r}: a head is (layer, head), two whole numbers from 0 on"
            raise ValueError(message) from None
        heads.add((layer, head))
    return tuple(sorted(heads))


def named_heads(text: str) -> tuple[Head, ...]:
    """Returns heads by their names, such as "L5H1,L11H3" or "5.1,11.3", or of a JSON list [[layer, head], ...].

    text: the names, the list, or a file whose name ends in .json and that holds either. Raises ValueError for what
    names no heads, and OSError for a file that cannot be read.
    """
    if text.endswith(".json"):
        text = Path(text).read_text(encoding="utf-8").strip()
    heads: list[Any] = json.loads(text) if text.startswith("[") else text.split(",")
    for place, entry in enumerate(heads):
        if isinstance(entry, str):
            if not re.fullmatch(r"L\d+H\d+|\d+\.\d+", entry.strip()):
                raise ValueError(f"{entry!r} is no head; write L5H1,L11H3")
            heads[place] = tuple(map(int, re.findall(r"\d+", entry)))
    return checked_heads(heads)


def plain(heads: Iterable[Head]) -> list[list[int]]:
    """Returns heads as JSON has them."""
    return [list(head) for head in heads]


Heads = Annotated[tuple[Head, ...], BeforeValidator(checked_heads)]
