"""Edge ablation as an experiment: planted edges are found, records know what they depend on, measures by hand."""

from collections import Counter
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from tests.architectures import prepared
from tests.tiers import quick
from tests.toys import refuse_tasks, words
from tests.unloaded import NEVER, never, no_pass
from util.edges.edge import ALONE, ALWAYS, CIRCUITS, TYPE_PAIRS, WHOLE, Ablation, Edge, edges, single_edges, type_pairs
from util.edges.splicing import Group, outcomes
from util.engine.handshake import prepare
from util.figures.controls import planted_control
from util.figures.edge_ablation import measure, numbers, runs, show
from util.figures.edge_ablation.runs import Draw, LookUp, Run
from util.models import planted
from util.prompts import own_tasks, word_pairs
from util.prompts.prompt import UnsupportedTokenizer, type_tokens
from util.prompts.word_pair_prompts import prompts
from util.roles.pair_task import PairTask
from util.stats.intervals import mean_interval
from util.study.model import Model
from util.study.study import Study

ABLATIONS = {"FULL": WHOLE, "NONE": Ablation(kept=CIRCUITS["NONE"]), "AGG_Y": Ablation(removed=("AGG_Y",))}


@cache
def pair():
    return prepared("llama", vocab_size=len(words()), max_position_embeddings=128), words()


@pytest.mark.parametrize("left", [("copying",), ("copying", "capitalization")])
def test_tasks_that_the_tokenizer_does_not_carry_are_left_out(left, tmp_path, monkeypatch):
    """One ended notebook 04 on Llama 3's tokenizer, which merges tabs with words, and its claims after hours."""
    refuse_tasks(monkeypatch, left)
    tasks, few = ("copying", "capitalization"), {"prompts": 2, "k": 2, "donor_seeds": (0,), "layout": "colon"}
    study = Study("edge_ablation", Model.given(pair()[0], words(), "given:toy"), folder=tmp_path, tasks=tasks, **few)
    if len(left) > 1:
        with pytest.raises(UnsupportedTokenizer, match="task 'capitalization': no"):
            study.replace(untrained_control=False).arrays("circuits")
        return
    values = study.replace(untrained_control=False).values_of("circuits")
    begins = Counter(words()(f"a: {pair.y}")["input_ids"][3] for pair in word_pairs.find("capitalization").pairs)
    assert values["chance"]["capitalization"] == pytest.approx(max(begins.values()) / begins.total(), rel=0.02)
    left_out = "Left out: task 'copying': no prompt can be made. Try another separator."
    assert [*values["accuracy"]] == ["capitalization"] and left_out in show.circuits_say(values)
    checks = measure.checked_tasks(study)
    assert "copying" not in checks and checks["capitalization"].k == 2
    asked = PairTask(study.model, "capitalization", 2, 2, layout=study.settings.layout, folder=tmp_path)
    assert ": " in asked.items[0].text and "\t" not in asked.items[0].text


# ------------------------------------------------------------------------------------------------ planted edges


PLANTED = {*edges("y->last_separator", "query->last_separator"), Edge("x", "y", "same")}


@pytest.mark.parametrize("options", quick([{}], [{"family": "llama"}]), ids=str)
def test_the_planted_edges_are_those_that_are_found(options, tmp_path, monkeypatch):
    """By the search and by the map of single edges, which names no other."""
    model, truth = planted_control(planted.lookup, options)
    assert {*type_pairs([Edge(*edge) for edge in truth.edges])} == PLANTED
    run = Run(study_in(tmp_path, model), LookUp())
    found = run.search()
    singles = run.answers({"FULL": WHOLE, **single_edges()})
    whole = {**singles.pop("FULL"), "query": np.arange(12)}
    assert whole["right"].all() and set(found) == PLANTED and len(found) == 3
    costs = numbers.costs(whole, singles)
    for edge in TYPE_PAIRS:
        cost = costs[str(edge)]
        assert (cost["p"] < 0.05, cost["low"] > 0.01, cost["accuracy"] == 1) == (edge in PLANTED,) * 3, edge
    for edge in PLANTED:  # nor does any of the three do without the others
        assert not run.answer(Ablation(kept=(*ALWAYS, *(PLANTED - {edge}))))["right"].any()
    if not options:  # the figure's control, which is cached now
        monkeypatch.setattr(runs, "outcomes", never)
        control = measure.planted_search(study_in(tmp_path, "embedded"))
        assert sorted(control["kept"]) == control["true"] == sorted(map(str, PLANTED))


