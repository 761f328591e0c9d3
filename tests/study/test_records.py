"""Measurements: checked arguments, what is measured once, and what makes a record another one."""

import copy
import shutil
from dataclasses import KW_ONLY, FrozenInstanceError
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import pytest
import torch
from accelerate import cpu_offload

from tests import architectures, toys
from tests.clone import ROOT
from util.engine.call import UnsupportedModel
from util.engine.finite import NotFinite
from util.engine.handshake import prepare
from util.study import model as model_room
from util.study.checked import AsList, Count, Natural, Share, Text, checked
from util.study.model import Model, settings_digest, weights_digest
from util.study.records import Measurement, joined


@checked
class Sums(Measurement):
    """The sum of a model's weights, as often as there are prompts."""

    dataset: Text = "trec"
    k: Natural = 4
    prompts: Count = 8
    seed: Natural = 0
    _: KW_ONLY
    share: Share = 0.9
    ks: Annotated[tuple[Natural, ...], AsList] = (1,)

    stem = "sums"
    computed: ClassVar[list[str]] = []

    def __post_init__(self):
        if self.k > self.prompts:
            raise ValueError(f"k = {self.k}: more than prompts = {self.prompts}")

    @property
    def own_request(self):
        return {"schema": 1, "dataset": self.dataset, "k": self.k, "prompts": self.prompts, "seed": self.seed}

    @property
    def texts(self):
        return [self.dataset]

    def sum(self, name="sum"):
        def compute():
            self.computed.append(name)
            return {"sum": float(sum(p.detach().double().sum() for p in self.pair[0].parameters()))}

        return self.measured(compute, part=name).data["sum"]


@pytest.fixture(autouse=True)
def forget():
    Sums.computed.clear()


@pytest.fixture
def fresh(toy_folder):
    """Gives the model of a folder, not loaded yet."""
    return partial(Model, str(toy_folder), verbose=False)


@pytest.fixture
def study(fresh, tmp_path):
    return Sums(fresh(), folder=tmp_path)


WRONG = {
    "k = True: give a number": {"k": True},
    "k = -1: .*greater than or equal to 0": {"k": -1},
    "k = 9: more than prompts = 8": {"k": 9},
    "model = '': name = '': ": {"model": ""},
    "Sums has no argument 'datset'; it has model, .*dataset": {"datset": "trec"},
    r"ks.0 = 'a': ": {"ks": ["a"]},
    r"ks = '\{1': this text is no list": {"ks": "{1"},
    r"k = 2.5: [^\n]*\nprompts = 0: ": {"k": 2.5, "prompts": 0},
}


