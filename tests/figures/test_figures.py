"""Figures and reports: every drawing from 4 x 8 heads to 48 x 32, without a warning, and the rules of the table."""

import io
import json
from functools import cache, partial

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import image
from PIL import Image

from util import paths
from util.figures import FIGURES
from util.figures.induction_scores import show as induction_show
from util.show import files, style
from util.show.draw import Grid, draw, matrix
from util.show.panels import colour_limit, head_map, print_in_cells, short_number, without_zero
from util.stats.intervals import Intervals
from util.stats.undefined import IN_VALUES
from util.study.study import Study


@pytest.fixture(params=[(4, 8, 32), (12, 12, 32), (30, 9, 32), (48, 32, 32)], ids=lambda p: f"{p[0]}x{p[1]}")
def arrays(request):
    layers, heads, n = request.param
    random = np.random.default_rng(0)
    magnitude = (random.random((n, layers, heads)) ** 6).astype(np.float32)
    magnitude[:, -1, -1] = 0.9
    return magnitude, (0.1 * random.random((n, layers, heads))).astype(np.float32), random.integers(100, 200, n)


DRAWN = paths.root() / "figures"


@pytest.mark.parametrize(
    "file", sorted(DRAWN.rglob("*.png")), ids=lambda file: str(file.relative_to(DRAWN).with_suffix(""))
)
def test_nothing_of_a_committed_figure_is_cut_off_at_its_edge(file):
    pixels = image.imread(file)[..., :3]
    rim = [pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]]
    assert all((part > 0.99).all() for part in rim)


def test_a_head_map_counts_layers_across_and_heads_up_from_0(arrays):
    """Without limits it is symmetric around 0 and no cell saturates; ticks are whole numbers within the map."""
    values = arrays[0].mean(0) * np.where(np.arange(arrays[0].shape[2]) % 2, 1, -1)
    with style.style():
        figure = style.new_figure(3.3, 2.2)
        drawn = head_map(figure.subplots(), values)
    [ax] = figure.axes
    np.testing.assert_array_equal(drawn.get_array(), values.T)
    assert drawn.get_clim() == (-np.abs(values).max(), np.abs(values).max())
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("layer", "head") and ax.get_ylim() == (-0.5, values.shape[1] - 0.5)
    for axis, count in ((ax.xaxis, len(values)), (ax.yaxis, values.shape[1])):
        ticks = axis.get_ticklocs().tolist()
        assert ticks[0] == 0 and 3 <= len(ticks) <= 10 and ticks[-1] < count and {*np.diff(ticks, 2)} <= {0}


def test_the_colours_of_a_symmetric_scale_end_at_the_largest_value():
    assert colour_limit(np.array([[1.0, -3.0, np.nan]])) == 3 and colour_limit(np.zeros((2, 2))) == 1


def test_texts_in_cells_stand_out_from_the_cells_colour():
    with style.style():
        drawn = head_map(style.new_figure(3.3, 2.2).subplots(), np.array([[0.0, 1.0]] * 32), (0, 1))
    print_in_cells(drawn, {(0, 0): "a", (31, 1): "b"})
    told = [(text.get_text(), text.get_position(), text.get_color()) for text in drawn.axes.texts]
    assert told == [("a", (0, 0), "black"), ("b", (31, 1), "white")]


def test_numbers_in_cells_have_three_characters_at_most():
    numbers = (0.444, -0.26, -2.54, 12.4, 10.0, 1.0, 0.0, -9.98, 9.949)
    assert list(map(short_number, numbers)) == [".44", "-.26", "-2.5", "12", "10", "1.0", ".00", "-10", "9.9"]
    assert without_zero(10.0, 2) == "10.00" and without_zero(-0.5, 2) == "-.50"


def test_the_same_figure_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    contents = []
    for _ in range(2):
        drawn = draw(Grid([partial(matrix, values=np.eye(4))]), "a finding", "a model")
        saved = files.save_figure(drawn, "stem", "panel")
        contents.append([file.read_bytes() for file in saved])
    assert [file.name for file in saved] == ["stem_panel.png", "stem_panel.pdf"]
    assert contents[0] == contents[1]