def test_a_search_takes_the_cheapest_pair_first_and_puts_back_what_it_needs(monkeypatch):
    """On made-up answers to ten prompts: "x->y" costs none as long as "t->y" is there."""
    pairs, tried = edges("x->y", "t->y", "n->y", "y->x"), []
    monkeypatch.setattr(runs, "TYPE_PAIRS", pairs)
    monkeypatch.setattr(runs, "single_edges", lambda: {str(pair): Ablation(removed=(pair,)) for pair in pairs})

    def answer(ablation):
        kept = {*(pairs if ablation.kept is None else ablation.kept)} - {*ablation.removed}
        tried.append({str(pair) for pair in pairs if pair not in kept})
        right = np.ones(10, bool)
        right[:1] = pairs[2] in kept
        right[1:6] = pairs[0] in kept or pairs[1] in kept
        return {"right": right, "log_prob": right * 1.0 - 0.1 * (pairs[3] not in kept)}

    run = SimpleNamespace(
        answer=answer, answers=lambda ablations: {name: answer(one) for name, one in ablations.items()}
    )
    assert Run.search(run) == (pairs[0],)
    # by accuracy, then log-probability, then name; what is last of two has to stay
    assert tried[-4:] == [{"t->y"}, {"t->y", "x->y"}, {"t->y", "y->x"}, {"t->y", "y->x", "n->y"}]


# ------------------------------------------------------------------------------------------------ records


def toy():
    model, tokenizer = pair()
    return Model.given(model, tokenizer, "given:toy")


def study_in(folder=None, model=NEVER, **settings):
    given = {"k": 3, "prompts": 6, "untrained_control": False, **settings}
    return Study("edge_ablation", model, folder=folder, **given)


def asking(model=NEVER, folder=None, redo=False, **fields):
    return Run(study_in(folder, model, redo=redo), Draw(**{"prompts": 6, "k": 3, **fields}))


def test_equal_requests_are_loaded_and_measured_again_on_demand(tmp_path):
    fields = {"prompts": 3, "corruptions": (0, 1), "layout": {"separator": "\t"}}
    limited = Ablation(kept=("AGG",), probed={"y->last_separator": 1}, layers=(2, 0), heads=((0, 1), (2, 3)))
    ablations = ABLATIONS | {"limited": limited}
    first = asking(toy(), tmp_path, **fields).answers(ablations, generate=True)
    again = asking(folder=tmp_path, **fields).answers(ablations, generate=True)
    for name, data in first.items():
        assert data.keys() == again[name].keys()
        for key, value in data.items():
            assert_array_equal(value, again[name][key])
    for redo, generate, seed in ((True, True, 0), (False, False, 0), (False, True, 1)):  # each is another record
        with pytest.raises(AssertionError, match="must not load"):
            asking(folder=tmp_path, redo=redo, donor_seed=seed, **fields).answers(ABLATIONS, generate=generate)


def test_other_pairs_under_a_name_are_another_request(monkeypatch):
    pairs = [("put", "got"), ("walk", "ran"), ("window", "door")]

    def words_of(**change):
        task = word_pairs.WordPairTask("mine", **{"pairs": tuple(pairs), **change})
        monkeypatch.setitem(own_tasks._REGISTERED, "mine", (task, ""))
        return Draw(task="mine", k=1).request["words"]

    changes = ({"pairs": (*pairs[:2], ("window", "wall"))}, {"other_rule": str.upper}, {"other_rule": str.title},
               {"balanced": True}, {"layout": word_pairs.COLON})  # fmt: skip
    found = [words_of(), *(words_of(**change) for change in changes)]
    assert found[0] == words_of() and len({*found}) == 6
    monkeypatch.setattr(runs, "table", lambda name: [{"word": "other"}])  # corrupted prompts are made of them
    assert words_of() != found[0]


def test_a_bad_ablation_is_refused_before_any_forward_pass(tmp_path):
    """Others: tests/edges/test_splicing.py."""
    model = toy()
    prepare(model.pair[0])  # its check runs the model
    with no_pass(), pytest.raises(ValueError, match="the model has 3 layers"):
        asking(model, tmp_path).answers({"good": WHOLE, "bad": Ablation(removed=("x->y",), layers=(3,))})
    assert not [*tmp_path.rglob("*.pickle")]


