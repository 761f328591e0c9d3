"""Wrong settings of every figure are refused when its study is built, before a model is loaded. Types: tests/study."""

from typing import Any

import pytest

from tests.unloaded import NEVER
from util.figures.ioi_patching.show import EXAMPLE
from util.study.study import Study

BASE, SOURCE = EXAMPLE
TEXTS = "texts and names: .*give two texts that differ"
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {  # by figure: settings, the start of the message
    "toy_induction_head": [
        ({"copies": 1}, "copies = 1: .*greater than or equal to 2"),
        ({"sequences": 3}, "sequences = 3: .*greater than or equal to 4"),  # two to choose heads on, two to measure
        ({"vocabulary": 30}, "vocabulary = 30: 50 distinct tokens"),
    ],
    "forerunner_heads": [
        ({"prompts": 3}, "prompts = 3: .*greater than or equal to 4"),  # an interval on either half needs two
        ({"k": 513}, "k = 513: .*a pool of 512 demonstrations"),
        ({"causal_k": [4, 9999]}, "k = 9999: trec has a pool of"),
        ({"threshold": float("inf")}, "threshold = inf: .*finite"),
        ({"dataset": "imdb"}, "dataset = 'imdb': unknown data set 'imdb'; choose one of: 0 glue_sst2"),
        ({"grid_datasets": ["trec", 4]}, r"grid_datasets = \['trec', 4\]: .*twice"),
        ({"ablated": 385}, "385 prompts to be measured and 128 to choose the task"),
    ],
    "induction_scores": [
        ({"tasks": ["wordseq2"]}, "primary_task = 'wordseq1' is none of tasks"),
        ({"tasks": ["palindrome"]}, "tasks.0 = 'palindrome': unknown classification task .*; there are repetition"),
        ({"tasks": ["wordseq1", "sst2"], "text_tasks": ["sst2"]}, r"tasks and text_tasks both have \['sst2'\]"),
        ({"mode": "median"}, "mode = 'median': .*'mean', 'zero', 'mean_pos' or 'input_mean'"),
        ({"demonstration_seeds": [42, -1]}, "demonstration_seeds.1 = -1: "),
        ({"shots": (0, 1000)}, "repetition: 1000 demonstrations take .* take a smaller k"),
        ({"text_tasks": ["sst2"], "text_data": "/nowhere"}, "there is no folder '/nowhere/sst2'"),
        ({"text_tasks": ["x"]}, "text_tasks.0 = 'x': no text task 'x'"),
    ],
    "ioi_patching": [
        *(({"texts": texts}, TEXTS) for texts in [(BASE, BASE), (BASE, SOURCE + " the")]),
        *(({"names": names}, TEXTS) for names in [("Mike", "Anna"), ("Emma", "Mike")]),
        *(({"texts": texts}, "texts") for texts in [(BASE,), (BASE, "")]),
        ({"corruption": "swap"}, "corruption = .*s2_swap.*random_name"),
        ({"edge_pairs": 1}, "edge_pairs = 1"),
        ({"exact_edges": 3}, "exact_edges = 3"),
    ],
    "edge_ablation": [
        ({"tasks": ["coping"]}, "tasks.0 = 'coping': .*there are copying"),
        ({"tasks": ["copying"], "primary_task": "capitalization"}, "tasks = .*the primary task, 'capitalization', is"),
        ({"corruptions": [0, 1]}, "corruptions.0 = 0: .*greater than or equal to 1"),
        ({"corruptions": [9]}, "missing corruption index .9."),
    ],
    "role_atlas": [
        ({"datasets": "none"}, "datasets"),
        ({"word_prompts": 2}, "word_prompts"),
        ({"word_prompts": 10**6}, ".*prompts"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("stem, settings, message", [(stem, *row) for stem, rows in REFUSED.items() for row in rows])
def test_wrong_settings_are_refused_before_a_model_is_loaded(stem, settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Study(stem, NEVER, **settings)