def test_a_figure_that_is_cropped_to_its_layout_keeps_its_headline():
    """Jupyter saves so whatever a cell returns: titles stood outside of the layout and were cut off."""
    drawn, pad = style.new_figure(4, 3), 2 * mpl.rcParams["savefig.pad_inches"]
    drawn.subplots().plot([1, 2])
    style.headline(drawn, "A finding", "a setting")
    drawn.savefig(place := io.BytesIO(), bbox_inches="tight", dpi=100)
    assert Image.open(place).size == (round(100 * (4 + pad)), round(100 * (3 + pad)))


def test_what_is_shown_is_the_file_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    drawn = style.new_figure(2, 2)
    shown = files.shown(drawn, "stem", "panel")
    assert shown.data == (tmp_path / "figures" / "stem_panel.png").read_bytes() and shown.width == 200
    assert sorted(file.name for file in (tmp_path / "figures").iterdir()) == ["stem_panel.pdf", "stem_panel.png"]


def test_figures_of_a_packaged_model_say_what_was_done_to_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    drawn = draw(Grid([partial(matrix, values=np.eye(4))]), "a finding", "a model")
    png, pdf = files.save_figure(drawn, "stem", "panel", "smollm2")
    with Image.open(png) as stored:
        assert stored.info["Description"] == "a model\nSmolLM2-135M-Instruct, Q4_1 file, dequantised"
    assert b"SmolLM2-135M-Instruct, Q4_1 file, dequantised)" in pdf.read_bytes()


