"""IOI patching against the naive loop of hooks on the class's output projection, and against planted circuits."""

import os
from collections import ChainMap

import numpy as np
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose, assert_array_equal

from tests import architectures, eager_runs, toys
from tests.tiers import quick
from tests.unloaded import no_pass, unloaded
from util.engine.handshake import prepare
from util.figures.controls import name_tokens, planted_control
from util.figures.ioi_patching import measure, numbers
from util.figures.ioi_patching.numbers import intervals
from util.figures.ioi_patching.show import EXAMPLE, Settings, heads_table
from util.load_model_and_data import load_ICL_model, load_tokenizer, origin
from util.models import planted
from util.prompts.ioi import HELD_OUT_FRAMES, HELD_OUT_NAMES, ioi_prompts, ioi_tokens
from util.show import files
from util.stats.heads import layer_alike
from util.stats.intervals import mean_intervals
from util.study.model import Model
from util.study.study import Study

SETTINGS = Settings()
BASE, SOURCE = EXAMPLE


def words():
    """A tokenizer that keeps the names whole."""
    return load_tokenizer("embedded")


def toy(family):
    return architectures.prepared(family, torch.float64, vocab_size=len(words()), max_position_embeddings=64)


@pytest.fixture(scope="module", params=("gpt2", "llama"))
def pair(request):
    return toy(request.param), words()


def study_of(pair, folder, **options):
    """A study of a given model that has the embedded model's tokenizer, and prompts for it."""
    model, tokenizer = pair
    given = Model.given(model, tokenizer, options.pop("name", "given:toy"))
    return Study("ioi_patching", given, held_out=True, folder=folder, **options)


def eager(pair, ids, writes=None):
    return eager_runs.read(pair[0], ids, writes)


def everywhere(layer, head, values):
    """What writes z [T, dv] of a head at every token."""
    return {(layer, 0, token, head): value for token, value in enumerate(values)}


def naive(pair, ids, value, answers):
    """The seed's loop: one forward pass for every head, whose z [T, dv] becomes value(layer, head), [L, H]."""
    scores = np.empty((3, 4))
    for layer, head in np.ndindex(3, 4):
        logits = eager(pair, ids, everywhere(layer, head, value(layer, head))).logits[0, -1]
        scores[layer, head] = logits[answers[0]] - logits[answers[1]]
    return scores


# ------------------------------------------------------------------------------------------------ the seed's parts


@pytest.fixture(scope="module")
def measured(pair, tmp_path_factory):
    study = study_of(pair, tmp_path_factory.mktemp("material"))
    return study, study.arrays("p1")


def test_every_part_of_the_seed_equals_its_naive_loop(pair, measured, wide_softmax):
    study, data = measured
    texts = [torch.tensor([pair[1](text).input_ids]) for text in study.settings.texts]
    base, source = (eager(pair, ids) for ids in texts)
    mike, emma = data["answers"]
    assert (texts[0] != texts[1]).sum() == 1 and texts[1][0].tolist() == data["source"].tolist()
    both = torch.cat([run.logits[:, -1] for run in (base, source)])
    assert_allclose(data["scores"], both[:, mike] - both[:, emma], atol=1e-5)  # from float32 logits
    assert_allclose(data["log_softmax"], both.log_softmax(1), atol=1e-5)
    assert [pair[1].decode([int(row.argmax())]) for row in both] == [words[0] for words in data["words"]]
    patched = naive(pair, texts[0], lambda layer, head: source.z[layer][0, :, head], data["answers"])
    plain = float(both[0, mike] - both[0, emma])
    assert_allclose(data["patched"], patched - plain, atol=1e-12)
    assert np.abs(patched - plain).max() > 1e-3

    def shuffled(layer, head):
        own, seeds = base.z[layer][0, :, head], (study.settings.seed, layer, head)
        order = np.random.default_rng(seeds).permutation(own.numel())
        return own.flatten()[torch.from_numpy(order)].view(own.shape)

    assert_allclose(data["permuted"], naive(pair, texts[0], shuffled, data["answers"]) - plain, atol=1e-12)
    norms = [base.z[layer][0].norm(dim=(0, 2)) for layer in sorted(base.z)]
    assert_allclose(data["norms"], torch.stack(norms), rtol=1e-5)
    stored = np.stack([part[0].numpy() for part in source.z.values()])
    assert_allclose(data["z"], stored, rtol=1e-5, atol=1e-6)  # z is kept in float32


