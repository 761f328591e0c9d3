"""InternLM2 checkpoints, read as Llamas without a line of their code, against a Llama that is packed by hand."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests import toys
from util.engine.handshake import prepare
from util.load_model_and_data import load_ICL_model
from util.models import internlm2

INTERN = dict(
    vocab_size=268, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=2, hidden_act="silu", max_position_embeddings=16, rms_norm_eps=1e-5, rope_theta=5e4,
    bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=False, model_type="internlm2",
)  # fmt: skip
NAMES = {
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "tok_embeddings", "lm_head": "output",
}  # fmt: skip


def llama(bias):
    """A Llama of six heads of four in float64, and its weights packed as InternLM2 has them.

    There is one matrix for a group: its three queries, its key, its value.
    """
    torch.manual_seed(0)
    sizes = {name: value for name, value in INTERN.items() if name not in ("model_type", "rope_theta")}
    rope = {"rope_type": "default", "rope_theta": 5e4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=bias, rope_parameters=rope)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    weights, packed = model.state_dict(), {}
    for name, tensor in weights.items():
        if "q_proj" in name:
            key, value = (weights[name.replace("q_proj", other)] for other in ("k_proj", "v_proj"))
            rows = tensor[:12], key[:4], value[:4], tensor[12:], key[4:], value[4:]
            packed[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(rows)
        elif "k_proj" not in name and "v_proj" not in name:
            own = next((name.replace(ours, theirs) for ours, theirs in NAMES.items() if ours in name), name)
            packed[own] = tensor.clone()
    return model, packed


def test_how_positions_are_scaled():
    scaled = internlm2.llama_config(INTERN | {"rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert scaled.rope_parameters == {"rope_type": "dynamic", "rope_theta": 5e4, "factor": 2.0}


# ------------------------------------------------------------------------------------------------ a checkpoint


def field(number, value):
    """A field of a protobuf message."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    size = bytes([len(value) & 127 | 128, len(value) >> 7]) if len(value) > 127 else bytes([len(value)])
    return bytes([number << 3 | 2]) + size + value


PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))]
PIECES += [("ab", -1.0, 1), ("\u2581c", -2.0, 1), ("abc", -3.0, 1), ("\u2581ab", -4.0, 1), ("[user]", 0.0, 4)]
PIECES += [(letter, -9.0, 1) for letter in "\u2581abc"]


def sentencepiece(dummy_prefix=0, kind=2):
    pieces = [
        field(1, field(1, text.encode()) + field(2, score) + (field(3, number) if number > 1 else b""))
        for text, score, number in PIECES
    ]
    rules = field(1, b"identity") + field(3, dummy_prefix)
    return b"".join(pieces) + field(2, field(3, kind) + field(6, b"x" * 200)) + field(3, rules)


def checkpoint(folder, bias=False, shards=2, suffix="safetensors"):
    """A folder as their repository has it, with code that must not be run. Returns the model, and the config."""
    config = {**INTERN, "bias": bias}
    code = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model", "AutoTokenizer": ["code.T", None]}
    lines = {**config, "architectures": ["InternLM2ForCausalLM"], "auto_map": code, "attn_implementation": "eager"}
    (folder / "config.json").write_text(json.dumps(lines))
    lines = {"tokenizer_class": "InternLM2Tokenizer", "auto_map": code, "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(lines))
    (folder / "code.py").write_text("raise SystemExit('their code is run')")
    (folder / "tokenizer.model").write_bytes(sentencepiece())
    model, weights = llama(bias)
    for shard in range(shards):
        part = dict([*weights.items()][shard::shards])
        file = folder / f"model-{shard}.{suffix}"
        save_file(part, file) if suffix == "safetensors" else torch.save(part, file)
    return model, config


@pytest.mark.oracle
@pytest.mark.parametrize("bias, suffix", [(False, "safetensors"), (True, "bin")])
def test_a_folder_is_loaded_in_one_step(bias, suffix, tmp_path, capsys):
    theirs, _ = checkpoint(tmp_path, bias, suffix=suffix)
    model, tokenizer = load_ICL_model(tmp_path, dtype="float64", device="cpu")
    assert "LlamaForCausalLM, 2 layers x 6 heads" in capsys.readouterr().out
    ids = tokenizer("abc ab c cab", return_tensors="pt").input_ids
    torch.testing.assert_close(model(ids).logits, theirs(ids).logits, atol=1e-9, rtol=0)
    assert prepare(model).heads == 6


def test_the_pieces_of_its_tokenizer(tmp_path):
    _, config = checkpoint(tmp_path)
    tokenizer = internlm2.tokenizer(tmp_path, config)
    shown = tokenizer.convert_ids_to_tokens(tokenizer("abc ab c[user]d").input_ids)
    assert shown == ["<s>", "abc", "\u2581ab", "\u2581c", "[user]", "<0x64>"]
    assert tokenizer.decode(tokenizer("abc ab c").input_ids, skip_special_tokens=True) == "abc ab c"
    assert tokenizer.get_vocab() == {piece[0]: number for number, piece in enumerate(PIECES)}
    specials = tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token
    assert specials == ("<s>", "</s>", "</s>", "<unk>") and tokenizer.is_fast
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(dummy_prefix=1))
    tokenizer = internlm2.tokenizer(tmp_path, config)
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab").input_ids) == ["<s>", "\u2581ab"]


def test_what_cannot_be_read_is_named(tmp_path):
    checkpoint(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(kind=1))
    with pytest.raises(ValueError, match="tokenizer.model is damaged, or of another kind than BPE"):
        toys.load(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    with pytest.raises(ValueError, match=f"{tmp_path.name} has no tokenizer.model"):
        toys.load(tmp_path)
    checkpoint(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(OSError, match="has no weights"):
        toys.load(tmp_path)
