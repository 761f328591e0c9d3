"""IOI patching against the naive loop of hooks on the class's output projection, and against planted circuits."""

import copy
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from tests import architectures, eager_runs
from tests.scores import slow_paths
from util.engine.attention import instrument
from util.engine.handshake import prepare
from util.engine.instruments import PatchHeads
from util.figures.ioi_patching import measure, numbers, patching, pictures
from util.figures.ioi_patching.numbers import intervals
from util.figures.ioi_patching.show import EXAMPLE, Settings, heads_table
from util.figures.planted_controls import name_tokens, planted_control
from util.load_model_and_data import load_ICL_model, origin
from util.models import planted
from util.models.embedded_words import HELD_OUT_FRAMES, HELD_OUT_NAMES
from util.prompts.ioi import CORRUPTIONS, IOITokens, group_by_shape, ioi_prompts, ioi_tokens
from util.show import files
from util.stats import heads as controls
from util.stats.intervals import mean_interval
from util.study.model import Model
from util.study.study import Study

FAMILIES = ("gpt2", "llama")
SETTINGS = Settings()


def words():
    """A tokenizer that keeps the names whole."""
    return load_ICL_model("embedded", device="cpu", verbose=False)[1]


def toy(family):
    return architectures.build(family, torch.float64, vocab_size=len(words()), max_position_embeddings=64)


def naive(model, ids, change, answers):
    """The seed's loop: a pre-hook on one output projection, one forward pass for every head; [L, H] and the base's."""
    modules, heads = eager_runs.attention_modules(model), model.config.num_attention_heads
    scores = np.empty((len(modules), heads))
    with torch.no_grad():
        for layer, module in modules.items():
            for head in range(heads):

                def hook(_, arguments, layer=layer, head=head):
                    z = arguments[0].clone()
                    width = z.shape[-1] // heads
                    part = slice(head * width, (head + 1) * width)
                    z[..., part] = change(layer, head, z[..., part])
                    return (z, *arguments[1:])

                handle = eager_runs.output_projection(module).register_forward_pre_hook(hook)
                logits = model(ids).logits[0, -1]
                handle.remove()
                scores[layer, head] = logits[answers[0]] - logits[answers[1]]
        logits = model(ids).logits[0, -1]
    return scores, float(logits[answers[0]] - logits[answers[1]])


def projections_in(model, ids):
    """What goes into every output projection."""
    z, handles = {}, []
    for layer, module in eager_runs.attention_modules(model).items():
        handles.append(
            eager_runs.output_projection(module).register_forward_pre_hook(
                lambda _, a, layer=layer: z.update({layer: a[0]})
            )
        )
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    return z


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    return load_ICL_model((toy(request.param), words()), verbose=False)


def study_of(pair, folder, **options):
    """A study of a given model that has the embedded model's tokenizer, and prompts for it."""
    model, tokenizer = pair
    given = Model.given(model, tokenizer, options.pop("name", "given:toy"))
    return Study("ioi_patching", given, held_out=True, folder=folder, **options)


def refused(_):
    pytest.fail("a model was loaded")


@pytest.fixture(scope="module")
def measured(pair, tmp_path_factory):
    study = study_of(pair, tmp_path_factory.mktemp("material"))
    return study, study.arrays("p1")


@pytest.mark.parametrize(("implementation", "bound"), [("sdpa", 1e-12), ("eager", 1e-5)])
def test_every_part_of_the_seed_equals_its_naive_loop(pair, measured, implementation, bound):
    """With the class's own attention; in float64 too, Llama's eager softmax is in float32."""
    study, data = measured
    model = copy.deepcopy(pair[0])
    model.set_attn_implementation(implementation)
    base, source = (torch.tensor([pair[1](text).input_ids]) for text in study.settings.texts)
    z, heads = projections_in(model, source), model.config.num_attention_heads
    width = z[0].shape[-1] // heads

    def patched(layer, head, own):
        return z[layer][..., head * width : (head + 1) * width]

    scores, plain = naive(model, base, patched, data["answers"])
    np.testing.assert_allclose(data["patched"], scores, atol=bound)
    np.testing.assert_allclose(data["scores"][0], plain, atol=1e-5)  # from float32 logits
    norms = np.empty_like(scores)

    def shuffled(layer, head, own):
        order = np.random.default_rng((study.settings.seed, layer, head)).permutation(own.numel())
        mixed = own.flatten()[torch.from_numpy(order)]
        assert not torch.equal(mixed, own.flatten()) and torch.equal(mixed.sort()[0], own.flatten().sort()[0])
        norms[layer, head] = mixed.norm()
        return mixed.view(own.shape)

    scores, _ = naive(model, base, shuffled, data["answers"])
    np.testing.assert_allclose(data["permuted"], scores, atol=bound)
    np.testing.assert_allclose(data["norms"], norms, rtol=1e-5)
    stored = np.stack([part[0].view(-1, heads, width).numpy() for part in z.values()])
    np.testing.assert_allclose(data["z"], stored, rtol=1e-5, atol=max(bound, 1e-6))  # z is kept in float32
    assert np.abs(data["patched"] - plain).max() > 1e-3


def test_the_example_is_the_seeds(pair, measured):
    study, data = measured
    base, source = (np.array(pair[1](text).input_ids) for text in study.settings.texts)
    assert study.request["texts"][0].endswith("Emma gave a coffee to") and len(base) == len(source)
    assert source.tolist() == data["source"].tolist() and np.flatnonzero(base != source).tolist() == [data["first"]]
    mike, emma = data["answers"]
    assert source[data["first"]] == mike and base[data["first"]] == emma
    assert (source == mike).sum() == 2
    gap = data["log_softmax"][:, mike] - data["log_softmax"][:, emma]
    np.testing.assert_allclose(data["scores"], gap, atol=1e-5)
    assert [pair[1].decode([int(row.argmax())]) for row in data["log_softmax"]] == [words[0] for words in data["words"]]


