"""A page to look at heads, in one file: the text, what each token reads and is read by, what is written, what is known."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from IPython.display import HTML, display
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure as Picture

from util.figures.stored_roles import stored_atlas
from util.look.measure import Looked, look_at
from util.show.draw import draw
from util.show.files import write_whole
from util.show.panels import token_grid
from util.show.style import ROLES
from util.show.words import written
from util.stats.heads import Head, head_name
from util.study.model import Model, as_model

DRAWN = 2  # heads in the picture that a stored notebook has


@dataclass(frozen=True)
class Look:
    """What heads do on a text, as a page. In a notebook it is shown with a picture, which is there without a script."""

    looked: Looked
    model: Model
    vocabulary: Sequence[str]  # the text of each token that `looked.words` has
    layers: int
    heads: int

    @cached_property
    def roles(self) -> dict[str, list[tuple[str, str, str, str]]] | None:
        """By head: roles, "" or why not, score and effect as text. None where the role atlas has nothing of this model."""
        tested: Mapping[str, Any] | None = stored_atlas(self.model.request)
        if tested is None:
            return None
        roles: dict[str, list[tuple[str, str, str, str]]] = {}
        for role, found in tested.items():
            for verdict, which in (("", "heads"), (" (not confirmed)", "not confirmed")):
                for name, head in found.get(which, {}).items():
                    roles.setdefault(name, []).append((role, verdict, *(written(head[key]) for key in ("score", "effect"))))
        return roles

    def html(self, command: str = "util.look.page.look") -> str:
        """The page. command: what made it."""
        looked, roles = self.looked, self.roles
        whole = len(looked.queries) == len(looked.tokens)
        used, places = np.unique([] if looked.words is None else looked.words, return_inverse=True)
        effects = np.zeros(0) if looked.effects is None else looked.effects
        step = float(np.abs(effects).max(initial=1e-9)) / 32767
        data = {
            "tokens": looked.tokens, "queries": looked.queries, "looked": looked.heads, "layers": [*range(self.layers)],
            "heads": self.heads, "reads": _weights([row[: q + 1] for head in looked.reads for q, row in zip(looked.queries, head, strict=True)]),
            "readers": "" if whole else _weights([row[q:] for head in looked.read_by for q, row in zip(looked.queries, head, strict=True)]),
            "vocabulary": [self.vocabulary[int(word)] for word in used], "words": _bytes(places, np.uint32), "effects": _bytes(np.rint(effects / step), np.int16),
            "step": step, "strongest": effects.shape[-1] // 2, "known": roles is not None, "roles": roles or {},
            "colours": {role: look.colour for role, look in ROLES.items()},
        }  # fmt: skip
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")  # ends no script
        templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
        page = {"model": self.model.title, "described": f"{self.layers} layers of {self.heads} heads", "command": command}
        return templates.get_template("look.html").render(page=page, data=Markup(text))  # noqa: S704

    def write(self, file: Path, command: str) -> Path:
        """Write the page, and return its path."""
        return write_whole(file, self.html(command))

    def picture(self) -> Picture:
        """What the first heads read from the last token that the text is seen from."""
        looked, heads = self.looked, [head_name(head) for head in self.looked.heads[:DRAWN]]
        query, rows = looked.queries[-1], looked.reads[:DRAWN, -1]
        names = [f"{name} from “{looked.tokens[query]}”" for name in heads]
        return draw(token_grid(looked.tokens, rows, names, [query] * len(rows)), "What heads read", self.model.title)

    def _ipython_display_(self) -> None:
        frame = f'<iframe srcdoc="{html.escape(self.html())}" title="heads" width="100%" height="900"></iframe>'
        display(HTML(frame))
        display(self.picture())


def look(
    model: Model | str, heads: Sequence[Head] | None, text: str, positions: Sequence[int] | None = None
) -> Look:
    """Returns what heads (layer, head) do on a text, to be shown in a notebook or written as a page; see `look_at`."""
    source = as_model(model)
    loaded, tokenizer = source.pair
    looked = look_at(loaded, tokenizer, text, heads, positions)
    from util.engine.attention import support
    known = support(loaded)
    used = [] if looked.words is None else np.unique(looked.words).tolist()
    return Look(looked, source, {word: tokenizer.decode([word]) for word in used}, len(known.layers), known.heads)


def _bytes(values: Any, kind: type) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def _weights(rows: Sequence[Any]) -> str:
    """Attention weights as 16 bits each: 65535 is 1."""
    return _bytes(np.rint(np.concatenate(rows) * 65535), np.uint16)
