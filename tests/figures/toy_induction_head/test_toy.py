"""The toy induction heads: training logs and their figures."""

import json
import math
import random
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from util.figures.induction_scores import measures
from util.figures.toy_induction_head import plots
from util.training import __main__ as command_line
from util.training import phase_change


@pytest.fixture(scope="module")
def run():
    return phase_change.train(steps=5, every=2)


@pytest.fixture(scope="module")
def log():
    return phase_change.log()


def random_states():
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


def test_training_depends_on_the_seed_alone_and_leaves_random_states(run):
    torch.manual_seed(5)
    before, threads = random_states(), torch.get_num_threads()
    again, other = phase_change.train(steps=5, every=2), phase_change.train(steps=2, seed=1, every=2)
    assert random_states() == before and torch.get_num_threads() == threads
    assert again == run
    assert other["later_copies"][0] != run["later_copies"][0]  # other weights
    assert other["later_copies"][1] != run["later_copies"][1]


def test_a_log_has_the_promised_shapes_and_is_plain(run):
    step = phase_change.ROWS * phase_change.LENGTH
    assert run["tokens"] == [0, 2 * step, 4 * step, 5 * step]  # the last one too
    assert json.loads(json.dumps(run)) == run
    for name in ("first_copy", "later_copies"):
        assert np.shape(run[name]) == (4,)
        assert run[name][0] == pytest.approx(math.log(phase_change.VOCABULARY), abs=0.3)  # it knows nothing yet
    for name in phase_change.SCORES:
        assert np.shape(run[name]) == (4, phase_change.LAYERS, phase_change.HEADS)
    drawn = phase_change.held_out()
    uniform = measures.uniform_prefix_matching(drawn.length, drawn.copies)
    np.testing.assert_allclose(run["prefix_matching"][0], uniform, atol=0.02)  # nor does it match anything


def test_the_held_out_sequences_repeat_and_no_batch_asks_for_more_than_copies():
    drawn = phase_change.held_out()
    assert drawn.ids.shape == (phase_change.HELD_OUT, 1 + phase_change.COPY * phase_change.COPIES)
    copies = drawn.ids[:, 1:].reshape(phase_change.HELD_OUT, phase_change.COPIES, phase_change.COPY)
    assert (copies == copies[:, :1]).all() and (np.diff(np.sort(copies[:, 0])) > 0).all()
    tokens, repeated = (part.numpy() for part in phase_change._batch(np.random.default_rng(0)))
    assert tokens.shape == repeated.shape == (phase_change.ROWS, phase_change.LENGTH)
    for row, wanted in zip(tokens, repeated, strict=True):
        seen_before = [token in row[:place] for place, token in enumerate(row)]
        assert seen_before == wanted.tolist() and row[0] == phase_change.BOS not in row[1:]


def test_the_moment_is_the_first_measurement_above_the_score():
    run = {"tokens": [0, 10, 20, 30], "prefix_matching": np.array([0.1, 0.6, 0.4, 0.9]).reshape(4, 1, 1)}
    assert phase_change.formed_at(run) == 10
    assert phase_change.formed_at(run, 0.7) == 30
    assert phase_change.formed_at(run, 0.9) is None


def test_the_stored_log_shows_the_change(log):
    assert len(log["seeds"]) == 3 and "thread" in log["about"]
    for found in log["seeds"].values():
        heads = np.array(found["prefix_matching"])
        assert heads[0].max() < 0.2 and heads[-1].max() > 0.8
        assert heads[-1, 1].max() == heads[-1].max()  # in layer 1, for layer 0 has nothing to match with
        previous = np.array(found["previous_token"])
        assert previous[0].max() < 0.1 and previous[-1, 0].max() > 0.4  # and layer 0 tells it what
        assert found["later_copies"][-1] < 0.5 < 4 < found["later_copies"][0]
        assert found["first_copy"][-1] > found["first_copy"][0]
        moment = found["tokens"].index(phase_change.formed_at(found))
        assert found["later_copies"][moment] < 2  # the loss falls when the heads form: before, ...
        assert found["later_copies"][moment - 15] > 2.7  # ... it is above that of guessing among the 15 tokens


def test_the_stored_log_begins_as_training_does(log, run):
    for name in ("first_copy", "later_copies", *phase_change.SCORES):  # nothing is trained yet: the same on any machine
        np.testing.assert_allclose(log["seeds"]["0"][name][0], run[name][0], atol=2e-3)