def test_patching_the_run_itself_changes_nothing(pair):
    base = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    z, answers = patching.heads_of(pair[0], base), torch.tensor([[5, 6], [7, 8]])
    scores, plain = patching.patch_map(pair[0], base, z, answers, 4)
    assert np.abs(scores - plain[:, None, None]).max() <= 1e-12


def test_attribution_is_exact_to_first_order(pair):
    model, answers = pair[0], torch.tensor([[5, 6]])
    base = torch.randint(3, 200, (1, 12), generator=torch.Generator().manual_seed(0))
    z = patching.heads_of(model, base)
    noise = {
        layer: torch.randn(part.shape, generator=torch.Generator().manual_seed(layer)) for layer, part in z.items()
    }
    errors = []
    for scale in (1e-3, 1e-2, 1e-1):
        moved = {layer: part + scale * noise[layer] for layer, part in z.items()}
        estimate = patching.attribution(model, base, z, moved, answers)[0]
        exact = patching.patch_map(model, base, moved, answers)
        change = exact[0][0] - exact[1]
        errors.append(np.abs(change - estimate).max() / np.abs(change).max())
    assert errors[0] < 1e-2 and errors[0] < errors[1] < errors[2], errors
    assert all(parameter.grad is None for parameter in model.parameters())


# ------------------------------------------------------------------------------------------------ planted circuits


def planted_data(folder, **options):
    """The maps of 16 pairs, put to planted heads, and the truth about them."""
    model, truth = planted_control(planted.ioi, options, name_tokens)
    study = Study("ioi_patching", model, prompts=16, held_out=True, untrained_control=False, folder=folder)
    data = study.arrays("population")["trained"]
    return data, truth


@pytest.mark.parametrize("options", [{}, {"family": "llama"}, {"backup": True}, {"copies": 2}], ids=str)
def test_a_planted_circuit_is_found_exactly(options, tmp_path):
    data, truth = planted_data(tmp_path, **options)
    for name, base, source in (("noised", "base", "source"), ("denoised", "source", "base")):
        found = numbers.normalised(data[name], data[base], data[source], data["clusters"]).value
        expected = np.zeros_like(found)
        for head, (value, _) in truth.expected["s2_swap_effect"].items():
            expected[head] = value
        np.testing.assert_allclose(found, expected, atol=0.02)
        assert (expected > 0.4).sum() == options.get("copies", 1)
    assert (data["base"] > 5).all() and (data["source"] < -5).all()
    # of the noised map, only what movers say goes to the output directly, and for them it is all of it
    base, whole = data["base"][:, None, None], (data["source"] - data["base"])[:, None, None]
    np.testing.assert_allclose(data["direct"] / whole, (data["noised"] - base) / whole, atol=0.02)


def test_the_backup_stands_in_for_a_mover_that_is_gone_and_not_for_one_that_is_patched(tmp_path):
    """Why the map does not name the backup: it acts where the mover is silent, not where it says something else."""
    data, truth = planted_data(tmp_path, backup=True)
    names = [head for head, role in truth.names.items() if role == "mover"]
    mover, backup = sorted(names)
    model, tokenizer = load_ICL_model((truth.model, words()), verbose=False)
    drawn = ioi_prompts(tokenizer, 8, names=sorted(HELD_OUT_NAMES), frames=sorted(HELD_OUT_FRAMES)).pairs
    for pair in drawn:
        tokens = ioi_tokens(pair, tokenizer)

        def difference(*silent, tokens=tokens):
            with torch.no_grad(), instrument(model, *(PatchHeads(layer, head, 0.0) for layer, head in silent)):
                logits = model(torch.tensor([tokens.base])).logits[0, -1]
            return float(logits[tokens.answers[0]] - logits[tokens.answers[1]])

        whole = difference()
        assert difference(mover) > 0.9 * whole and difference(backup) > 0.9 * whole
        assert abs(difference(mover, backup)) < 0.1 * whole
    effect = numbers.normalised(*(data[n] for n in ("noised", "base", "source", "clusters"))).value
    assert effect[mover] == pytest.approx(1, abs=0.02) and effect[backup] == pytest.approx(0, abs=0.02)


# ------------------------------------------------------------------------------------------------ circuits


@torch.no_grad()
def with_heads(model, ids, change, record=None):
    """The last logits where change(layer, z [N, T, H, dv]) replaces what goes into each output projection."""
    heads, handles = model.config.num_attention_heads, []
    for layer, module in eager_runs.attention_modules(model).items():

        def hook(_, arguments, layer=layer):
            z = arguments[0].unflatten(-1, (heads, -1)).clone()
            if record is not None:
                record[layer] = z.clone()
            return (change(layer, z).flatten(-2), *arguments[1:])

        handles.append(eager_runs.output_projection(module).register_forward_pre_hook(hook))
    logits = model(ids).logits[:, -1]
    for handle in handles:
        handle.remove()
    return logits


def maps_of(shape, *sets):
    """Sets of heads as maps [K, L, H]."""
    found = np.zeros((len(sets), *shape), bool)
    for number, heads in enumerate(sets):
        for head in heads:
            found[(number, *head)] = True
    return found


