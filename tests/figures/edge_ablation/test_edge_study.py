"""Edge ablation as an experiment: planted edges are found, records know what they depend on, measures by hand."""

import json
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats
from torch.nn.modules.module import register_module_forward_pre_hook

from tests import toys
from tests.architectures import build
from tests.models.test_planted import look_up
from util import paths
from util.edges import names
from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import ALWAYS, CIRCUITS, TYPE_PAIRS, Edge, edges, type_pairs
from util.edges.splicing import STORED, Group, outcomes
from util.engine.handshake import prepare
from util.figures.edge_ablation import measure, numbers, runs, show
from util.figures.edge_ablation.runs import Run
from util.figures.edge_ablation.settings import Draw
from util.prompts import word_pairs
from util.prompts.classification import associative_map_prompts
from util.prompts.prompt import Layout
from util.prompts.word_pair_prompts import prompts, typed_tokens
from util.prompts.words import column
from util.stats.intervals import mean_interval
from util.study.model import Model
from util.study.study import Study

ABLATIONS = {"FULL": WHOLE, "NONE": Ablation(kept=CIRCUITS["NONE"]), "AGG_Y": Ablation(removed=("AGG_Y",))}


@cache
def words():
    return toys.tokenizer("bpe", on_tasks=True)


@cache
def pair():
    model = build("llama", vocab_size=len(words()), max_position_embeddings=128)
    prepare(model)
    return model, words()


# ------------------------------------------------------------------------------------------------ planted edges


def one_token(word):
    return set(typed_tokens(Layout().prompt([(word, word)], word, word), words()).sizes) == {1}


@cache
def planted(family):
    """The planted look-up with 16 prompts, and donors whose inputs, outputs and query are none of the prompt's."""
    (model, tokenizer), plant, first = look_up(family, 1)
    whole = [word for word in column("categories", "word") if one_token(word)]
    found = associative_map_prompts(whole[:40], whole[40:60], keys=6, k=6, count=16, layout=Layout())
    assert [prompt.text for prompt in found[:12]] == [prompt.text for prompt in first]
    groups = []
    for number, prompt in enumerate(found):
        rng, used = np.random.default_rng(number), prompt.text.split()
        *xs, query = rng.permutation([word for word in whole[:40] if word not in used])[:7].tolist()
        ys = rng.permutation([word for word in whole[40:60] if word not in used])[:6].tolist()
        donor = Layout().prompt(list(zip(xs, ys, strict=True)), query, prompt.label())
        groups.append(Group(typed_tokens(prompt, tokenizer), {0: typed_tokens(donor, tokenizer)}))
    assert {*type_pairs([Edge(*edge) for edge in plant.edges])} == PLANTED
    return model, groups


PLANTED = {*edges("y->last_separator", "query->last_separator"), Edge("x", "y", "same")}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_planted_edges_are_those_that_are_found(family):
    """By the search and by the map of single edges, which names no other."""
    model, groups = planted(family)
    ran = {}

    def evaluate(ablation):
        ran[ablation] = outcomes(model, groups, ablation)
        return ran[ablation]

    pairs = runs.greedy_circuit(evaluate)
    assert ran[WHOLE]["right"].all() and set(pairs) == PLANTED and len(pairs) == 3
    whole = {**ran[WHOLE], "query": np.arange(len(groups))}
    costs = numbers.costs(whole, {str(edge): ran[Ablation(removed=(edge,))] for edge in TYPE_PAIRS})
    for edge in TYPE_PAIRS:
        cost = costs[str(edge)]
        assert (cost["p"] < 0.05, cost["low"] > 0.01, cost["accuracy"] == 1) == (edge in PLANTED,) * 3, edge
    for edge in PLANTED:  # nor does any of the three do without the others
        assert not outcomes(model, groups, Ablation(kept=(*ALWAYS, *(PLANTED - {edge}))))["right"].any()


