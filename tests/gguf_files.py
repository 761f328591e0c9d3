"""Writes models to GGUF files as llama.cpp's converter does, with the `gguf` library and nothing of the suite."""

import json

import numpy as np
from gguf import MODEL_ARCH, GGUFWriter, TokenType, get_tensor_name_map

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "gpt2": MODEL_ARCH.GPT2,
}


def write(file, model, tokenizer, split="gpt-2", **more):
    """A GGUF file of float32 tensors; more: further metadata, by key (a dot is written as two underscores)."""
    config, kind = model.config, model.config.model_type
    writer = GGUFWriter(file, {"gemma3_text": "gemma3"}.get(kind, kind))
    entries = {
        "name": "tiny",
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "head_count": config.num_attention_heads,
    }
    if kind == "gpt2":
        entries |= {"feed_forward_length": 4 * config.hidden_size, "layer_norm_eps": config.layer_norm_epsilon}
    else:
        rope = config.rope_parameters
        entries |= {
            "feed_forward_length": config.intermediate_size,
            "head_count_kv": config.num_key_value_heads,
            "layer_norm_rms_eps": config.rms_norm_eps,
            "rope_freq_base": rope.get("full_attention", rope)["rope_theta"],
            "rope_dimension_count": config.hidden_size // config.num_attention_heads,
        }
    if kind == "gemma3_text":
        entries |= {"key_length": config.head_dim, "value_length": config.head_dim}
        entries |= {"sliding_window": config.sliding_window}
    for name, value in entries.items():
        getattr(writer, f"add_{name}")(value)
    for key, value in more.items():
        name = key.replace("__", ".")
        writer.add_string(name, value) if isinstance(value, str) else writer.add_float32(name, value)
    _tokenizer(writer, tokenizer, split)
    names = get_tensor_name_map(ARCHITECTURES[kind], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        there = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert there is not None, name
        writer.add_tensor(there, _converted(kind, name, tensor.float().numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _converted(kind, name, values, config):
    """As llama.cpp stores it: rotary dimensions interleaved, Gemma's norms plus one, GPT-2's matrices transposed."""
    if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        values = values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
    if kind == "gemma3_text" and name.endswith("norm.weight"):
        values = values + 1
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        values = values.T
    return np.ascontiguousarray(values)


def _tokenizer(writer, tokenizer, split):
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.bos_token_id)