def test_values_are_plain_rounded_json(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    curve = Intervals(np.array([1 / 3]), np.array([0.0]), np.array([1.0]))
    file = files.save_values({"curve": curve, "n": np.int64(3), "words": np.array(["a"])}, "stem")
    assert file == tmp_path / "data" / "values" / "stem.json"
    assert json.loads(file.read_text()) == {
        "curve": {"value": [0.333333], "low": [0.0], "high": [1.0]},
        "n": 3,
        "words": ["a"],
    }


def test_claims_and_the_other_values_of_a_file_leave_each_other_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    claims = {"claims": [{"parts": [{"value": float("nan"), "low": 1 / 3}]}]}
    stored = {
        "claims": [{"parts": [{"value": None, "low": 0.333333}]}],
        "undefined": {"claims: parts: value": IN_VALUES["claims"]},
    }
    file = files.save_claims(claims, "stem", "gpt2")
    assert json.loads(file.read_text()) == {"claims": stored}
    assert files.save_values({"n": 1, "best": 0.5}, "stem", "gpt2") == file
    assert json.loads(file.read_text()) == {"n": 1, "best": 0.5, "claims": stored}
    files.save_values({"n": 2}, "stem", "gpt2")
    files.save_values({"n": 3}, "stem")
    assert json.loads(file.read_text()) == {"n": 2, "claims": stored}
    files.save_claims({"claims": []}, "stem", "gpt2")
    assert json.loads(file.read_text()) == {"n": 2, "claims": {"claims": []}}
    with pytest.raises(ValueError, match="n is infinite"):
        files.save_values({"n": np.inf}, "stem", "gpt2")
    assert [*file.parent.iterdir()] == [file] and json.loads(file.read_text())["n"] == 2


def test_values_that_are_no_numbers_are_null_with_their_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    nan = float("nan")
    values = {
        "direct": np.array([[nan, 0.5]]),
        "search": {"best": (nan, nan, nan), "kept": ["a"]},
        "fine": 1.0,
    }
    text = files.save_values(values, "stem").read_text()
    stored = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert stored == {
        "direct": [[None, 0.5]],
        "search": {"best": [None] * 3, "kept": ["a"]},
        "fine": 1.0,
        "undefined": {"direct": IN_VALUES["direct"], "search: best": IN_VALUES["search"]},
    }
    mine = Intervals(np.array([nan]), np.array([0.0]), np.array([1.0]))
    with pytest.warns(UserWarning, match="mine: value is NaN .* nothing says why"):
        stored = json.loads(files.save_values({"mine": mine}, "stem").read_text())
    assert stored["undefined"] == {"mine: value": "not known"}
    with pytest.raises(ValueError, match="search: best is infinite"):
        files.save_values({"search": {"best": np.inf}}, "stem")


PUBLISHED = sorted(file.stem for file in (paths.root() / "data" / "published").glob("*.json"))


def test_every_published_file_is_of_a_figure():
    assert {*PUBLISHED} <= {*FIGURES}


@pytest.mark.parametrize("stem", PUBLISHED)
def test_the_published_file_is_complete(stem):
    values = files.published(stem)["values"]
    for row in values:
        assert {"id", "quantity", "model", "source", "value", "reading_error"} <= set(row)
        assert (row["value"] is None) == (row["reading_error"] is None)
    assert len({(row["model"], row["id"]) for row in values}) == len(values)


def test_the_published_areas_of_circuits_come_in_pairs_and_say_how_they_were_seen():
    rows = [row for row in files.published("ioi_patching")["values"] if row["id"].startswith("mib ")]
    areas = {(row["model"], row["id"]): row["value"] for row in rows}
    assert len(rows) == len(areas) == 2 * 6 * 2
    for row in rows:
        twice = row["model"] == "gpt2" and row["id"].split()[-1] in ("EAP", "EAP-IG-inputs")
        assert row["seen"] == "stored copies of its tables" + "; seen twice" * twice
        _, measure, method = row["id"].split(maxsplit=2)
        assert (row["model"], f"mib {'CMD' if measure == 'CPR' else 'CPR'} {method}") in areas
        assert ("absolute" if measure == "CMD" else "signed") in row["setting"]
    # the two rankings of one method, which are not to be mixed
    assert (areas["gpt2", "mib CPR exact edge patching"], areas["gpt2", "mib CMD exact edge patching"]) == (2.3, 0.02)


@cache
def published_induction():
    rows = files.published("induction_scores")["values"]
    values = {(row["model"], row["id"]): row["value"] for row in rows}
    assert len(values) == len(rows)
    return values


LLAMA, INTERN = "meta-llama/Meta-Llama-3-8B", "internlm/internlm2-20b"
COLUMNS = ("top 1 %", "random 1 %", "top 3 %", "random 3 %")


def test_the_published_rows_of_induction_heads_are_complete_and_say_what_the_paper_says():
    values = published_induction()
    patterns = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")
    twelve = [f"{task}, {k} shots" for task in patterns for k in (5, 10)]
    twelve += ["wordseq1_4way, 20 shots", "wordseq2_4way, 20 shots"]
    columns = ["full", *(f"{mode} ablation, {column}" for mode in ("mean", "zero") for column in COLUMNS)]
    columns += [f"knockout, {column}" for column in COLUMNS[::2]]
    assert all(
        (model, f"{row}: {column}") in values for model in (LLAMA, INTERN) for row in twelve for column in columns
    )
    assert len(values) == 2 * 12 * 11 + 412 + 2
    # the paper's text: 31.6 points on repetition; InternLM's knockout always costs more than its ablation
    where = "repetition, 10 shots"
    assert values[LLAMA, f"{where}: full"] - values[LLAMA, f"{where}: mean ablation, top 1 %"] == pytest.approx(31.6)
    for row in twelve:
        ablated = values[INTERN, f"{row}: mean ablation, top 1 %"]
        assert values[INTERN, f"{row}: knockout, top 1 %"] < ablated < values[INTERN, f"{row}: full"]


@pytest.mark.parametrize(
    ("model", "task", "changes"),
    [
        (LLAMA, "boolq", (-16.7, 188.9, -422.2, 183.3)),
        (LLAMA, "ethos", (3.9, -24.5, 35.3, -22.5)),
        (LLAMA, "rte", (-34.9, 0.0, -83.1, -59.0)),
        (LLAMA, "sst2", (-113.6, 9.1, -68.2, 13.6)),  # the text: 113 %
        (LLAMA, "subj", (-63.8, -11.8, -56.1, -24.9)),  # the text: 63.8 and 11.8 %
        (LLAMA, "wic", (-43.1, -28.4, -48.0, -31.4)),
        (INTERN, "ethos", (-233.3, -16.7, -33.3, 16.7)),
        (INTERN, "rte", (-36.7, 11.7, -51.7, 1.7)),
        (INTERN, "subj", (-41.4, 3.0, -55.7, -6.4)),
        (INTERN, "wic", (-32.1, -13.6, -53.1, -17.3)),
        (INTERN, "wsc", (-54.9, -47.1, -56.9, -107.8)),
    ],
)
def test_the_change_of_the_benefit_is_that_of_the_paper(model, task, changes):
    """Crosbie & Shutova, Fig. 4, from the accuracies of their Table 3."""
    values = published_induction()
    with_shots, bare = f"{task}, 10 shots", f"{task}, 0 shots"
    benefit = values[model, f"{with_shots}: full"] - values[model, f"{bare}: full"]
    for column, change in zip(COLUMNS, changes, strict=True):
        few, none = (values[model, f"{where}: mean ablation, {column}"] for where in (with_shots, bare))
        assert 100 * (few - none - benefit) / benefit == pytest.approx(change, abs=0.06)


def test_the_titles_of_an_untrained_twins_heads_say_that_it_is_one(tmp_path):
    sizes = {"length": 5, "copies": 2, "sequences": 4, "untrained_control": False, "folder": tmp_path}
    twin = Study("induction_scores", **sizes).twin()
    values = {"request": twin.request, **twin.numbers("scores"), "model": twin.description}
    assert induction_show.sequences_about(values).startswith("embedded, untrained, ")
    patterns = Study("toy_induction_head", **sizes).twin().numbers("patterns")
    assert patterns["patterns"]["title"] == "embedded, untrained"


def test_pictures_have_few_colours_where_nobody_sees_it():
    """A palette does where it changes no pixel visibly; a picture of continuous colours stays as it is."""
    flat = np.repeat(np.arange(4, dtype=np.uint8) * 80, 10_000).reshape(200, 200)
    assert files.reduced_colours(Image.fromarray(flat).convert("RGB")).mode == "P"
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8))
    assert files.reduced_colours(noise) is noise


