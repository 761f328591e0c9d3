"""The suite's tasks in the harness: the same prompts byte by byte, and no query among its own demonstrations."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")

import datasets  # noqa: E402
from lm_eval.api.task import ConfigurableTask  # noqa: E402

from tests.text_rows import written  # noqa: E402
from util.extras.harness import tasks  # noqa: E402
from util.prompts import classification, text_tasks  # noqa: E402

OFFLINE = (*classification.NAMES, "sst2", "subj", "sst2_sul", "subj_sul")  # StaICC has the texts of these two


def of_harness(name):
    """A task of the suite as the harness loads it."""
    return tasks.manager().load([name])["tasks"][name]


def contexts(task, k, seed, limit):
    """The contexts and choices of the first queries, as the harness builds them."""
    task.set_config("num_fewshot", k)
    task.set_fewshot_seed(seed)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    by_query: dict[int, list] = {}
    for instance in task.instances:
        by_query.setdefault(instance.doc_id, []).append(instance.args)
    return [(choices[0][0], [choice for _, choice in choices]) for choices in by_query.values()]


@pytest.mark.parametrize("name", OFFLINE)
def test_prompts_are_those_of_the_suite_byte_by_byte(name):
    task = tasks.known(name)
    loaded = of_harness(f"icl_{name}")
    for k, seed in ((0, 42), (tasks.shots(name), 42), (3, 43)):
        prompts = classification.prompts(task, k, seed, 6)
        for prompt, (context, choices) in zip(prompts, contexts(loaded, k, seed, 6), strict=True):
            assert context == prompt.text
            assert choices == [prompt.label_join + label for label in prompt.labels]
            known = tasks.prompt_of(context)
            assert known is not None and dict(known.spans) == dict(prompt.spans)
            assert known.demonstrations == prompt.demonstrations
    gold = [loaded.doc_to_target(doc) for doc in list(loaded.eval_docs)[:6]]
    assert gold == [prompt.gold for prompt in prompts]
    assert len(loaded.eval_docs) == len(task.rows)


@pytest.mark.parametrize("name", text_tasks.TEXT_TASKS)
def test_declared_texts_have_the_layout_of_the_suite(name):
    """Also those whose rows only the hub has."""
    layout = text_tasks.find(name).layout
    index = tasks.manager().task_index
    for version in ("", "_sul"):
        assert f"icl_{name}{version}" in index
    from lm_eval.tasks._yaml_loader import load_yaml

    declared = load_yaml(tasks.FOLDER / f"icl_{name}.yaml", resolve_func=True)
    assert declared["description"] == layout.header
    assert (declared["target_delimiter"], declared["fewshot_delimiter"]) == (layout.join, layout.end)
    assert declared["test_split"] == declared["fewshot_split"] == "test"


def test_the_groups_are_the_synthetic_tasks_and_the_nlp_tasks():
    manager = tasks.manager()
    assert set(manager.all_groups) == {"icl_synthetic", "icl_nlp", "icl_nlp_sul"}
    names = [*classification.NAMES, *(f"{name}{end}" for name in text_tasks.TEXT_TASKS for end in ("", "_sul"))]
    assert set(manager.all_subtasks) == {f"icl_{name}" for name in names}
    loaded = manager.load(["icl_synthetic"])
    assert list(loaded["tasks"]) == [f"icl_{name}" for name in classification.NAMES]


def test_texts_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_TASKS", {})
    monkeypatch.setattr(tasks, "_FOLDERS", {})
    written("rte", tmp_path / "rte")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks.FOLDER), include_defaults=False, metadata={"icl_data": str(tmp_path)})
    for name, label in (("icl_rte", " Yes"), ("icl_rte_sul", " Foo")):
        context, choices = contexts(manager.load([name])["tasks"][name], 2, 42, 1)[0]
        assert re.search(r"There are 1\d\d boats", context.rpartition("Premise")[2])  # of the evaluation split
        assert context.count("Premise: There are") == 3 and choices[0] == label
    assert tasks.study_arguments("rte_sul") == {"task": "rte", "labels": ("Foo", "Bar"), "data": tmp_path / "rte"}


# ------------------------------------------------------------------------------------------------ the leak


def test_a_task_that_would_show_queries_their_own_answers_is_refused():
    """A task that is declared as many are: validation alone, from which the demonstrations come too."""
    rows = [
        {"icl_task": "few", "query": f"w{n}", "text": f"w{n}:", "labels": ["A", "B"], "gold": n % 2} for n in range(6)
    ]
    leaking = {
        "task": "few",
        "custom_dataset": lambda **_: {"validation": datasets.Dataset.from_list(rows)},
        "output_type": "multiple_choice",
        "validation_split": "validation",
        "fewshot_split": "validation",
        "doc_to_text": "text",
        "doc_to_target": "gold",
        "doc_to_choice": "labels",
        "target_delimiter": "",
    }
    with pytest.raises(ValueError, match="declare the split that is evaluated as test_split"):
        contexts(ConfigurableTask(config=leaking | {"fewshot_config": {"sampler": tasks.Demonstrations}}), 4, 42, None)
    with pytest.raises(ValueError, match="few-shot seed"):
        contexts(of_harness("icl_wordseq1"), 4, None, 2)
    with pytest.raises(ValueError, match="there are repetition"):
        tasks.known("nonsense")


def test_what_is_drawn_depends_on_the_query_not_on_the_order_or_the_limit():
    loaded = of_harness("icl_wordseq1")
    few, many = (dict(enumerate(contexts(loaded, 5, 42, limit))) for limit in (3, 9))
    assert all(many[n] == few[n] for n in few)
    assert contexts(loaded, 5, 43, 3) != list(few.values())


@pytest.mark.parametrize(
    "context",
    ["", "apple cat:", "Below are sequences", "{header}apple cat:Foo\n\nfig dog", "{header}apple cat:Qux\n\nfig:"],
)
def test_contexts_that_no_layout_explains(context):
    assert tasks.prompt_of(context.replace("{header}", classification.HEADER)) is None