def test_circuits_equal_hooks_that_write_the_means(pair, tmp_path):
    study = study_of(pair, tmp_path, prompts=12)
    kept = [(0, 1), (1, 0), (1, 3), (2, 2)]
    everything = [(layer, head) for layer in range(3) for head in range(4)]
    circuit = measure.alone(study, maps_of((3, 4), kept, everything, []))
    found = {"whole": circuit["whole"], **dict(zip(("some", "all", "none"), circuit["alone"], strict=True))}
    np.testing.assert_allclose(found["all"], found["whole"], atol=1e-5)
    drawn = ioi_prompts(pair[1], 12, 1, "abc", sorted(HELD_OUT_FRAMES), sorted(HELD_OUT_NAMES)).pairs
    tokens = [ioi_tokens(each, pair[1]) for each in drawn]
    for number, each in enumerate(tokens):
        alike = [t.source for t, p in zip(tokens, drawn, strict=True) if p.frame == drawn[number].frame]
        z = projections_in(pair[0], torch.tensor(alike))
        means = {layer: part.unflatten(-1, (4, -1)).mean(0, keepdim=True) for layer, part in z.items()}
        for name, heads in (("some", kept), ("none", []), ("whole", everything)):

            def ablate(layer, z, heads=heads, means=means):
                gone = [head for head in range(4) if (layer, head) not in heads]
                z[:, :, gone] = means[layer][:, :, gone]
                return z

            logits = with_heads(pair[0], torch.tensor([each.base]), ablate)[0]
            expected = float(logits[each.answers[0]] - logits[each.answers[1]])
            assert found[name][number] == pytest.approx(expected, abs=1e-5)
    assert np.abs(found["some"] - found["whole"]).min() > 1e-3


@pytest.mark.parametrize("heads", [[(0, 4)], [(3, 0)], [(0, 1), (0, 1)], []], ids=str)
def test_paths_of_heads_that_there_are_not_are_refused(pair, heads, tmp_path):
    with pytest.raises(ValueError, match="no head|none twice"):
        measure.paths_between(study_of(pair, tmp_path, prompts=8), heads)


@pytest.mark.slow
def test_heads_of_a_hybrid_are_places_among_the_layers_with_attention(tmp_path):
    """Its one layer with attention is the model's layer 1 and place 0 of every array."""
    model = architectures.build("qwen3_next", vocab_size=len(words()), max_position_embeddings=64)
    pair = load_ICL_model((model, words()), verbose=False)
    study = study_of(pair, tmp_path, prompts=8, name="given:hybrid", untrained_control=False)
    data = study.arrays("population")["trained"]
    heads = data["noised"].shape[2]
    assert data["noised"].shape[1:] == (1, heads) and heads > 1
    everything = [(0, head) for head in range(heads)]
    circuit = measure.alone(study, maps_of((1, heads), everything, [(0, 1)], []))
    every, one, none = circuit["alone"]
    np.testing.assert_array_equal(every, circuit["whole"])
    assert np.abs(one - circuit["whole"]).max() > 1e-3 and np.abs(one - none).max() > 1e-6
    values = study.numbers("population") | study.numbers("paths") | study.numbers("edges")
    assert "no attention" in values["paths"]["refused"] and [*values["paths"]] == ["refused"]
    assert values["component graph"] == values["paths"]
    for part in ("paths", "diagram", "edge_circuits"):
        assert study.figure.parts[part].panels(values) is None


def test_paths_of_a_study_equal_whole_forward_passes(pair, tmp_path):
    study = study_of(pair, tmp_path, prompts=8)
    members = [(0, 1), (1, 2), (2, 0), (2, 3)]
    data = measure.paths_between(study, members)
    assert data["edges"].shape == (8, 4, 4, 4)
    fresh = measure.name_pairs(study, seed=1)
    for some in group_by_shape(fresh.tokens).values():
        base, source, answers = fresh.batch(some)
        with torch.no_grad():
            for row, sender in enumerate(members):
                for column, receiver in enumerate(members):
                    later = [receiver] if receiver[0] > sender[0] else []
                    direct, edge = slow_paths.together(pair[0], base, source, answers, sender, later)
                    np.testing.assert_allclose(data["direct"][some, row], direct, atol=1e-5)
                    found = data["edges"][some, row, column, -1]
                    if later:
                        np.testing.assert_allclose(found, edge, atol=1e-5)
                    else:
                        assert np.isnan(found).all()


def path_numbers(data, heads):
    found = numbers.paths({**data, "heads": heads, "refused": ""}, SETTINGS)["paths"]
    return intervals(found["edges"]), intervals(found["direct"])


def test_the_edges_and_the_circuit_of_a_planted_model(tmp_path):
    truth = planted_control(planted.ioi, {}, name_tokens)[1]
    model = load_ICL_model((truth.model, words()), verbose=False)
    study = study_of(model, tmp_path, prompts=16, name="given:planted", untrained_control=False)
    roles = {role: head for head, role in truth.names.items()}
    members, order = list(roles.values()), list(roles)
    shape = study.arrays("population")["trained"]["noised"].shape[1:]
    circuit = measure.alone(study, maps_of(shape, members, truth.decoys))
    (alone, decoys), whole = circuit["alone"], circuit["whole"].mean()
    assert alone.mean() == pytest.approx(whole, rel=0.02) and abs(decoys.mean()) < 0.1 * whole
    edges, direct = path_numbers(measure.paths_between(study, members), members)
    told = dict(zip(order, direct.value, strict=True))
    assert told == pytest.approx({"duplicate token": 0, "copier": 0, "mover": 1}, abs=0.02)
    # the mark is the same, the name under it is not: no edges; and none between heads of one layer
    none = [[order.index(a), order.index(b)] for a in order for b in order if roles[a][0] >= roles[b][0]]
    assert np.argwhere(np.isnan(edges.value)).tolist() == sorted(none)
    assert np.nanmax(np.abs(edges.value)) < 0.02
    study = study.replace(corruption="s2_rand")  # no second name, no mark
    record = measure.paths_between(study, members)
    data = measure.maps(study.replace(seed=1))
    total = (record["source"] - record["base"]).mean()
    whole = (data["noised"][:, *roles["duplicate token"]] - data["base"]).mean() / total
    edges, direct = path_numbers(record, members)
    row = order.index("duplicate token")
    assert direct.value[row] == pytest.approx(0, abs=0.02) and whole > 0.9
    # copier and mover are all that listen; alone neither need hear all, together they hear it
    told = {b: edges.value[row, order.index(b)] for b in ("copier", "mover")}
    assert sum(told.values()) == pytest.approx(whole, abs=0.05), told