def test_the_command_line_writes_what_log_reads(run, log, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(phase_change, "train", lambda seed: asked.append(seed) or run)
    file = tmp_path / "log.json"
    arguments = ["phase-change", "--seed", "3", "4", "--out", str(file), "--machine", "a toaster"]
    monkeypatch.setattr(sys, "argv", ["python -m util.training", *arguments])
    command_line.main()
    written = json.loads(file.read_text())
    assert asked == [3, 4] and written["seeds"] == {"3": run, "4": run} and "a toaster" in written["about"]
    assert written.keys() == log.keys()
    assert "seed 3: best prefix-matching score above 0.5 after None tokens" in capsys.readouterr().out


@pytest.mark.parametrize("length", [6, 50])
def test_every_figure_draws_without_a_warning(log, length, tmp_path):
    sequence, shift = np.eye(4)[:, :3], np.eye(4, k=-1)
    pattern, letters = np.eye(4 * length, k=-1), "abcdef"
    names = ["a", "b", "c", "ab"]
    stream = np.kron(np.eye(3), np.eye(len(letters)))
    panels = {f"panel {n}": (values, "down", "across") for n, values in enumerate((pattern, stream, np.eye(6), shift))}
    figures = {
        "shifts": plots.shifts({f"by {n}": np.eye(8, k=-n) for n in range(5)}),
        "stream": plots.residual_stream(shift, {"before": sequence, "after": sequence}, names, "abc"),
        "circuits": plots.circuits(
            panels, ["token", "previous", "output"], letters, ("panel 1", "panel 1", "previous")
        ),
        "patterns": plots.patterns({"one": pattern, "two": pattern / 2, "three": 0 * pattern}, length),
        "phase change": plots.phase_change(list(log["seeds"].values()), "title", {"guess": 4.1}),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, figure in figures.items():
            figure.savefig(tmp_path / f"{name}.png")
            figure.savefig(tmp_path / f"{name}.pdf")
            assert figure.get_size_inches()[0] <= 5.5
    dots = figures["patterns"].axes[0].collections[0].get_offsets()
    assert {*map(tuple, dots)} == {*map(tuple, np.argwhere(pattern)[:, ::-1])}  # keys across, queries down
    for ax, rows in zip(figures["circuits"].axes, (4 * length, 18, 6, 4), strict=False):
        assert np.shape(ax.get_images()[0].get_array()) == (rows, rows)


def test_the_figure_of_the_change_draws_every_head_of_the_first_run(log):
    figure = plots.phase_change(list(log["seeds"].values()), "title", {"guess": 4.1})
    above, below = figure.axes
    heads = phase_change.LAYERS * phase_change.HEADS
    drawn = [[line for line in ax.get_lines() if len(np.asarray(line.get_xdata()))] for ax in (above, below)]
    assert len(drawn[0]) == 2 * 3 + 1 and len(drawn[1]) == 2 * heads + 2 * 2 + 1  # and the levels
    assert above.get_ylim() == (0, 6) and "guess" in [text.get_text() for text in above.texts]
    legends: list[Any] = [ax.get_legend() for ax in (above, below)]
    names = [[text.get_text() for text in legend.get_texts()] for legend in legends]
    assert "the other seeds" in names[0] and {"the other seeds", "other heads of this run"} <= {*names[1]}
    best = np.array(log["seeds"]["0"]["prefix_matching"]).max(axis=(1, 2))[-1]
    assert np.asarray(below.get_lines()[0].get_ydata())[-1] == best


def test_equal_logits_are_a_tie():
    sequence = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    stream = sequence + np.eye(4, k=-1) @ sequence * 0.99999999
    assert plots.predictions(stream).tolist() == [
        [True, False, False],
        [True, True, False],
        [False, True, True],
        [False, False, True],
    ]
    figure = plots.residual_stream(np.eye(4, k=-1), {"logits": stream}, ["a", "b", "c", "ab"], "abc")
    patches: Any = figure.axes[-1].patches
    frames = {tuple(np.round(np.array(patch.get_xy()) + 0.44).astype(int)): patch.get_linestyle() for patch in patches}
    assert frames == {(0, 0): "-", (0, 1): "--", (1, 1): "--", (1, 2): "--", (2, 2): "--", (2, 3): "-"}


def test_what_is_shifted_is_said_by_how_far_back_it_reads():
    figure = plots.shifts({"nothing": np.eye(8), "keys by 2": np.eye(8, k=-2)})
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["reads itself\n(nothing)", "reads 2 back\n(keys by 2)"]
    for axis in (figure.axes[0].xaxis, figure.axes[1].xaxis, figure.axes[0].yaxis):
        assert [tick.get_text() for tick in axis.get_ticklabels()] == ["0", "2", "4", "6"]


def test_an_arrow_leads_from_the_slot_that_is_written_to_the_one_that_is_read():
    stream = np.kron(np.eye(3), np.eye(4))
    panels = {name: (stream, "down", "across") for name in ("one", "two")}
    figure = plots.circuits(panels, ["token", "previous", "output"], "abcd", ("two", "one", "previous"))
    arrow: Any = figure.artists[0]
    assert (arrow.coords1, arrow.coords2) == (figure.axes[1].transData, figure.axes[0].transData)
    assert 4 - 0.5 < arrow.xy1[0] == arrow.xy2[0] < 8 - 0.5
