"""Text tasks in the induction figure: what a study of them asks, what it refuses, and how it is answered."""

import pytest

from tests.text_rows import written
from tests.unloaded import NEVER
from util.figures.task_study import TaskStudy
from util.load_model_and_data import staicc_version
from util.show.part import drawn
from util.study.study import Study


@pytest.fixture(scope="module")
def rte(tmp_path_factory):
    return str(written("rte", tmp_path_factory.mktemp("texts") / "rte rows"))


def study_of(rte, tmp_path, **options):
    return TaskStudy("embedded", "rte", **{"k": 2, "prompts": 4, "data": rte, "folder": tmp_path} | options)


def test_requests_say_which_texts_were_read(rte, tmp_path):
    staicc = TaskStudy("embedded", "sst2")
    assert staicc.request["data_version"] == f"StaICC {staicc_version()}" and staicc.request["task"] == "sst2"
    study = study_of(rte, tmp_path)
    version = study.request["data_version"]
    assert version.startswith("rte rows content:") and rte not in str(study.request)
    assert "data_version" not in TaskStudy("embedded", "wordseq1").request
    changed = written("rte", tmp_path / "rte rows")
    same = study_of(changed, tmp_path)
    assert same.request == study.request  # the same rows elsewhere
    file = changed / "train.jsonl"
    file.write_text(file.read_text().replace("boats", "ships"))
    assert study_of(changed, tmp_path).request != study.request
    assert same.request == study.request and "boats" in same.drawn[0].text  # read once for a study


WRONG: dict[str, dict] = {
    "task = 'cola': unknown classification task 'cola'; there are .*wordseq2_4way, boolq, ethos": {"task": "cola"},
    "train of boolq, row 0: there is no column 'passage'": {"task": "boolq"},
    "rte: 25 demonstrations take 13 of class .* leaves 12; take a smaller k": {"k": 25},
    "prompts = 4, start = 8: rte has 10 rows": {"start": 8},
    "reference = 'wikipedia': .*'task', 'staicc' or 'mnli'": {"reference": "wikipedia"},
    "labels of wordseq2: number 1: 'A:'": {"task": "wordseq2", "data": None, "labels": ("A:", "B")},
    r"labels of rte: number 1: 'A\\n\\nB' .*separators": {"labels": ["A\n\nB", "C"]},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_refused_when_the_study_is_built(message, rte):
    with pytest.raises(ValueError, match=f"^{message}"):
        TaskStudy(NEVER, **{"task": "rte", "k": 2, "prompts": 4, "data": rte, **WRONG[message]})


def test_queries_of_staicc_run_out_at_512():
    study = TaskStudy(NEVER, "subj", k=2, prompts=256)
    others = study.other_queries
    assert not {prompt.text for prompt in study.drawn} & {prompt.text for prompt in others.drawn}
    with pytest.raises(ValueError, match="prompts = 256, start = 512: subj has 512 rows"):
        _ = others.other_queries
    assert len(study.reference_texts) == 64  # of queries that are not asked
    assert len(TaskStudy(NEVER, "wordseq1", k=2, prompts=500).reference_texts) == 64  # of 512; it was the 12 others


def test_the_study_of_the_figure_takes_text_tasks(embedded, tmp_path):
    study = Study(
        "induction_scores", embedded, tasks=["sst2", "wordseq1"], primary_task="sst2", all_tasks=True, mode="zero",
        untrained_control=False, prompts=4, k=2, sequences=2, length=10, control_sets=1, primary=1, folder=tmp_path,
    )  # fmt: skip
    assert drawn(study.figure.parts["ablation"], study.values_of("scores", "ablation")) is not None
    assert study.arrays("pattern")["task"] == "sst2"
