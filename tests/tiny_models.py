"""Any causal class of transformers as a tiny random model, made from its own default config.

`tests/architectures.py` has the layouts that every instrument is compared on, configured by hand. Here sizes are set by
name instead, so that a class that is new in transformers needs nothing, or an entry in OWN.
"""

import re
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.architectures import random_model

VOCABULARY = 99
LAYERS = 4
SWITCH = 12  # tokens, of every window, chunk and selection of keys

KINDS: tuple[str, ...] = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

# The names of config entries, and their value.
SIZES: tuple[tuple[str, int], ...] = (
    (r"(|decoder_|unpadded_)vocab_size|vocab_size_per_layer_input", VOCABULARY),
    (r"(num|decoder|encoder|num_decoder|num_encoder)_(hidden_)?layers|n_layers?", LAYERS),
    (
        r"(num_|decoder_|encoder_|num_decoder_|num_encoder_|swa_num_|)attention_heads|n_heads?|num_heads|linear_num_heads",
        4,
    ),
    (r"(swa_)?num_key_value_heads|num_kv_heads|num_query_groups", 2),
    (r"(backbone_|attention_)?hidden_size|d_model|n_embd|emb_dim|embedding_dim|(input_|output_)?embedding_size", 64),
    (r"word_embed_proj_dim|lru_width", 64),
    (r"(swa_|linear_|v_|qk_nope_|linear_key_|linear_value_|index_|global_)?head_dim|d_head|dim_head|kv_channels", 16),
    (
        r"attention_head_(dim|size)|(kv|o)_lora_rank|gated_norm_rank|laurel_rank|hidden_size_per_layer_input|hc_lowrank",
        16,
    ),
    (r"qk_rope_head_dim|rotary_dim|d_rel", 8),
    (r"qk_head_dim|q_lora_rank", 24),
    (r".*intermediate_size.*|.*ffn_dim|.*ffn_hidden_size|dim_ff|dff|feed_forward_size|d_inner|mamba_d_ssm", 128),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|zero_expert_num", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|index_topk_blocks|hc_mult|hc_count|hc_sinkhorn_iters", 2),
    (r"n_group|num_expert_group|topk_group|o_groups|n_groups|mamba_n_?groups", 1),
    (r"first_k_dense_replace|num_dense_layers|num_nextn_predict_layers|n_shared_experts", 1),
    (r"num_kv_shared_layers", 0),
    (
        r"max_position_embeddings|n_positions|max_seq_len|max_target_positions|n_ctx|context_length|model_max_length",
        256,
    ),
    (r"sliding_window(_size)?|(keep_|attention_)?window_size|local_attention|attention_chunk_size|rel_extent", SWITCH),
    (r"index_topk|index_block_size|floor_scale|log_scaling_n_floor", SWITCH),
    (r"index_n_heads|linear_num_(key|value)_heads|split_ngram_parts|heads_per_ngram", 4),
    (r"mamba_d_state|ssm_state_size|state_size|time_step_rank|mamba_dt_rank|adapter_rank|router_hidden_size", 8),
    (r"mamba_n_heads|n_mamba_heads|mamba_num_heads|prompt_(length|types)|segment_types|position_bias.*", 8),
    (r"mamba_d_head|mamba_head_dim|mamba_headdim|mamba_chunk_size|chunk_size|block_size", 16),
    (r"ple_embed_dim", 32),
    (r"shared_intermediate_size|ngram_vocab_size_base|encoder_hash_byte_group_vocab", 64),
)
# Lists with an entry for each layer: their kinds in turn.
BY_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")
TURNS = ["linear_attention", "full_attention"] * 2
# Model type -> what its config needs beside the sizes.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "bailing_hybrid": {"layer_group_size": 2},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": SWITCH}},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "dots3_note_text": {"head_dim": 24},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granite_swa": {"layer_rope_theta": [10000.0] * LAYERS},
    "granitemoe_swa": {"layer_rope_theta": [10000.0] * LAYERS},
    "granitemoehybrid": {"layer_types": TURNS},
    "hrm_text": {"num_hidden_layers": 8, "num_layers_per_stack": 1},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": TURNS},
    "laguna": {"num_attention_heads_per_layer": [4] * LAYERS},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"head_dim": 16, "num_heads": 8},
    "mimo_v2_flash": {"head_dim": 24, "num_key_value_heads": 1, "v_head_dim": 16},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2},
    "ministral": {"head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": SWITCH,
        "indexer_compress_ratio": 4, "moe_intermediate_size": 32,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [16, 16]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "attention_hidden_size": 128, "attention_head_dim": 32},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3],
        "attention_hidden_size": 128, "attention_head_dim": 32,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


def small(entries):
    """What to change of a config's entries, so that its model is tiny; nested configs of parts too."""
    changes: dict[str, Any] = {}
    for name, value in entries.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            sizes = [size for pattern, size in SIZES if re.fullmatch(pattern, name)]
            if sizes:
                changes[name] = sizes[-1]
            if name in ("pad_token_id", "bos_token_id", "eos_token_id"):
                changes[name] = ("pad_token_id", "bos_token_id", "eos_token_id").index(name)
        elif name == "num_key_value_heads" or name == "eos_token_id":
            changes[name] = 2
        elif isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            changes[name] = 0.0
        elif isinstance(value, list) and name in BY_LAYER and value:
            kinds = list(dict.fromkeys(value))
            changes[name] = [kinds[layer % len(kinds)] for layer in range(LAYERS)]
        elif isinstance(value, dict) and name.endswith("_config") and value.get("model_type"):
            kind = value["model_type"]
            changes[name] = {**small(value), **OWN.get(kind, {}), "model_type": kind}
    if {"kv_lora_rank", "v_head_dim"} & entries.keys():
        changes["num_key_value_heads"] = 4
    if "kv_lora_rank" in entries and "head_dim" in entries:
        changes["head_dim"] = 8  # of the part that is rotated
    if entries.get("per_layer_config"):
        changes["per_layer_config"] = {}
    return changes


def tiny_config(kind, **changes):
    """The config of a model type with sizes of a tiny model."""
    return AutoConfig.for_model(kind, **{**small(AutoConfig.for_model(kind).to_dict()), **OWN.get(kind, {}), **changes})


def tiny_model(kind, spread=0.2, seed=0, **changes):
    """A tiny random model of a model type, in eval mode; weights are large, so that attention is far from uniform.

    changes: entries of the config. Raises whatever the class raises that cannot be built from such a config.
    """
    config = tiny_config(kind, **changes)
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return random_model(config, spread, seed)
