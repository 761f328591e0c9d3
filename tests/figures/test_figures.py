"""What is written of figures: pictures, values, and published values beside them."""

import json
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from tests.clone import ROOT
from util import paths
from util.figures import FIGURES
from util.figures.induction_scores import show as induction_show
from util.show import files
from util.show.draw import Grid, draw, matrix
from util.stats.intervals import NAN_IN_VALUES, Intervals
from util.study.study import Study

PUBLISHED = sorted(file.stem for file in (ROOT / "data/published").glob("*.json"))
NAN = float("nan")

pytestmark = pytest.mark.usefixtures("output")


def picture():
    return draw(Grid([partial(matrix, values=np.eye(4))]), "a finding", "a model", 4)


# ------------------------------------------------------------------------------------------------ pictures


def test_the_same_figure_gives_the_same_bytes_and_the_file_itself_is_shown(tmp_path):
    png, pdf = files.write_figure(picture(), tmp_path / "stem_panel")
    before = [png.read_bytes(), pdf.read_bytes()]
    shown = files.shown(picture(), tmp_path / "stem_panel")
    assert [file.name for file in (pdf, png)] == ["stem_panel.pdf", "stem_panel.png"]
    assert [png.read_bytes(), pdf.read_bytes()] == before and (shown.data, shown.width) == (before[0], 400)


def test_pictures_have_few_colours_where_nobody_sees_it():
    """A palette does where it changes no pixel visibly; a picture of continuous colours stays as it is."""
    flat = np.repeat(np.arange(4, dtype=np.uint8) * 80, 10_000).reshape(200, 200)
    assert files.reduced_colours(Image.fromarray(flat).convert("RGB")).mode == "P"
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8))
    assert files.reduced_colours(noise) is noise


def test_the_titles_of_an_untrained_twins_heads_say_that_it_is_one(tmp_path):
    settings = {"length": 5, "copies": 2, "sequences": 4, "untrained_control": False, "folder": tmp_path}
    twin = Study("induction_scores", **settings).twin()
    assert induction_show.scores_about(twin.values_of("scores")).startswith("embedded, untrained, ")


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    "values, stored",
    [
        ({"curve": Intervals(np.array([1 / 3]), np.array([0.0]), np.array([1.0]))},
         {"curve": {"value": [0.333333], "low": [0.0], "high": [1.0]}}),
        ({"n": np.int64(3), "words": np.array(["a"])}, {"n": 3, "words": ["a"]}),
        ({"direct": np.array([[NAN, 0.5]]), "search": {"best": (NAN, 1.0), "kept": ["a"]}},
         {"direct": [[None, 0.5]], "search": {"best": [None, 1.0], "kept": ["a"]},
          "undefined": {"direct": NAN_IN_VALUES["direct"], "search: best": NAN_IN_VALUES["search"]}}),
    ],
)  # fmt: skip
def test_values_are_plain_rounded_json_and_those_that_are_no_numbers_are_null_with_their_reason(values, stored):
    text = files.save_values(values, "stem").read_text()
    assert json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON")) == stored


def test_a_nan_without_a_reason_gives_a_warning_and_an_infinity_is_refused():
    with pytest.warns(UserWarning, match="mine: value is NaN .* nothing says why"):
        stored = json.loads(files.save_values({"mine": {"value": [NAN]}}, "stem").read_text())
    assert stored["undefined"] == {"mine: value": "not known"}
    with pytest.raises(ValueError, match="search: best is infinite"):
        files.save_values({"search": {"best": np.inf}}, "stem")
    assert json.loads((paths.output("values") / "stem.json").read_text()) == stored


def test_claims_and_the_other_values_of_a_file_leave_each_other_as_they_are():
    file = files.save_claims({"claims": [{"value": NAN, "low": 1 / 3}]}, "stem", "gpt2")
    stored = {
        "claims": [{"value": None, "low": 0.333333}],
        "undefined": {"claims: value": NAN_IN_VALUES["claims"]},
    }
    assert json.loads(file.read_text()) == {"claims": stored}
    for number in (1, 2):
        assert files.save_values({"n": number}, "stem", "gpt2") == file
        assert json.loads(file.read_text()) == {"n": number, "claims": stored}
    files.save_values({"n": 3}, "stem")
    files.save_claims({"claims": []}, "stem", "gpt2")
    assert json.loads(file.read_text()) == {"n": 2, "claims": {"claims": []}} and [*file.parent.iterdir()] == [file]


def test_large_arrays_stand_beside_the_values(monkeypatch):
    def fails(*_):
        raise OSError("the disk is full")

    large, small = np.arange(3000.0).reshape(2, 1500) / 7, np.arange(3)
    file = files.save_values({"a": {"large": large, "small": small}, "n": 1}, "stem")
    assert json.loads(file.read_text()) == {"a": {"large": {"$array": "a/large"}, "small": [0, 1, 2]}, "n": 1}

    def check():
        assert_array_equal(files.read_values(file)["a"]["large"], large.astype(np.float32))

    check()
    with monkeypatch.context() as full_disk:
        full_disk.setattr(paths, "write_whole", fails)
        with pytest.raises(OSError, match="full"):
            files.save_values({"a": {"large": -large}}, "stem")
    check()
    files.save_values({"n": 2}, "stem")
    assert [place.name for place in file.parent.iterdir()] == ["stem.json"]


