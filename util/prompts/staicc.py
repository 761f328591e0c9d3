"""The names of StaICC's data sets; reading them is left to `load_model_and_data`."""

DATASETS = (
    "glue_sst2",
    "rotten_tomatoes",
    "financial_phrasebank",
    "sst5",
    "trec",
    "agnews",
    "subjective",
    "tweet_eval_emotion",
    "tweet_eval_hate",
    "hate_speech_18",
)


def dataset_index(dataset: int | str) -> int:
    """The StaICC index of a data set, given by index or name. Raises ValueError, which lists the choices."""
    if isinstance(dataset, str) and dataset in DATASETS:
        return DATASETS.index(dataset)
    if not isinstance(dataset, str | bool) and dataset in range(len(DATASETS)):
        return int(dataset)
    choices = ", ".join(f"{i} {name}" for i, name in enumerate(DATASETS))
    raise ValueError(f"unknown data set {dataset!r}; choose one of: {choices}")
