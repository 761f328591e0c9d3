"""Models whose circuit is known, as the positive control of every figure."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from util.load_model_and_data import (
    load_ICL_model,
)
from util.models import planted
from util.models.planted import Planted
from util.records import cache
from util.records.model import Model
from util.records.provenance import digest, tokenizer_digest
from util.records.runs import LazyModel, model_request


def planted_model(
    build: Callable[..., Planted], options: Mapping[str, Any], tokens: Callable[[Any], list[int]] | None = None
) -> tuple[LazyModel, Planted, cache.Request]:
    """A model whose circuit is known, on the embedded model's tokenizer, the truth, and the request's part on models.

    build: a circuit of `models.planted`; options: of its own (family, copies, noise, seed); tokens: those that it is
    about, by the tokenizer. The model is built when it is first called for. As its weights are not known before, the
    request names what decides them: the code of the circuits, the tokenizer and those tokens.
    """
    tokenizer = _planted_tokenizer()
    about = [] if tokens is None else [tokens(tokenizer)]
    truth = build(len(tokenizer), *about, **{"bos": tokenizer.bos_token_id, **options})
    given = " ".join([f"given:planted {build.__name__}", *(f"{key}={value}" for key, value in sorted(options.items()))])
    code = Path(planted.__file__).read_text(encoding="utf-8")
    lazy = LazyModel(given)
    lazy._load = lambda: load_ICL_model((truth.model, tokenizer), verbose=False)
    return lazy, truth, {**model_request(given), "planted": digest([code, tokenizer_digest(tokenizer), str(about)])}


@functools.cache
def _planted_tokenizer() -> Any:
    return load_ICL_model("embedded", device="cpu", verbose=False)[1]


def errors_by_noise(
    judge: Callable[[float, int], Iterable[tuple[bool, bool]]], noises: Sequence[float], seeds: Sequence[int]
) -> dict[float, dict[str, tuple[int, int]]]:
    """How often planted heads are misjudged, by the noise on their weights: "false alarms" and "misses", of how many.

    judge(noise, seed): of every head whether it should be found, and whether it was misjudged.
    """
    errors = {}
    for noise in noises:
        judged = [each for seed in seeds for each in judge(noise, seed)]
        alarms = [wrong for one, wrong in judged if not one]
        misses = [wrong for one, wrong in judged if one]
        errors[noise] = {"false alarms": (sum(alarms), len(alarms)), "misses": (sum(misses), len(misses))}
    return errors


def planted_control(
    build: Callable[..., Planted], options: Mapping[str, Any], tokens: Callable[[Any], list[int]] | None = None
) -> tuple[Model, Planted]:
    """A `Model` whose circuit is known, on the embedded model's tokenizer, and the truth.

    build: a circuit of `models.planted`; options: its own (family, copies, noise, seed); tokens: those that it is
    about, by the tokenizer. The weights are made when the model is first called for. As they are not known before, the
    request names what decides them: the code of the circuits, the tokenizer and those tokens.
    """
    tokenizer = _planted_tokenizer()
    about = [] if tokens is None else [tokens(tokenizer)]
    truth = build(len(tokenizer), *about, **{"bos": tokenizer.bos_token_id, **options})
    name = " ".join([f"given:planted {build.__name__}", *(f"{key}={value}" for key, value in sorted(options.items()))])
    code = Path(planted.__file__).read_text(encoding="utf-8")
    made_of = digest([code, tokenizer_digest(tokenizer), str(about)])
    model = Model(name, planted=made_of, loader=lambda: load_ICL_model((truth.model, tokenizer), verbose=False))
    return model, truth