def test_the_planted_control_is_found_and_cached(tmp_path, monkeypatch):
    found = measure.planted_search(study_in(tmp_path, "embedded"), 6, family="llama")
    assert sorted(found["kept"]) == found["true"] == sorted(map(str, PLANTED))
    monkeypatch.setattr(runs, "outcomes", never)
    assert measure.planted_search(study_in(tmp_path, "embedded"), 6, family="llama") == found


def test_a_search_takes_the_cheapest_pair_first_and_puts_back_what_it_needs():
    """On made-up answers to ten prompts: "x->y" costs none as long as "t->y" is there."""
    pairs = edges("x->y", "t->y", "n->y", "y->x")
    asked = []

    def evaluate(ablation):
        asked.append(ablation)
        kept = set(pairs) if ablation.kept is None else set(ablation.kept)
        kept -= {*ablation.removed}
        right = np.ones(10, bool)
        right[:1] = pairs[2] in kept
        right[1:6] = pairs[0] in kept or pairs[1] in kept
        return {"right": right, "log_prob": right * 1.0 - 0.1 * (pairs[3] not in kept)}

    assert runs.greedy_circuit(evaluate, pairs) == (pairs[0],)
    assert asked[0] == WHOLE and len(asked) == 1 + 2 * len(pairs)
    # by accuracy, then log-probability, then name; what is last of two has to stay
    tried = [{*map(str, pairs)} - {*map(str, one.kept)} for one in asked[-len(pairs) :]]
    assert tried == [{"t->y"}, {"t->y", "x->y"}, {"t->y", "y->x"}, {"t->y", "y->x", "n->y"}]


# ------------------------------------------------------------------------------------------------ records


def never(*_, **__):
    raise AssertionError("a cached record must not load a model")


UNKNOWN = Model("given:toy", loader=never)


def toy():
    model, tokenizer = pair()
    return Model.given(model, tokenizer, "given:toy")


def study_in(folder=None, model=UNKNOWN, **settings):
    given = {"k": 3, "prompts": 6, "ambiguous_counts": (0,), "untrained_control": False, **settings}
    return Study("edge_ablation", model, folder=folder, **given)


def asking(model=UNKNOWN, folder=None, redo=False, **fields):
    return Run(study_in(folder, model, redo=redo), Draw(**{"prompts": 6, "k": 3, **fields}))


def test_equal_requests_are_loaded_and_measured_again_on_demand(tmp_path):
    fields: dict[str, Any] = {"corruptions": (0, 1), "layout": {"separator": "\t"}}
    asked = asking(toy(), tmp_path, **fields)
    limited = Ablation(
        kept=("AGG",), probed={"y->last_separator": 1}, layers=(2, 0), heads=((0, 1), (2, 3)), channel="v"
    )
    ablations = ABLATIONS | {"limited": limited}
    assert json.loads(json.dumps(asked.request)) == asked.request
    first = asked.records(ablations, generate=True)
    again = asking(folder=tmp_path, **fields).records(ablations, generate=True)
    for name, record in first.items():
        assert record.data.keys() == again[name].data.keys()
        for key, value in record.data.items():
            np.testing.assert_array_equal(value, again[name].data[key])
        assert record.request["ablation"] == ablations[name].plain()
        assert Ablation(**json.loads(json.dumps(record.request["ablation"]))) == ablations[name]
    assert len([*tmp_path.rglob("*.pickle")]) == len(ablations)
    for redo, generate, seed in ((True, True, 0), (False, False, 0), (False, True, 1)):  # each is another record
        with pytest.raises(AssertionError, match="must not load"):
            asking(folder=tmp_path, redo=redo, donor_seed=seed, **fields).answers(ABLATIONS, generate=generate)
    redone = asking(toy(), tmp_path, redo=True, **fields).answers(ABLATIONS, generate=True)
    np.testing.assert_array_equal(redone["NONE"]["log_prob"], first["NONE"].data["log_prob"])