def test_in_16_bits_heads_are_compared_with_the_base_run_of_their_own_map(tmp_path):
    """Not with the logits of all tokens, whose rounding shifted every head alike."""
    study = study_of(load_ICL_model((toy("llama").bfloat16(), words()), verbose=False), tmp_path)
    data, model = study.arrays("p1"), study.pair[0]
    base, source = (torch.tensor([words()(text).input_ids]) for text in study.settings.texts)
    first = int((base != source)[0].int().argmax())
    maps, plain = measure.patch_map(
        model, base, measure.heads_of(model, source), torch.tensor([data["answers"]]), first
    )
    assert data["scores"][0] != plain[0]
    assert_array_equal(study.numbers("p5")["patched"], maps[0] - plain[0])


def test_in_16_bits_logit_differences_are_not_rounded_before_the_difference():
    model, ids, answers = toy("gpt2").bfloat16(), torch.arange(24).view(2, 12), torch.tensor([[3, 4], [5, 9]])
    prepare(model)
    last = model.transformer(ids)[0][:, -1].float()
    logits = (last @ model.lm_head.weight.float().T).gather(1, answers)
    torch.testing.assert_close(measure.logit_difference(model, ids, answers), logits[:, 0] - logits[:, 1])


@pytest.mark.skipif("ICL_GPT2" not in os.environ, reason="needs GPT-2 small: set ICL_GPT2 to gpt2, or to its folder")
def test_gpt2_small_has_the_published_map(tmp_path):
    """The numbers of the nnsight tutorial, printed for one pair without BOS; its base is our source."""
    published = {row["id"]: row["value"] for row in files.published("ioi_patching")["values"]}
    text = "When Mary and John went to the store, {} gave a drink to"
    texts, names = (text.format("Mary"), text.format("John")), ("John", "Mary")
    data = Study("ioi_patching", os.environ["ICL_GPT2"], texts=texts, names=names, folder=tmp_path).arrays("p1")
    base, source = data["scores"]
    share = data["patched"] / (source - base)
    found = {"nnsight_base": -source, "nnsight_source": -base}
    found |= {f"nnsight_{layer}.{head}": value for (layer, head), value in np.ndenumerate(share)}
    assert {name: found[name] for name in {*found} & {*published}} == pytest.approx(
        {name: published[name] for name in {*found} & {*published}}, abs=0.01
    )
    assert share.sum() == pytest.approx(published["nnsight_sum"], abs=0.05)


# ------------------------------------------------------------------------------------------------ planted circuits


def study_of_planted(folder, **options):
    """A study of eight pairs, put to planted heads, and the truth about them."""
    model, truth = planted_control(planted.ioi, options, name_tokens)
    return Study("ioi_patching", model, prompts=8, held_out=True, untrained_control=False, folder=folder), truth


@pytest.mark.parametrize("options", quick([{"backup": True}], [{}, {"family": "llama"}]), ids=str)
def test_a_planted_circuit_is_found_exactly(options, tmp_path):
    study, truth = study_of_planted(tmp_path, **options)
    data = study.arrays("population")["trained"]
    for name, base, source in (("noised", "base", "source"), ("denoised", "source", "base")):
        found = numbers.normalised(data[name], data[base], data[source], data["clusters"]).value
        expected = np.zeros_like(found)
        expected[truth.heads["mover"][0]] = 1  # a backup has nothing to do
        assert_allclose(found, expected, atol=0.02)
    assert (data["base"] > 5).all() and (data["source"] < -5).all()
    # of the noised map, only what movers say goes to the output directly, and for them it is all of it
    base, whole = data["base"][:, None, None], (data["source"] - data["base"])[:, None, None]
    assert_allclose(data["direct"] / whole, (data["noised"] - base) / whole, atol=0.02)


def maps_of(shape, *sets):
    """Sets of heads as maps [K, L, H]."""
    maps = np.zeros((len(sets), *shape), bool)
    for number, heads in enumerate(sets):
        for head in heads:
            maps[(number, *head)] = True
    return maps


def path_numbers(study, heads):
    found = numbers.paths({**measure.paths_between(study, heads), "heads": heads, "refused": ""}, SETTINGS)["paths"]
    return intervals(found["edges"]).value, intervals(found["direct"]).value


