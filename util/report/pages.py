"""The pages of a report, written from its content by templates: no script, no address outside the page's folder."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments.formatters import HtmlFormatter

from util import paths
from util.report import notebooks
from util.report.content import Report, Sources, command, report_of

TEMPLATES = Path(__file__).parent / "templates"
REPORT, SUMMARY = "report.html", "summary.json"


@dataclass(frozen=True)
class Written:
    """A report that was written: its file, the notebooks beside it, and what it lacks, in words."""

    report: Path
    notebooks: tuple[Path, ...]
    missing: tuple[str, ...]


def write(model: str, out: Path, sources: Sources) -> Written:
    """Write a model's report and its notebooks into a folder of their own in `out`, and renew the index there.

    Raises what `content.report_of` raises, before anything is written.
    """
    report = report_of(model, sources)
    folder = out / (paths.model_folder(model) or "embedded")
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    file = folder / REPORT
    file.write_text(report_page(report), encoding="utf-8")
    beside = []
    for section in report.sections:
        page = folder / "notebooks" / f"{section.notebook.name}.html"
        page.unlink(missing_ok=True)
        if section.notebook.file is not None:
            page.write_text(notebook_page(report.name, section.notebook, page.parent), encoding="utf-8")
            beside.append(page)
    (folder / SUMMARY).write_text(json.dumps(_summary(report), indent=1) + "\n", encoding="utf-8")
    (out / "index.html").write_text(index_page(out), encoding="utf-8")
    missing = (line for section in report.sections for line in section.missing)
    return Written(file, tuple(beside), tuple(dict.fromkeys(missing)))


def report_page(report: Report) -> str:
    """The report as one self-contained page."""
    return environment().get_template("report.html").render(report=report)


def notebook_page(model: str, notebook: notebooks.Notebook, folder: Path) -> str:
    """An executed notebook as a page that is to lie in `folder`; its links lead to the other notebooks and the clone.

    model: what the model is called. Raises ValueError for a notebook that has not been executed.
    """
    if notebook.file is None:
        raise ValueError(f"{notebook.name} has no executed copy: run `{command(model, 'figures')}`")
    body = notebooks.html_of(notebook.file)
    clone = Path(os.path.relpath(paths.root(), folder)).as_posix()
    body = re.sub(r'href="\.\./', f'href="{clone}/', body)
    body = re.sub(r'href="(\d\d_\w+)\.ipynb', r'href="\1.html', body)
    return environment().get_template("notebook.html").render(model=model, notebook=notebook, body=Markup(body))


def index_page(out: Path) -> str:
    """The page that leads to the reports, notebooks and pages of the package that lie in a folder."""
    models = []
    for file in sorted(out.glob(f"*/{SUMMARY}")):
        pages = [page.stem for page in sorted((file.parent / "notebooks").glob("*.html"))]
        models.append({**json.loads(file.read_text(encoding="utf-8")), "folder": file.parent.name, "pages": pages})
    names = sorted({page for model in models for page in model["pages"]})
    api = (out / "api" / "util.html").exists()
    return environment().get_template("index.html").render(models=models, names=names, api=api)


def _summary(report: Report) -> dict[str, Any]:
    figures = sum(len(section.pictures) for section in report.sections)
    findings = sum(len(section.findings) for section in report.sections)
    return {
        "name": report.name,
        "about": report.about,
        "figures": figures,
        "findings": findings,
        "claims": report.counts,
    }


def environment(*more: Path) -> Environment:
    """Where templates of pages are rendered. more: folders with templates beside those of this package."""
    made = Environment(
        loader=FileSystemLoader([TEMPLATES, *more]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.globals["css"] = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    made.globals["code_css"] = Markup(_code_css())
    made.filters["trusted"] = Markup  # HTML that pandas or a result wrote, with its texts escaped
    made.filters["interval"] = _interval
    return made


def _code_css() -> str:
    """The colours of code, on light and on dark ground."""
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _interval(part: Any) -> str:
    """The value of a part of a claim with its interval; a dash where it is not defined."""
    if part.value != part.value:
        return "–"
    return f"{part.value:.3f} [{part.low:.3f}, {part.high:.3f}]"
