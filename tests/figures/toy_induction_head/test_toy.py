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

from util.figures.toy_induction_head import by_hand, plots
from util.figures.toy_induction_head.study import Study
from util.records.model import Model
from util.roles import attention_scores
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
    uniform = attention_scores.uniform_prefix_matching(drawn.length, drawn.copies)
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


# ------------------------------------------------------------------------------------------------ by hand


def test_attention_by_hand_is_causal_and_reads_the_matching_key():
    places = np.eye(5)
    before = by_hand.attention(places, np.roll(places, -1, axis=0), 60.0)
    np.testing.assert_allclose(before, np.eye(5, k=-1) + np.diag([1.0, 0, 0, 0, 0]), atol=1e-12)
    nothing = by_hand.attention(np.zeros((3, 2)), np.ones((3, 2)), 60.0)
    np.testing.assert_allclose(nothing, [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3] * 3])


def test_the_lectures_head_is_a_previous_token_head():
    repeated = np.eye(4 * 50, k=-1)
    assert by_hand.role_scores(repeated, 50, 4, bos=False) == {"prefix matching": 0, "previous token": 1}
    sequence = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    stream = sequence + 0.99999999 * np.eye(4, k=-1) @ sequence
    said = by_hand.predicted(stream, ["a", "b", "c", "ab"], ["a", "b", "c"])
    assert said == {"a": "a", "b": "a or b", "c": "b or c", "ab": "c"}


def test_the_construction_continues_every_repeated_token():
    made = by_hand.Construction(9, 60.0)
    assert (made.qk_circuit == np.eye(9)).all() and (made.ov_circuit == np.eye(9)).all()
    ids = np.r_[0, np.tile([3, 1, 7, 5], 3)]
    logits = made.logits(ids)
    assert logits.shape == (13, 9) and (logits.argmax(1)[5:-1] == ids[6:]).all()
    x = made.embedding[ids]
    layer_0 = by_hand.attention(np.eye(13, k=-1), np.eye(13), 60.0)
    x = x + layer_0 @ x @ made.ov_0
    layer_1 = by_hand.attention(x @ made.qk_1, x, 60.0)
    right = logits.argmax(1)[:-1] == ids[1:]
    found = by_hand.built(layer_0, layer_1, right, 4, 3, [made.qk_circuit, made.ov_circuit])
    assert found.identity and found.accuracy == {"first copy": 0, "later copies": 1}
    assert found.scores["layer 0"]["previous token"] == pytest.approx(1)
    assert found.scores["layer 1"]["prefix matching"] == pytest.approx(1)
    assert not by_hand.built(layer_0, layer_1, right, 4, 3, [made.ov_0]).identity


def test_the_likeliest_letters_after_a_text():
    shares = by_hand.likeliest(["the cat and the c", "abcdef", "abaca", "p=f r=i p="], 60.0).shares
    assert {text: list(letters) for text, letters in shares.items()} == {
        "the cat and the c": ["a"], "abcdef": ["^", "a", "b"], "abaca": ["b", "c"], "p=f r=i p=": ["f", "i"],
    }  # fmt: skip
    assert shares["abaca"]["b"] == pytest.approx(0.5) and shares["abcdef"]["^"] == pytest.approx(1 / 7)


# ------------------------------------------------------------------------------------------------ models


WRONG = {
    r"length = 0: .*greater than or equal to 2": {"length": 0},
    r"length = 'long': ": {"length": "long"},
    r"copies = 1: .*greater than or equal to 2": {"copies": 1},
    r"sequences = 3: .*greater than or equal to 4": {"sequences": 3},
    r"sequences = 4.5: ": {"sequences": 4.5},
    r"untrained_control = 'perhaps': ": {"untrained_control": "perhaps"},
    r"model = '': give the name of a model": {"model": ""},
    r"Study has no argument 'beta'": {"beta": 60.0},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_refused_when_the_study_is_built(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Study(**WRONG[message])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    model = Model("embedded", device="cpu", verbose=False)
    return Study(model, 10, 3, 4, folder=tmp_path_factory.mktemp("material"))


def test_heads_of_every_origin_are_shown_with_their_scores(study):
    heads = study.heads()
    whose = ["planted GPT-2", "planted GPT-2", "embedded", "embedded", "untrained twin", "untrained twin"]
    assert [head.whose for head in heads.shown] == whose and heads.best["prefix_matching"] == heads.shown[3].scored
    assert [head.title for head in heads.shown[:2]] == [
        "planted GPT-2, L0H4: previous token", "planted GPT-2, L1H5: induction",
    ]  # fmt: skip
    table = heads.table()
    assert list(table.columns) == ["previous-token", "prefix-matching"]
    assert table.loc["planted GPT-2, L1H5: induction", "prefix-matching"] == "1.000 [1.000, 1.000]"
    assert max(heads.decoys.values()) < 0.3 and heads.description.startswith("embedded: LlamaForCausalLM")
    alone = study.replace(untrained_control=False).heads()
    assert [head.whose for head in alone.shown] == whose[:4]


def test_records_are_those_of_the_sequences(study):
    study.heads()
    assert study.request == study.on_sequences.request and study.request["stem"] == "induction_scores"
    assert all("induction_scores" in file.name for file in study.folder.rglob("*.pickle"))


def test_results_have_what_the_file_and_the_check_hold(study, log):
    lecture = by_hand.Lecture(np.eye(4, k=-1), np.eye(4, 3, k=-1), dict.fromkeys(by_hand.SCORES, 0.0), {"a": "b"})
    built = by_hand.Built({"layer 0": dict.fromkeys(by_hand.SCORES, 1.0)}, {"first copy": 0.0}, True)
    training = phase_change.phase_change()
    results = study.results(lecture, built, by_hand.likeliest(["abab"], 60.0), training)
    values = results.values()
    assert values["request"]["model"] == "embedded" and len(values["heads"]) == 6
    assert values["phase_change"]["tokens at a score of 0.5"] == training.formed == {
        f"seed {seed}": phase_change.formed_at(run) for seed, run in log["seeds"].items()
    }  # fmt: skip
    lines = results.check_lines()
    assert "predicted through the residual stream: b" in lines and "after 'abab': 'a' 1.00" in lines
    assert sum(line.startswith("seed ") for line in lines) == 3
    assert len(study.patterns().figure({role: (np.eye(30), 1.0) for role in attention_scores.ROLES}).axes) == 5


def test_a_run_that_is_trained_here_comes_first(run, monkeypatch):
    monkeypatch.setattr(phase_change, "train", lambda seed: run)
    training = phase_change.phase_change(trained=True, seed=7)
    assert list(training.runs) == ["trained here", "seed 0", "seed 1", "seed 2"]
    assert training.runs["trained here"] is run
    assert training.formed["trained here"] is None and "thread" in training.about
    assert "in full: trained here" in training.figure().axes[0].get_title()