def test_large_arrays_of_one_list_do_not_take_each_other_s_place():
    several = [np.arange(3000) + number for number in range(3)]
    read = files.read_values(files.save_values({"several": several}, "stem"))
    assert_array_equal(read["several"], several)


# ------------------------------------------------------------------------------------------------ published values


LLAMA, INTERN = "meta-llama/Meta-Llama-3-8B", "internlm/internlm2-20b"
COLUMNS = ("top 1 %", "random 1 %", "top 3 %", "random 3 %")


def published_values(stem):
    return {(row["model"], row["id"]): row["value"] for row in files.published(stem)["values"]}


@pytest.mark.parametrize("stem", PUBLISHED)
def test_the_published_file_is_complete(stem):
    rows = files.published(stem)["values"]
    assert stem in FIGURES and len(published_values(stem)) == len(rows)
    for row in rows:
        assert {"id", "quantity", "model", "source", "value", "reading_error"} <= set(row)
        assert (row["value"] is None) == (row["reading_error"] is None)


def test_the_published_areas_of_circuits_come_in_pairs():
    areas = {place: value for place, value in published_values("ioi_patching").items() if place[1].startswith("mib ")}
    methods = {
        measure: {(model, name[8:]) for model, name in areas if name[4:7] == measure} for measure in ("CPR", "CMD")
    }
    assert methods["CPR"] == methods["CMD"] and len(areas) == 2 * 6 * 2
    # the two rankings of one method, which are not to be mixed
    assert (areas["gpt2", "mib CPR exact edge patching"], areas["gpt2", "mib CMD exact edge patching"]) == (2.3, 0.02)


def test_the_published_rows_of_induction_heads_say_what_the_papers_text_says():
    values, where = published_values("induction_scores"), "repetition, 10 shots"
    assert len(values) == 2 * 12 * 11 + 412 + 2
    assert values[LLAMA, f"{where}: full"] - values[LLAMA, f"{where}: mean ablation, top 1 %"] == pytest.approx(31.6)
    for row in (where, "wordseq1_4way, 20 shots"):  # InternLM's knockout always costs more than its ablation
        cut, ablated = (values[INTERN, f"{row}: {edit}, top 1 %"] for edit in ("knockout", "mean ablation"))
        assert cut < ablated < values[INTERN, f"{row}: full"]


@pytest.mark.parametrize(
    "model, task, changes",
    [
        (LLAMA, "sst2", (-113.6, 9.1, -68.2, 13.6)),  # the text: 113 %
        (LLAMA, "subj", (-63.8, -11.8, -56.1, -24.9)),  # the text: 63.8 and 11.8 %
        (INTERN, "wsc", (-54.9, -47.1, -56.9, -107.8)),
    ],
)
def test_the_change_of_the_benefit_is_that_of_the_paper(model, task, changes):
    """Crosbie & Shutova, Fig. 4, from the accuracies of their Table 3."""
    values = published_values("induction_scores")
    full, bare = (values[model, f"{task}, {shots} shots: full"] for shots in (10, 0))
    for column, change in zip(COLUMNS, changes, strict=True):
        few, none = (values[model, f"{task}, {shots} shots: mean ablation, {column}"] for shots in (10, 0))
        assert 100 * ((few - none) / (full - bare) - 1) == pytest.approx(change, abs=0.06)


HEAD = "quantity source published here"
ONE_LEFT = "1 published value not measured with these settings"


@pytest.mark.parametrize(
    "model, here, lines",
    [
        ("big", {"a": (0.529, 0.01)}, [HEAD, "first Fig. 1 0.5 +- 0.01 0.529 +- 0.010: match"]),
        ("big", {"a": (0.54, 0.01)}, [HEAD, "first Fig. 1 0.5 +- 0.01 0.540 +- 0.010: NO MATCH"]),
        ("big", {"b": (0.1, 0.0)},
         [HEAD, "second Fig. 2 not available to us 0.100 (nothing to compare with)", ONE_LEFT]),
        ("embedded", {"a": (0.5, 0.01)}, ["1 published value not measured here: needs big"]),
    ],
)  # fmt: skip
def test_the_match_rule(model, here, lines, tmp_path, monkeypatch):
    """Values that nobody here knows are not counted among those that were not measured."""
    rows = [
        {"id": "a", "quantity": "first", "model": "big", "source": "Fig. 1", "value": 0.5, "reading_error": 0.01},
        {"id": "b", "quantity": "second", "model": "big", "source": "Fig. 2", "value": None, "reading_error": None},
    ]
    (tmp_path / "data" / "published").mkdir(parents=True)
    (tmp_path / "data" / "published" / "stem.json").write_text(json.dumps({"values": rows}))
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    assert [" ".join(line.split()) for line in files.comparison("stem", model, here).splitlines()] == lines