# ------------------------------------------------------------------------------------------------ measures


def test_a_normalised_effect_is_0_for_the_base_and_1_for_the_source():
    rng = np.random.default_rng(0)
    base, source, clusters = rng.normal(3, 1, 40), rng.normal(-3, 1, 40), np.repeat(np.arange(20), 2)
    patched = np.stack([base, source, (base + source) / 2], axis=1)[:, None]
    found = numbers.normalised(patched, base, source, clusters)
    np.testing.assert_allclose(found.value, [[0, 1, 0.5]], atol=1e-12)
    np.testing.assert_allclose(found.high - found.low, 0, atol=1e-9)
    swapped = numbers.normalised(-patched, -base, -source, clusters)
    np.testing.assert_allclose(swapped.value, found.value)
    one = numbers.normalised(patched[:, 0, 2], base, source, clusters)
    assert one.value == pytest.approx(0.5)
    with pytest.raises(ValueError, match="two sampled units, got 1"):
        numbers.normalised(patched, base, source, np.zeros(40, int))


def test_intervals_cover_at_their_level_and_know_clusters():
    """Prompts of one cluster say the same here: 10 clusters of 8 are worth 10 prompts, not 80."""
    rng, covered, widths = np.random.default_rng(0), [], []
    for _ in range(200):
        change = np.repeat(rng.normal(0.3, 0.3, 10), 8)
        base, source, clusters = np.zeros(80), np.ones(80), np.repeat(np.arange(10), 8)
        found = numbers.normalised(change, base, source, clusters)
        covered.append(found.low < 0.3 < found.high)
        widths.append(float(found.high - found.low))
    assert 0.9 <= np.mean(covered) <= 0.98
    assert np.mean(widths) == pytest.approx(2 * scipy.stats.t.ppf(0.975, 9) * 0.3 / math.sqrt(10), rel=0.1)


def curve(whole, alone, clusters):
    """The numbers of a circuit. alone: by kind and size, the logit differences [N]."""
    names = [[kind, size] for kind, size in alone]
    arrays = {"whole": whole, "alone": [*alone.values()], "names": names, "clusters": clusters}
    return numbers.circuit(arrays, SETTINGS)["circuit"]


def many(data):
    return numbers.population({"trained": data, "untrained": data}, SETTINGS)


def test_prompts_that_share_a_frame_and_names_count_as_one():
    """Eight copies of each of ten prompts say no more than the ten: the intervals are the same."""
    rng = np.random.default_rng(0)
    data = drawn(rng.normal(0, 0.1, (2, 3)), pairs=10) | {"probability": rng.random(10)}
    alone = data["base"] * rng.normal(1, 0.3, 10)

    def results(copies):
        again = {name: np.repeat(values, copies, axis=0) for name, values in data.items()}
        sets = {(kind, 1): np.repeat(alone, copies) for kind in ("strongest", "without")}
        return again, many(again), curve(again["base"], sets, again["clusters"])

    (once, one, one_curve), (copied, found, found_curve) = results(1), results(8)
    for name in ("intact", "corrupted", "accuracy"):
        assert found["population"][name] == pytest.approx(one["population"][name]), name
    for name, number in numbers.published(once).items():
        assert numbers.published(copied)[name] == pytest.approx(number), name
    for end in ("low", "high"):
        np.testing.assert_allclose(found["untrained"]["heads"][end], one["untrained"]["heads"][end])
    assert found_curve["whole"] == pytest.approx(mean_interval(data["base"]))
    for name in ("without", "surplus", "faithfulness"):
        assert found_curve[name]["1"] == pytest.approx(one_curve[name]["1"]), name
    assert found_curve["surplus"]["1"] == pytest.approx(mean_interval(alone - data["base"]))


def test_selectivity_by_hand():
    difference = np.zeros((2, 5, 4))
    difference[0] = np.array([1, 2, 3, 4, 6])[:, None] * [1, -1, 1, -1]
    difference[1, 4] = 1
    ratio = numbers.selectivity(difference)
    assert ratio[0] == pytest.approx(5 / 1.5) and np.isnan(ratio[1])
    with pytest.raises(ValueError, match="at least 4"):
        numbers.selectivity(difference[:, :3])


def drawn(effects, pairs=40, noise=0.1):
    """A record of many pairs in which every head moves the logit difference by its share of 4 - (-4)."""
    rng = np.random.default_rng(0)
    base, source = rng.normal(4, 0.2, pairs), rng.normal(-4, 0.2, pairs)
    noised = base[:, None, None] - 8 * (effects + rng.normal(0, noise, (pairs, *effects.shape)))
    zeros = np.zeros_like(noised)
    data = {"base": base, "source": source, "noised": noised, "denoised": source[:, None, None] + zeros}
    data |= {"attribution": noised - base[:, None, None], "direct": zeros, "probability": np.full(pairs, 0.5)}
    return data | {"clusters": np.arange(pairs)}


def test_the_population_chooses_on_one_half_and_measures_on_the_other():
    effects = np.zeros((3, 4))
    effects[1, 2], effects[2, 0], effects[0, 1] = 0.5, -0.3, 0.02
    data = drawn(effects)
    values = many(data)
    found = values["population"]
    np.testing.assert_array_equal(numbers.chosen_on_a_half(data, SETTINGS), found["chosen"])
    assert list(heads_table(values, 2).index) == ["L1H2", "L2H0"] and len(heads_table(values, 99)) == 12
    share, noised = intervals(found["measured"])[1, 2], intervals(found["noised"])
    assert share.low < 0.5 < share.high and share.value != found["chosen"][1, 2] != noised.value[1, 2]
    assert found["accuracy"].value == 1 and found["corrupted"].value - found["intact"].value == pytest.approx(
        -8, abs=0.2
    )
    assert np.argwhere(numbers.carriers(noised)).tolist() == [[1, 2], [2, 0]]
    np.testing.assert_allclose(found["estimate"], noised.value)
    assert found["agreement"]["spearman"] == pytest.approx(1)


