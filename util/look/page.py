"""A page to look at heads, in one file: whom a token reads and is read by, what is written there, and what is known."""

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
from IPython.display import display
from markupsafe import Markup
from matplotlib.figure import Figure as Picture

from util.figures.ioi_patching.show import EXAMPLE
from util.figures.stored_roles import stored_atlas
from util.load_model_and_data import staicc_prompts
from util.look.measure import Looked, look_at
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.staicc import DATASETS
from util.show.draw import draw
from util.show.files import filled, write_whole
from util.show.panels import token_grid
from util.show.part import written
from util.show.style import ROLES
from util.stats.heads import Head, head_name
from util.study.model import Model, as_model

DRAWN = 2  # heads in the picture that a stored notebook has


@dataclass(frozen=True)
class Look:
    """What heads do on a text, as a page. In a notebook it is shown with a picture, which is there without a script."""

    looked: Looked
    model: Model

    @cached_property
    def roles(self) -> dict[str, list[tuple[str, str, str, str]]] | None:
        """By head: roles, "" or why not, score and effect as text. None where no role atlas of this model is stored."""
        tested: Mapping[str, Any] | None = stored_atlas(self.model.request)
        if tested is None:
            return None
        roles: dict[str, list[tuple[str, str, str, str]]] = {}
        for role, found in tested.items():
            for verdict, which in (("", "heads"), (" (not confirmed)", "not confirmed")):
                for name, head in found.get(which, {}).items():
                    line = role, verdict, written(head["score"]), written(head["effect"])
                    roles.setdefault(name, []).append(line)
        return roles

    def html(self, command: str = "util.look.page.look") -> str:
        """The page. command: what made it."""
        looked, roles = self.looked, self.roles
        layers, heads = looked.shape
        used, places = np.unique([] if looked.words is None else looked.words, return_inverse=True)
        effects = np.zeros(0) if looked.effects is None else looked.effects
        step = float(np.abs(effects).max(initial=1e-9)) / 32767
        of_queries = [(head, place) for head in range(len(looked.heads)) for place in range(len(looked.queries))]
        rows = [looked.reads[head, place, : looked.queries[place] + 1] for head, place in of_queries]
        columns = [looked.read_by[head, place, looked.queries[place] :] for head, place in of_queries]
        whole = len(looked.queries) == len(looked.tokens)  # then columns are in the rows
        data = {
            "tokens": looked.tokens,
            "queries": looked.queries,
            "looked": looked.heads,
            "layers": layers,
            "heads": heads,
            "reads": _bytes(np.rint(np.concatenate(rows) * 65535), np.uint16),
            "readers": "" if whole else _bytes(np.rint(np.concatenate(columns) * 65535), np.uint16),
            "vocabulary": [looked.vocabulary[int(word)] for word in used],
            "words": _bytes(places, np.uint32),
            "effects": _bytes(np.rint(effects / step), np.int16),
            "step": step,
            "strongest": effects.shape[-1] // 2,
            "known": roles is not None,
            "roles": roles or {},
            "colours": {role: look.colour for role, look in ROLES.items()},
        }
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")  # ends no script
        page = {"model": self.model.title, "size": f"{layers} layers of {heads} heads", "command": command}
        return filled(Path(__file__).with_name("look.html"), **page, data=Markup(text))

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
        display({"text/html": frame}, raw=True)
        display(self.picture())


def look(model: Model | str, heads: Sequence[Head] | None, text: str, positions: Sequence[int] | None = None) -> Look:
    """Returns what heads (layer, head) do on a text, to be shown in a notebook or written as a page; see `look_at`."""
    source = as_model(model)
    return Look(look_at(*source.pair, text, heads, positions), source)


def example(task: str, model: Model) -> str:
    """The first prompt of a task: "ioi", word pairs, or a data set of StaICC. Raises ValueError for an unknown one."""
    if task == "ioi":
        return EXAMPLE[0]
    if task in word_pairs.names():
        pairs = word_pairs.find(task, trained=word_pairs.is_trained(model.name))
        return word_pair_prompts.prompts(pairs, model.pair[1], n=1).items[0].clean.text
    if task not in DATASETS:
        raise ValueError(f"no task {task!r}; choose from {', '.join(('ioi', *word_pairs.names(), *DATASETS))}")
    return staicc_prompts(task)[0].text


def _bytes(values: Any, kind: type) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<")).tobytes()).decode()
