"""The record of one pair of prompts: the five parts of the project."""

from dataclasses import KW_ONLY
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch

from util.engine.attention import support
from util.engine.batches import check_context
from util.engine.handshake import input_device, prepare
from util.figures.ioi_patching import measures
from util.figures.ioi_patching.patching import heads_of, patch_map, permuted
from util.prompts.ioi import IOITokens, ioi_tokens, pair_from_texts
from util.records import cache, study
from util.records.checked import AsList, Natural, Text, checked

EXAMPLE = (
    "When Mike and Emma went to the cafe, Emma gave a coffee to",
    "When Mike and Emma went to the cafe, Mike gave a coffee to",
)
NAMES = ("Mike", "Emma")
TWO_TEXTS = Annotated[tuple[Text, Text], AsList]
PART = {"part": "example"}


def check_texts(texts: tuple[str, str], names: tuple[str, str]) -> None:
    """Raises ValueError, naming the arguments, for texts and names that make no pair, see `pair_from_texts`."""
    try:
        pair_from_texts(*texts, *names)
    except ValueError as error:
        raise ValueError(f"texts and names: {error}") from None


@checked
class ExamplePair(study.Study):
    """Two given prompts, and what a model does with them.

    texts: base and source; names: the answer of the base, and the name that it repeats. seed: of the permutations.
    shown_layer: the layer whose activations are to be shown, which changes no result and is checked beforehand.
    """

    texts: TWO_TEXTS = EXAMPLE
    names: TWO_TEXTS = NAMES
    seed: Natural = 0
    _: KW_ONLY
    shown_layer: Natural | None = None

    stem = measures.STEM

    def __post_init__(self) -> None:
        check_texts(self.texts, self.names)

    @property
    def own_request(self) -> dict[str, Any]:
        return {**measures.METHOD, "texts": list(self.texts), "names": list(self.names), "seed": self.seed}

    @cached_property
    def tokens(self) -> IOITokens:
        """The pair as tokens. Raises what `ioi_tokens` raises."""
        return ioi_tokens(pair_from_texts(*self.texts, *self.names), self.pair[1])

    @property
    def stored(self) -> cache.Record | None:
        """The record where it was measured already."""
        return None if self.redo else cache.load({**self.request, **PART}, self.place, self.expected)

    def check(self) -> None:
        """Raises what the tokenizer and the model's shape make of the settings, before any forward pass.

        The model is loaded only where the record is not there.
        """
        record = self.stored
        if record is None:
            self._check_model()
        else:
            self._check_record(record)

    def _check_model(self) -> None:
        layers = len(prepare(self.pair[0]).layers)
        check_context(self.pair[0], [len(self.tokens.source)], "shorter texts")
        self._check_shape(layers, np.array(self.tokens.source), self.tokens.answers[0])

    def _check_record(self, record: cache.Record) -> None:
        self._check_shape(len(record.data["z"]), record.data["source"], record.data["answers"][0])

    def _check_shape(self, layers: int, source: np.ndarray, answer: int) -> None:
        measures.check_layer(layers, self.shown_layer)
        measures.places_of_name(source, answer, self.names[0])

    def measured(self) -> cache.Record:
        """Returns the record, measured now or loaded.

        Its data: log_softmax [2, V], after base and source; scores [2], their logit differences of the base's answers;
        base, source: tokens [T]; tokens: the source's as text; next_words [2], the most probable next tokens; answers
        [2]; first, the position from which on the prompts differ; z [L, T, H, dv], of the source; norms [L, H], of the
        base's heads over all tokens; unpatched [1], the base's logit difference; permuted, patched [L, H], those of the
        base run with one head shuffled, or from the source; layers: the model's own numbers; path, see
        `replay.Replayed`.
        """
        record = self.record(PART, self._compute)
        self._check_record(record)
        return record

    def next_words(self, count: int) -> cache.Record:
        """Returns the record of the most probable next tokens after both prompts, measured now or loaded.

        Its data: tokens [2, count], after base and source, most probable first; words, the same as text; log_softmax
        [2, count], their log-probabilities.
        """
        log_softmax = self.measured().data["log_softmax"]

        def decoded() -> dict[str, Any]:
            tokens = np.argsort(-log_softmax, axis=1, kind="stable")[:, :count]
            words = [[self.pair[1].decode([int(token)]) for token in row] for row in tokens]
            return {"tokens": tokens, "words": words, "log_softmax": np.take_along_axis(log_softmax, tokens, axis=1)}

        return self.record({"part": "next words", "count": count}, decoded)

    def _compute(self) -> dict[str, Any]:
        self._check_model()
        model, tokenizer = self.pair
        tokens = self.tokens
        base, source, answers = (torch.tensor([ids]) for ids in (tokens.base, tokens.source, tokens.answers))
        with torch.inference_mode():
            both = torch.cat([base, source]).to(input_device(model))
            logits = model(both, use_cache=False).logits[:, -1].float().cpu()
        z, base_z = heads_of(model, source), heads_of(model, base)
        patched, plain, path = patch_map(model, base, z, answers, tokens.first)
        shuffled, _, _ = patch_map(model, base, permuted(base_z, self.seed), answers)
        pairs = logits[:, list(tokens.answers)]
        return {
            "log_softmax": logits.log_softmax(1).numpy(),
            "scores": (pairs[:, 0] - pairs[:, 1]).numpy(),
            "base": np.array(tokens.base),
            "source": np.array(tokens.source),
            "tokens": [tokenizer.decode([token]) for token in tokens.source],
            "next_words": [tokenizer.decode([int(token)]) for token in logits.argmax(1)],
            "answers": np.array(tokens.answers),
            "first": tokens.first,
            "z": np.stack([part[0].float().cpu().numpy() for part in z.values()]),
            "norms": np.stack(
                [torch.linalg.vector_norm(part[0].float(), dim=(0, 2)).cpu().numpy() for part in base_z.values()]
            ),
            "unpatched": plain,
            "permuted": shuffled[0],
            "patched": patched[0],
            "layers": list(support(model).layers),
            "path": path,
        }