def test_an_untrained_model_carries_nothing_beyond_chance_and_a_trained_one_does():
    def beyond(data):
        heads = intervals(numbers.untrained(data)["heads"])
        return int(((heads.low > 0) | (heads.high < 0)).sum())

    quiet, rng, wrong = drawn(np.zeros((3, 4)), pairs=16), np.random.default_rng(1), 0
    quiet["base"] = np.resize([1.0, -1.0], 16)
    for _ in range(200):
        quiet["noised"] = quiet["base"][:, None, None] + rng.normal(0, 1, (16, 3, 4))
        wrong += beyond(quiet) > 0
    assert wrong / 200 <= 0.09
    loud = np.zeros((3, 4))
    loud[2, 3] = 0.5
    assert beyond(drawn(loud)) == 1


def test_sets_of_the_curve_by_hand():
    chosen = np.arange(12.0).reshape(3, 4) * [1, -1, 1, -1]
    names, sets = numbers.curve_sets(chosen, draws=3)
    by_name = [((kind, size), np.argwhere(one).tolist()) for (kind, size), one in zip(names, sets, strict=True)]
    first = {name: heads for name, heads in reversed(by_name)}
    random = [(size, heads) for (kind, size), heads in by_name if kind == "random"]
    assert len({str(one) for one in random}) == len(random)  # each set once
    assert [heads for size, heads in random if size == 1] == [[[2, 0]], [[2, 1]], [[2, 2]]]  # all that there are
    assert sorted({size for _, size in first}) == [1, 2, 4, 8]
    assert sorted({size for _, size in numbers.curve_sets(chosen[:2], 1)[0]}) == [1, 2, 4]
    assert first["strongest", 2] == [[2, 2], [2, 3]]  # the strongest, not those of the lowest layers
    assert sorted(first["strongest", 4] + first["without", 4]) == [[a, b] for a in range(3) for b in range(4)]
    for (kind, size), heads in by_name:
        assert len(heads) == (12 - size if kind == "without" else size)
        if kind == "random":
            strongest = first["strongest", size]
            assert [layer for layer, _ in heads] == [layer for layer, _ in strongest] and heads != strongest


def test_layer_alike_sets_take_other_heads_first():
    heads = [(0, 0), (0, 1), (0, 2), (1, 3)]
    found = controls.layer_alike(heads, (2, 4), 50)
    assert len(found) == 9  # the only other of layer 0 with two of three of the set's, and one of the three others
    for one in found:
        assert (0, 3) in one and (1, 3) not in one and [layer for layer, _ in one] == [0, 0, 0, 1]
    assert controls.layer_alike([(0, h) for h in range(4)], (2, 4), 50) == []  # a whole layer has no like
    assert controls.layer_alike(heads, (2, 4), 3) == found  # all of them where there are fewer than 20
    many = [controls.layer_alike(heads, (2, 9), 5, seed=1) for _ in range(2)]
    assert many[0] == many[1] and len(many[0]) == 5
    assert (
        len(controls.layer_alike([(0, 0)], (1, 20), 5)) == 19 and len(controls.layer_alike([(0, 0)], (1, 21), 5)) == 5
    )


def test_the_numbers_of_the_curve_by_hand():
    whole = np.random.default_rng(0).normal(8, 1, 60)
    shares = {
        ("strongest", 1): 0.3, ("without", 1): 0.8, ("random", 1): 0,
        ("strongest", 2): 0.95, ("without", 2): 0.1, ("random", 2): 0.2,
    }  # fmt: skip

    def found(of_two):
        sets = shares | {("strongest", 2): of_two}
        return curve(whole, {name: whole * share for name, share in sets.items()}, np.arange(60))

    one = found(0.95)
    assert one["random"] == {"1": [0.0], "2": [pytest.approx(whole.mean() * 0.2)]} and one["pairs"] == 60
    assert [share.value for share in one["faithfulness"].values()] == pytest.approx([0.3, 0.95])
    assert found(1.3)["surplus"]["2"].low > 0


def test_faithfulness_is_a_ratio_of_means_whose_intervals_know_clusters():
    rng = np.random.default_rng(0)
    whole, clusters = np.repeat(rng.normal(8, 2, 20), 3), np.repeat(np.arange(20), 3)
    alone = {"1": 0.25 * whole, "4": whole + np.repeat(rng.normal(0, 1, 20), 3)}

    def found(kinds):
        sets = {(kind, int(size)): one for size, one in alone.items() for kind in ("strongest", "without")}
        return curve(whole, sets, kinds)["faithfulness"]

    together, apart = found(clusters), found(np.arange(60))
    assert together["1"] == pytest.approx((0.25, 0.25, 0.25)) and together["4"].low < 1 < together["4"].high
    assert apart["4"].high - apart["4"].low < together["4"].high - together["4"].low


def path_data():
    """A record in which L0H1 tells L2H2 by its key, and L1H1 by query and value, which cancel each other."""
    rng = np.random.default_rng(0)
    base, source = rng.normal(4, 0.1, 40), rng.normal(-4, 0.1, 40)
    edges, direct = rng.normal(0, 0.01, (40, 3, 3, 4)), rng.normal(0, 0.01, (40, 3))
    edges[:, 0, 2, 1] -= 3.2
    edges[:, 0, 2, 3] -= 4
    edges[:, 1, 2, 0] -= 2
    edges[:, 1, 2, 2] += 1.9
    edges[:, np.tril_indices(3)[0], np.tril_indices(3)[1]] = np.nan
    direct[:, 2] -= 8
    data = {"base": base, "source": source, "edges": edges, "direct": direct}
    return data | {"clusters": np.arange(40), "refused": "", "heads": [(0, 1), (1, 1), (2, 2)]}


