"""A sweep that measures: killed twice it leaves what plain runs leave, and a model that there is not stops nothing."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

pytest.importorskip("snakemake", reason="needs Snakemake: make test-workflow")

from tests.workflow.killed_sweep import FEW, different, finished, killed, plain_runs, records  # noqa: E402

GRID: dict[str, Any] = {
    "models": [{"name": "embedded", "shards": 2}],
    "datasets": ["trec"],
    "k": [2],
    "seeds": [0],
    "figures": {"forerunner_heads": FEW},
    "minutes": 10,
    "gigabytes": 1,
}


@pytest.mark.slow
def test_a_sweep_killed_twice_leaves_the_bits_of_plain_runs(tmp_path):
    grid, out = tmp_path / "grid.yaml", tmp_path / "out"
    grid.write_text(yaml.safe_dump(GRID))
    first, second = killed(grid, out, 1), killed(grid, out, 10)
    assert 1 <= first < second
    grid.write_text(yaml.safe_dump(GRID | {"models": [*GRID["models"], "nobody/nothing"]}))
    done = finished(grid, out)
    plain_runs(grid, tmp_path / "plain", ["embedded"])
    assert not different(out / "records", tmp_path / "plain")  # notebooks, too, have measured nothing of their own
    assert len(records(tmp_path / "plain")) > 40

    assert done.returncode == 1
    assert "1 of 2 cells are done" in done.stdout
    cell = "nobody-nothing/forerunner_heads/trec-k2-seed0"
    assert f"{cell}: records failed: " in done.stdout and f"(cells/{cell}/logs/records.log)" in done.stdout
    page = (out / "index.html").read_text()
    assert "cells/embedded/forerunner_heads/trec-k2-seed0/notebook.html" in page
    assert "digest of the weights" in page and "float32" in page
    made = out / "cells" / "embedded" / "forerunner_heads" / "trec-k2-seed0"
    assert "data:image/png;base64" in (made / "notebook.html").read_text()
    assert list(made.glob("data/values/forerunner_heads.json")) and list(made.glob("figures/*.png"))
