"""InternLM2 checkpoints read as Llamas, from which they differ in names and packing alone. None of their code is run.

Not tried on the published weights.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaTokenizer
from transformers.convert_slow_tokenizer import generate_merges

TYPE = "internlm2"  # model_type of their config.json
TOKENIZER = "tokenizer.model"
WEIGHTS = ("*.safetensors", "*.bin")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # kinds of pieces in sentencepiece_model.proto
BPE = 2  # its model_type


def llama_config(config: Mapping[str, Any]) -> LlamaConfig:
    """The config.json of a checkpoint as the config of a Llama."""
    scaling = {
        "rope_type" if key == "type" else key: value for key, value in (config.get("rope_scaling") or {}).items()
    }
    copied = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
        "max_position_embeddings rms_norm_eps bos_token_id eos_token_id pad_token_id tie_word_embeddings _commit_hash"
    ).split()
    return LlamaConfig(
        **{key: config[key] for key in copied if key in config},
        attention_bias=config.get("bias", False),
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]} | scaling,
    )


def weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a folder as those of a Llama. Raises FileNotFoundError where it has none.

    InternLM2's `wqkv` [(H + 2 G) d, D] holds for each of its G key-value heads: the queries that share it, its key, and
    its value.
    """
    files = next((matches for pattern in WEIGHTS if (matches := sorted(folder.glob(pattern)))), [])
    if not files:
        raise FileNotFoundError(f"{folder.name} has no weights, {' or '.join(WEIGHTS)}")
    stored: dict[str, Tensor] = {}
    for file in files:
        safe = file.suffix == ".safetensors"
        stored |= load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    names = {
        "output": "lm_head",
        "tok_embeddings": "embed_tokens",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    converted = {}
    for name, tensor in stored.items():
        if ".attention.wqkv." in name:
            packed = tensor.unflatten(0, (groups, heads // groups + 2, -1))
            for letter, rows in (("q", packed[:, :-2]), ("k", packed[:, -2]), ("v", packed[:, -1])):
                target = name.replace("attention.wqkv", f"self_attn.{letter}_proj")
                converted[target] = rows.reshape(-1, *tensor.shape[1:])
        else:
            name = f".{name}"
            for old, new in names.items():
                name = name.replace(f".{old}.", f".{new}.")
            converted[name[1:]] = tensor
    return converted


def tokenizer(folder: Path, config: Mapping[str, Any]) -> LlamaTokenizer:
    """Llama's tokenizer with the pieces of a tokenizer.model of sentencepiece; BOS stands first.

    Raises ValueError for a file that is missing, damaged, or not of BPE.
    """
    file = folder / TOKENIZER
    if not file.is_file():
        raise ValueError(f"{folder.name} has no {TOKENIZER}; save it beside the weights")
    pieces, trainer, rules = list[dict[int, Any]](), dict[int, Any](), dict[int, Any]()
    for number, value in _fields(file.read_bytes()):  # of ModelProto
        if number == 1:
            pieces.append({3: NORMAL, **dict(_fields(value))})  # text, score and kind
        elif number in (2, 3):
            (trainer if number == 2 else rules).update(_fields(value))
    if trainer.get(3) != BPE:
        raise ValueError(f"{folder.name}: {TOKENIZER} is damaged, or of another kind than BPE; take the published one")
    words = [piece[1].decode() for piece in pieces]
    ids = {word: number for number, word in enumerate(words) if pieces[number][3] == NORMAL}
    merges = generate_merges(ids, {word: struct.unpack("<f", pieces[number][2])[0] for word, number in ids.items()})
    special = {name: words[config[f"{name}_id"]] for name in ("bos_token", "eos_token", "pad_token")}
    special["unk_token"] = next(word for word, piece in zip(words, pieces, strict=True) if piece[3] == UNKNOWN)
    made = LlamaTokenizer(
        vocab={word: number for number, word in enumerate(words)},
        merges=merges,
        add_prefix_space=bool(rules.get(3, True)),  # add_dummy_prefix
        add_bos_token=True,
        **special,
    )
    for kind in (CONTROL, USER_DEFINED):
        of_kind = [word for word, piece in zip(words, pieces, strict=True) if piece[3] == kind]
        made.add_tokens(of_kind, special_tokens=kind == CONTROL)
    return made


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message, by number: an integer, or the bytes of anything else."""
    stream = io.BytesIO(message)

    def integer() -> int:
        value, shift, byte = 0, 0, 128
        while byte > 127:  # the last one is below
            byte = stream.read(1)[0]
            value |= (byte & 127) << shift
            shift += 7
        return value

    while stream.tell() < len(message):
        number, kind = divmod(integer(), 8)
        if kind == 0:
            yield number, integer()
        else:
            yield number, stream.read({1: 8, 5: 4}.get(kind) or integer())
