"""What demonstrations are worth: tables from made-up answers, and a small study of the embedded model."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.figures.induction_scores.made_up_shots import KNOCKED_OUT, PATTERN, WHOLE, benefits, task
from tests.figures.legible import LONG_NAME, faults
from util.commands import frame
from util.figures.induction_scores.benefits import Labelled
from util.figures.induction_scores.plan import PRESETS
from util.figures.induction_scores.study import Study
from util.show.style import COLUMN, WIDTH

TEXT = task("sst2", {0: (0.6, 0.6, 0.6, 0.6), 10: (0.9, 0.62, 0.7, 0.9)}, text=True)
UNRELATED = task("sst2", {10: (0.9, 0.52, 0.6, 0.88)}, text=True, unrelated=True)


def test_what_is_not_measured_is_not_in_the_tables():
    """With `all_tasks` ablations of tasks that are not done are measured, and shown."""
    measured = task("recursion", {0: (0.5,) * 4, 10: (0.52, 0.5, 0.5, 0.5)})
    measured = replace(measured, check=replace(measured.check, p=0.5))
    assert benefits(measured).table().loc[("recursion", 10), "ablated"].startswith("0.50 [")
    few = task("sst2", {5: (0.8, 0.6, 0.6, 0.8), 10: (0.9, 0.6, 0.6, 0.9)}, text=True)
    undone = task("repetition", {0: (0.5,) * 4, 10: (0.5,) * 4}, does=False)
    assert benefits(few).changes().empty and benefits(undone).changes().empty
    assert benefits(undone).table().loc[("repetition", 10), "ablated"] == "-"


def test_tables_by_hand():
    found = benefits(PATTERN, UNRELATED)
    table = found.table()
    assert (
        table.loc[("wordseq1", 10), "whole"].startswith("0.95 [") and table.loc[("wordseq1", 0), "knocked out"] == "-"
    )
    assert table.loc[("wordseq1", 10), "controls"] == "0.94 to 0.94"
    assert table.loc[("sst2, Foo/Bar", 10), "ablated"].startswith("0.52 [")
    assert found.numbers().loc[("wordseq1", 10), "p"] == pytest.approx(1 / 3)
    changes = found.changes()
    assert list(changes.index) == ["wordseq1"]  # with unrelated labels there is no zero-shot accuracy
    assert changes.loc["wordseq1", "without induction heads"] == "-100 %"
    assert changes.loc["wordseq1", "without others"] == "-2 %"
    small = task("sst2", {0: (0.6,) * 4, 10: (0.62, 0.5, 0.5, 0.6)}, n=20, text=True)
    assert benefits(small).changes().loc["sst2", "without induction heads"] == "small"


def test_what_is_published_of_the_same_places_stands_beside():
    found = benefits(task("sst2", {0: (0.6,) * 4, 10: (0.9,) * 4}, text=True), UNRELATED, PATTERN)
    table = found.published()
    assert table.loc[("sst2", 10)].tolist() == ["94.6", "92.5", "94.6", "-"]  # Table 3
    assert table.loc[("sst2, Foo/Bar", 10)].tolist() == ["94.0", "70.7", "93.0", "-"]
    assert table.loc[("wordseq1", 10)].tolist() == ["99.4", "96.2", "99.3", "97.3"]  # Table 1
    assert ("wordseq1", 0) not in table.index


def test_values_are_plain_json(tmp_path, monkeypatch):
    from util.show import files

    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    undone = task("repetition", {0: (0.5,) * 4, 10: (0.5,) * 4}, does=False)
    found = benefits(undone, PATTERN, TEXT, UNRELATED)
    file = files.save_values(found.values(), "induction_scores")
    values = json.loads(file.read_text())
    assert values["accuracy by shots"]["sst2, Foo/Bar"]["10"]["controls"] == [0.88, 0.88]
    assert values["tasks"]["repetition"]["does"] is False
    assert values["tasks"]["repetition"]["queries"] == found.tasks[0].queries


def test_the_figure_has_a_panel_for_each_task_that_is_done_and_a_row_for_the_others():
    undone = task("centre_embedding", {0: (0.5,) * 4, 10: (0.5,) * 4}, does=False)
    figure = benefits(PATTERN, undone, TEXT, UNRELATED, replace(TEXT, labelled=Labelled("subj"))).figure()
    assert [ax.get_title() for ax in figure.axes] == ["wordseq1", "sst2", "sst2, Foo/Bar", "subj", ""]
    assert [label.get_text() for label in figure.axes[-1].get_yticklabels()] == ["centre embedding"]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "whole model", "without induction heads", "pattern knocked out", "here, a model (95 %)",
        "control sets, here: least to most",
        "chance", "published, Llama-3-8B, 1 % of heads",
    }  # fmt: skip


def test_what_the_paper_reports_is_drawn_hollow_in_its_own_place():
    """Llama-3-8B on SST-2, Table 3: 92.4 without demonstrations and 94.6 with ten, ablated 92.8 and 92.5."""
    [ax] = benefits(TEXT).figure().axes
    hollow = {line.get_color(): line.get_ydata() for line in ax.get_lines() if line.get_marker() == "D"}
    assert np.array([*hollow.values()]) == pytest.approx(np.array([[0.924, 0.946], [0.928, 0.925]]))
    solid = [bars.get_children()[0].get_ydata() for bars in ax.containers if len(bars.get_children()) == 2]
    assert [0.6, 0.9] in [list(values) for values in solid]
    unknown = benefits(task("sst2", {0: (0.6,) * 4, 3: (0.9, 0.6, 0.6, 0.9)}, text=True)).figure()
    assert "published" in unknown.legends[0].get_texts()[-3].get_text()  # without demonstrations alone
    none = benefits(task("wordseq1", {0: (0.5,) * 4, 3: (0.9, 0.5, 0.5, 0.9)})).figure()
    assert not [text for text in none.legends[0].get_texts() if "published" in text.get_text()]


def test_the_finding_is_what_demonstrations_are_worth_where_they_surely_help():
    found = benefits(PATTERN, TEXT, UNRELATED)
    assert found.finding is not None
    assert found.finding.startswith("10 demonstrations of wordseq1 are worth 0.45 [")
    assert ", without induction heads 0.00 [" in found.finding
    useless = task("wordseq1", {0: (0.9, 0.5, 0.5, 0.9), 10: (0.9, 0.5, 0.5, 0.9)})
    undone = task("wordseq1", {0: (0.3,) * 4, 10: (0.9,) * 4}, does=False)
    assert benefits(useless, undone, UNRELATED).finding is None


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
def test_the_figure_can_be_read_at_any_width(width):
    names = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2", "wordseq2_4way")
    shares = {0: (0.5,) * 4, 5: (0.8, 0.6, 0.6, 0.8), 10: (0.95, 0.5, 0.52, 0.94)}
    done = [task(name, shares) for name in names]
    undone = [task(name, shares, does=False, text=True) for name in ("sst2", "subj", "boolq", "wic", "rte", "ethos")]
    for tasks in ([*done, *undone], undone):
        made = replace(benefits(*tasks), model_title=LONG_NAME)
        assert faults(made.figure(width=width)) == []


def test_more_queries_than_a_task_has_become_all_of_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))

    def benefits(study):
        raise ValueError(f"{study.prompts} are asked")

    monkeypatch.setattr(Study, "benefits", benefits)
    with pytest.raises(SystemExit):
        frame.main(["claims", "embedded", "--prompts", "257"])
    assert "250 are asked" in capsys.readouterr().err


def test_a_small_study_measures_what_the_figure_shows(tmp_path):
    """On the embedded model: the same edits at every number of examples, a knockout where there are examples."""
    study = Study("embedded", ["wordseq1"], prompts=12, shots=(0, 4), k=4, text_tasks=["sst2"], folder=tmp_path)
    found = study.benefits()
    assert [task.labelled.name for task in found.tasks] == ["wordseq1", "sst2", "sst2, Foo/Bar"]
    words, texts, unrelated = found.tasks
    assert words.does and not words.text and texts.text and not texts.does
    assert KNOCKED_OUT in words.right[4] and KNOCKED_OUT not in words.right[0]
    assert len(words.controls) == 20 and {*words.controls} <= {*words.right[0]} & {*words.right[4]}
    assert list(texts.right) == [0, 4] and list(unrelated.right) == [4] and list(texts.right[4]) == [WHOLE]
    np.testing.assert_array_equal(words.right[4][words.ablated], study.accuracies().right["wordseq1"][words.ablated])
    again = study.replace(model="embedded").benefits()
    assert again.table().equals(found.table())


def test_texts_that_are_not_there_are_missed_before_work():
    with pytest.raises(ValueError, match="there is no folder"):
        Study("embedded", text_tasks=["sst2"], text_data="/nowhere")
    with pytest.raises(ValueError, match="no text task 'x'"):
        Study("embedded", text_tasks=["x"])


def test_what_cannot_be_measured_is_refused_when_the_study_is_built():
    for wrong, words in (
        ({"tasks": ["wordseq1", "sst2"], "text_tasks": ["sst2"]}, "tasks and text_tasks both have"),
        ({"shots": (0, 1000)}, "smaller k"),
        ({"shots": (0, 5, 5)}, "none of them twice"),
        ({"prompts": 200, "text_tasks": ["sst2"], "start": 1}, "start"),
        ({"labels": ["x", "y"], "settings": "paper", "text_tasks": [], "reference": "task"}, "4 classes"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            Study("embedded", **wrong)
    assert Study("embedded", text_tasks=[])._text_tasks == ()


def test_prompts_longer_than_their_reference_are_refused_before_any_task_is_measured(tmp_path):
    study = Study(
        "embedded", ["wordseq1"], prompts=4, text_tasks=["subj"], shots=(0, 10), mode="input_mean",
        reference="staicc", folder=tmp_path,
    )  # fmt: skip
    study.scores()
    kept = {*tmp_path.iterdir()}
    with pytest.raises(ValueError, match="the longest prompt of subj has .* tokens, the reference of input_mean"):
        study.accuracies()
    added = [file for file in {*tmp_path.iterdir()} - kept if file.suffix == ".pickle"]
    assert len(added) <= 1  # the means that control sets are matched by


def test_a_task_whose_queries_are_all_asked_is_judged_by_them(tmp_path):
    study = Study(
        "embedded", ["wordseq1"], prompts=300, all_tasks=True, text_tasks=[], shots=(0,), k=0, folder=tmp_path
    )
    [found] = study.benefits().tasks
    assert found.right[0][WHOLE].shape[1] == 300 and found.ablated in found.right[0]
    assert found.check.accuracy == found.right[0][WHOLE].mean() and not found.does


def test_the_papers_settings_have_its_sizes_and_tasks():
    paper = PRESETS["paper"]
    assert paper.seeds == (42, 43, 44) and paper.mode == "input_mean" and paper.control_sets == 3
    assert paper.four_way == ("wordseq1_4way", "wordseq2_4way")
    assert paper.text_tasks == ("boolq", "ethos", "rte", "sst2", "subj", "wic", "wsc")
    llama = Study("embedded", settings="paper", text_tasks=[], reference="task").setup_for(32 * 32)
    assert llama.sizes == (11, 31) and llama.shots_of("wordseq1") == (0, 5, 10)
    assert llama.shots_of("wordseq1_4way") == (20,) and llama.all_tasks and llama.all_sizes
