"""What heads do on one text, and the page that shows it: whom each token reads, and which words a head raises there."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from IPython.display import display
from markupsafe import Markup
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from util import paths
from util.engine.attention import instrument
from util.engine.batches import Batch, Row, check_context, forward
from util.engine.components import direct_effects, known_blocks
from util.engine.handshake import check_length, prepare
from util.engine.instruments import CaptureRows
from util.engine.replay import plan_of
from util.figures import stored_atlas
from util.figures.ioi_patching.show import EXAMPLE
from util.load_model_and_data import staicc_prompts
from util.prompts import own_tasks, word_pair_prompts, word_pairs
from util.prompts.prompt import Tokens, UnsupportedTokenizer, with_bos
from util.prompts.text_tasks import DATASETS
from util.show.draw import ROLES, draw
from util.show.files import filled
from util.show.panels import token_grid
from util.show.part import written
from util.stats.heads import Head, check_heads, head_name
from util.study.model import Model, as_model

Floats = NDArray[np.floating]
WHOLE = 64  # tokens of a text that is looked at from all of its tokens, else from those asked for
STRONGEST = 5  # words, raised and lowered
CHUNK = 256  # rows of attention at a time, where only some keys are kept
DRAWN = 2  # heads in the picture that a stored notebook has


@dataclass(frozen=True)
class Look:
    """What some heads do on a text of T tokens, seen from Q of them. A notebook shows it as a page with a picture.

    tokens [T]: as text; queries [Q]: positions; heads [h], of `shape`: layers, and heads of each. reads [h, Q, T]: the
    attention of each query to every token; read_by [h, Q, T]: the attention of every token to it. words, effects
    [h, Q, 2 STRONGEST]: the tokens whose logits fall most without what the head writes at the query, and those whose
    logits rise most, and by how much they fall beside the mean of all tokens; [h, Q, 0] where the class cannot be taken
    apart. vocabulary: these tokens as text.
    """

    model: Model
    tokens: Sequence[str]
    queries: Sequence[int]
    heads: Sequence[Head]
    shape: tuple[int, int]
    reads: Floats
    read_by: Floats
    words: NDArray[np.int64]
    effects: Floats
    vocabulary: Mapping[int, str]

    @cached_property
    def roles(self) -> dict[str, list[tuple[str, str, str, str]]] | None:
        """By head: roles, "" or why not, score and effect as text. None where no role atlas of this model is stored."""
        tested = stored_atlas(self.model.request | self.model.stored)
        if tested is None:
            return None
        roles: dict[str, list[tuple[str, str, str, str]]] = {}
        for role, values in tested.items():
            for verdict, which in (("", "heads"), (" (not confirmed)", "not confirmed")):
                for name, head in values.get(which, {}).items():
                    line = role, verdict, written(head["score"]), written(head["effect"])
                    roles.setdefault(name, []).append(line)
        return roles

    def html(self, command: str = "util.look.look") -> str:
        """The page. command: what made it."""
        layers, heads = self.shape
        used, places = np.unique(self.words, return_inverse=True)
        step = float(np.abs(self.effects).max(initial=1e-9)) / 32767
        rows = [row[: query + 1] for head in self.reads for query, row in zip(self.queries, head, strict=True)]
        columns = [row[query:] for head in self.read_by for query, row in zip(self.queries, head, strict=True)]
        whole = len(self.queries) == len(self.tokens)  # then columns are in the rows
        data = {
            "tokens": self.tokens,
            "queries": self.queries,
            "looked": self.heads,
            "layers": layers,
            "heads": heads,
            "reads": _bytes(np.rint(np.concatenate(rows) * 65535), np.uint16),
            "readers": "" if whole else _bytes(np.rint(np.concatenate(columns) * 65535), np.uint16),
            "vocabulary": [self.vocabulary[int(word)] for word in used],
            "words": _bytes(places, np.uint32),
            "effects": _bytes(np.rint(self.effects / step), np.int16),
            "step": step,
            "strongest": self.effects.shape[-1] // 2,
            "known": self.roles is not None,
            "roles": self.roles or {},
            "colours": {role: look.colour for role, look in ROLES.items()},
        }
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")  # ends no script
        page = {"model": self.model.title, "size": f"{layers} layers of {heads} heads", "command": command}
        return filled(Path(__file__).with_name("look.html"), **page, data=Markup(text))

    def write(self, file: Path, command: str) -> Path:
        """Write the page, and return its path."""
        return paths.write_whole(file, self.html(command))

    def picture(self) -> Picture:
        """What the first heads read from the last token that the text is seen from."""
        query, rows = self.queries[-1], self.reads[:DRAWN, -1]
        names = [f"{head_name(head)} from “{self.tokens[query]}”" for head in self.heads[:DRAWN]]
        return draw(token_grid(self.tokens, rows, names, [query] * len(rows)), "What heads read", self.model.title)

    def _ipython_display_(self) -> None:
        frame = f'<iframe srcdoc="{html.escape(self.html())}" title="heads" width="100%" height="900"></iframe>'
        display({"text/html": frame}, raw=True)
        display(self.picture())  # is there without a script


def look(model: Model | str, heads: Sequence[Head] | None, text: str, positions: Sequence[int] | None = None) -> Look:
    """Returns what heads (layer, head) do on a text, to be shown in a notebook or written as a page.

    heads: None for all, of a text of up to `WHOLE` tokens; positions: tokens that it is seen from, default all of such
    a text, else the last; negative ones count from the end.

    Raises ValueError for heads and tokens that there are not, and for a longer text without `heads`.
    """
    if not text:
        raise ValueError("the text is empty; give one")
    source = as_model(model)
    net, tokenizer = source.pair
    support, read = prepare(net), with_bos(text, tokenizer)
    ids, shape = read.ids, (len(support.layers), support.heads)
    check_context(net, [len(ids)], "a shorter text")
    check_length(net, len(ids))
    known_blocks(net)  # how the class is built, and run at this length, is found out before instruments are attached
    plan_of(net, len(ids))
    if heads is None and len(ids) > WHOLE:
        raise ValueError(f"the text has {len(ids)} tokens; name the heads to look at, or give up to {WHOLE} tokens")
    if heads is None:
        heads = [*np.ndindex(shape)]
    check_heads(heads, *shape)
    if positions is None:
        positions = range(len(ids)) if len(ids) <= WHOLE else [-1]
    if not len(heads) or not len(positions):
        raise ValueError("name one head and one position at least, or leave them out for all")
    if nowhere := [place for place in positions if not -len(ids) <= place < len(ids)]:
        raise ValueError(f"the text has {len(ids)} tokens, from 0; there are none at {nowhere}")
    heads = [(int(layer), int(head)) for layer, head in heads]
    queries = sorted({int(place) % len(ids) for place in positions})
    chosen = [(support.layers[layer], head) for layer, head in heads]
    layers = list(dict.fromkeys(layer for layer, _ in chosen))
    rows, columns, effects_and_words = _run(net, tokenizer, ids, queries, layers)
    reads = np.stack([rows.weights[layer][0, head].cpu() for layer, head in chosen])
    read_by = np.stack(
        [torch.cat([some.weights[layer][0, head] for some in columns]).T.cpu() for layer, head in chosen]
    )
    strongest = np.empty((len(heads), len(queries), 0))
    if effects_and_words is not None:
        strongest = torch.stack([effects_and_words[layers.index(layer), head, 0] for layer, head in chosen]).numpy()
    effects, words = strongest[..., : 2 * STRONGEST], strongest[..., 2 * STRONGEST :].astype(np.int64)
    vocabulary = {word: tokenizer.decode([word]) for word in np.unique(words).tolist()}
    tokens = _texts(text, tokenizer, read)
    return Look(source, tokens, queries, heads, shape, reads, read_by, words, effects, vocabulary)


def _texts(text: str, tokenizer: Any, read: Tokens) -> list[str]:
    """Each token as text; of several tokens that are one character together, the first has it."""
    ends = [0, *(span[1] if span else 0 for span in read.spans)]
    return [
        tokenizer.decode([token]) if span is None else text[slice(*span)] if span[0] >= end else "…"
        for token, span, end in zip(read.ids, read.spans, ends, strict=False)
    ]


def _run(
    model: PreTrainedModel, tokenizer: Any, ids: Sequence[int], queries: Sequence[int], layers: Sequence[int]
) -> tuple[CaptureRows, list[CaptureRows], Tensor | None]:
    """One run of a text: what queries read, who reads them, and which words the heads of some layers raise there.

    The last is [l, H, 1, Q, 4 STRONGEST]: the effects of the most raised and most lowered words, and these words; None
    where the class cannot be taken apart.
    """
    places = torch.tensor(queries)
    rows = CaptureRows(places, layers=layers)
    columns = [CaptureRows(some, places.expand(len(some), -1), layers) for some in torch.arange(len(ids)).split(CHUNK)]
    every = torch.arange(min(len(tokenizer), model.get_output_embeddings().weight.shape[0]))[None]

    def strongest(without: Tensor, base: Tensor) -> Tensor:
        effect = base - without
        effect = effect - effect.mean(-1, keepdim=True)
        both = [effect.topk(STRONGEST, largest=largest) for largest in (True, False)]
        return torch.cat([*(one.values for one in both), *(one.indices.to(effect) for one in both)], -1)

    with instrument(model, rows, *columns):
        effects = direct_effects(model, torch.tensor([ids]), dict.fromkeys(layers), every, queries, strongest)
        if effects is None:
            forward(model, Batch.of([Row(tuple(ids))]))
    return rows, columns, None if effects is None else effects[0]


def example(task: str, model: Model) -> str:
    """The first prompt of a task: "ioi", word pairs, or a data set of StaICC.

    Raises ValueError for an unknown one, and UnsupportedTokenizer for pairs that the tokenizer carries in no layout.
    """
    if task == "ioi":
        return EXAMPLE[0]
    if task in word_pairs.names() or own_tasks.is_place(task):
        pairs = word_pairs.find(task, trained=word_pairs.is_trained(model.name))
        refused = ""
        for layout in dict.fromkeys([pairs.layout, *word_pairs.LAYOUTS.values()]):  # some merge tabs with words
            try:
                drawn = word_pair_prompts.prompts(replace(pairs, layout=layout), model.pair[1], n=1, corruptions=())
                return drawn.items[0].clean.text
            except UnsupportedTokenizer as error:
                refused = refused or str(error)
        raise UnsupportedTokenizer(refused)
    if task not in DATASETS:
        raise ValueError(f"no task {task!r}; choose from {', '.join(('ioi', *word_pairs.names(), *DATASETS))}")
    return staicc_prompts(task)[0].text


def _bytes(values: Any, kind: type) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<")).tobytes()).decode()
