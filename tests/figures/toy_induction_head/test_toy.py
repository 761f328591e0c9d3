"""The toy induction heads: training logs and their figures."""

import json
import warnings
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from tests.figures.legible import LONG_NAME, faults
from util import paths
from util.figures.style import COLUMN, WIDTH
from util.figures.toy_induction_head import by_hand, plots
from util.figures.toy_induction_head.results import FoundPatterns, PhaseChange, fell_at, formed_at, phase_change
from util.figures.toy_induction_head.study import Study
from util.records.model import Model
from util.roles import attention_scores
from util.roles.attention_scores import ScoredHead
from util.roles.results import Patterns
from util.stats.intervals import Interval


@pytest.fixture(scope="module")
def log():
    return json.loads((paths.root() / "data" / "phase_change.json").read_text())


def test_the_moment_is_the_first_measurement_above_the_score():
    run = {"tokens": [0, 10, 20, 30], "prefix_matching": np.array([0.1, 0.6, 0.4, 0.9]).reshape(4, 1, 1)}
    assert formed_at(run) == 10
    assert formed_at(run, 0.7) == 30
    assert formed_at(run, 0.9) is None


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
        moment = found["tokens"].index(formed_at(found))
        assert found["later_copies"][moment] < 2  # the loss falls when the heads form: before, ...
        assert found["later_copies"][moment - 15] > 2.7  # ... it is above that of guessing among the 15 tokens


LETTERS = "abcdef"
SEQUENCE = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])


def aligned(moves=((0, 0), (0, -1), (0, -2), (1, 0), (1, 1))):
    place = np.eye(8)
    moved = {(q, k): by_hand.attention(np.roll(place, q, axis=0), np.roll(place, k, axis=0), 60.0) for q, k in moves}
    return by_hand.Aligned(moved)


def stream(strength=0.99999999):
    attention = strength * np.eye(4, k=-1)
    copied = attention @ SEQUENCE
    steps = {"tokens": SEQUENCE, "+ what the head copies": copied, "= logits": SEQUENCE + copied}
    return by_hand.Stream(attention, steps, ["a", "b", "c", "ab"], ["a", "b", "c"])


def found_patterns(length=50, previous=(0.96, 0.90, 0.97), matching=(0.94, 0.90, 0.96)):
    """The attention of two heads on a sequence in four copies, with these scores."""
    scores = {"previous_token": Interval(*previous), "prefix_matching": Interval(*matching)}
    best = {role: ScoredHead((layer, 5), scores) for layer, role in enumerate(scores, start=22)}
    attention = np.stack([np.eye(4 * length + 1, k=-back) for back in (1, length - 1)])
    patterns = Patterns(tuple(head.head for head in best.values()), attention, np.arange(4 * length + 1))
    by_role = {role: (np.eye(4 * length, k=-1), 1.0) for role in scores}
    return FoundPatterns(patterns, best, LONG_NAME, length), by_role


def training(log, change=lambda run: run):
    runs = {f"seed {seed}": change(run) for seed, run in log["seeds"].items()}
    return PhaseChange(runs, "a log")


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
@pytest.mark.parametrize("length", [6, 50])
def test_every_figure_can_be_read_at_any_width(log, length, width):
    found, by_role = found_patterns(length)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures = {
            "shifts": aligned().figure(width),
            "stream": stream().figure(width),
            "circuits": by_hand.Construction(len(LETTERS), 60.0).figure(LETTERS, width),
            "patterns": found.figure(by_role, width),
            "phase change": training(log).figure(width),
        }
        assert {name: faults(figure) for name, figure in figures.items()} == dict.fromkeys(figures, [])
    assert {figure.get_size_inches()[0] for figure in figures.values()} == {width}


