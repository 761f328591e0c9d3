"""The card of a model: the studies of four figures, one after the other, in two sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from util.card.page import SCHEMA, TOPICS, sentences
from util.engine.call import UnsupportedModel
from util.prompts.prompt import UnsupportedTokenizer
from util.show.files import plain
from util.study.model import Model, as_model
from util.study.study import Study

# Settings by size and figure. Those of a full card are the notebooks', so that it shares their records.
SIZES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "small": {
        "role_atlas": {
            "datasets": ("trec",), "ks": (4,), "prompts": 8, "sequences": 12, "pairs": 32, "word_prompts": 4,
            "intact": 8,
        },
        "ioi_patching": {"prompts": 12, "path_heads": 6, "random_sets": 1},
        "edge_ablation": {"prompts": 8, "donor_seeds": (0,)},
        "induction_scores": {"tasks": ("wordseq1",), "text_tasks": (), "prompts": 10},
    },
    "full": {},
}  # fmt: skip
OF_PROMPTS = ("prompt_digest", "finished")  # what of a record's provenance is not the card's


def card(model: Model | str = "embedded", size: str = "full", seed: int = 0, **places: Any) -> dict[str, Any]:
    """The card of a model: what card.json has. What was measured before is not measured again.

    size: how much is measured, see `SIZES`. places: `folder` and `redo` of the studies. A topic that the model or its
    tokenizer does not allow is refused. Raises ValueError for wrong settings, before anything is measured.
    """
    if size not in SIZES:
        raise ValueError(f"size = {size!r}: choose one of {', '.join(SIZES)}")
    model, given = as_model(model), {"seed": seed, "untrained_control": False, **places}
    studies = {
        topic: Study(figure.stem, model, **given, **SIZES[size].get(figure.stem, {}))
        for topic, (figure, _, _) in TOPICS.items()
    }
    values: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for topic, study in tqdm(studies.items(), "card", unit="topic", leave=False):
        try:
            values[study.figure.stem] = plain(study.values_of(*TOPICS[topic][1]), decimals=6)
        except (UnsupportedModel, UnsupportedTokenizer) as error:  # such as names that the tokenizer splits
            refused[topic] = str(error)
    origin = next((origin for study in studies.values() for origin in study.origins.values()), {})
    made = {
        "schema": SCHEMA,
        "model": model.title,
        "described": next((of_figure["model"] for of_figure in values.values()), model.title),
        "size": size,
        "seed": seed,
        "refused": refused,
        "values": values,
        "provenance": {name: entry for name, entry in origin.items() if name not in OF_PROMPTS},
    }
    return made | {"sentences": sentences(made)}
