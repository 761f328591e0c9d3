"""The embedded models' tokenizer: byte-level BPE; labels are one token, and so are ':', tab and newline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from util.models.embedded_words import promised

BOS, PAD = "<|bos|>", "<|pad|>"
BOS_ID, PAD_ID = 0, 1
VOCABULARY = 5120
MAX_LENGTH = 2048
_COPIES = 4000  # of every promised word; the rarest learned merge occurs only about a hundred times


def build(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer trained on `texts`.

    Its post-processor puts BOS in front. Offsets cover the text without gaps or overlaps; a token's offsets include its
    leading space. Decoding is lossless. Raises ValueError if a promised word is not one token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[\t\n:]"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, BOS_ID)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )

    def lines() -> Iterator[str]:
        yield from texts
        for word in promised():
            yield f"\n{word}" * _COPIES

    tokenizer.train_from_iterator(lines(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        pad_token=PAD,
        padding_side="right",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    single_ids(fast, promised())
    return fast


def single_ids(tokenizer: PreTrainedTokenizerFast, words: Iterable[str]) -> list[int]:
    """The token ids of strings that are one token each. Raises ValueError, naming them, if some are not."""
    encoded = {word: tokenizer.encode(word, add_special_tokens=False) for word in words}
    broken = [word for word, ids in encoded.items() if len(ids) != 1]
    if broken:
        raise ValueError(f"not one token each: {broken}")
    return [ids[0] for ids in encoded.values()]