def test_the_paths_of_a_planted_model(tmp_path):
    study, truth = study_of_planted(tmp_path)
    roles = {role: head for head, role in truth.names.items()}
    members, order = list(roles.values()), list(roles)
    edges, direct = path_numbers(study, members)
    expected = {"duplicate token": 0, "copier": 0, "mover": 1}
    assert dict(zip(order, direct, strict=True)) == pytest.approx(expected, abs=0.02)
    # the mark is the same, the name under it is not: no edges; and none between heads of one layer
    assert_array_equal(np.isnan(edges), [[roles[a][0] >= roles[b][0] for b in order] for a in order])
    assert np.nanmax(np.abs(edges)) < 0.02
    study = study.replace(corruption="s2_rand")  # no second name, no mark
    data, row = measure.maps(study.replace(seed=1)), order.index("duplicate token")
    whole = (data["noised"][:, *roles["duplicate token"]] - data["base"]).mean() / (
        data["source"] - data["base"]
    ).mean()
    edges, direct = path_numbers(study, members)
    assert direct[row] == pytest.approx(0, abs=0.02) and whole > 0.9
    # copier and mover are all that listen; alone neither need hear all, together they hear it
    assert sum(edges[row, order.index(reader)] for reader in ("copier", "mover")) == pytest.approx(whole, abs=0.05)


# ------------------------------------------------------------------------------------------------ sets of heads


def test_circuits_equal_hooks_that_write_the_means(pair, tmp_path):
    everything, kept = [*np.ndindex(3, 4)], {"some": [(0, 1), (1, 0), (1, 3), (2, 2)], "none": []}
    circuit = measure.alone(study_of(pair, tmp_path, prompts=12), maps_of((3, 4), *kept.values(), everything))
    *alone, whole = circuit["alone"]
    assert_allclose(whole, circuit["whole"], atol=1e-5)
    drawn = ioi_prompts(pair[1], 12, 1, "abc", sorted(HELD_OUT_FRAMES), sorted(HELD_OUT_NAMES))
    tokens = [ioi_tokens(one, pair[1]) for one in drawn]
    for number, one in enumerate(tokens):
        alike = [t.source for t, p in zip(tokens, drawn, strict=True) if p.frame == drawn[number].frame]
        z = eager(pair, torch.tensor(alike)).z
        for heads, found in zip(kept.values(), alone, strict=True):
            gone = [(layer, head) for layer, head in everything if (layer, head) not in heads]
            writes = [everywhere(layer, head, z[layer][:, :, head].mean(0)) for layer, head in gone]
            logits = eager(pair, torch.tensor([one.base]), dict(ChainMap(*writes))).logits[0, -1]
            assert found[number] == pytest.approx(float(logits[one.answers[0]] - logits[one.answers[1]]), abs=1e-5)
    assert np.abs(alone[0] - whole).min() > 1e-3


@pytest.mark.slow
def test_heads_of_a_hybrid_are_places_among_the_layers_with_attention(tmp_path):
    """Its one layer with attention is the model's layer 1 and place 0 of every array."""
    model = architectures.prepared("qwen3_next", vocab_size=len(words()), max_position_embeddings=64)
    study = study_of((model, words()), tmp_path, prompts=8, name="given:hybrid", untrained_control=False)
    layers, heads = study.arrays("population")["trained"]["noised"].shape[1:]
    assert layers == 1 and heads > 1
    circuit = measure.alone(study, maps_of((1, heads), [*np.ndindex(1, heads)], []))
    whole, none = circuit["alone"]
    assert_array_equal(whole, circuit["whole"])
    assert np.abs(none - whole).max() > 1e-3
    paths = study.numbers("paths")["paths"]
    assert "no attention" in paths["refused"] and study.numbers("edges") == {"component graph": paths}


def test_sets_of_the_curve_by_hand():
    """The strongest, not those of the lowest layers; all others; and different ones with as many in each layer."""
    chosen = np.arange(12.0).reshape(3, 4) * [1, -1, 1, -1]
    names, sets = numbers.curve_sets(chosen, draws=3)
    heads = [np.argwhere(one).tolist() for one in sets]
    by_size = {size: [one for (_, other), one in zip(names, heads, strict=True) if other == size] for _, size in names}
    assert [*by_size] == [1, 2, 4, 8] and by_size[1][2:] == [[[2, 0]], [[2, 1]], [[2, 2]]]  # all that there are
    assert by_size[2][0] == [[2, 2], [2, 3]]
    for strongest, without, *random in by_size.values():
        assert sorted(strongest + without) == [[*head] for head in np.ndindex(3, 4)]
        assert len({str(one) for one in (strongest, *random)}) == 1 + len(random)
        assert all([layer for layer, _ in one] == [layer for layer, _ in strongest] for one in random)