def test_the_figures_draw_what_they_are_given():
    pattern, blocks, shift = np.eye(24, k=-1), np.kron(np.eye(3), np.eye(6)), np.eye(4, k=-1)
    given = {"one": pattern, "two": pattern / 2, "three": 0 * pattern}
    dots: Any = plots.patterns(given, 6, "finding", "setting").axes[0].collections[0]
    assert {*map(tuple, dots.get_offsets())} == {
        *map(tuple, np.argwhere(pattern)[:, ::-1])
    }  # keys across, queries down
    panels = {f"panel {n}": (values, "down", "across") for n, values in enumerate((pattern, blocks, np.eye(6), shift))}
    slots = ["token", "previous", "output"]
    for width, order in ((WIDTH, (24, 18, 6, 4)), (COLUMN, (24, 4, 18, 6))):  # a narrow figure has columns for rows
        figure = plots.circuits(panels, slots, LETTERS, None, "finding", "setting", width)
        drawn = [np.shape(ax.get_images()[0].get_array()) for ax in figure.axes if ax.get_images()]
        assert drawn == [(rows, rows) for rows in order]


# ------------------------------------------------------------------------------------------------ what titles say


def title(result, *arguments):
    """The headline's two parts, on one line each."""
    figure = result.figure(*arguments)
    said = figure.get_suptitle().replace("\n", " ")
    assert said == (result.finding or "")
    assert result.setting in {text.get_text().replace("\n", " ") for text in figure.texts}
    return said


def test_the_title_of_the_shifts_is_told_where_the_offset_alone_counts():
    assert title(aligned()) == "Attention reads as far back as queries are moved against keys: only the offset counts"
    wrong = by_hand.Aligned({(0, -1): np.eye(8)})
    assert wrong.finding is None and title(wrong) == ""


def test_the_title_of_the_stream_counts_what_the_head_wins():
    assert title(stream()) == "What the head copies is predicted in 1 of 4 rows, and ties with the token itself in 2"
    said = "What the head copies is predicted in none of 4 rows, and ties with the token itself in none"
    assert title(stream(0)) == said
    assert title(stream(2)).startswith("What the head copies is predicted in 3 of 4 rows")


def test_the_title_of_the_circuits_is_told_where_they_are_the_identity(monkeypatch):
    made = by_hand.Construction(6, 60.0)
    assert title(made, LETTERS) == "Both circuits are the identity: match what followed this token, and predict it"
    monkeypatch.setattr(by_hand.Construction, "ov_circuit", np.eye(6, k=1))
    assert made.finding is None and title(made, LETTERS) == ""


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (
            {},
            "Of its attention L22H5 gives 0.96 [0.90, 0.97] to the previous token, L23H5 gives 0.94 [0.90, 0.96] to "
            "what followed earlier occurrences",
        ),
        ({"matching": (0.5, 0.4, 0.6)}, "Of its attention L22H5 gives 0.96 [0.90, 0.97] to the previous token"),
        ({"previous": (0.5, 0.4, 0.6), "matching": (0.5, 0.4, 0.6)}, ""),
        (
            {"previous": (0.01, 0.0, 0.02), "matching": (0.01, 0.0, 0.02)},
            "No head gives half of its attention to the previous token or to what followed earlier occurrences",
        ),
    ],
)
def test_the_title_of_the_patterns_names_heads_that_give_a_role_most_of_their_attention(scores, said):
    found, by_role = found_patterns(6, **scores)
    assert title(found, by_role) == said


def test_the_title_of_the_change_says_how_near_loss_and_heads_are(log):
    assert title(training(log)) == ("In all 3 runs the loss falls within 20,480 tokens of when induction heads form")
    later = training(log, lambda run: run | {"later_copies": [5.0] * 10 + run["later_copies"][:-10]})
    assert "within 225,280 tokens" in title(later)  # ten measurements later
    never = training(log, lambda run: run | {"later_copies": [5.0] * len(run["tokens"])})
    assert never.finding is None and title(never) == ""
    assert [fell_at(run) for run in never.runs.values()] == [None] * 3


# ------------------------------------------------------------------------------------------------ single figures


