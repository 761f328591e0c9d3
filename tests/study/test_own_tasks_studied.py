"""From a file of word pairs to the heads that matter, and what of the file stands in requests."""

import json

import pytest

from tests.commands.test_edge_configs import result
from tests.tiers import quick
from util.commands import edge_configs
from util.figures.edge_ablation.runs import Draw, Run
from util.figures.task_study import TaskStudy
from util.load_model_and_data import staicc_prompts, staicc_task
from util.prompts import own_tasks
from util.prompts.own_tasks import column
from util.prompts.prompt import UnsupportedTokenizer
from util.prompts.text_tasks import DATASETS
from util.roles.function_vectors import FunctionVectorStudy
from util.study.model import Model
from util.study.study import Study

KNOWN = column("embedded_words", "word")[:24]
FEW = {
    "k": 4, "prompts": 6, "donor_seeds": (0,), "random_circuits": 2, "search_prompts": 6, "per_round": 0.5,
    "untrained_control": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def places(material, output, monkeypatch, tmp_path):
    monkeypatch.setattr(own_tasks, "_REGISTERED", {})
    monkeypatch.chdir(tmp_path)


def write(pairs, name="animals.csv", header="input,output"):
    with open(name, "w", encoding="utf-8") as file:
        print(header, *(",".join(pair) for pair in pairs), sep="\n", file=file)
    return name


def test_rows_that_the_tokenizer_cannot_carry_are_refused_before_weights_are_read(no_model):
    write([("red", "Red"), ("blue", "Blue"), ("green", "Green"), ("black", "Black")])
    message = r"animals.csv, row 1: the tokenizer cannot carry 'red' and 'Red' \(split: the separator ' ->' is 2 tokens"
    with pytest.raises(UnsupportedTokenizer, match=message):
        Study("edge_ablation", tasks="animals.csv", k=1, layout="arrow", corruptions=[1])
    assert Model("embedded").twin().tokenizer.get_vocab() == Model("embedded").tokenizer.get_vocab()
    config = {"action": "accuracy", "request": {"task": "animals.csv", "k": 1, "layout": "arrow"}}
    (checked,) = edge_configs.CONFIGS.validate_python([config])
    with pytest.raises(UnsupportedTokenizer, match="animals.csv, row 1"):
        edge_configs.prepared(checked, Model("embedded"))


def test_a_config_has_files_and_layouts_by_name(tmp_path):
    write((word, word.capitalize()) for word in KNOWN)
    request = {"task": "animals.csv", "k": 3, "prompts": 4, "layout": "colon"}
    given = {"action": "ablation", "request": request, "donor_seeds": [0], "removed": ["AGG"]}
    (config,), model = edge_configs.CONFIGS.validate_python([given]), Model("embedded", verbose=False)
    study, out, whole = edge_configs.prepared(config, model, folder=tmp_path)
    edge_configs.write(config, study, out, whole)
    stored = result(out)["request"]
    assert stored["request"]["task"] == "animals" and str(tmp_path) not in json.dumps(stored)
    prompt = Run(Study("edge_ablation", model, folder=tmp_path), config.draws[0]).drawn.items[0].clean
    assert prompt.text.count(": ") == 3 and "\t" not in prompt.text
    write((word, word.upper()) for word in KNOWN)
    changed = Draw(**{**request, "trained": True}).request
    assert changed["words"] != stored["request"]["words"] and changed["task"] == "animals"
    assert FunctionVectorStudy(model, "animals.csv", 3, prompts=4).own_request["dataset"] == "animals"


@pytest.mark.parametrize("name", quick(["trec"], DATASETS))
def test_data_sets_of_staicc_are_classification_tasks_in_their_own_template(name):
    task, prompt = staicc_task(name), staicc_prompts(name, 4)[0]
    labels, texts = task.labels, dict(task.pool)
    shown = prompt.text.split(task.layout.end)[:-1]
    pairs = [(text, label.strip()) for text, _, label in (line.partition(task.layout.separator) for line in shown)]
    assert all(texts[text] == label for text, label in pairs)
    query = prompt.text.split(task.layout.end)[-1].removesuffix(task.layout.separator)
    made = task.layout.prompt(pairs, query, dict(task.rows)[query], labels)
    assert (made.with_label(), made.labels) == (prompt.with_label(), prompt.labels)
    assert TaskStudy("embedded", name, 4, 2).classes is task


def test_notebook_02_takes_a_file(no_model):
    texts = [
        (f"{word} and {other}", "Foo" if word < KNOWN[3] else "Bar") for word in KNOWN[:6] for other in KNOWN[6:12]
    ]
    write(texts, "kinds.csv", "text,label")
    study = Study("induction_scores", tasks=["kinds.csv", "trec"], primary_task="kinds.csv", text_tasks=[], prompts=4)
    assert study.settings.tasks == ("kinds", "trec") and study.settings.primary_task == "kinds"
    few = Study("induction_scores", tasks="kinds.csv", primary_task="kinds.csv", text_tasks=[])
    assert few.settings.prompts == len(texts) // 2  # half of them say whether the task is done
