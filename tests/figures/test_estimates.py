"""Estimates of studies: held to the tokens that run and to the peak of memory, and their arithmetic by hand."""

import json
import resource
import subprocess
import sys
from functools import partialmethod
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tqdm import tqdm
from transformers import LlamaConfig, MixtralConfig

from tests.figures.estimated import SHAPES, counting, total
from util import paths
from util.commands.frame import main
from util.engine.batches import Batch, Row, all_logits, forward
from util.engine.call import UnsupportedModel
from util.figures import estimates as of_figures
from util.figures.ioi_patching.costs import number_of_edges
from util.figures.toy_induction_head.study import Study
from util.load_model_and_data import load_ICL_model
from util.records import estimates
from util.records import model as model_room
from util.records.estimates import NOTHING, Part, Shape, Speed, Work
from util.scores.graph import ComponentGraph

FACTOR = 1.5  # of memory; tokens that depend on what a model turns out to do may be off by twice
TOKENS = 2.0
# a process for each model; together all figures, and each shape that is new to the formulas
MEASURED = {
    "embedded": ("edge_ablation", "induction_scores"),
    "experts": ("forerunner_heads",),
    "wide": ("toy_induction_head", "role_atlas"),
    "deep": ("ioi_patching",),
}
SMALL = {"study": "toy_induction_head", "sequences": 4, "untrained_control": False}


@pytest.fixture(scope="module")
def embedded():
    return load_ICL_model("embedded", verbose=False)[0]


@pytest.fixture
def file(tmp_path):
    place = tmp_path / "study.json"
    place.write_text(json.dumps(SMALL))
    return place


# ------------------------------------------------------------------------------------------------ what is measured


@pytest.mark.parametrize("model", MEASURED)
def test_tokens_and_memory_are_as_estimated(model):
    command = [sys.executable, "-m", "tests.figures.estimated", model, "small", *MEASURED[model]]
    done = subprocess.run(command, cwd=paths.root(), stdout=subprocess.PIPE, check=True)
    for stem, row in json.loads(done.stdout).items():
        told, ran = total(row, "with logits")
        assert ran > 500 and 1 / TOKENS < told / ran < TOKENS, (stem, told, ran)
        told, ran = row["gigabytes"]
        assert 1 / FACTOR < told / ran < FACTOR, (stem, told, ran)


def test_the_counter_counts_tokens_and_gradients(embedded):
    batch = Batch.of([Row(tuple(range(10, 30)))], [0])
    with counting(embedded) as counted:
        forward(embedded, batch)
    assert counted.tokens == pytest.approx(20) and not counted.unembedded
    with counting(embedded) as counted:
        all_logits(embedded, batch, logits_to_keep=3)
    assert counted.tokens == pytest.approx(20) and counted.unembedded == 3
    hidden = torch.zeros(1, 5, embedded.config.hidden_size, requires_grad=True)
    with counting(embedded) as counted:
        embedded(inputs_embeds=hidden, use_cache=False)
    assert counted.tokens == pytest.approx(10)


# ------------------------------------------------------------------------------------------------ the shape


def test_a_shape_is_that_of_the_model_and_of_its_configuration(embedded):
    given, alone = Shape.of(embedded), Shape.of(embedded.config)
    names = ("layers", "heads", "width", "vocabulary", "unembedding", "item")
    assert [getattr(given, name) for name in names] == [getattr(alone, name) for name in names]
    assert given.weights() == alone.weights() == sum(p.nbytes for p in (*embedded.parameters(), *embedded.buffers()))
    layer = sum(p.numel() for p in embedded.model.layers.parameters() if p.ndim == 2)
    assert given.unembedding == pytest.approx(embedded.lm_head.weight.numel() / layer)


def test_of_experts_those_that_are_used_count():
    one, two = (
        Shape.of(MixtralConfig(**SHAPES["experts"].to_diff_dict() | {"num_experts_per_tok": used})) for used in (1, 2)
    )
    assert one.unembedding > two.unembedding
    assert one.kernels(100) == 0  # float32 has other kernels
    half = Shape.of(SHAPES["experts"], torch.bfloat16)
    assert 0 < half.kernels(1) < half.kernels(2) and half.kernels(10**9) == estimates.KERNEL * estimates.KERNELS


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_the_first_of_several_heads_by_listing_all(heads):
    shape = SimpleNamespace(layers=5)
    first = [min(layers) for layers in product(range(5), repeat=heads)]
    assert Shape.after_first(shape, heads) == pytest.approx(1 - np.mean(first) / 5)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (3, 2), (4, 8)])
def test_edges_are_those_of_the_component_graph(layers, heads):
    shape = SimpleNamespace(layers=layers, heads=heads)
    assert number_of_edges(shape) == ComponentGraph(layers, heads).size


def test_keys_and_values_by_hand():
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    assert Shape.of(config).states(10) == 2 * 10 * 3 * 2 * 8 * 4
    assert Shape.of(config, torch.bfloat16).states(10) == 2 * 10 * 3 * 2 * 8 * 2


# ------------------------------------------------------------------------------------------------ arithmetic