def test_other_pairs_under_a_name_are_another_request(monkeypatch):
    pairs = [("put", "got"), ("walk", "ran"), ("window", "door")]

    def words_of(**change):
        task = word_pairs.WordPairTask("mine", **{"pairs": tuple(pairs), **change})
        monkeypatch.setitem(word_pairs._REGISTERED, "mine", task)
        return asking(task="mine", k=1).request["words"]

    changes = ({"pairs": (*pairs[:2], ("window", "wall"))}, {"other_rule": str.upper}, {"other_rule": str.title},
               {"balanced": True}, {"layout": word_pairs.COLON})  # fmt: skip
    found = [words_of(), *(words_of(**change) for change in changes)]
    assert found[0] == words_of() and len({*found}) == 6
    monkeypatch.setattr(runs, "table", lambda name: [{"word": "other"}])  # corrupted prompts are made of them
    assert words_of() != found[0]


@contextmanager
def refusing():
    def refuse(*_):
        raise AssertionError("a forward pass")

    handle = register_module_forward_pre_hook(refuse)  # a hook of the model would be refused itself
    try:
        yield
    finally:
        handle.remove()


WRONG: dict[str, dict[str, Any]] = {
    "task = 'capitals': unknown word-pair task 'capitals'; there are copying": {"task": "capitals"},
    "split = 'train': .*'all', 'search' or 'test'": {"split": "train"},
    "k = 3, .*corruptions = .0, 9.: missing corruption index .9.": {"corruptions": (0, 9)},
    "k = 1000, .*choose a smaller k": {"corruptions": (0, 5), "task": "copying", "k": 1000},
    "order = 'sorted': .*'random'": {"order": "sorted"},
    "k = 2.5: .*valid integer": {"k": 2.5},
    "k = '4x': .*valid integer": {"k": "4x"},
    "k = '2.5': .*valid integer": {"k": "2.5"},
    "k = True: give a number": {"k": True},
    "k = 0: .*greater than or equal to 1": {"k": 0},
    "prompts = 0: .*greater than or equal to 1": {"prompts": 0},
    "seed = 'a': .*valid integer": {"seed": "a"},
    "seed = -1: .*greater than or equal to 0": {"seed": -1},
    "donor_seed = -1: .*greater than or equal to 0": {"donor_seed": -1},
    "corruptions = ..: give one or more": {"corruptions": []},
    "corruptions = .0, 0.: .*twice": {"corruptions": [0, 0]},
    "two_pass = 'perhaps': .*valid boolean": {"two_pass": "perhaps"},
    "in_turn = 2: .*valid boolean": {"in_turn": 2},
    "token_budget = 0: .*greater than or equal to 1": {"token_budget": 0},
    "k = 3, ambiguous = 4, .*0 to k ambiguous": {"task": "ambiguous_present_past", "ambiguous": 4},
    "layout = .'sep': ':'.: it has the fields separator, join, end, header": {"layout": {"sep": ":"}},
    "layout.separator = 5: .*valid string": {"layout": {"separator": 5}},
    "layout = ':': .*valid dictionary": {"layout": ":"},
    "Draw has no argument 'donor_seeds'": {"donor_seeds": 1},
}