def test_data_say_what_was_asked_and_answered(tmp_path):
    """First tokens as the prompt's own text has them, counted from the text alone."""
    data = asking(toy(), tmp_path).answers(ABLATIONS, generate=True)["AGG_Y"]
    drawn = prompts("country_capital", words(), 6, k=3, split="test")
    texts = [item.clean.text for item in drawn.items]
    capitals = {p.x: p.y for p in word_pairs.find("country_capital").pairs}
    assert data["queries"] == [text.rpartition("\n")[2].removesuffix("\t") for text in texts]
    assert data["answers"] == [capitals[query] for query in data["queries"]]
    for place, (text, answer) in enumerate(zip(texts, data["answers"], strict=True)):
        target = words()(text + answer)["input_ids"][len(words()(text)["input_ids"])]
        assert data["right"][place] == (data["top"][place] == target)
        assert data["line_right"][place] == (data["written"][place].strip().split("\n")[0] == answer)


def test_draws_of_donors_leave_the_whole_model(tmp_path):
    """Which is the first ablation of all; what it leaves is kept for the others, and changes nothing."""
    found = runs.answers(study_in(tmp_path, toy()), ABLATIONS, task="country_capital")
    alone = {name: asking(toy(), tmp_path / name).answer(one) for name, one in ABLATIONS.items()}
    assert np.abs(found["FULL"]["kl"]).max() < 1e-6 and found["FULL"]["agrees"].all()
    assert_array_equal(found["FULL"]["log_prob"][1:], found["FULL"]["log_prob"][:1].repeat(2, 0))
    assert found["NONE"]["right"].shape == (3, 6) and np.ptp(found["NONE"]["log_prob"], axis=0).min() > 1e-3
    for name in ABLATIONS:  # the first draw
        assert_allclose(found[name]["log_prob"][0], alone[name]["log_prob"], atol=1e-4)


def test_several_draws_of_donors_meet_by_the_numbers_of_prompts():
    """A draw may lack a prompt that the others have."""
    draws = []
    for seed, index in enumerate(([0, 1, 3, 4], [0, 1, 2, 3], [1, 2, 3, 4])):
        of_draw = {"index": np.array(index), "right": np.array(index) > 1, "queries": ["a", "b", "a", "c"]}
        logs = 10.0 * seed + np.array(index)
        draws.append({"one": {**of_draw, "log_prob": logs}, "two": {**of_draw, "log_prob": 1 + logs}})
    found = numbers.aligned(draws)
    assert {*found["one"]} == {"log_prob", "right", "query"}
    assert_array_equal(found["one"]["log_prob"], [[1, 3], [11, 13], [21, 23]])
    assert_array_equal(found["two"]["log_prob"], [[2, 4], [12, 14], [22, 24]])
    assert_array_equal(found["one"]["right"], [[False, True]] * 3)


# ------------------------------------------------------------------------------------------------ what notebooks show


TWO = {"tasks": ["capitalization"], "prompts": 4, "donor_seeds": (0, 1), "corruptions": [1]}


def test_without_demonstrations_the_query_stands_alone(tmp_path):
    """The same tokens as a prompt that was never given any."""
    model, tokenizer = pair()
    run = asking(toy(), tmp_path)
    groups = []
    for item in run.drawn.items:
        query = item.clean.texts("x")[-1]
        bare = word_pairs.TAB.prompt([], query, item.clean.label().strip())
        groups.append(Group(type_tokens(bare, tokenizer, target=True), {}))
    assert_allclose(run.alone()["log_prob"], outcomes(model, groups)["log_prob"], atol=1e-5)


def test_circuits_of_a_task_are_compared(tmp_path):
    study = study_in(tmp_path, toy(), **TWO)
    values = study.values_of("circuits")
    data = Run(study, runs.draws(study)[0]).answers({"NONE": Ablation(kept=("NONE",))}, generate=True)["NONE"]
    assert [*values["accuracy"]["capitalization"]] == [*CIRCUITS, ALONE] and values["models"] == {}
    assert values["written"]["capitalization"]["NONE"] == [data["line_right"].mean(), data["prefix_right"].mean()]
    assert show.circuits_table(values).loc[("capitalization", "NONE"), "score"] == "not done"  # by this model