@pytest.mark.parametrize("message", WRONG)
def test_every_wrong_argument_names_itself_and_what_is_allowed(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Sums(**WRONG[message])


def test_arguments_are_read_from_text_by_position_and_again_by_replace(study):
    given = Sums(k="2", redo="false", ks="[1, 2]", share="0.5")
    assert (given.k, given.redo, given.ks, given.share) == (2, False, (1, 2), 0.5)
    assert [Sums(ks=ks).ks for ks in ("3", 3, "3, 4")] == [(3,), (3,), (3, 4)]
    with pytest.raises(ValueError, match="^k = 2.5: ") as error:
        Sums("embedded", "trec", 2.5)
    assert "pydantic" not in str(error.value) and "ArgsKwargs" not in str(error.value)
    with pytest.raises(FrozenInstanceError):
        study.k = 1
    other = study.replace(k=2)
    assert other.model is study.model and other != study and other.replace(k=4) == study
    with pytest.raises(ValueError, match="^k = 9: more than"):
        study.replace(k=9)


def test_a_part_is_measured_once_and_loaded_afterwards_without_a_model(study, fresh, toy_folder):
    first = study.sum()
    again = Sums(fresh(), folder=study.folder)
    own = {"schema": 1, "dataset": "trec", "k": 4, "prompts": 8, "seed": 0}
    assert again.request == {"stem": "sums", **study.model.request, **own} and str(toy_folder.parent) not in str(
        again.request
    )
    assert again.sum() == first and Sums.computed == ["sum"] and again.model.loaded is None
    assert again.replace(redo=True).sum() == first and Sums.computed == ["sum", "sum"]


def test_weights_that_are_changed_in_place_are_other_weights(study, fresh):
    """The second record had the digest of the weights of the first, and was served to models with these."""
    study.sum()
    with torch.no_grad():
        study.pair[0].get_output_embeddings().weight.mul_(2)
    study.sum("other")
    intact = Sums(fresh(), folder=study.folder)
    _ = intact.pair
    assert intact.sum() == intact.sum("other") and Sums.computed == ["sum", "other", "other"]


def test_a_block_that_is_not_finite_is_measured_again(study):
    numbers = iter([1.0, np.nan, 2.0, 3.0])

    def run():
        return study.measured_in_blocks(
            lambda: [[0], [1]], lambda block: {"x": np.array([next(numbers)])}, joined("x"), part="blocks"
        )

    with pytest.raises(NotFinite, match="'x' is nan"):
        run()
    assert run().data["x"].tolist() == [1.0, 2.0]


def test_blocks_are_joined_as_they_come_or_in_the_order_of_their_numbers():
    blocks = [{"x": np.array([[3], [1]]), "numbers": [3, 1]}, {"x": np.array([[2]]), "numbers": [2]}]
    assert joined("x")(blocks)["x"].tolist() == [[3], [1], [2]]
    assert joined("x", by="numbers")(blocks)["x"].tolist() == [[1], [2], [3]]
    assert joined("x", axis=1)(blocks[:1] * 2)["x"].tolist() == [[3, 3], [1, 1]]


def test_the_twin_has_other_weights_and_a_request_of_its_own(study):
    twin = study.replace(model=study.model.twin(3))
    assert twin.request == {**study.request, "untrained_seed": 3} and twin.sum() != study.sum()
    assert Sums(Model(study.model.name, untrained_seed=3, verbose=False), folder=study.folder).sum() == twin.sum()
    assert study.twin().request["untrained_seed"] == 0
    assert not study.replace(model=Model(study.model.name, quantized=True)).twin().model.quantized


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("embedded", {}, "the request is for 'embedded'|the request is for 'generalist'"),
        ("given:mine", {"dtype": "float64"}, "dtype float64 was asked for"),
        ("given:mine", {"quantized": True}, "quantized = True was asked for"),
    ],
)
def test_a_given_model_is_what_its_name_says(name, options, message, fresh, toy_folder):
    model, tokenizer = fresh().pair
    assert Model.given(model, tokenizer, str(toy_folder)).loaded == (model, tokenizer)
    assert Model.given(model, tokenizer, "given:mine").request["model"] == "given:mine"
    with pytest.raises(ValueError, match=message):
        Model.given(model, tokenizer, name, **options)