@pytest.mark.parametrize("message", WRONG)
def test_bad_requests_are_refused_when_a_draw_is_built(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Draw(**{"prompts": 6, "k": 3, **WRONG[message]})


@pytest.mark.parametrize(
    ("ablation", "match"),
    [
        (Ablation(probed={"x->y": 2}), r"no donors of corruption \[2\]"),
        (Ablation(removed=("x->y",), layers=(3,)), "the model has 3 layers"),
        (Ablation(kept=("AGG",), probed={"x->query": 1}), "x->query and what is removed"),
    ],
)
def test_bad_ablations_are_refused_before_any_forward_pass(ablation, match, tmp_path):
    with refusing(), pytest.raises(ValueError, match=match):
        asking(toy(), tmp_path, corruptions=(0, 1)).answers({"good": WHOLE, "bad": ablation})
    assert not [*tmp_path.rglob("*.pickle")]


def test_a_query_that_changes_its_prompt_when_it_is_said_again_is_marked(tmp_path, monkeypatch):
    """As where a tokenizer merges the separator with the query's word: it cannot be told what a copy begins with."""
    own = runs.with_bos

    def merging(text, tokenizer, bos):
        return type(found)(found.ids[:3], ()) if (found := own(text, tokenizer, bos)) else found

    monkeypatch.setattr(runs, "with_bos", merging)
    assert set(asking(toy(), tmp_path).answers({"FULL": WHOLE})["FULL"]["copy"]) == {-1}


def test_data_say_what_was_asked_and_answered(tmp_path):
    """First tokens as the prompt's own text has them, counted from the text alone."""
    data = asking(toy(), tmp_path).answers(ABLATIONS, generate=True)["AGG_Y"]
    drawn = prompts("country_capital", words(), 6, k=3, split="test")
    texts = [item.clean.text for item in drawn.items]
    queries = [text.rpartition("\n")[2].removesuffix("\t") for text in texts]
    capitals = {p.x: p.y for p in word_pairs.find("country_capital").pairs}
    assert data["queries"] == queries and data["answers"] == [capitals[query] for query in queries]
    assert data["index"].tolist() == [item.index for item in drawn.items] and data["layers"] == 3
    for place, text in enumerate(texts):
        before = len(words()(text)["input_ids"])
        assert data["target"][place] == words()(text + data["answers"][place])["input_ids"][before]
        assert data["copy"][place] == words()(text + queries[place])["input_ids"][before]
        assert data["line_right"][place] == (data["written"][place].strip().split("\n")[0] == data["answers"][place])
    assert data["right"].tolist() == (data["top"] == data["target"]).tolist()


def test_whole_and_full_agree_and_two_passes_are_one(tmp_path):
    found = asking(toy(), tmp_path).answers(ABLATIONS)
    apart = asking(toy(), tmp_path, two_pass=True).answers(ABLATIONS)
    assert np.abs(found["FULL"]["kl"]).max() < 1e-6 and found["FULL"]["agrees"].all()
    assert found["NONE"]["kl"].min() > 1e-3
    for name in ABLATIONS:
        np.testing.assert_allclose(apart[name]["log_prob"], found[name]["log_prob"], atol=1e-4)


def test_several_draws_of_donors_meet_by_the_numbers_of_prompts():
    """A draw may lack a prompt that the others have."""
    draws = []
    for seed, index in enumerate(([0, 1, 3, 4], [0, 1, 2, 3], [1, 2, 3, 4])):
        of_draw = {"index": np.array(index), "right": np.array(index) > 1, "queries": ["a", "b", "a", "c"]}
        logs = 10.0 * seed + np.array(index)
        draws.append({"one": {**of_draw, "log_prob": logs}, "two": {**of_draw, "log_prob": 1 + logs}})
    found = numbers.aligned(draws)
    assert {*found["one"]} == {"log_prob", "right", "query"}
    np.testing.assert_array_equal(found["one"]["log_prob"], [[1, 3], [11, 13], [21, 23]])
    np.testing.assert_array_equal(found["two"]["log_prob"], [[2, 4], [12, 14], [22, 24]])
    np.testing.assert_array_equal(found["one"]["right"], [[False, True]] * 3)


def test_draws_of_donors_leave_the_prompts_and_the_whole_model(tmp_path):
    found = runs.answers(study_in(tmp_path, toy()), ABLATIONS)
    assert found["NONE"]["right"].shape == (3, 6) and found["NONE"]["right"].dtype == bool
    np.testing.assert_array_equal(found["FULL"]["log_prob"][1:], found["FULL"]["log_prob"][:1].repeat(2, 0))
    assert np.ptp(found["NONE"]["log_prob"], axis=0).min() > 1e-3
    again = runs.answers(study_in(tmp_path), ABLATIONS)  # cached: no model is loaded
    np.testing.assert_array_equal(again["NONE"]["log_prob"], found["NONE"]["log_prob"])


def test_a_search_is_cached_by_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(runs.greedy_circuit, "__defaults__", (TYPE_PAIRS[:2],))
    found = asking(toy(), tmp_path, prompts=2, split="search").search()
    assert found == asking(UNKNOWN, tmp_path, prompts=2, split="search").search()


def test_the_method_has_not_changed_without_a_new_version(tmp_path):
    """A golden record. If it fails because the method was changed on purpose, rename the record and renew it."""
    fields: dict[str, Any] = {"k": 4, "prompts": 8, "corruptions": (0, 1), "trained": True}
    embedded = Model("embedded", device="cpu")
    probed = {"probed": Ablation(kept=("CTX+AGG",), probed={"y->last_separator": 1})}
    data = asking(embedded, tmp_path, **fields).answers(ABLATIONS | probed)
    fast = asking(embedded, tmp_path, two_pass=True, **fields).answers(ABLATIONS | probed)
    assert data.keys() == GOLDEN.keys()
    for name, golden in GOLDEN.items():
        for way in (data, fast):
            np.testing.assert_allclose(way[name]["log_prob"], golden["log_prob"], atol=1e-3)
            np.testing.assert_allclose(way[name]["kl"].mean(), golden["kl"], atol=1e-3)


GOLDEN: dict = {
    "FULL": {"log_prob": [-0.0021, -0.0014, -0.0646, -0.0011, -0.0008, -0.0042, -0.0211, -0.0034], "kl": 0.0},
    "NONE": {
        "log_prob": [-22.3491, -16.4559, -11.8331, -7.0291, -16.3854, -10.4524, -10.4268, -16.7939],
        "kl": 13.8612,
    },
    "AGG_Y": {"log_prob": [-0.022, -0.0519, -0.573, -0.0186, -0.0315, -0.0363, -0.1504, -0.0368], "kl": 0.0984},
    "probed": {"log_prob": [-0.0008, -0.0028, -0.0079, -0.0014, -0.0023, -0.0011, -0.1166, -0.0044], "kl": 0.0267},
}


# ------------------------------------------------------------------------------------------------ what notebooks show


TWO = {"tasks": ["capitalization"], "prompts": 4, "donor_seeds": (0, 1), "corruptions": [1]}


def test_circuits_of_a_task_are_compared(tmp_path):
    study = study_in(tmp_path, toy(), **TWO)
    compared, values = study.arrays("circuits")["capitalization"], study.values_of("circuits")
    data = Run(study, study.settings.draws()[0]).answers({"NONE": Ablation(kept=("NONE",))}, generate=True)["NONE"]
    np.testing.assert_array_equal(compared["rows"]["NONE"]["right"][0], data["right"])
    accuracy, divergence = values["accuracy"]["capitalization"], values["kl"]["capitalization"]
    assert [*accuracy] == [*CIRCUITS, names.ALONE] and [*divergence] == [*CIRCUITS]
    written = values["written"]["capitalization"]["NONE"]
    assert written == [data["line_right"].mean(), data["prefix_right"].mean()]
    assert divergence["FULL"].high < 1e-6 < divergence["NONE"].low
    table = show.circuits_table(values)
    assert [*table.index] == [("capitalization", name) for name in accuracy]
    assert table.loc[("capitalization", "NONE"), "KL"] == str(divergence["NONE"])


def test_without_demonstrations_the_query_stands_alone(tmp_path):
    """The same tokens as a prompt that was never given any."""
    model, tokenizer = pair()
    run = asking(toy(), tmp_path)
    groups = []
    for item in run.drawn.items:
        query = item.clean.text[slice(*item.clean.spans["x"][-1])]
        bare = word_pairs.TAB.prompt([], query, item.clean.label().strip())
        groups.append(Group(typed_tokens(bare, tokenizer), {}))
    np.testing.assert_allclose(run.alone()["log_prob"], outcomes(model, groups)["log_prob"], atol=1e-5)


def test_a_circuit_is_verified_on_other_prompts(tmp_path, monkeypatch):
    kept = edges("y->last_separator", "query->last_separator")
    monkeypatch.setattr(Run, "search", lambda run: kept)
    monkeypatch.setattr(measure, "planted_search", lambda study: {"kept": [], "true": []})
    values = study_in(tmp_path, toy(), random_circuits=3, **TWO).values_of("circuits", "map", "circuit")
    found = values["search"]
    assert found["kept"] == [*map(str, kept)] and len(found["random"]) == 3
    assert [*found["scores"]] == ["found", "without found"]
    assert [*values["costs"]] == [*map(str, TYPE_PAIRS)]


def test_layers_and_donors_are_tried_one_by_one(tmp_path, monkeypatch):
    for module in (measure, numbers):
        monkeypatch.setattr(module, "PROBED", edges("y->last_separator"))
    study = study_in(tmp_path, toy(), **TWO | {"corruptions": [1, 2]})
    arrays, windows = study.arrays("windows"), study.numbers("windows")["windows"]
    assert arrays["at"] == (0, 1, 2, 3) and len(arrays["rows"]) == 1 + 2 * 4
    np.testing.assert_array_equal(arrays["rows"]["CONTEXT from 3"]["right"], arrays["rows"]["FULL"]["right"])
    right = arrays["rows"]["FULL"]["right"].mean()
    assert windows["CONTEXT from"][-1].value == windows["AGG below"][0].value == right
    probes = study.numbers("probes")["probes"]
    assert np.shape(probes["intervals"]) == (1, 2, 3)
    assert probes["intervals"][0][1].value == study.arrays("probes")["y->last_separator from 2"]["right"].mean()


def test_ambiguous_answers_are_of_two_kinds_or_neither(tmp_path):
    found = study_in(tmp_path, toy(), **TWO | {"ambiguous_counts": [0, 2]}).numbers("ambiguous")["ambiguous"]
    assert found["counts"] == [0, 2]
    for name in ("FULL", "CTX+AGG", "AGG-ONLY"):
        shares = [[value for value, _, _ in found[what][name]] for what in ("past", "copied")]
        assert (np.sum(shares, axis=0) <= 1).all()


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("tasks", "['capitalization', \"person_sport\"]", ("capitalization", "person_sport")),
        ("tasks", "capitalization, person_sport", ("capitalization", "person_sport")),
        ("tasks", "capitalization", ("capitalization",)),
        ("donor_seeds", "[1, 2]", (1, 2)),
        ("donor_seeds", "1,2", (1, 2)),
        ("donor_seeds", 3, (3,)),
        ("untrained_control", "False", False),
        ("per_round", "0.5", 0.5),
    ],
)
def test_settings_may_come_as_text(name, given, wanted):
    assert getattr(study_in(**{name: given}).settings, name) == wanted


