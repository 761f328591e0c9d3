"""Small tokenizers and models for the tests: built in seconds, from nothing but the installed packages."""

import csv
import json
from functools import cache
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    OpenAIGPTConfig,
    PreTrainedModel,
    PreTrainedTokenizer,
    PreTrainedTokenizerFast,
)

from util import paths
from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.prompts import word_pair_prompts
from util.prompts.prompt import UnsupportedTokenizer

KINDS = ("bpe", "bpe-no-bos", "unigram")


def task_texts():
    """Every string in the word lists, at the start of a line, after a space and after a tab.

    Of words and verbs the short lists alone: of the long ones a small vocabulary has but pieces.
    """
    words: set[str] = set()
    for file in sorted((paths.root() / "data" / "word_lists").iterdir()):
        if file.suffix == ".csv" and file.stem not in ("words", "present_past"):
            words |= {cell for row in csv.reader(file.open(encoding="utf-8")) for cell in row}
        elif file.suffix == ".json":
            words |= {text for part in json.loads(file.read_text(encoding="utf-8")).values() for text in part}
    return [f"{word}\n {word}\t{word}: {word}:{word}\n" for word in sorted(words)] * 20


@cache
def tokenizer(kind="bpe", vocabulary=1000, on_tasks=False):
    """A small tokenizer: byte-level BPE with or without BOS, or SentencePiece-like Unigram.

    Trained on StaICC prompts, or on_tasks: on the word lists, most of whose words are then one token of 3,000.
    """
    if on_tasks:
        texts, vocabulary = task_texts(), 3000
    else:
        texts = [p.with_label(o) for d in (0, 2, 4) for p in staicc_prompts(d, 4)[:200] for o in (0, 1)]
    special = ["<s>", "<unk>"]
    if kind == "unigram":
        raw = Tokenizer(models.Unigram())
        raw.normalizer = normalizers.Sequence([normalizers.Replace(" {2,}", " ")])
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        if on_tasks:
            apart = pre_tokenizers.Split(Regex(r"[\t\n:]"), "isolated")
            raw.pre_tokenizer = pre_tokenizers.Sequence([apart, pre_tokenizers.Metaspace(prepend_scheme="first")])
        raw.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=vocabulary, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    raw.train_from_iterator(texts, trainer)
    if kind != "bpe-no-bos":
        raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="<unk>")


def words():
    """A tokenizer that keeps most words of the tasks whole."""
    return tokenizer(on_tasks=True)


def by_pattern(pattern, words):
    """A tokenizer whose tokens are what an expression finds; all but these words are <unk>."""
    known = {text: i for i, text in enumerate(["<unk>", "<s>", *words])}
    raw = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="<unk>")


SHAPE = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA = {"intermediate_size": 96, "num_key_value_heads": 2}
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "initializer_range": 0.02}
# name -> (model type, what is its own of the configuration)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"bos_token_id": 0, "eos_token_id": 0}),
    "gpt_neox": ("gpt_neox", {"intermediate_size": 96}),
    "llama": ("llama", LLAMA),
    "llama-mqa": ("llama", LLAMA | {"num_key_value_heads": 1}),
    "qwen2": ("qwen2", LLAMA),
    "mistral-window": ("mistral", LLAMA | {"sliding_window": 40}),
    "llama-biased": ("llama", LLAMA | {"attention_bias": True}),
    "gemma3": ("gemma3_text", LLAMA | {"head_dim": 256, "sliding_window": 40}),
    "gemma3-of-128": ("gemma3_text", LLAMA | {"head_dim": 128, "query_pre_attn_scalar": 168}),
    "wide": ("llama", LLAMA | WIDE),  # enough for 4-bit kernels: multiples of 64 in, of 32 out
}


def model(family="llama", seed=0):
    """A tiny random model whose weights are large enough for attention to be far from uniform."""
    kind, own = FAMILIES[family]
    sizes: dict[str, Any] = SHAPE | {"initializer_range": 0.2, "max_position_embeddings": 1024} | own
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval().requires_grad_(False)


def save(folder, model_=None):
    """A folder that the loader takes: the toy Llama, or another model, with the toy tokenizer."""
    (model() if model_ is None else model_).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def load(place, **options):
    """The model of a file or folder, or a built one with the toy tokenizer, as the suite loads it."""
    given = (place, tokenizer()) if isinstance(place, PreTrainedModel) else place
    return load_ICL_model(given, verbose=False, **options)[0]


def pair_with_words():
    """The toy Llama and a tokenizer that keeps words whole, for which it has embeddings."""
    made = model()
    made.resize_token_embeddings(len(words()))
    return made, words()


def refuse_tasks(monkeypatch, names):
    """From now on no tokenizer has prompts of the word-pair tasks of these names."""
    whole = word_pair_prompts.prompts

    def prompts(task, *arguments, **options):
        if task.name in names:
            raise UnsupportedTokenizer(f"task {task.name!r}: no prompt can be made. Try another separator")
        return whole(task, *arguments, **options)

    monkeypatch.setattr(word_pair_prompts, "prompts", prompts)


class Slow(PreTrainedTokenizer):
    """A tokenizer in Python, which gives no offsets."""

    vocab_size = 2

    def get_vocab(self):
        return {"a": 0, "b": 1}

    def _tokenize(self, text, **options):
        return list(text)


def bypassing():
    """A class whose attention bypasses the attention interface and has no adapter."""
    return OpenAIGPTConfig(vocab_size=1000, n_embd=64, n_layer=2, n_head=4)