def test_layers_and_donors_are_tried_one_by_one(tmp_path, monkeypatch):
    for module in (measure, numbers):
        monkeypatch.setattr(module, "PROBED", edges("y->last_separator"))
    study = study_in(tmp_path, toy(), **TWO | {"corruptions": [1, 2]})
    arrays, windows = study.arrays("windows"), study.numbers("windows")["windows"]
    assert arrays["at"] == (0, 1, 2, 3) and len(arrays["rows"]) == 1 + 2 * 4
    assert_array_equal(arrays["rows"]["CONTEXT from 3"]["right"], arrays["rows"]["FULL"]["right"])
    right = arrays["rows"]["FULL"]["right"].mean()
    assert windows["CONTEXT from"][-1].value == windows["AGG below"][0].value == right
    probes = study.numbers("probes")["probes"]
    assert np.shape(probes["intervals"]) == (1, 2, 3)
    assert probes["intervals"][0, 1, 0] == study.arrays("probes")["y->last_separator from 2"]["right"].mean()


# ------------------------------------------------------------------------------------------------ measures


@pytest.mark.parametrize(
    "written, answer, line, prefix",
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
    """Eight of twelve are lost, none gained; three lost, two gained; and of four queries two of four, all, and all."""
    query, right, logs = np.arange(12), np.arange(12), np.linspace(-2, -1, 12)
    whole, lost = {"right": right < 10, "log_prob": logs, "query": query}, np.linspace(0.5, 1.5, 12)
    worse, mixed = {"right": right < 2, "log_prob": logs - lost}, {"right": right > 2, "log_prob": logs}
    found = numbers.costs(whole, {"worse": worse, "mixed": mixed, "same": whole})
    assert [cost["accuracy"] for cost in found.values()] == pytest.approx([8 / 12, 1 / 12, 0])
    assert [cost["p"] for cost in found.values()] == pytest.approx([3 * 2 / 2**8, 1, 1])  # the least of three (Holm)
    interval = stats.t.interval(1 - 0.05 / 3, 11, lost.mean(), stats.sem(lost))
    assert nats(found["worse"]) == pytest.approx((1, *interval)) and nats(found["same"]) == (0, 0, 0)
    whole["query"] = np.repeat(range(4), (4, 3, 3, 2))
    by_query = numbers.costs(whole, {"worse": worse})["worse"]
    assert by_query["p"] == pytest.approx(2 / 2**3) and by_query["accuracy"] == found["worse"]["accuracy"]
    assert nats(by_query) == pytest.approx(mean_interval([part.mean() for part in np.split(lost, (4, 7, 10))]))


def nats(cost):
    return cost["log_prob"], cost["low"], cost["high"]


def test_costs_over_draws_of_donors_are_those_of_their_mean():
    rng, query = np.random.default_rng(0), np.arange(12)
    whole = {"right": query < 10, "log_prob": np.linspace(-2, -1, 12), "query": query}
    drawn = {"right": rng.random((3, 12)) < 0.4, "log_prob": rng.normal(-3, 1, (3, 12))}
    found = numbers.costs(whole, {"a": drawn})["a"]
    assert found["accuracy"] == pytest.approx(10 / 12 - drawn["right"].mean())
    assert nats(found) == pytest.approx(mean_interval(whole["log_prob"] - drawn["log_prob"].mean(0)))


@pytest.mark.parametrize("draws_of_donors", [1, 3])
def test_a_score_is_a_share_of_what_edges_are_worth(draws_of_donors):
    rng, n = np.random.default_rng(0), 40
    some, every, nothing = (
        {"right": rng.random((draws_of_donors, n)) < share, "query": np.arange(n)} for share in (0.7, 0.9, 0.2)
    )
    circuit, full, none = (row["right"].mean(0) for row in (some, every, nothing))
    value, low, high = numbers.score(some, every, nothing)
    assert value == pytest.approx((circuit.mean() - none.mean()) / (full.mean() - none.mean()))
    found = []
    for _ in range(4000):  # prompts with replacement, the same ones for all three
        drawn = rng.integers(n, size=n)
        found.append((circuit[drawn] - none[drawn]).sum() / (full[drawn] - none[drawn]).sum())
    assert_allclose((low, high), np.quantile(found, [0.025, 0.975]), atol=0.03)
    assert low < value < high and numbers.score(some, every, nothing) == (value, low, high)
    width = (1 - 0.025 ** (1 / n)) / (full.mean() - none.mean())  # where all agree, what so many prompts can show
    assert numbers.score(every, every, nothing) == pytest.approx((1, 1 - width, 1 + width))
    assert numbers.score(some, every)[0] == pytest.approx(circuit.mean() / full.mean())


def test_without_edges_that_are_worth_something_there_is_no_score():
    some, none = ({"right": right, "query": np.arange(8)} for right in (np.arange(8) < 4, np.zeros(8, bool)))
    for full, other in ((some, some), (none, some), (none, none)):
        assert np.isnan(numbers.score(some, full, other)).all()