def test_intervals_of_paths_hold_together_for_all_that_there_are():
    data = path_data()
    found, edges = numbers.paths(data, SETTINGS)["paths"], data["edges"][:, 0, 2, 3]
    shares = {name: intervals(found[name]) for name in ("edges", "key", "direct")}
    assert shares["edges"].value[0, 2] == pytest.approx(0.5, abs=0.01) and np.isnan(shares["edges"].low[2, 0])
    assert shares["key"].value[0, 2] == pytest.approx(0.4, abs=0.01)
    assert shares["direct"].value[2] == pytest.approx(1, abs=0.02)
    alone = numbers.normalised(data["base"] + edges, data["base"], data["source"], data["clusters"])
    ours = shares["edges"][0, 2]
    assert ours.value == pytest.approx(float(alone.value))
    wider = (ours.high - ours.low) / float(alone.high - alone.low)
    ratio = scipy.stats.t.ppf(1 - 0.025 / 15, 39) / scipy.stats.t.ppf(0.975, 39)  # 3 edges by 4 channels, 3 direct
    assert wider == pytest.approx(ratio, rel=0.05)


def test_published_numbers_are_filled_from_their_own_pair():
    ids = [row["id"] for row in files.published("ioi_patching")["values"]]
    patched = np.zeros((12, 12))
    patched[8, 10] = 1.0
    values = numbers.tutorial_values({"scores": np.array([-1.0, 3.0]), "patched": patched - 1}, ids)
    at = {name: value for name, (value, _) in values.items()}
    assert [at[f"nnsight_{name}"] for name in ("base", "source", "8.10", "6.0", "sum")] == [-3, 1, 0.25, 0, 0.25]
    assert set(values) == {name for name in ids if name.startswith("nnsight")}
    wang = numbers.published(drawn(np.zeros((2, 4))))
    assert set(wang) <= set(ids) and wang["accuracy"][0] == 1
    assert pictures.published_roles("gpt2")[9, 9] == "name mover" and pictures.published_roles("embedded") == {}


def test_agreement_by_hand():
    exact = np.array([[0.4, -0.3, 0.2], [0.1, 0.05, 0.0]])
    data = drawn(exact, noise=0.0)
    same, other = many(data)["population"]["agreement"], exact.copy()
    assert same["spearman"] == pytest.approx(1) and same["signs"] == 1
    other[0, 1] = 0.01  # a strong head has next to no estimate, of the other sign
    data["attribution"] = np.broadcast_to(-8 * other, data["noised"].shape)
    found = many(data)["population"]["agreement"]
    assert found["signs"] == 0.8 and found["spearman"] < 1


# ------------------------------------------------------------------------------------------------ records


def test_records_are_cached_and_know_what_they_depend_on(tmp_path):
    folder = tmp_path / "tiny"
    toy("gpt2").float().save_pretrained(folder)
    words().save_pretrained(folder)
    study = Study("ioi_patching", Model(str(folder), verbose=False), corruption="abc", prompts=12, folder=tmp_path)
    first = study.arrays("population"), study.arrays("p1")
    never = study.replace(model=Model(str(folder), loader=lambda: refused(0)))
    again = never.arrays("population"), never.replace(prompts=99).arrays("p1")
    for one, two in ((first[0]["trained"], again[0]["trained"]), (first[1], again[1])):
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name])
    data, twin = first[0]["trained"], first[0]["untrained"]
    assert data["noised"].shape == (len(data["base"]), 3, 4) and data["clusters"].max() > 5
    with pytest.raises(pytest.fail.Exception, match="a model was loaded"):
        never.replace(corruption="s2_rand").arrays("population")
    sets = maps_of((3, 4), [(0, 1), (2, 3)], [])
    kept = measure.alone(study, sets)
    texts = [text.replace("cafe", "school") for text in EXAMPLE]
    np.testing.assert_array_equal(measure.alone(never.replace(texts=texts), sets)["alone"], kept["alone"])
    roads = [[(0, 1), (2, 3)], [(0, 1), (1, 1), (2, 3)], [(0, 1), (2, 2)], [(0, 2), (2, 3)]]
    found = [measure.paths_between(study, road) for road in roads]
    for road, data in zip(roads, found, strict=True):  # each in a record of its own
        np.testing.assert_array_equal(measure.paths_between(never, road)["edges"], data["edges"])
    assert len({data["edges"].tobytes() for data in found}) == len(roads)
    assert len(twin["base"]) == 12 and not np.array_equal(twin["base"], first[0]["trained"]["base"])
    assert study.replace(untrained_control=False).numbers("population")["untrained"] is None
    assert not [*(tmp_path / "blocks").rglob("*.pickle")]