def test_works_add_up_but_for_their_room():
    both = Work(10, 2, 1, 0.5, 100, 7) + Work(1, 1, 1, 1, 300, 1)
    assert both == Work(11, 3, 2, 1.5, 300, 8)
    assert both.times(2) == Work(22, 6, 4, 3, 300, 16) and both.times(0) == NOTHING


def test_seconds_by_hand():
    shape = SimpleNamespace(unembedding=0.5)
    assert Speed(tokens=100, passes=0.1).seconds(Work(300, 200, 5, 2.0), shape) == 2 + (300 + 100) / 100 + 0.5
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="^speed = "):
            Speed.given(wrong, 4)


def test_what_is_stored_costs_nothing(tmp_path):
    study = Study(sequences=4, untrained_control=False, folder=tmp_path)
    before = of_figures.estimate(study, speed=Speed(1000, 0.01))
    assert before.stored == () and before.seconds == pytest.approx(sum(before.parts.values())) and before.seconds > 1
    assert study.model.loaded is None  # nothing was loaded or measured for it
    assert not list(tmp_path.glob("*.pickle"))
    study.heads()
    after = of_figures.estimate(Study(sequences=4, untrained_control=False, folder=tmp_path), speed=Speed(1000, 0.01))
    assert after.stored == ("heads",) and after.parts["heads"] == 0 < after.parts["patterns"]
    assert "1 of 2 parts" in after.lines[0]


def test_what_is_no_study_and_no_part_is_refused():
    with pytest.raises(ValueError, match="no study of a figure"):
        of_figures.parts(Part(NOTHING, lambda: None), SimpleNamespace())
    with pytest.raises(ValueError, match="^parts = .'nothing'.: there are heads, patterns"):
        of_figures.estimate(Study(untrained_control=False), ["nothing"], speed=Speed(1, 1))


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_needs_no_weights(file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(model_room, "load_ICL_model", None)
    main(["estimate", str(file), "--config-only", "--speed", "500", "--folder", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # the process of the tests counts, too
    assert set(told["parts"]) == {"heads", "patterns"} and told["tokens_per_second"] == 500
    assert told["seconds"] > 1 and 0.5 < told["gigabytes"] < 2 + peak and 0 < told["disk_gigabytes"] < 0.01
    main(["estimate", str(file), "--speed", "5", "--words", "--folder", str(tmp_path)])
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("about ") and "5 tokens a second" in first


WRONG = {
    "study": ({"study": "nothing"}, "study = 'nothing': choose from"),
    "argument": ({"study": "ioi_patching", "prompts": 2}, "prompts = 2: at least 8"),
    "parts": ({**SMALL, "parts": ["all"]}, "give a list of heads, patterns"),
    "list": ([1], "is no object"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_studies_end_with_one_line(name, tmp_path, capsys):
    given, message = WRONG[name]
    place = tmp_path / "study.json"
    place.write_text(json.dumps(given))
    with pytest.raises(SystemExit) as ended:
        main(["estimate", str(place), "--speed", "100"])
    assert ended.value.code == 1 and message in capsys.readouterr().err


def test_without_weights_a_speed_is_needed(file, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["estimate", str(file), "--config-only"])
    assert ended.value.code == 1 and "--speed" in capsys.readouterr().err


def test_a_card_fits_into_its_minutes(tmp_path, capsys):
    place = tmp_path / "card.json"
    place.write_text(json.dumps({"study": "card", "minutes": 5}))
    main(["estimate", str(place), "--speed", "700", "--folder", str(tmp_path)])
    assert 60 < json.loads(capsys.readouterr().out)["seconds"] <= 300


def test_speed_is_measured(embedded):
    speed = Speed.measured(embedded)
    assert 100 < speed.tokens < 10**8 and 0 <= speed.passes < 5


# ------------------------------------------------------------------------------------------------ notebooks


def bars(shown):
    """The class of progress bars, switched on or off as TQDM_DISABLE does when it is imported."""
    return type("Bar", (tqdm,), {"__init__": partialmethod(tqdm.__init__, disable=not shown)})


@pytest.fixture
def study(tmp_path):
    return Study("embedded", sequences=4, untrained_control=False, folder=tmp_path)


def test_what_a_study_takes_is_announced_where_bars_are_shown_until_it_is_there(study, capsys, monkeypatch):
    monkeypatch.setattr(of_figures, "tqdm", bars(shown=True))
    of_figures.announce(study)
    told = capsys.readouterr().err
    assert "about " in told and " GB of memory" in told
    study.heads(), study.patterns()
    again = Study("embedded", sequences=4, untrained_control=False, folder=study.place)
    of_figures.announce(again)
    assert not "".join(capsys.readouterr()).strip() and again.model.loaded is None


def test_nothing_is_announced_where_no_bars_are_shown(study, capsys, monkeypatch):
    monkeypatch.setattr(of_figures, "tqdm", bars(shown=False))
    of_figures.announce(study)
    assert capsys.readouterr() == ("", "") and study.model.loaded is None


def test_a_model_that_cannot_be_instrumented_has_no_estimate(study, monkeypatch):
    def refused(_model):
        raise UnsupportedModel("no such layers")

    monkeypatch.setattr(Speed, "measured", refused)
    assert of_figures.ahead(study) == []
    with pytest.raises(UnsupportedModel):
        of_figures.estimate(study)
