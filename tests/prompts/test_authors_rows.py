"""The authors' own rows and instruction, read from a clone of their repository."""

import pytest

from tests import authors_clone
from util.figures.task_study import TaskStudy
from util.prompts import classification
from util.prompts.text_tasks import THEIRS, authors_task


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone")
    return folder, authors_clone.write(folder)


@pytest.mark.parametrize("name", THEIRS)
def test_rows_labels_and_instruction_are_theirs(name, clone):
    folder, rows = clone
    task, version = authors_task(name, folder)
    assert task.rows == tuple(rows[THEIRS[name]]) and len(task.labels) == (4 if "4way" in name else 2)
    assert version.startswith("Induction_Heads_ICL ") and str(folder) not in version
    prompt = classification.prompts(task, 5, limit=1)[0]
    shown = prompt.texts("x")
    labels = [task.labels[place] for place in prompt.demonstrations]
    lines = [f"{text}:{label}\n\n" for text, label in zip(shown, labels, strict=False)]
    assert prompt.text == authors_clone.HEADER + "".join(lines) + f"{shown[-1]}:" and prompt.label_join == ""
    if name.startswith("wordseq"):  # their sampler for words
        assert not any(classification.shares_word(shown[-1], text) for text in shown[:-1])


def test_a_study_of_them_is_another_one(clone):
    folder, rows = clone
    ours, theirs = TaskStudy("embedded", "recursion"), TaskStudy("embedded", "recursion", data=str(folder))
    assert theirs.own_request == {**ours.own_request, "items": 24, "data_version": theirs.own_request["data_version"]}
    assert {prompt.text.split("\n\n")[-1] for prompt in theirs.drawn} == {f"{text}:" for text, _ in rows["recursion"]}


def test_what_is_not_as_in_their_repository_is_named(tmp_path):
    with pytest.raises(ValueError, match="no configuration there has the task 'f_a_f_p'; give a clone"):
        authors_task("wordseq1", tmp_path)
    authors_clone.write(tmp_path)
    file = next(tmp_path.rglob("rows_0.json"))
    file.write_text('[{"text": "A B"}]')
    with pytest.raises(ValueError, match=r"config_0.yaml: KeyError\('sequence'\); give a clone"):
        TaskStudy("embedded", "repetition", data=str(tmp_path))
    file.unlink()
    with pytest.raises(ValueError, match=r"config_0.yaml: FileNotFoundError.*give a clone"):
        TaskStudy("embedded", "repetition", data=str(tmp_path))
    next(tmp_path.rglob("config_1.yaml")).write_text("{")
    with pytest.raises(ValueError, match="no configuration there has the task 'recursion'"):
        authors_task("recursion", tmp_path)