def test_large_arrays_stand_beside_the_values(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    large, small = np.arange(3000.0).reshape(2, 1500) / 7, np.arange(3)
    file = files.save_values({"a": {"large": large, "small": small}, "n": 1}, "stem")
    assert json.loads(file.read_text()) == {"a": {"large": {"$array": "a/large"}, "small": [0, 1, 2]}, "n": 1}
    read = files.read_values(file)
    np.testing.assert_array_equal(read["a"]["large"], large.astype(np.float32))
    files.save_values({"n": 2}, "stem")
    assert [place.name for place in file.parent.iterdir()] == ["stem.json"]


def test_the_match_rule(tmp_path, monkeypatch):
    rows = [
        {"id": "a", "quantity": "first", "model": "big", "source": "Fig. 1", "value": 0.5, "reading_error": 0.01},
        {"id": "b", "quantity": "second", "model": "big", "source": "Fig. 2", "value": None, "reading_error": None},
    ]
    (tmp_path / "data" / "published").mkdir(parents=True)
    (tmp_path / "data" / "published" / "stem.json").write_text(json.dumps({"values": rows}))
    monkeypatch.setattr(paths, "root", lambda: tmp_path)

    def verdict(model, here):
        return files.comparison("stem", model, here).splitlines()

    head, _, row, rest = verdict("big", {"a": (0.529, 0.01)})
    assert head.split() == ["quantity", "source", "published", "here"] and row.endswith("0.529 +- 0.010: match")
    assert rest == "1 published value not measured with these settings"
    assert verdict("big", {"a": (0.54, 0.01)})[2].endswith("0.540 +- 0.010: NO MATCH")
    assert verdict("embedded", {"a": (0.5, 0.01)}) == ["2 published values not measured here: needs big"]
    row, rest = verdict("big", {"b": (0.1, 0.0)})[2:]
    assert "not available to us" in row and row.endswith("0.100 (nothing to compare with)")
    assert rest == "1 published value not measured with these settings"