def test_layer_alike_sets_take_other_heads_first():
    heads = [(0, 0), (0, 1), (0, 2), (1, 3)]
    found = layer_alike(heads, (2, 4), 50)
    assert len(found) == 9  # the only other of layer 0 with two of three of the set's, and one of the three others
    assert all((0, 3) in one and (1, 3) not in one and [layer for layer, _ in one] == [0, 0, 0, 1] for one in found)
    assert layer_alike(heads[:1] + [(0, h) for h in range(1, 4)], (2, 4), 50) == []  # a whole layer has no like
    assert [len(layer_alike([(0, 0)], (1, count), 5)) for count in (20, 21)] == [19, 5]  # all where there are few


# ------------------------------------------------------------------------------------------------ numbers


def drawn(effects, pairs=40):
    """A record of many pairs in which every head moves the logit difference by its share of 4 - (-4)."""
    rng = np.random.default_rng(0)
    base, source = rng.normal(4, 0.2, pairs), rng.normal(-4, 0.2, pairs)
    noised = base[:, None, None] - 8 * (effects + rng.normal(0, 0.1, (pairs, *effects.shape)))
    zeros = np.zeros_like(noised)
    data = {"base": base, "source": source, "noised": noised, "denoised": source[:, None, None] + zeros}
    return data | {"direct": zeros, "probability": np.full(pairs, 0.5), "clusters": np.arange(pairs)}


def many(data):
    return numbers.population({"trained": data, "untrained": data}, SETTINGS)


def curve(whole, alone, clusters):
    """The numbers of a circuit. alone: by kind and size, the logit differences [N]."""
    names = [[kind, size] for kind, size in alone]
    arrays = {"whole": whole, "alone": [*alone.values()], "names": names, "clusters": clusters}
    return numbers.circuit(arrays, SETTINGS)["circuit"]


def test_prompts_that_share_a_frame_and_names_count_as_one():
    """Eight copies of each of ten prompts say no more than the ten: the intervals are the same."""
    rng = np.random.default_rng(0)
    data = drawn(rng.normal(0, 0.1, (2, 3)), pairs=10)
    alone = data["base"] * rng.normal(1, 0.3, 10)

    def results(copies):
        again = {name: np.repeat(values, copies, axis=0) for name, values in data.items()}
        sets = {(kind, 1): np.repeat(alone, copies) for kind in ("strongest", "without")}
        found, of_sets = many(again), curve(again["base"], sets, again["clusters"])
        population = [found["population"][name] for name in ("intact", "corrupted", "accuracy")]
        heads = [found["untrained"]["heads"][end] for end in ("low", "high")]
        return [*population, *(of_sets[name]["1"] for name in ("without", "surplus", "faithfulness")), *heads]

    for once, copied in zip(results(1), results(8), strict=True):
        assert_allclose(once, copied)


def test_selectivity_by_hand():
    difference = np.zeros((2, 5, 4))
    difference[0] = np.array([1, 2, 3, 4, 6])[:, None] * [1, -1, 1, -1]
    difference[1, 4] = 1
    assert_allclose(numbers.selectivity(difference), [5 / 1.5, np.nan])


def test_the_population_chooses_on_one_half_and_measures_on_the_other():
    effects = np.zeros((3, 4))
    effects[1, 2], effects[2, 0], effects[0, 1] = 0.5, -0.3, 0.02
    data = drawn(effects)
    values = many(data)
    found = values["population"]
    assert list(heads_table(values).index[:2]) == ["L1H2", "L2H0"] and len(heads_table(values)) == 8
    share, noised = intervals(found["measured"])[1, 2], intervals(found["noised"])
    assert share.low < 0.5 < share.high and share.value != found["chosen"][1, 2] != noised.value[1, 2]
    assert found["accuracy"].value == 1
    assert found["corrupted"].value - found["intact"].value == pytest.approx(-8, abs=0.2)
    assert np.argwhere(numbers.carriers(noised)).tolist() == [[1, 2], [2, 0]]


def test_the_intervals_of_an_untrained_models_heads_hold_together():
    data = drawn(np.zeros((3, 4)))
    found = intervals(many(data)["untrained"]["heads"])
    expected = mean_intervals(data["noised"] - data["base"][:, None, None], comparisons=12)
    assert_allclose([found.low, found.high], [expected.low, expected.high], atol=1e-12)


