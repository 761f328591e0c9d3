"""The numbers of tokens beyond which a model computes attention in another way, as far as its config tells.

Sliding windows, attention chunks, sparse selections of keys, compressed keys, and rotations of positions that change
with the length are right on a short prompt whatever code computes them. The handshake tries a model past them.
"""

import re
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel

# Names of config entries that hold such a number, and of others that look alike. A name too many costs a longer try.
_LENGTH = re.compile(
    r"window|chunk_size|block_size|compress|index_topk|budget|local_attention|floor_scale|n_floor|rel_extent"
)
_OTHER = re.compile(r"layer|pattern|feed_forward|lm_head|image|audio|vision|bias|multiple|compress_rope|ffn")


def switches(model: PreTrainedModel) -> tuple[int, ...]:
    """The numbers of tokens within the context, in order, beyond which the config names another way of attention."""
    config = model.config.get_text_config(decoder=True)
    entries = config.to_dict()
    lengths = {length for _, length in _lengths(entries)}
    blocks = entries.get("index_topk_blocks")
    if blocks:
        lengths.add(blocks * entries["index_block_size"])
    lengths |= set(_original_contexts(config, ("longrope",)))
    limit = entries.get("max_position_embeddings") or entries.get("n_positions")
    return tuple(sorted(length for length in lengths if limit is None or length < limit))


def long_rope(model: PreTrainedModel) -> int | None:
    """The number of tokens beyond which longrope rotates all positions of a batch in another way, None if none."""
    return min(_original_contexts(model.config.get_text_config(decoder=True), ("longrope",)), default=None)


def dynamic_rope(model: PreTrainedModel) -> int | None:
    """The number of tokens beyond which rotations depend on the longest prompt so far (dynamic NTK), None if none."""
    return min(_original_contexts(model.config.get_text_config(decoder=True), ("dynamic",)), default=None)


def _lengths(entries: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The names and numbers of all entries of a config that hold a length, those of nested ones too."""
    for name, value in entries.items():
        if not _LENGTH.search(name) or _OTHER.search(name):
            continue
        if name == "window_size" and "local" not in entries.get("attention_layers", ["local"]):  # GPT-Neo's
            continue
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        yield from ((name, number) for number in values if type(number) is int and number > 0)


def _original_contexts(config: Any, kinds: tuple[str, ...]) -> Iterator[int]:
    """The number of tokens that each rotation of one of these kinds was trained with."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict) and "rope_type" in value]
    for own in nested or [parameters]:
        if own.get("rope_type") in kinds:
            trained = None if own["rope_type"] == "dynamic" else own.get("original_max_position_embeddings")
            yield trained or config.max_position_embeddings
