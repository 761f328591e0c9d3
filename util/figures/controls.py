"""Models with planted circuits, on the embedded model's tokenizer: the positive control of every figure."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from util.load_model_and_data import load_ICL_model
from util.models import planted
from util.prompts.ioi import HELD_OUT_NAMES
from util.study.model import Model, digest, tokenizer_digest


@cache
def _tokenizer() -> Any:
    return load_ICL_model("embedded", device="cpu", verbose=False)[1]


def first_tokens(words: Iterable[str], tokenizer: Any) -> list[int]:
    """Returns the tokens that words begin with behind a space, in the order of the words."""
    return [tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in words]


def name_tokens(tokenizer: Any) -> list[int]:
    """Returns the tokens of the names that the embedded model has not learnt IOI with: `tokens` of planted circuits."""
    return first_tokens(sorted(HELD_OUT_NAMES), tokenizer)


def planted_control(
    build: Callable[..., planted.Planted], options: Mapping[str, Any], tokens: Callable[[Any], list[int]] | None = None
) -> tuple[Model, planted.Planted]:
    """A `Model` with a planted circuit, and the circuit itself.

    build: a function of `models.planted`. options: its keyword arguments (family, seed). tokens: a function that takes
    the tokenizer and returns the token ids that the circuit is about. The model is built when it is first needed. Its
    weights are not known before, so the request has a digest of what decides them: the code of all circuits, the
    tokenizer and those tokens.
    """
    tokenizer = _tokenizer()
    known = [] if tokens is None else [tokens(tokenizer)]
    truth = build(len(tokenizer), *known, **{"bos": tokenizer.bos_token_id, **options})
    name = " ".join([f"given:planted {build.__name__}", *(f"{key}={value}" for key, value in sorted(options.items()))])
    code = Path(planted.__file__).read_text(encoding="utf-8")
    made_of = digest([code, tokenizer_digest(tokenizer), str(known)])
    model = Model(name, planted=made_of, loader=lambda: load_ICL_model((truth.model, tokenizer), verbose=False))
    return model, truth
