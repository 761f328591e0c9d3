"""The report of a model: whole, self-contained, and true to what is stored."""

import json
import math
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.html_pages import CHROMIUM, NO_CHROMIUM, checked, words
from tests.stored import FOLDERS
from util import paths
from util.commands.frame import main
from util.figures import FIGURES, report
from util.figures.conclusions import CLAIMS
from util.figures.style import headline, new_figure, style
from util.records import cache
from util.report import notebooks, pages, values
from util.report.content import Picture, Sources, report_of
from util.report.notebooks import Notebook
from util.report.provenance import Provenance
from util.stats.verdicts import verdicts_of

ODD = 'a<b>&"c"'  # the name of a model
FINDING = "3 of 270 heads <look> back & ahead"
NO_EXECUTED = Path("/nowhere")
OF_NO_MODEL = {"shifts", "residual_stream", "circuits", "phase_change"}  # panels of the toy in which no model is


def drawing(finding=FINDING, setting="toy, 8 prompts") -> Figure:
    with style():
        figure = new_figure(3.3, 2.2)
        figure.subplots().plot([1, 2])
        headline(figure, finding, setting)
    return figure


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A folder with one figure, drawn here, and one values file of the model ODD; nothing else."""
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path / "stored"))
    study = SimpleNamespace(stem="induction_scores", model=SimpleNamespace(name=ODD))
    report.saved(drawing(), study, "scores")
    report.save_values({"model": f"{ODD}: tiny", "scores": np.eye(2)}, "induction_scores", ODD)
    return Sources(tmp_path / "stored", NO_EXECUTED, tmp_path / "records")


def stored_pictures(model):
    """The figures that the clone has of a model, with those that are of no model."""
    folder = paths.root() / "figures"
    once = [folder / f"toy_induction_head_{panel}.png" for panel in OF_NO_MODEL]
    return sorted({*(folder / FOLDERS[model]).glob("*.png"), *once}, key=lambda file: file.name)


@pytest.fixture(scope="module", params=FOLDERS)
def committed(request):
    """The report of a model from what the clone has, and its page."""
    content = report_of(request.param, Sources(paths.root(), NO_EXECUTED, NO_EXECUTED))
    return request.param, content, pages.report_page(content)


# -------------------------------------------------------------------------------- figures say what they show


def test_a_stored_figure_says_its_finding_and_its_setting(stored):
    folder = stored.figures(ODD)
    picture = Picture.of(folder / "induction_scores_scores.png")
    assert (picture.finding, picture.setting) == (FINDING, "toy, 8 prompts")
    assert (round(picture.width, 2), round(picture.height, 2)) == (3.3, 2.2)
    pdf = (folder / "induction_scores_scores.pdf").read_bytes()
    assert f"/Title ({FINDING})".encode() in pdf and b"/Subject (toy, 8 prompts)" in pdf


def test_long_headlines_are_stored_in_one_line_and_missing_ones_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    long = "a finding that needs more than one line of a narrow figure " * 2
    png, _ = report.save_figure(drawing(long, "a setting, " * 20), "stem", "long", "smollm2")
    with Image.open(png) as image:
        assert image.info["Title"] == long.strip()
        setting, form = image.info["Description"].split("\n")
    assert setting == ("a setting, " * 20).strip() and form == "SmolLM2-135M-Instruct, Q4_1 file, dequantised"
    bare, _ = report.save_figure(drawing(None), "stem", "bare")
    with Image.open(bare) as image:
        assert "Title" not in image.info and image.info["Description"] == "toy, 8 prompts"


def test_pictures_keep_every_pixel(stored):
    import base64
    import io

    file = stored.figures(ODD) / "induction_scores_scores.png"
    packed = base64.b64decode(Picture.of(file).image.partition(",")[2])
    with Image.open(file) as image, Image.open(io.BytesIO(packed)) as shown:
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), np.asarray(shown.convert("RGB")))


# -------------------------------------------------------------------------------- the page


def test_the_page_is_whole_self_contained_and_small(committed):
    _, _, page = committed
    assert checked(page).faults == []
    assert len(page.encode()) < 10e6


def test_the_check_finds_what_is_wrong():
    wrong = '<p><b></p><script></script><img src="http://x/y.png"><i id="a"></i><i id="a"></i><a href="#b"></a>'
    found = checked(f"{wrong}<style>a {{ background: url(x) }}</style>").faults
    for fault in ("closes what", "<script>", "img src", "without alt", "a is twice", "#b leads", "style fetches"):
        assert any(fault in one for one in found), fault


def test_every_stored_figure_is_shown_once(committed):
    model, content, page = committed
    files = stored_pictures(model)
    shown = sorted(picture.name for section in content.sections for picture in section.pictures.values())
    assert shown == [file.stem for file in files]
    assert page.count('<img src="data:image/webp') == len(files)


def test_figures_in_which_no_model_is_are_stored_once():
    notebook = Notebook.of("toy_induction_head", "smollm2", NO_EXECUTED)
    assert {panel for part in notebook.parts for panel in part.of_no_model} == OF_NO_MODEL
    for file in (paths.root() / "figures").rglob("toy_induction_head_*.png"):
        panel = file.stem.removeprefix("toy_induction_head_")
        assert panel == "patterns" or (panel in OF_NO_MODEL and file.parent.name == "figures"), file


def test_verdicts_are_those_that_are_stored(committed):
    model, content, page = committed
    for stem, source in CLAIMS.items():
        told = words(page.partition(f'<h3 id="{stem}-verdicts">')[2].partition("<h3")[0])
        file = paths.root() / "data" / "values" / FOLDERS[model] / f"{source.file}.json"
        claims = json.loads(file.read_text())["claims"]
        section = next(section for section in content.sections if section.stem == stem)
        assert [claim.verdict for claim in section.claims.verdicts.claims] == [claim["verdict"] for claim in claims]
        for claim in claims:
            assert f"{claim['verdict']} {claim['number']}. {claim['text']}" in told
            for part in claim["parts"]:
                extent = f"{part['queries']} queries"
                if part["verdict"] == "undecided":
                    extent += f"; needs {part['needed'] or 'no number'}"
                at = told.index(f" {part['name']} {part['verdict']} ")
                assert extent in told[at : at + 200], part["name"]


def test_every_stored_value_is_on_the_page(committed):
    model, _, page = committed
    told = words(page)
    folder = paths.root() / "data" / "values" / FOLDERS[model]
    files = [file for file in folder.glob("*.json") if file.stem in FIGURES]
    assert files
    for file in files:
        stored_values = json.loads(file.read_text())
        assert [name for name in stored_values if name not in told] == []
        for number in leaves(stored_values):
            assert json.dumps(number) in told


def leaves(value):
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from leaves(entry)
    elif isinstance(value, float):
        yield value


def test_the_same_input_gives_the_same_bytes(stored):
    first, second = (pages.report_page(report_of(ODD, stored)) for _ in range(2))
    assert first == second


def test_names_with_signs_of_html_are_text(stored):
    page = pages.report_page(report_of(ODD, stored))
    parser = checked(page)
    assert parser.faults == []
    assert ODD in "".join(parser.text) and FINDING in "".join(parser.text)
    assert "<b>" not in page and "<look>" not in page


def test_what_is_missing_is_said(stored):
    content = report_of(ODD, stored)
    told = words(pages.report_page(content))
    by_stem = {section.stem: section for section in content.sections}
    assert "There is no values file" in told
    for stem in FIGURES:
        lacks = any(f"{stem}.json" in line for line in by_stem[stem].missing)
        assert lacks == (stem != "induction_scores")
    assert "There is no figure forerunner_heads_counts.png" in told
    assert "There is no executed copy of notebooks/02_induction_scores.ipynb" in told
    assert "induction_claims.json. make claims" in told
    assert "No record of this request is in the cache" in told


def test_a_model_of_which_nothing_is_stored_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="make figures MODEL=gpt2"):
        pages.write("gpt2", tmp_path / "out", Sources(tmp_path, NO_EXECUTED, NO_EXECUTED))
    assert not (tmp_path / "out").exists()


def test_figures_without_a_finding_say_so(stored, monkeypatch):
    report.save_figure(drawing(None), "induction_scores", "scores", ODD)
    told = words(pages.report_page(report_of(ODD, stored)))
    assert "The stored figure states no finding." in told and "None of the stored figures states a finding." in told


# -------------------------------------------------------------------------------- notebooks


@pytest.fixture
def executed(tmp_path):
    """A copy of notebook 02 with a table, a printed line and a comparison, as papermill leaves it; its folder."""
    copy = nbformat.read(paths.root() / "notebooks" / "02_induction_scores.ipynb", as_version=4)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            if cell.source == 'costs = study.costs()\nprint(*costs.lines(), sep="\\n")\ncosts.table()':
                table = "<style scoped>x</style><table border='1' class='dataframe'><tr><td>0.7532</td></tr></table>"
                cell.outputs = [
                    nbformat.v4.new_output("stream", name="stdout", text="a line <b>\n"),
                    nbformat.v4.new_output("stream", name="stderr", text="a warning\n"),
                    nbformat.v4.new_output("execute_result", {"text/html": table}),
                ]
            if "comparison" in cell.source:
                cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="7 published values\n")]
    copy.cells.insert(4, nbformat.v4.new_code_cell('model_name = "x"', metadata={"tags": ["injected-parameters"]}))
    copy.metadata["papermill"] = {"end_time": "2026-01-02T03:04:05.678"}
    file = tmp_path / "executed" / paths.model_folder(ODD) / "02_induction_scores.ipynb"
    file.parent.mkdir(parents=True)
    nbformat.write(copy, file)
    return file


def test_outputs_are_those_of_the_executed_copy(stored, executed):
    sources = Sources(stored.stored, executed.parents[1], stored.records)
    page = pages.report_page(report_of(ODD, sources))
    told = words(page)
    assert checked(page).faults == []
    assert "0.7532" in told and "a line <b>" in told and "7 published values" in told and "a warning" not in told
    assert "2026-01-02 03:04 UTC" in told


def test_a_copy_of_another_version_of_the_notebook_is_left_out(stored, executed):
    changed = nbformat.read(executed, as_version=4)
    next(cell for cell in changed.cells if "costs.table()" in cell.source).source += "  # later"
    nbformat.write(changed, executed)
    notebook = Notebook.of("induction_scores", ODD, executed.parents[1])
    assert notebook.file is None and "another version" in notebook.lacking
    assert notebook.comparison is None and not any(part.html for part in notebook.parts)


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<style scoped>s</style><table><tr><td>1</td></tr></table>", ["<table><tr><td>1</td></tr></table>"]),
        ("<table>a</table><table>b</table>", ["<table>a</table>", "<table>b</table>"]),
        ("<div><style>i{color:red}</style><i>token</i></div>", ["<div><style>i{color:red}</style><i>token</i></div>"]),
        ("<div><script>1</script></div>", []),
        ('<p><img src="http://x/y.png"></p>', []),
        ("<style>i{background:url(x)}</style>", []),
        ("", []),
    ],
)
def test_html_of_a_cell_is_shown_where_it_fetches_nothing(html, shown):
    assert list(notebooks._html({"outputs": [{"data": {"text/html": html}}]})) == shown


def test_panels_are_in_the_order_of_the_notebook():
    drawn = [panel for part in Notebook.of("ioi_patching", "smollm2", NO_EXECUTED).parts for panel in part.panels]
    assert drawn[:6] == ["p1", "p2", "p3", "p4", "p5", "population"]


def test_a_figure_without_a_notebook_is_refused():
    with pytest.raises(FileNotFoundError, match="notebooks/NN_nothing.ipynb"):
        Notebook.of("nothing", "embedded", NO_EXECUTED)


def test_notebooks_are_pages_without_scripts(tmp_path):
    notebook = Notebook.of("toy_induction_head", "embedded", NO_EXECUTED)
    page = pages.notebook_page(ODD, notebook, tmp_path)
    assert "<b>" not in page
    assert "<script" not in page and "<link" not in page
    assert not re.findall(r'<img[^>]*src="(?!data:)', page)
    assert not re.findall(r'href="[^"]*\.ipynb', page)
    links = [link for link in re.findall(r'href="([^"#]+)"', page) if "://" not in link and link[0] == "."]
    assert [link for link in links if not (tmp_path / link).exists()] == ["../report.html"]


def test_a_notebook_that_was_not_executed_is_no_page(tmp_path):
    with pytest.raises(ValueError, match="make figures MODEL=gpt2"):
        pages.notebook_page("gpt2", Notebook.of("toy_induction_head", "gpt2", NO_EXECUTED), tmp_path)


# -------------------------------------------------------------------------------- values, claims, provenance


def test_values_become_texts_tables_and_entries():
    made = values.entries_of(
        {
            "one": 1.5,
            "many": [1, 2],
            "map": [[1, 2], [3]],
            "rows": {"a": {"x": 1}, "b": {"x": None}},
            "odd": {"a": {"y": [[1]]}},
        }
    )
    assert [entry.text for entry in made] == ["1.5", "1, 2", None, None, None]
    assert made[2].table == values.Table(("", "0", "1"), (("0", "1", "2"), ("1", "3", "")))
    assert made[3].table == values.Table(("", "x"), (("a", "1"), ("b", "null")))
    assert made[4].entries[0].name == "a" and made[4].entries[0].entries[0].table is not None


def test_verdicts_come_back_from_json():
    part = {
        "name": "a", "verdict": "undecided", "value": None, "low": None, "high": None, "bound": 0.1, "above": True,
        "queries": 5, "needed": None, "available": 9, "p": [0.5, 0.5],
    }  # fmt: skip
    stored = {"number": 1, "text": "t", "verdict": "undecided", "parts": [part], "note": ""}
    [claim] = verdicts_of({"claims": [stored]}).claims
    assert math.isnan(claim.parts[0].value) and claim.parts[0].extent == "5 queries; needs no number, has 9"


def test_provenance_is_that_of_the_records_of_the_request(tmp_path):
    request = {"stem": "toy", "schema": 1, "model": "m", "share": 1 / 3}
    kept = {"weights": "w", "versions": {"torch": "2"}, "finished": "2026-01-01"}
    cache.save({**request, "part": "a"}, {"x": np.ones(3)}, {**kept, "finished": "2026-01-02"}, tmp_path)
    cache.save({**request, "part": "b"}, {}, kept, tmp_path)
    cache.save({**request, "share": 0.5}, {}, {**kept, "weights": "others"}, tmp_path)
    (tmp_path / "toy-m-0123456789abcdef.pickle").write_bytes(b"no record")
    found = Provenance.of({**request, "share": 0.333333}, tmp_path)
    assert found.records == 2 and found.said["digest of the weights"] == ("w",) and found.said["torch"] == ("2",)
    assert found.said["measured"] == ("2026-01-01 to 2026-01-02",)


# -------------------------------------------------------------------------------- the command, and a browser


def test_the_command_writes_report_notebooks_and_index(stored, executed, tmp_path, capsys):
    out = tmp_path / "pages"
    main(["report", ODD, "--stored", str(stored.stored), "--executed", str(executed.parents[1]), "--out", str(out)])
    folder = out / paths.model_folder(ODD)
    assert str(folder / "report.html") in capsys.readouterr().out
    assert [page.name for page in (folder / "notebooks").iterdir()] == ["02_induction_scores.html"]
    index = (out / "index.html").read_text()
    parser = checked(index)
    assert parser.faults == [] and ODD in "".join(parser.text)
    assert [link for link in parser.links if link[0] != "#" and not (out / link).exists()] == []


def test_the_index_has_all_models_that_were_written(stored, tmp_path):
    report.save_values({"model": "gpt2: small"}, "edge_ablation", "gpt2")
    for model in (ODD, "gpt2"):
        pages.write(model, tmp_path / "pages", stored)
    told = words((tmp_path / "pages" / "index.html").read_text())
    assert f"{ODD}: tiny" in told and "gpt2: small" in told


@pytest.mark.slow
def test_pages_of_the_package_have_its_modules(tmp_path):
    from util.report import api  # imports the whole package

    assert api.write(tmp_path).exists()
    for name in ("figures/ioi_patching/study", "stats/intervals", "report/pages"):
        page = (tmp_path / "util" / f"{name}.html").read_text()
        assert "<main" in page and not re.findall(r'(?:src|<link[^>]*href)="http', page)
    assert not (tmp_path / "util" / "extras.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_without_scrolling_sideways(committed, tmp_path, width):
    model, _, page = committed
    (tmp_path / "report.html").write_text(page)
    frame = f'<iframe src="report.html" width="{width}" height="900" style="border: 0"></iframe>'
    script = """<script>document.querySelector("iframe").onload = event => {
      const root = event.target.contentDocument;
      root.querySelectorAll("details").forEach(folded => { folded.open = true; });
      const broken = [...root.images].filter(image => !image.naturalWidth).length;
      const torn = [...root.querySelectorAll("td")].filter(cell => {
        const text = root.createRange();
        text.selectNodeContents(cell);
        return /^-?[0-9.]+$/.test(cell.textContent) && text.getClientRects().length > 1;
      }).length;
      document.title = [root.documentElement.scrollWidth, root.images.length, broken, torn].join(" ");
    }</script>"""
    (tmp_path / "frame.html").write_text(f"<!doctype html><title></title>{frame}{script}")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    place = [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    command = [str(CHROMIUM), *flags, *place, (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(\d+) (\d+) (\d+) (\d+)</title>", done.stdout)
    assert title, done.stderr[-500:]
    wide, images, broken, torn = map(int, title.groups())
    assert wide <= width and broken == torn == 0
    assert images == len(stored_pictures(model))
