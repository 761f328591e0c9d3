"""What contestants work on: random models by shape, packaged ones, folders of models, and prompts of random tokens."""

from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

GPT2 = {"gpt2": (12, 12, 768), "tiny": (3, 4, 64)}  # layers, heads, width
LLAMA = {  # the same, width of the MLP, vocabulary, spread of the weights
    "llama": (8, 16, 512, 1376, 32000, 0.02),
    "tiny llama": (3, 4, 64, 96, 1000, 0.1),
}
BASE = [2215, 4995, 290, 18966, 1816, 284, 262, 26725, 11, 18966, 2921, 257, 6891, 284]  # ... Emma gave a coffee to
SOURCE = [*BASE[:9], 4995, *BASE[10:]]  # ... Mike gave a coffee to
MIKE, EMMA = 4995, 18966
TEXT = "When Mike and Emma went to the cafe, {} gave a coffee to"
COPIES, SEQUENCES = 4, 5


def model_of(name, attention=""):
    """A random model in float32 and eval mode, or a packaged one; attention: one of transformers' implementations."""
    model = _built(name)
    if attention:
        model.set_attn_implementation(attention)
    return model


def prepared(name):
    """The same under the engine."""
    from util.engine.handshake import prepare

    prepare(model := model_of(name))
    return model


def _built(name):
    torch.manual_seed(0)
    if name in GPT2:
        layers, heads, width = GPT2[name]
        return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=heads, n_embd=width, initializer_range=0.1)).eval()
    if name in LLAMA:
        layers, heads, width, inner, words, spread = LLAMA[name]
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": words}
        sizes |= {"intermediate_size": inner, "max_position_embeddings": 2048}
        return LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=spread)).eval()
    return packaged(name)[0]


def packaged(name):
    """Model and tokenizer, of a folder as transformers loads them: other environments lack what `util` imports."""
    if Path(name).is_dir():
        return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(
            name
        )
    from util.load_model_and_data import load_ICL_model

    model, tokenizer = load_ICL_model(name, device="cpu", dtype="float32", verbose=False)
    return model, tokenizer


def random_ids(count, length, vocabulary):
    return torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(1))


def pair_of(model):
    """Tokens [1, T] of the project's base and source, and the answers; GPT-2's for random models."""
    if model in GPT2:
        return torch.tensor([BASE]), torch.tensor([SOURCE]), (MIKE, EMMA)
    tokenizer = packaged(model)[1]
    base, source = (tokenizer(TEXT.format(name), return_tensors="pt").input_ids for name in ("Emma", "Mike"))
    mike, emma = (tokenizer(f" {name}").input_ids[0] for name in ("Mike", "Emma"))
    return base, source, (mike, emma)


def answer_difference(logits, answers=(MIKE, EMMA)):
    return logits[..., -1, answers[0]] - logits[..., -1, answers[1]]


def repeated(vocabulary, length):
    """Sequences of four copies of random tokens, behind a first token, [N, T]."""
    rng = np.random.default_rng(0)
    rows = [np.tile(rng.choice(np.arange(1, vocabulary), length, replace=False), COPIES) for _ in range(SEQUENCES)]
    return np.insert(np.array(rows), 0, 0, axis=1)


def eap_prompts(vocabulary, count, tokens=15):
    """Random base and corrupted prompts [N, T], which differ at a token, and one pair of answers for all [N, 2]."""
    base = random_ids(count, tokens, vocabulary)
    corrupted = base.clone()
    corrupted[:, 10] = torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(2))
    return base, corrupted, torch.tensor([[5, 6]] * count)


def eap_difference(logits):
    return answer_difference(logits, (5, 6)).sum()