CHANGES = {  # what decides a result: the weights, and settings
    "a sign": lambda m, _: m.model.norm.weight.data[-1].neg_(),
    "rope_parameters": lambda m, _: m.config.rope_parameters.update(rope_type="linear", factor=8.0),
    "rms_norm_eps": lambda m, _: setattr(m.config, "rms_norm_eps", 0.1),
    "inv_freq": lambda m, _: m.model.rotary_emb.inv_freq.mul_(2),
    "scaling of a module": lambda m, _: setattr(m.model.layers[1].self_attn, "scaling", 0.1),
    "act_fn of a module": lambda m, _: setattr(m.model.layers[1].mlp, "act_fn", torch.nn.GELU()),
    "a factor of the model": lambda m, _: setattr(m, "logit_scale", 0.5),
    "bos_token": lambda _, tokenizer: setattr(tokenizer, "bos_token", "<unk>"),
    "add_bos_token": lambda _, tokenizer: setattr(tokenizer, "add_bos_token", "no"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_that_decides_a_result_can_change_unnoticed(change, tmp_path, capsys):
    model, tokenizer = toys.model(), copy.deepcopy(toys.tokenizer())  # its special tokens, too
    Sums(Model.given(model, tokenizer, "given:a"), folder=tmp_path).sum()
    CHANGES[change](model, tokenizer)
    Sums(Model.given(model, tokenizer, "given:a"), folder=tmp_path).sum()
    assert ("weights" if change == "a sign" else "settings") in capsys.readouterr().err
    assert Sums.computed == ["sum", "sum"]


class Zero:
    def __call__(self, *_):
        return None


HOOKS = {
    "forward hook": lambda mlp: mlp.register_forward_hook(lambda *_: None),
    "hook with an argument": lambda mlp: mlp.register_forward_pre_hook(partial(lambda *_, by: None, by=2)),
    "backward hook": lambda mlp: mlp.register_full_backward_hook(Zero()),
    "forward": lambda mlp: setattr(mlp, "forward", lambda x: 0 * x),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_model_with_a_hook_of_its_user_is_refused_by_name(kind, tmp_path):
    model = toys.model()
    study = Sums(Model.given(model, toys.tokenizer(), "given:a"), folder=tmp_path)
    study.sum()
    HOOKS[kind](model.model.layers[1].mlp)
    with pytest.raises(UnsupportedModel, match=r"^model.layers.1.mlp has the (hook|forward) .* of .*test_records, "):
        study.replace().sum()


@pytest.mark.parametrize("name, changes", [("gpt_neo", {}), ("phi3", architectures.LONGROPE), ("gemma3_text", {})])
def test_settings_are_the_same_before_and_after_work_and_when_offloaded(name, changes):
    built = [architectures.build(name, **changes) for _ in range(2)]
    first = settings_digest(built[0], toys.tokenizer())
    prepare(built[0])
    built[0](torch.zeros(1, 24, dtype=torch.long))
    cpu_offload(built[1], torch.device("cpu"))
    assert {settings_digest(model, toys.tokenizer()) for model in built} == {first}


def test_the_digest_of_weights_is_of_dtypes_and_stored_buffers_and_large_models_have_it_once(monkeypatch):
    model = toys.model()
    digests = [weights_digest(model), weights_digest(toys.model().bfloat16())]
    model.register_buffer("passing", torch.zeros(3), persistent=False)
    assert weights_digest(model) == digests[0]
    for value in (0, 1):
        model.register_buffer("kept", torch.full((3,), value))
        digests.append(weights_digest(model))
    assert len({*digests}) == 4
    monkeypatch.setattr(model_room, "LARGE", 1000)
    assert weights_digest(model) == digests[-1]
    model.kept[1] = 2
    assert weights_digest(model) == digests[-1]
    other = toys.model()
    other.register_buffer("kept", torch.zeros(3).to("meta"))
    assert weights_digest(other) is None


@checked
class Listed(Sums):
    """Sums whose prompts are drawn from a list that the request does not contain."""

    word_lists = ("categories.csv",)


def test_other_word_lists_are_a_miss_with_and_without_a_loaded_model(fresh, tmp_path, monkeypatch, capsys):
    study = Listed(fresh(), folder=tmp_path / "records")
    first = study.sum()
    assert study.replace().sum() == first and Sums.computed == ["sum"]
    words = shutil.copytree(ROOT / "data/word_lists", tmp_path / "data/word_lists")
    with (words / "categories.csv").open("a") as file:
        file.write("quince\n")
    monkeypatch.setenv("ICL_ROOT", str(tmp_path))
    for model in (study.model, fresh()):
        Listed(model, folder=tmp_path / "records").sum()
    assert "word_lists" in capsys.readouterr().err and Sums.computed == ["sum", "sum"]


def test_other_prompts_are_a_miss_where_the_model_is_loaded(study, monkeypatch, capsys):
    study.sum()
    monkeypatch.setattr(Sums, "texts", ["other texts"])
    study.replace().sum()
    assert "prompt_digest" in capsys.readouterr().err