def test_all_parts_together_say_and_store_what_they_are(pair, tmp_path):
    options = {"prompts": 12, "path_heads": 3, "shown_layer": 1, "edge_pairs": 6, "exact_edges": 40, "random_sets": 1}
    study = study_of(pair, tmp_path, **options)
    stored = study.values
    assert list(stored) == [
        "request", "model", "scores", "permuted", "patched", "selectivity", "example", "population", "untrained",
        "circuit", "paths", "component graph",
    ]  # fmt: skip
    assert list(stored["population"]) == [
        "intact", "corrupted", "accuracy", "pairs", "noised", "denoised", "estimate", "direct",
        "agreement", "chosen", "measured",
    ]  # fmt: skip
    assert list(stored["untrained"]) == ["heads"]
    assert list(stored["circuit"]) == ["whole", "without", "surplus", "random", "faithfulness", "pairs"]
    assert {*stored["paths"]} == {"heads", "edges", "query", "key", "value", "direct", "pairs"}
    assert list(stored["component graph"])[:6] == ["strongest", "drawn", "matter", "found", "agreement", "curves"]
    assert len(stored["component graph"]["strongest"]) == 10 and len(stored["paths"]["heads"]) == 3
    shown = {name: part.panels(stored) for name, part in study.figure.parts.items() if part.panels}
    assert {name for name, grid in shown.items() if grid is None} <= {"diagram"}  # of a random model
    assert "17 tokens" in study.figure.parts["p1"].about(stored)
    assert all(line.count(", '") == 4 for line in list(study.figure.parts["p1"].says(stored))[2:])
    assert measure.tutorial(study) == {}


@pytest.mark.parametrize("part", ["measure", "path_effects"])
def test_a_killed_run_goes_on_where_it_stopped_with_equal_bits(part, tmp_path, monkeypatch):
    """Also under redo; what was measured in blocks is what one run measures."""
    pair = load_ICL_model((toy("gpt2").float(), words()), verbose=False)
    study = study_of(pair, tmp_path, prompts=16)
    monkeypatch.setattr(measure, "PATCHED", 24)  # two pairs at a time

    def run(study):
        return measure.maps(study) if part == "measure" else measure.paths_between(study, [(0, 0), (1, 1)])

    whole, count, computed = run(study.replace(folder=tmp_path / "whole")), 0, getattr(measure, part)

    def counted(*arguments):
        nonlocal count
        count += 1
        if count == stop:
            raise KeyboardInterrupt
        return computed(*arguments)

    monkeypatch.setattr(measure, part, counted)
    pairs = measure.name_pairs(study, seed=int(part != "measure"))
    needed = len(measure._some(pairs, 2) if part == "measure" else group_by_shape(pairs.tokens))
    for redo in (False, True):
        count, stop = 0, needed
        with pytest.raises(KeyboardInterrupt):
            run(study.replace(folder=tmp_path / "killed", redo=redo))
        stop = 0
        again = run(study.replace(folder=tmp_path / "killed", redo=redo))
        assert needed > 1 and count == needed + 1  # the one that was killed, again
        for name, value in whole.items():
            np.testing.assert_array_equal(value, again[name])
    assert not [*(tmp_path / "killed" / "blocks").rglob("*.pickle")]


def test_blocks_are_of_one_shape_and_bounded():
    tokens = [IOITokens((0,) * length, (1,) * length, {}, 2, (0, 1)) for length in (5, 6, 5, 5, 6, 5)]
    wanted = {6: [[0, 2, 3, 5], [1, 4]], 3: [[0, 2, 3], [5], [1, 4]], 1: [[0], [2], [3], [5], [1], [4]]}
    assert {most: measure._some(SimpleNamespace(tokens=tokens), most) for most in wanted} == wanted


@pytest.mark.parametrize("name", ["embedded", "embedded/generalist"])
def test_every_name_of_the_embedded_model_keeps_to_its_hold_out(name):
    for known in (name, origin(name)):
        assert measure.name_pairs(Study("ioi_patching", known)).holds_out
    assert not measure.name_pairs(Study("ioi_patching", "gpt2")).holds_out


BASE, SOURCE = EXAMPLE
WRONG: dict = {
    "texts and names: the texts must differ": [
        {"texts": (BASE, BASE)},
        {"texts": (BASE, SOURCE + " the")},
        {"texts": ("one text", "another text entirely")},
    ],
    "texts and names: .*needs the name": [
        {"names": ("Mike", "Mike")},
        {"names": ("Mike", "Anna")},
        {"names": ("Anna", "Emma")},
        {"names": ("Emma", "Mike")},
    ],
    "texts": [{"texts": (BASE,)}, {"texts": BASE}, {"texts": (BASE, "")}, {"texts": 3}],
    "names": [{"names": ("Mike", "Emma", "Anna")}, {"names": "Mike"}, {"names": ()}],
    "corruption = .*s2_swap.*random_name": [{"corruption": "swap"}, {"corruption": None}, {"corruption": ""}],
    "prompts = ": [{"prompts": value} for value in (7, 1, 0, -1, 16.5, True, "a", None)],
    "seed = ": [{"seed": value} for value in ("a", -1, 0.5, True, None)],
    "path_heads = ": [{"path_heads": value} for value in (0, -1, 2.5, True, "a", None)],
    "shown_layer = ": [{"shown_layer": value} for value in (-1, 0.5, True, "a")],
    "untrained_control = ": [{"untrained_control": "perhaps"}],
    "edge_pairs = 1": [{"edge_pairs": 1}],
    "exact_edges = 3": [{"exact_edges": 3}],
    "Settings has no argument 'edit'; it has": [{"edit": "knock_out"}],
}  # fmt: skip


@pytest.mark.parametrize(("message", "arguments"), [(m, a) for m, some in WRONG.items() for a in some], ids=str)
def test_a_wrong_argument_is_refused_when_the_study_is_built(message, arguments):
    with pytest.raises(ValueError, match=f"^{message}"):
        Study("ioi_patching", "no such model", **arguments)


def test_text_of_a_command_line_is_read():
    given: dict = {"prompts": "16", "texts": str(list(EXAMPLE)), "names": "Mike, Emma", "untrained_control": "false"}
    assert Settings(**given) == Settings(prompts=16, untrained_control=False)


def test_every_corruption_is_known():
    assert [Settings(corruption=name).corruption for name in CORRUPTIONS] == list(CORRUPTIONS)


def test_more_pairs_than_there_are_are_refused():
    with pytest.raises(ValueError, match="prompts = .*different pairs at most"):
        Study("ioi_patching", prompts=10**9).arrays("population")


