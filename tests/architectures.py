"""Tiny seeded random models, one per architecture the engine supports, and some that it must refuse.

Each model has 3 layers, 4 heads (2 key-value heads where the class can have fewer), width 64, a vocabulary of 99 and a
window of 5 where it slides. Every parameter is redrawn with a large spread, so that attention is far from uniform,
biases, norms and sinks are not trivial, and an edit moves the logits.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.gptj.modeling_gptj import GPTJAttention

from util.engine.handshake import prepare

VOCABULARY = 99
LAYERS = 3
HEADS = 4
WINDOW = 5

COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
DENSE = COMMON | dict(intermediate_size=96)
GQA = DENSE | dict(num_key_value_heads=2)
HEAD = GQA | dict(head_dim=16)
GPT2 = COMMON | dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
MIXED = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48)
LATENT = dict(
    kv_lora_rank=16,
    q_lora_rank=24,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    moe_intermediate_size=48,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
)

ORIGINAL = 16  # tokens, of the context that a rotation was made for
LONGROPE = dict(  # changes of "phi3"
    max_position_embeddings=64,
    original_max_position_embeddings=ORIGINAL,
    sliding_window=None,
    rope_parameters=dict(
        rope_type="longrope",
        rope_theta=10000.0,
        factor=4.0,
        original_max_position_embeddings=ORIGINAL,
        short_factor=[1.0] * 8,
        long_factor=[2.0] * 8,
    ),
)

# name -> (model type, configuration); classes that call attention as another one does are left to `make classes`
SUPPORTED: dict[str, Any] = {
    "gpt2": ("gpt2", GPT2),
    "gpt_neox": ("gpt_neox", DENSE),
    "gpt_bigcode": ("gpt_bigcode", GPT2),
    "opt": ("opt", COMMON | dict(ffn_dim=96, dropout=0.0, word_embed_proj_dim=64)),
    "llama": ("llama", GQA),
    "mistral": ("mistral", GQA | dict(sliding_window=WINDOW)),
    "mixtral": ("mixtral", GQA | dict(sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": ("qwen2", GQA),
    "qwen2_sw": ("qwen2", GQA | dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)),
    "qwen2_moe": ("qwen2_moe", GQA | EXPERTS | dict(shared_expert_intermediate_size=48)),
    "gemma": ("gemma", HEAD),
    "gemma2": ("gemma2", HEAD | MIXED | dict(sliding_window=WINDOW, query_pre_attn_scalar=16)),
    "gemma3_text": ("gemma3_text", HEAD | MIXED | dict(sliding_window=WINDOW, query_pre_attn_scalar=16)),
    "phi": ("phi", GQA),
    "phi3": ("phi3", GQA | dict(sliding_window=WINDOW)),
    "smollm3": ("smollm3", GQA | dict(no_rope_layers=[1, 0, 1])),
    "olmo2": ("olmo2", GQA),
    "olmo3": ("olmo3", GQA | MIXED | dict(sliding_window=WINDOW)),
    "cohere": ("cohere", GQA | dict(logit_scale=1.0)),
    "cohere2": ("cohere2", HEAD | MIXED | dict(sliding_window=WINDOW, logit_scale=1.0)),
    "glm4": ("glm4", HEAD),
    "granite": ("granite", GQA | dict(attention_multiplier=0.3, residual_multiplier=0.7, embedding_multiplier=2.0)),
    "persimmon": ("persimmon", DENSE),
    "biogpt": ("biogpt", DENSE | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
    "deepseek_v2": ("deepseek_v2", DENSE | LATENT | dict(num_key_value_heads=4)),
    "deepseek_v3": ("deepseek_v3", DENSE | LATENT | dict(num_key_value_heads=4)),
    "gpt_oss": (
        "gpt_oss",
        HEAD
        | MIXED
        | dict(
            sliding_window=WINDOW,
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
    "qwen3_next": (
        "qwen3_next",
        HEAD
        | EXPERTS
        | dict(
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            shared_expert_intermediate_size=48,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
        ),
    ),
    "llama4_text": (
        "llama4_text",
        HEAD
        | dict(
            intermediate_size_mlp=96,
            num_local_experts=4,
            interleave_moe_layer_step=2,
            no_rope_layers=[1, 0, 1],
            attention_chunk_size=8,
            floor_scale=4,
        ),
    ),
}

# the same for classes with an attention of their own, for which there is an adapter
NEO = COMMON | dict(window_size=WINDOW, resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0)
ADAPTED: dict[str, Any] = {
    "gpt_neo": ("gpt_neo", NEO | dict(attention_types=[[["local", "global", "local"], 1]])),
    "gpt_neo_global": ("gpt_neo", NEO | dict(attention_types=[[["global"], 3]])),
    "gptj": ("gptj", GPT2 | dict(rotary_dim=8)),
    "codegen": ("codegen", GPT2 | dict(rotary_dim=8)),
    "falcon_7b": ("falcon", COMMON | dict(multi_query=True, parallel_attn=True)),
    "falcon_40b": ("falcon", COMMON | dict(new_decoder_architecture=True, num_kv_heads=2)),
    "falcon_alibi": ("falcon", COMMON | dict(alibi=True, multi_query=False, parallel_attn=False, bias=True)),
    "bloom": ("bloom", COMMON),
    "mpt": ("mpt", COMMON | dict(max_seq_len=64, attn_config=dict(clip_qkv=2.0, softmax_scale=0.3))),
    "xglm": ("xglm", COMMON | dict(ffn_dim=96, dropout=0.0, attention_dropout=0.0)),
}
SINCE_5_24 = ("gptj", "codegen")  # these have transformers' attention interface from this release on
if not hasattr(GPTJAttention, "_attn"):
    SUPPORTED |= {name: ADAPTED.pop(name) for name in SINCE_5_24}

# name -> (model type, configuration, model class): classes with an attention of their own that must be refused
BYPASSING: dict[str, Any] = {
    "gpt_neox_japanese": ("gpt_neox_japanese", COMMON, "GPTNeoXJapaneseForCausalLM"),
    "openai-gpt": ("openai-gpt", COMMON | dict(n_positions=64), "OpenAIGPTLMHeadModel"),
}

# classes that differ in kind: what `make test` tries; all others are for `make test-all`
QUICK = {"gpt2", "llama", "gemma2", "falcon_7b", "mixtral", "openai-gpt"}
SINKS = {"gpt_oss"}  # rows sum to less than one
GATED = {"qwen3_next"}  # something stands between its heads and the output projection
SOFTCAP = {"gemma2"}  # these two sets have no sdpa path that agrees with eager
ALIBI = {"falcon_alibi", "bloom", "mpt"}  # their masks have values of their own for every head
OWN_KERNEL = ADAPTED.keys() - {"falcon_40b", "falcon_alibi"}  # these were eager, or falcon_7b on a slower kernel
WINDOWED = {"mistral", "mixtral", "qwen2_sw", "gemma2", "gemma3_text", "phi3", "olmo3", "cohere2", "gpt_oss", "gpt_neo"}


def attention_layers(name):
    """The model's own 0-based numbers of the layers that have attention."""
    kinds = (SUPPORTED | ADAPTED)[name][1].get("layer_types", ["full_attention"] * LAYERS)
    return tuple(i for i, kind in enumerate(kinds) if kind != "linear_attention")


def build(name, dtype=torch.float32, spread=0.2, seed=0, **changes):
    """The tiny model called `name`, see `random_model`. `changes` override entries of the configuration."""
    kind, options, *_ = (SUPPORTED | ADAPTED | BYPASSING)[name]
    config = AutoConfig.for_model(kind, **(options | changes))
    return random_model(config, spread, seed).to(dtype)


def prepared(name, dtype=torch.float32, **changes):
    """The model called `name`, see `build`, ready for instruments."""
    model = build(name, dtype, **changes)
    if dtype == torch.float64 and hasattr(model.config, "_experts_implementation"):
        model.set_experts_implementation("eager")  # the other one has no float64
    prepare(model)
    return model


def random_model(config, spread, seed):
    """The model of a config, float32 and in eval mode, with every parameter redrawn from `seed`.

    Matrices are normal with standard deviation `spread`; vectors (biases, norms, sinks) keep their initial value plus
    noise of half of it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # some classes draw vectors too: sinks, decay rates
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(spread * noise)
            else:
                parameter.add_(0.5 * spread * noise)
    return model.requires_grad_(False)