def test_draws_are_of_the_settings():
    study = study_in(tasks=["capitalization", "person_sport"], seed=3, layout={"separator": ":"}, donor_seeds=(4, 5))
    draws = runs.draws(study, task="person_sport", corruptions=(0, 2))
    assert [draw.donor_seed for draw in draws] == [4, 5] and not draws[0].trained
    assert (draws[0].task, draws[0].seed, draws[0].k, draws[0].prompts) == ("person_sport", 3, 3, 6)
    assert draws[0].corruptions == (0, 2) and draws[0].layout == {"separator": ":"} and draws[0].two_pass
    assert runs.draws(study_in(model="embedded"))[0].trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": "['copying'"}, "tasks = .* is no list"),
        ({"tasks": ["coping"]}, "tasks.0 = 'coping': .*there are copying"),
        ({"tasks": []}, "tasks = .*one or more"),
        ({"tasks": ["copying", "copying"]}, "tasks = .*twice"),
        ({"tasks": ["copying"]}, "tasks = .*the primary task, 'capitalization', is to be one"),
        ({"primary_task": "capitalisation"}, "primary_task = 'capitalisation': .*capitalization"),
        ({"donor_seeds": "a, b"}, "donor_seeds.0 = 'a': .*valid integer"),
        ({"donor_seeds": [1, 1]}, "donor_seeds = .1, 1.: .*twice"),
        ({"corruptions": [0, 1]}, "corruptions.0 = 0: .*greater than or equal to 1"),
        ({"corruptions": [9]}, "k = 3, .*corruptions = .0, 9.: .*missing corruption index .9."),
        ({"ambiguous_counts": [4]}, "k = 3, ambiguous = 4, .*0 to k ambiguous"),
        ({"ambiguous_counts": ["x"]}, "ambiguous_counts.0 = 'x': .*valid integer"),
        ({"prompts": 1}, "prompts = 1: .*greater than or equal to 2"),
        ({"random_circuits": -1}, "random_circuits = -1: .*greater than or equal to 0"),
        ({"untrained_control": "perhaps"}, "untrained_control = 'perhaps': .*valid boolean"),
        ({"per_round": 0}, "per_round = 0: .*greater than 0"),
        ({"taks": ["copying"]}, "Settings has no argument 'taks'; it has tasks"),
    ],
)
def test_bad_settings_of_the_notebook_are_named_before_any_work(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        study_in(**changes)


def test_what_the_notebook_says_of_the_papers_model_is_measured_or_follows_from_it():
    """The measured numbers stand in README; the extrapolated ones follow by the rule that the notebook states."""
    cells = json.loads((paths.root() / "notebooks" / "04_edge_ablation.ipynb").read_text(encoding="utf-8"))["cells"]
    [said] = [text for cell in cells if "## On the paper's model" in (text := "".join(cell["source"]))]
    [row] = [line for line in (paths.root() / "README.md").read_text().splitlines() if line.startswith("| Edge abl")]
    assert "40 minutes, 3.8 GB" in said and "40 minutes, 3.8 GB" in row and "one 16 GB GPU" in row
    times = (2.6 / 0.135) * (200 / 32)
    assert round(times, -1) == 120 and round(40 / 60 * times) == 80 and "120 times as much, 80 hours" in said
    assert round(2 * 2.6, 1) == 5.2 and STORED == 2**30 and "5.2 GB" in said and "1 GB of kept keys" in said
    assert 2 * 5.2 + 1 < 16 and "a GPU of 16 GB" in said


# ------------------------------------------------------------------------------------------------ measures


@pytest.mark.parametrize(
    ("written", "answer", "line", "prefix"),
    [
        ("Tirana\n", "Tirana", True, True),
        (" Tirana is", "Tirana", False, True),
        ("Tiran", "Tirana", False, False),
        ("running", "run", False, True),
        ("\n Tirana \nKabul", "Tirana", True, True),
        ("", "Tirana", False, False),
    ],
)
def test_what_counts_as_the_answer(written, answer, line, prefix):
    assert (numbers.line_right(written, answer), numbers.prefix_right(written, answer)) == (line, prefix)


def test_costs_by_hand():
    whole: dict[str, Any] = {"right": np.arange(12) < 10, "log_prob": np.linspace(-2, -1, 12), "query": np.arange(12)}
    worse = {"right": np.arange(12) < 2, "log_prob": whole["log_prob"] - np.linspace(0.5, 1.5, 12)}
    mixed = {"right": (np.arange(12) > 2), "log_prob": whole["log_prob"]}
    found = numbers.costs(whole, {"worse": worse, "mixed": mixed, "same": whole})
    assert found["worse"]["accuracy"] == pytest.approx(8 / 12) and found["mixed"]["accuracy"] == pytest.approx(1 / 12)
    assert found["worse"]["p"] == pytest.approx(3 * 2 / 2**8)  # eight lost, none gained; the least of three (Holm)
    twice = numbers.costs(whole, {"worse": worse, "again": worse, "same": whole})
    assert twice["again"]["p"] == twice["worse"]["p"] == pytest.approx(3 * 2 / 2**8)
    less = {"right": np.arange(12) < 3, "log_prob": whole["log_prob"]}
    second = numbers.costs(whole, {"less": less, "worse": worse, "same": whole})["less"]
    assert second["p"] == pytest.approx(2 * 2 / 2**7)  # seven lost; only two tests are left where the least is passed
    assert found["mixed"]["p"] == 1 == found["same"]["p"]  # three lost, two gained
    lost = np.linspace(0.5, 1.5, 12)
    interval = stats.t.interval(1 - 0.05 / 3, 11, lost.mean(), stats.sem(lost))
    worse_ = found["worse"]
    np.testing.assert_allclose((worse_["log_prob"], worse_["low"], worse_["high"]), (1, *interval))
    assert (found["same"]["log_prob"], found["same"]["low"], found["same"]["high"]) == (0, 0, 0)
    assert numbers.costs(whole, {"worse": worse})["worse"]["p"] == pytest.approx(2 / 2**8)
    whole["query"] = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]  # what is lost of them: two of four, all, all, and nothing
    by_query = numbers.costs(whole, {"worse": worse})["worse"]
    assert by_query["p"] == pytest.approx(2 / 2**3) and by_query["accuracy"] == worse_["accuracy"]
    means = [lost[:4].mean(), lost[4:7].mean(), lost[7:10].mean(), lost[10:].mean()]
    np.testing.assert_allclose((by_query["log_prob"], by_query["low"], by_query["high"]), mean_interval(means))