def forbid_forward_passes(monkeypatch):
    for name in ("heads_of", "logit_difference", "patch_map"):
        monkeypatch.setattr(measure, name, lambda *_: pytest.fail("a forward pass"))


@pytest.mark.parametrize("layer", [3, 30])
def test_a_layer_that_there_is_not_is_refused_before_a_forward_pass(pair, layer, tmp_path, monkeypatch):
    """That was an IndexError behind all forward passes."""
    study = study_of(pair, tmp_path, prompts=8, shown_layer=layer)
    with monkeypatch.context() as patch:
        forbid_forward_passes(patch)
        with pytest.raises(ValueError, match=f"^shown_layer = {layer}: the model has 3 layers, 0 to 2"):
            study.arrays("p1")
    found = study.replace(shown_layer=2).numbers("p1")["example"]
    assert found["layer"] == 2 and found["z"].shape[0] == len(found["tokens"])
    with pytest.raises(ValueError, match="^shown_layer"):
        study.numbers("p1")


def test_a_name_whose_places_cannot_be_compared_is_refused_before_a_forward_pass(pair, tmp_path, monkeypatch):
    """Part 4 compares the two places of the answer's name in the source."""
    texts = (BASE, BASE.replace(", Emma", ", Anna"))
    forbid_forward_passes(monkeypatch)
    with pytest.raises(ValueError, match="^names and texts: .*'Mike' twice, not 1 times"):
        study_of(pair, tmp_path, prompts=8, texts=texts).arrays("p1")


def test_a_tokenizer_that_splits_names_is_refused_before_a_forward_pass(pair, tmp_path, monkeypatch):
    forbid_forward_passes(monkeypatch)
    bare = load_ICL_model((pair[0], letters()), verbose=False)
    with pytest.raises(ValueError, match="names"):
        study_of(bare, tmp_path, prompts=8).arrays("population")
    with pytest.raises(ValueError):
        study_of(bare, tmp_path, prompts=8).arrays("p1")
    assert not list(tmp_path.rglob("*.pickle"))


def letters():
    """A tokenizer that keeps no word whole."""
    table = {chr(code): code - 32 for code in range(32, 127)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="~"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="~")


def test_the_method_has_not_changed(tmp_path):
    """A golden record."""
    study = Study("ioi_patching", Model(verbose=False), prompts=8, untrained_control=False, folder=tmp_path)
    data = study.arrays("p1")
    assert [some[0] for some in data["words"]] == [" Mike", " Emma"]
    np.testing.assert_allclose(data["scores"], GOLDEN["scores"], atol=1e-3)
    np.testing.assert_allclose(data["patched"][2], GOLDEN["patched, layer 2"], atol=1e-3)
    np.testing.assert_allclose(data["permuted"][2], GOLDEN["permuted, layer 2"], atol=1e-3)
    assert study.numbers("population")["population"]["intact"].value == pytest.approx(GOLDEN["mean"], abs=1e-3)


GOLDEN: dict = {
    "scores": [9.430700302124023, -10.418399810791016],
    "patched, layer 2": [
        9.37440013885498,
        9.473699569702148,
        9.448200225830078,
        9.350000381469727,
        9.447500228881836,
        -10.597200393676758,
        9.431400299072266,
        9.468799591064453,
    ],
    "permuted, layer 2": [
        14.82450008392334,
        7.675600051879883,
        17.01180076599121,
        9.095999717712402,
        -0.5787000060081482,
        0.015200000256299973,
        5.185699939727783,
        8.842100143432617,
    ],
    "mean": 9.4287,
}


def test_a_slice_of_the_attentions_output_is_no_head():
    """The negative control: cut after the output projection, where the heads are summed, the map is another one."""
    model, width = toy("gpt2"), 16
    base, source = torch.randint(3, 200, (2, 1, 12), generator=torch.Generator().manual_seed(0)).unbind()
    source[:, :6] = base[:, :6]
    modules, outputs, scores = eager_runs.attention_modules(model), {}, np.empty((3, 4))
    with torch.no_grad():
        hooks = [
            m.register_forward_hook(lambda _, a, out, n=n: outputs.update({n: out[0]})) for n, m in modules.items()
        ]
        model(source)
        for hook in hooks:
            hook.remove()
        for layer, module in modules.items():
            for head in range(4):
                part = slice(head * width, (head + 1) * width)

                def mix(_, arguments, out, layer=layer, part=part):
                    mixed = out[0].clone()
                    mixed[..., part] = outputs[layer][..., part]
                    return (mixed, *out[1:])

                hook = module.register_forward_hook(mix)
                logits = model(base).logits[0, -1]
                hook.remove()
                scores[layer, head] = logits[5] - logits[6]
    prepare(model)
    ours, _ = patching.patch_map(model, base, patching.heads_of(model, source), torch.tensor([[5, 6]]), 6)
    assert np.corrcoef(scores.ravel(), ours.ravel())[0, 1] < 0.9


@pytest.mark.skipif("ICL_GPT2" not in os.environ, reason="needs GPT-2 small: set ICL_GPT2 to gpt2, or to its folder")
def test_gpt2_small_has_the_published_map(tmp_path, monkeypatch):
    """The numbers of data/published/ioi_patching.json that were printed for one pair without BOS."""
    published, asked = files.published("ioi_patching"), os.environ["ICL_GPT2"]
    values = {row["id"]: row["value"] for row in published["values"]}
    monkeypatch.setitem(published["circuit"], "model", asked)
    monkeypatch.setattr(files, "published", lambda _: published)
    found = measure.tutorial(Study("ioi_patching", asked, folder=tmp_path))
    assert len(found) > 16
    for name, (value, _) in found.items():
        assert value == pytest.approx(values[name], abs=0.05 if name == "nnsight_sum" else 0.01), name
