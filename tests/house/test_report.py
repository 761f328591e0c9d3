"""The report: executed notebooks as pages, and an index of what they found. The gallery: pictures and findings."""

import re

import nbformat
import pytest

from tests.clone import ROOT, text
from util.show.part import STORED, figure_of, findings, stored
from workflow import gallery, report

STEM = "03_ioi_patching"


def test_a_page_has_its_figures_and_the_index_its_findings(tmp_path):
    notebook = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", as_version=4)
    nbformat.write(notebook, tmp_path / f"{STEM}.ipynb")
    index = report.write("embedded", tmp_path, tmp_path / "report")
    page = (index.parent / f"{STEM}.html").read_text(encoding="utf-8")
    drawn = [out for cell in notebook.cells for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
    assert page.count('src="data:image/png;base64,') == len(drawn) + 2 > 6
    said = index.read_text(encoding="utf-8")
    assert f'<a href="{STEM}.html">Patching heads in indirect object identification (IOI)</a>' in said
    found = findings(figure_of("ioi_patching"), stored("ioi_patching", "embedded"))
    assert said.count("<li>") == len(found) and f"<li>{found[0]}</li>" in said and "it failed" not in said

    notebook.metadata["papermill"] = {"exception": True}
    nbformat.write(notebook, tmp_path / f"{STEM}.ipynb")
    assert "(IOI) (it failed)</a>" in report.write("embedded", tmp_path, tmp_path / "report").read_text(
        encoding="utf-8"
    )


def test_without_executed_notebooks_a_sentence_says_what_makes_them(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="^no executed notebook of gpt2 is there; `make figures MODEL=gpt2` makes"
    ):
        report.write("gpt2", tmp_path, tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_the_gallery_is_not_stale():
    page = gallery.page()
    assert page == text(gallery.PAGE), "run `make gallery`"
    assert {*gallery.SECTIONS} == {file.stem for file in (ROOT / "notebooks").glob("*.ipynb")}


def told(notebook):
    """All that does not depend on the version of pandas."""
    return [
        (
            cell.source,
            [(output.get("text"), {**output.get("data", {}), "text/html": ""}) for output in cell.get("outputs", [])],
        )
        for cell in notebook.cells
    ]


@pytest.mark.parametrize("model", STORED[1:])
def test_pages_of_published_models_are_not_stale(model):
    """They are what the values say now, every picture is that of figures/, and links lead somewhere."""
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        place = notebook.parent / model / notebook.name
        made, page = nbformat.read(place, as_version=4), place.read_text(encoding="utf-8")
        assert told(made) == told(gallery.with_outputs(notebook, model)), (
            f"{model}, {notebook.name}: run `make gallery`"
        )
        shown = [cell.source for cell in made.cells if cell.cell_type == "code" and not cell.outputs]
        assert not [source for source in shown if "study.show" in source]
        links = re.findall(
            r"\]\(((?!https?:)[^)#]+)", "".join(cell.source for cell in made.cells if "outputs" not in cell)
        )
        assert [link for link in links if not (place.parent / link).exists()] == [] and links
        assert place.stat().st_size < 1_500_000 and "/work/" not in page
