"""How many tokens typical prompts have, for estimates that need no tokenizer.

Means over prompts, special tokens included, as the tokenizer of SmolLM2 (49,152 tokens) reads them. Those of other
models differ by a tenth. One with few tokens, such as that of the embedded model, makes texts longer by FEW.
"""

from collections.abc import Mapping

FEW = 1.2  # times the tokens of texts, with a vocabulary of some thousands
FEW_PAIRS = 0.9  # times the tokens of word pairs: such a model is asked the words that it was trained on
Length = tuple[float, float]  # tokens without demonstrations, and of each demonstration

STAICC: Mapping[str, Length] = {
    "glue_sst2": (16, 19),
    "rotten_tomatoes": (30, 31),
    "financial_phrasebank": (37, 37),
    "sst5": (26, 29),
    "trec": (16, 17),
    "agnews": (60, 62),
    "subjective": (35, 36),
    "tweet_eval_emotion": (30, 31),
    "tweet_eval_hate": (38, 38),
    "hate_speech_18": (27, 30),
}
PATTERNS: Mapping[str, Length] = {  # of `prompts.classification`
    "repetition": (52, 8.3),
    "recursion": (52, 8.3),
    "centre_embedding": (53, 9.3),
    "wordseq1": (50, 6.9),
    "wordseq2": (50, 6.9),
    "wordseq1_4way": (50, 6.9),
    "wordseq2_4way": (50, 6.9),
}
TEXTS: Mapping[str, Length] = {"sst2": (28, 22.5), "subj": (55, 39)}
OTHER_TEXTS: Length = (50, 35)  # of tasks with texts that do not come with the suite
PAIRS: Mapping[str, Length] = {
    "copying": (3.5, 4.4),
    "capitalization": (3.5, 4.5),
    "country_capital": (5, 7),
    "present_past": (5.5, 5.2),
    "person_sport": (7, 8.5),
}
OTHER_PAIRS: Length = (5, 6)  # of pairs that someone has saved
PLAIN_TEXT = 31.0  # of `financial_phrasebank`, without template and label
NAMES = 20.0  # of indirect object identification
NAMES_CHANGED: Mapping[str, float] = {"s2_swap": 7, "s2_rand": 7}  # from the first name that differs in the source on
NAMES_CHANGED_ELSE = 17.0


def staicc(dataset: str, k: int, *, few: bool) -> float:
    """Tokens of a prompt of a StaICC data set with k demonstrations. few: with a small vocabulary."""
    return _of(STAICC[dataset], k) * (FEW if few else 1)


def classification(task: str, k: int, *, few: bool) -> float:
    """Tokens of a prompt of a classification task, made or of texts, with k demonstrations."""
    if task in PATTERNS:
        return _of(PATTERNS[task], k)
    return _of(TEXTS.get(task, OTHER_TEXTS), k) * (FEW if few else 1)


def word_pairs(task: str, k: int, *, few: bool) -> float:
    """Tokens of a prompt of a word-pair task with k demonstrations."""
    return _of(PAIRS.get(task, OTHER_PAIRS), k) * (FEW_PAIRS if few else 1)


def names_changed(corruption: str) -> float:
    """Tokens from the first name that differs in the source on, in indirect object identification."""
    return NAMES_CHANGED.get(corruption, NAMES_CHANGED_ELSE)


def _of(length: Length, k: int) -> float:
    return length[0] + k * length[1]