def test_the_figure_of_the_change_draws_every_head_of_the_first_run(log):
    figure = plots.phase_change(list(log["seeds"].values()), {"guess": 4.1}, "finding", "setting")
    above, below = figure.axes
    heads = 2 * 4
    drawn = [[line for line in ax.get_lines() if len(np.asarray(line.get_xdata()))] for ax in (above, below)]
    assert len(drawn[0]) == 2 * 3 + 1 and len(drawn[1]) == 2 * heads + 2 * 2  # and the level of the guess
    assert above.get_ylim() == (0, 6) and "guess" in [text.get_text() for text in above.texts]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"loss on later copies", "prefix matching, best head", "thin: other heads of this run"} <= {*names}
    assert "pale: the other seeds" in names and len(names) == 6
    best = np.array(log["seeds"]["0"]["prefix_matching"]).max(axis=(1, 2))[-1]
    [first] = [line for line in below.get_lines() if line.get_label() == "prefix matching, best head"]
    assert np.asarray(first.get_ydata())[-1] == best


def test_equal_logits_are_a_tie():
    sequence = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    stream = sequence + np.eye(4, k=-1) @ sequence * 0.99999999
    assert plots.predictions(stream).tolist() == [
        [True, False, False],
        [True, True, False],
        [False, True, True],
        [False, False, True],
    ]
    figure = plots.residual_stream(np.eye(4, k=-1), {"logits": stream}, ["a", "b", "c", "ab"], "abc", "f", "s")
    patches: Any = figure.axes[-1].patches
    frames = {tuple(np.round(np.array(patch.get_xy()) + 0.44).astype(int)): patch.get_linestyle() for patch in patches}
    assert frames == {(0, 0): "-", (0, 1): "--", (1, 1): "--", (1, 2): "--", (2, 2): "--", (2, 3): "-"}


def test_what_is_shifted_is_said_by_how_far_back_it_reads():
    figure = plots.shifts({"nothing": np.eye(8), "keys by 2": np.eye(8, k=-2)}, "finding", "setting")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["reads itself\n(nothing)", "reads 2 back\n(keys by 2)"]
    for axis in (figure.axes[0].xaxis, figure.axes[1].xaxis, figure.axes[0].yaxis):
        assert [tick.get_text() for tick in axis.get_ticklabels()] == ["0", "2", "4", "6"]


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
def test_an_arrow_leads_from_the_slot_that_is_written_to_the_one_that_is_read(width):
    figure = by_hand.Construction(4, 60.0).figure("abcd", width)
    axes = {ax.get_title(loc="right"): ax for ax in figure.axes}
    arrow: Any = figure.artists[0]
    start, end = axes["layer 0: OV"], axes["layer 1: QK"]
    assert (arrow.coords1, arrow.coords2) == (start.transData, end.transData)
    assert 4 - 0.5 < arrow.xy1[0] == arrow.xy2[0] < 8 - 0.5
    assert start.get_position().y0 > end.get_position().y1 and start.get_position().x1 < end.get_position().x0
    for ax in (start, end):
        [frame] = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        assert (frame.get_x(), frame.get_width()) == (3.5, 4)  # the slot "previous"


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
    training = phase_change()
    results = study.results(lecture, built, by_hand.likeliest(["abab"], 60.0), training)
    values = results.values()
    assert values["request"]["model"] == "embedded" and len(values["heads"]) == 6
    assert values["phase_change"]["tokens at a score of 0.5"] == training.formed == {
        f"seed {seed}": formed_at(run) for seed, run in log["seeds"].items()
    }  # fmt: skip
    lines = results.check_lines()
    assert "predicted through the residual stream: b" in lines and "after 'abab': 'a' 1.00" in lines
    assert sum(line.startswith("seed ") for line in lines) == 3
    assert len(study.patterns().figure({role: (np.eye(30), 1.0) for role in attention_scores.ROLES}).axes) == 5