def test_the_numbers_of_the_curve_by_hand():
    whole = np.random.default_rng(0).normal(8, 1, 60)
    shares = {("strongest", 1): 0.3, ("without", 1): 0.8, ("random", 1): 0, ("random", 2): 0.2}
    shares |= {("strongest", 2): 1.3, ("without", 2): 0.1}
    found = curve(whole, {name: whole * share for name, share in shares.items()}, np.arange(60))
    assert found["random"] == {"1": [0.0], "2": [pytest.approx(whole.mean() * 0.2)]} and found["pairs"] == 60
    assert [share.value for share in found["faithfulness"].values()] == pytest.approx([0.3, 1.3])
    assert found["surplus"]["2"].low > 0


def test_intervals_of_paths_hold_together_for_all_that_there_are():
    """L0H1 tells L2H2 by its key, and L1H1 by query and value, which cancel each other."""
    rng = np.random.default_rng(0)
    base, source, clusters = rng.normal(4, 0.1, 40), rng.normal(-4, 0.1, 40), np.arange(40)
    edges, direct = rng.normal(0, 0.01, (40, 3, 3, 4)), rng.normal(0, 0.01, (40, 3)) - [0, 0, 8]
    edges[:, :2, 2] -= [[0, 3.2, 0, 4], [2, 0, -1.9, 0]]
    edges[:, *np.tril_indices(3)] = np.nan
    data = {"base": base, "source": source, "edges": edges, "direct": direct, "clusters": clusters}
    found = numbers.paths(data | {"refused": "", "heads": [(0, 1), (1, 1), (2, 2)]}, SETTINGS)["paths"]
    between, key, output = (intervals(found[name]) for name in ("edges", "key", "direct"))
    assert np.isnan(between.low[2, 0]) and output.value[2] == pytest.approx(1, abs=0.02)
    alone, ours = numbers.normalised(base + edges[:, 0, 2, 3], base, source, clusters), between[0, 2]
    assert (key.value[0, 2], ours.value) == pytest.approx((0.4, float(alone.value)), abs=0.01)
    wider = (ours.high - ours.low) / float(alone.high - alone.low)
    ratio = scipy.stats.t.ppf(1 - 0.025 / 15, 39) / scipy.stats.t.ppf(0.975, 39)  # 3 edges by 4 channels, 3 direct
    assert wider == pytest.approx(ratio, rel=0.05)


# ------------------------------------------------------------------------------------------------ records


def test_records_know_what_they_depend_on(pair, tmp_path):
    """What is kept needs no model again; each set of heads has a record of its own, whatever the example."""
    study = study_of(pair, tmp_path, prompts=8, corruption="abc")
    never = unloaded(study)
    sets, members = maps_of((3, 4), [(0, 1), (2, 3)], []), [[(0, 1), (2, 3)], [(0, 1), (2, 2)], [(0, 2), (2, 3)]]
    texts = [text.replace("cafe", "school") for text in EXAMPLE]
    kept = measure.alone(study, sets)["alone"]
    assert_array_equal(measure.alone(never.replace(texts=texts), sets)["alone"], kept)
    paths = [measure.paths_between(study, heads)["edges"] for heads in members]
    for heads, edges in zip(members, paths, strict=True):
        assert_array_equal(measure.paths_between(never, heads)["edges"], edges)
    with pytest.raises(AssertionError, match="must not load"):
        measure.alone(never.replace(corruption="s2_rand"), sets[:1])


@pytest.mark.parametrize("name", ["embedded", "embedded/generalist"])
def test_every_name_of_the_embedded_model_keeps_to_its_hold_out(name):
    for known in (name, origin(name)):
        assert measure.name_pairs(Study("ioi_patching", known)).holds_out
    assert not measure.name_pairs(Study("ioi_patching", "gpt2")).holds_out


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "message, part, options",
    [
        ("shown_layer = 3: the model has 3 layers, 0 to 2", "p1", {"shown_layer": 3}),
        ("names and texts: .*'Mike' twice, not 1 times", "p1", {"texts": (BASE, BASE.replace(", Emma", ", Anna"))}),
        ("prompts = .*different pairs at most", "population", {"prompts": 10**9}),
    ],
)
def test_what_does_not_fit_a_model_or_the_lists_of_words_is_refused(message, part, options, measured):
    with pytest.raises(ValueError, match=f"^{message}"):
        measured[0].replace(**options).numbers(part)


@pytest.mark.parametrize("part", ["population", "p1"])
def test_a_tokenizer_that_splits_names_is_refused_before_a_forward_pass(pair, part, tmp_path):
    splits = toys.by_pattern(".", map(chr, range(32, 127)))
    with no_pass(), pytest.raises(ValueError, match="names"):
        study_of((pair[0], splits), tmp_path, prompts=8).arrays(part)
