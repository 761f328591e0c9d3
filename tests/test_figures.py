"""Figures and reports: every drawing at laptop and at 70 B size, without a warning, and the rules of the table."""

import json
import warnings

import numpy as np
import pytest
from matplotlib import image
from matplotlib.patches import Rectangle

from util import edges, paths, report
from util.measures import forerunner as f
from util.measures import ioi as m
from util.plots import edges as edge_plots
from util.plots import forerunner as plots
from util.plots import induction, ioi


@pytest.fixture(params=[(4, 4, 32), (80, 64, 32)], ids=["laptop", "70B"])
def arrays(request):
    layers, heads, n = request.param
    random = np.random.default_rng(0)
    magnitude = (random.random((n, layers, heads)) ** 6).astype(np.float32)
    magnitude[:, -1, -1] = 0.9
    return magnitude, (0.1 * random.random((n, layers, heads))).astype(np.float32), random.integers(100, 200, n)


@pytest.mark.parametrize("file", sorted((paths.root() / "figures").glob("*.png")), ids=lambda file: file.stem)
def test_nothing_of_a_default_figure_is_cut_off_at_its_edge(file):
    pixels = image.imread(file)[..., :3]
    rim = [pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]]
    assert all((part > 0.99).all() for part in rim)


def test_every_figure_draws_without_a_warning(arrays, tmp_path):
    magnitude, control, n_t = arrays
    counts = {"correct": f.head_counts(magnitude, n_t), "wrong": f.head_counts(magnitude[:, ::-1], n_t)}
    curves = {name: f.mean_head_count(magnitude, n_t) for name in ("correct", "wrong", "untrained")}
    largest = {name: f.mean_max_magnitude(magnitude) for name in curves}
    panel = plots.Panel("title", f.contrast(magnitude, control), f.verdicts(magnitude, control, n_t))
    table, curve = {"x_i -> s_i": (-0.1, -0.2, 0.1), "s_i -> y_i": (0.0, 0.0, 0.0)}, largest["correct"]
    figures = [
        plots.count_maps(counts, len(n_t), "title"),
        plots.layer_curves(curves, largest, 0.03, 0.006, "title"),
        plots.specificity([panel, panel._replace(names={(0, 1): "a role"})]),
        plots.head_effects(counts["correct"], len(n_t), magnitude.mean(0), panel.found, "title"),
        plots.changes({"all layers": table, "0% to 25%": table}, {"all layers": table}, "title", "nats"),
        plots.induction_layers({"heads": curve}, {"best head": curve}, {"uniform": 0.4}, "title"),
        plots.count_grid({"glue_sst2": counts, "trec": counts}, len(n_t), "title"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, figure in enumerate(figures):
            figure.savefig(tmp_path / f"{number}.png")
            figure.savefig(tmp_path / f"{number}.pdf")
    assert max(figure.get_size_inches()[0] for figure in figures) <= 5.5


def test_the_count_map_has_the_papers_scale_and_numbering(arrays):
    magnitude, _, n_t = arrays
    figure = plots.count_maps({"correct": f.head_counts(magnitude, n_t)}, len(n_t), "title")
    ax = figure.axes[0]
    [image] = ax.get_images()
    assert image.get_clim() == (len(n_t) / 4, len(n_t))
    np.testing.assert_array_equal(image.get_array(), f.head_counts(magnitude, n_t))
    assert ax.get_yticklabels()[0].get_text() == "1" and ax.get_yticks()[0] == 0


def test_the_same_figure_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    counts = {"correct": np.arange(16).reshape(4, 4)}
    contents = []
    for _ in range(2):
        files = report.save_figure(plots.count_maps(counts, 16, "title"), "stem", "panel")
        contents.append([file.read_bytes() for file in files])
    assert [file.name for file in files] == ["stem_panel.png", "stem_panel.pdf"]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(("layers", "heads", "tokens"), [(4, 8, 17), (36, 20, 14), (80, 64, 20)])
def test_every_ioi_figure_draws_without_a_warning(layers, heads, tokens, tmp_path):
    rng = np.random.default_rng(0)
    effects, z = rng.normal(size=(layers, heads)), rng.normal(size=(layers, tokens, heads, 8))
    effect = m.Effect(effects, effects - 1, effects + 1)
    words = ["<s>", " $a", "\n", *(f" {n}" for n in range(tokens - 3))]
    figures = {
        "p1": ioi.predictions(rng.normal(size=(2, 500)), (3, 5), ("Mike", "Emma"), ("one text", "another text")),
        "p2": ioi.permutation(effects, effects**2, "title"),
        "p3a": ioi.activations(z[1], words, "title"),
        "p3b": ioi.norms(np.linalg.norm(z, axis=3).mean(2), words, "title"),
        "p4a": ioi.token_differences(z[:, 0] - z[:, 1], "title"),
        "p4b": ioi.head_selectivity(m.selectivity(z[:, 0] - z[:, 1]), "title"),
        "p5": ioi.patching(effects, "title"),
        "circuit": ioi.circuit({"whole": (1.0, 0.5, 1.5), "circuit": (0.9, 0.4, 1.4)}, "title"),
        "population": ioi.population(effect, effect, effects, effects / 2, effects / 3, "title", {(0, 0): "0.0"}),
        "no direct": ioi.population(effect, effect, effects, effects / 2, effects * np.nan, "title", {(0, 0): "0.0"}),
    }
    assert len(figures["p4a"].axes) == -(-layers // 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, figure in figures.items():
            figure.savefig(tmp_path / f"{name}.png")
            assert figure.get_size_inches()[0] <= 5.5
    for name, place in (("p2", 0), ("p5", 0)):  # layers across, heads up: the image is the transposed map
        np.testing.assert_array_equal(figures[name].axes[place].get_images()[0].get_array(), effects.T)


def test_effects_are_marked_where_their_interval_excludes_0():
    difference, width = np.array([[1.0, -2.0], [0.5, 0.0]]), np.array([[0.5, 1.0], [0.6, 0.0]])
    cut = f.Contrast(difference, 0 * difference, difference, difference - width, difference + width)
    figure = plots.head_effects(np.ones((2, 2), int), 4, np.ones((2, 2)), cut, "title")
    [dots] = figure.axes[2].get_lines()
    assert set(zip(*dots.get_data(), strict=True)) == {(0, 0), (1, 0)}  # (head, layer)
    assert figure.axes[2].get_images()[0].get_clim() == (-2, 2)


def test_values_are_plain_rounded_json(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    curve = f.LayerCurve(np.array([1 / 3]), np.array([0.0]), np.array([1.0]))
    file = report.save_values({"curve": curve, "n": np.int64(3), "words": np.array(["a"])}, "stem")
    assert file == tmp_path / "data" / "values" / "stem.json"
    assert json.loads(file.read_text()) == {
        "curve": {"mean": [0.333333], "low": [0.0], "high": [1.0]},
        "n": 3,
        "words": ["a"],
    }


def test_the_match_rule(tmp_path, monkeypatch):
    rows = [
        {"id": "a", "quantity": "first", "model": "big", "source": "Fig. 1", "value": 0.5, "reading_error": 0.01},
        {"id": "b", "quantity": "second", "model": "big", "source": "Fig. 2", "value": None, "reading_error": None},
    ]
    (tmp_path / "data" / "published").mkdir(parents=True)
    (tmp_path / "data" / "published" / "stem.json").write_text(json.dumps({"values": rows}))
    monkeypatch.setattr(paths, "root", lambda: tmp_path)

    def verdict(model, here):
        return report.comparison("stem", model, here).splitlines()[2:]

    assert verdict("big", {"a": (0.529, 0.01)})[0].endswith("0.529 +- 0.010: match")
    assert verdict("big", {"a": (0.54, 0.01)})[0].endswith("0.540 +- 0.010: NO MATCH")
    assert verdict("embedded", {"a": (0.5, 0.01)})[0].endswith("not measured here: needs big")
    first, second = verdict("big", {"b": (0.1, 0.0)})
    assert first.endswith("not computed by this notebook") and "not available to us" in second
    assert second.endswith("0.100 (nothing to compare with)")


@pytest.mark.parametrize("stem", ["forerunner_heads", "induction_scores", "ioi_patching"])
def test_the_published_file_is_complete(stem):
    values = report.published(stem)["values"]
    for row in values:
        assert {"id", "quantity", "model", "source", "value", "reading_error"} <= set(row)
        assert (row["value"] is None) == (row["reading_error"] is None)
    assert len({(row["model"], row["id"]) for row in values}) == len(values)


def test_the_published_tables_of_induction_heads_and_their_rows_agree():
    published = report.published("induction_scores")
    columns = {
        "full": lambda row: row["full"],
        "mean ablation, top 1 %": lambda row: row["mean"]["ind 1 %"],
        "mean ablation, random 1 %": lambda row: row["mean"]["rnd 1 %"],
        "knockout, top 1 %": lambda row: row["knockout"]["ind 1 %"],
    }
    rows = {(row["model"], row["id"]): row["value"] for row in published["values"]}
    for model, table in published["tables"].items():
        assert len(table) == 12
        for task in ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2"):
            for name, of in columns.items():
                assert rows[model, f"{task} {name}"] == of(table[f"{task}, 10 shots"])
    llama, intern = (published["tables"][model] for model in published["tables"])
    # the paper's text: 31.6 points on repetition; InternLM's knockout always costs more than its ablation
    row = llama["repetition, 10 shots"]
    assert row["full"] - row["mean"]["ind 1 %"] == pytest.approx(31.6)
    assert all(r["knockout"]["ind 1 %"] < r["mean"]["ind 1 %"] for r in intern.values())


@pytest.mark.parametrize(("layers", "heads"), [(4, 8), (32, 32)])
def test_induction_figures_draw_at_the_width_of_a_page(layers, heads, tmp_path):
    rng = np.random.default_rng(0)
    mean = rng.random((layers, heads))
    signed = rng.normal(size=(layers, heads))
    chosen = [(0, 1), (1, 0), (2, 3)]
    interval = (0.5, 0.4, 0.6)
    figures = {
        "scores": induction.scores(mean, mean - 0.1, mean + 0.1, 0.02, 0.3, "title"),
        "companions": induction.companions({"one": mean, "two": signed, "three": mean * np.nan, "four": mean}, "title"),
        "pattern": induction.pattern(np.tri(30) / 30, ["a"] * 30, ["", *["label", "colon"] * 14, "x"], "title"),
        "mechanism": induction.mechanism(mean[0, :3], {"out": mean[0, :3], "other": mean[1, :3]}, signed, chosen, "t"),
        "ablation": induction.accuracies(
            {"a_b": {"whole": interval, "cut": (np.nan,) * 3}}, {"a_b": {"cut": [0.1, 0.2]}}, {"a_b": 0.5}, "title"
        ),
        "doses": induction.doses({"a": [1.0, 0.5]}, [0, 1], {"w": interval, "c": interval}, {"w": interval}, "title"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, figure in figures.items():
            figure.savefig(tmp_path / f"{name}.png")
            assert figure.get_size_inches()[0] <= 5.5
    np.testing.assert_array_equal(figures["scores"].axes[0].get_images()[0].get_array(), mean.T)
    [bars] = figures["scores"].axes[1].containers[:1]
    np.testing.assert_allclose([bar.get_height() for bar in bars], np.sort(mean, axis=None)[::-1][:12])


def test_edge_figures_put_every_type_pair_in_its_cell(tmp_path):
    interval = (0.5, 0.4, 0.6)
    by_circuit = dict.fromkeys(("FULL", "CTX+AGG", "NONE"), interval)
    five, three = {f"task_{number}": by_circuit for number in range(5)}, {"FULL": [interval] * 3}
    two, at, known = dict.fromkeys("ab", by_circuit), edges.cuts(30), ([("y", "last_separator", "any")],) * 2
    pairs = [(edge.source, edge.target, edge.relation) for edge in edges.TYPE_PAIRS]
    costs = {pair: float(number) for number, pair in enumerate(pairs)}
    figures = {
        "map": edge_plots.edge_map(costs, dict.fromkeys(pairs, 0.25), {pairs[3]}, "title"),
        "circuit": edge_plots.circuit(
            pairs, costs, [(2, 1.0, True), (1, 0.1, False)], 0.9, {"found": interval}, [0.1, 0.2], known, "title"
        ),
        "nothing kept": edge_plots.circuit([], {}, [(2, 1.0, False)], 0.9, {"found": interval}, [], known, "title"),
        "windows": edge_plots.windows(30, at, [interval] * 9, [interval] * 9, 0.6, "title"),
        "probes": edge_plots.probes(np.eye(6, 5), ["x->y:earlier"] * 6, ["same_task", "b", "c", "d", "e"], "title"),
        "ambiguous": edge_plots.ambiguous([0, 5, 10], three, three, three, "title"),
        "circuits": edge_plots.circuits(five, {t: {} for t in five}, dict.fromkeys(five, 0.1), "title", five),
        "models": edge_plots.circuits(two, dict.fromkeys(two, {}), dict.fromkeys(two, 0), "title"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, figure in figures.items():
            figure.savefig(tmp_path / f"{name}.png")
            assert figure.get_size_inches()[0] <= 5.5
    ax = figures["map"].axes[0]
    shown: np.ndarray = np.ma.filled(np.ma.asarray(ax.get_images()[0].get_array()), np.nan)
    rows, columns = ([label.get_text() for label in labels] for labels in (ax.get_yticklabels(), ax.get_xticklabels()))
    for (source, target, relation), cost in costs.items():
        group = {"same": range(3), "earlier": range(3, 7), "any": range(7, 9)}[relation]
        [column] = [c for c in group if columns[c] == {"last_separator": "last"}.get(target, target)]
        assert shown[rows.index(source), column] == pytest.approx(np.sqrt(cost))
    assert int(np.isfinite(shown).sum()) == len(pairs)
    [frame] = ax.patches
    assert isinstance(frame, Rectangle) and (frame.get_x(), frame.get_y()) == (2 - 0.46, 0 - 0.46)  # x -> n
    steps = figures["circuit"].axes[1].get_lines()
    assert [line.get_xydata().tolist() for line in steps[:2]] == [[[2, 1.0]], [[1, 0.1]]]  # put back: not joined
    assert edge_plots.arrow("x->last_separator:same") == r"$x$ $\to$ last (same)"
    arrows = len(figures["circuit"].axes[0].patches) - len(figures["nothing kept"].axes[0].patches)
    assert arrows == 2 * 6 + 16 + 2 * 4 + 2 * 4 + 1  # in two examples, from one to the next, to the query, to the end