def test_costs_over_draws_of_donors_are_those_of_their_mean():
    rng = np.random.default_rng(0)
    whole = {"right": np.arange(12) < 10, "log_prob": np.linspace(-2, -1, 12)}
    drawn = {"right": rng.random((3, 12)) < 0.4, "log_prob": rng.normal(-3, 1, (3, 12))}
    several = {name: np.tile(values, (3, 1)) for name, values in whole.items()}
    query = {"query": np.arange(12)}
    same = {"right": np.tile(drawn["right"][:1], (3, 1)), "log_prob": np.tile(drawn["log_prob"][:1], (3, 1))}
    one = numbers.costs(whole | query, {"a": {name: values[0] for name, values in drawn.items()}})["a"]
    for base in (whole | query, several | query):  # as often as the same draw is there, it is one
        assert numbers.costs(base, {"a": same})["a"] == pytest.approx(one)
        found = numbers.costs(base, {"a": drawn})["a"]
        assert found["accuracy"] == pytest.approx(10 / 12 - drawn["right"].mean())
        lost = whole["log_prob"] - drawn["log_prob"].mean(0)
        np.testing.assert_allclose((found["log_prob"], found["low"], found["high"]), mean_interval(lost))


@pytest.mark.parametrize("draws_of_donors", [None, 3])
def test_a_score_is_a_share_of_what_edges_are_worth(draws_of_donors):
    rng, n = np.random.default_rng(0), 40
    shape = (n,) if draws_of_donors is None else (draws_of_donors, n)
    some, every, nothing = (rng.random(shape) < share for share in (0.7, 0.9, 0.2))
    circuit, full, none = (part.reshape(-1, n).mean(0) for part in (some, every, nothing))
    value, low, high = numbers.score(some, every, nothing)
    assert value == pytest.approx((circuit.mean() - none.mean()) / (full.mean() - none.mean()))
    found = []
    for _ in range(4000):  # prompts with replacement, the same ones for all three
        drawn = rng.integers(n, size=n)
        found.append((circuit[drawn] - none[drawn]).sum() / (full[drawn] - none[drawn]).sum())
    np.testing.assert_allclose((low, high), np.quantile(found, [0.025, 0.975]), atol=0.03)
    assert low < value < high and numbers.score(some, every, nothing) == numbers.score(some, every, nothing)
    width = numbers.least_width(n) / (full.mean() - none.mean())  # where all agree, what so many prompts can show
    assert numbers.score(every, every, nothing) == pytest.approx((1, 1 - width, 1 + width))
    assert numbers.score(nothing, every, nothing) == pytest.approx((0, -width, width))
    assert numbers.ratio(some, every)[0] == pytest.approx(circuit.mean() / full.mean())
    assert numbers.ratio(some, every) == numbers.score(some, every, np.zeros(n))


def test_without_edges_that_are_worth_something_there_is_no_score():
    some, none = np.arange(8) < 4, np.zeros(8, bool)
    for full, other in ((some, some), (none, some), (none, none)):
        assert np.isnan(numbers.score(some, full, other)).all()
