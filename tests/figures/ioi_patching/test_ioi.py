"""IOI patching against the naive loop of hooks on the class's output projection, and against planted circuits."""

import copy
import math
import os

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
from util.figures.ioi_patching import example, measures, pairs, patching, results
from util.figures.ioi_patching.measures import Kind, SetName
from util.figures.ioi_patching.results import Circuit, Curve, Paths, Population, Setting, Untrained
from util.figures.ioi_patching.study import EXAMPLE, Study
from util.figures.planted_controls import name_tokens, planted_control
from util.load_model_and_data import load_ICL_model, origin
from util.models import planted
from util.models.embedded_words import HELD_OUT_FRAMES, HELD_OUT_NAMES
from util.prompts.ioi import CORRUPTIONS, IOITokens, group_by_shape, ioi_prompts, ioi_tokens
from util.records.model import Model
from util.show import files
from util.stats import controls
from util.stats.intervals import Interval, mean_interval

FAMILIES = ("gpt2", "llama")
SETTING = Setting("given:toy", "given:toy", "s2_swap")


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
    return Study(given, held_out=True, folder=folder, **options)


def refused(_):
    pytest.fail("a model was loaded")


@pytest.fixture(scope="module")
def measured(pair, tmp_path_factory):
    study = study_of(pair, tmp_path_factory.mktemp("material"))
    return study, study.example_pair.measured().data


@pytest.mark.parametrize(("implementation", "bound"), [("sdpa", 1e-12), ("eager", 1e-5)])
def test_every_part_of_the_seed_equals_its_naive_loop(pair, measured, implementation, bound):
    """With the class's own attention; in float64 too, Llama's eager softmax is in float32."""
    study, data = measured
    model = copy.deepcopy(pair[0])
    model.set_attn_implementation(implementation)
    base, source = (torch.tensor([data[name].tolist()]) for name in ("base", "source"))
    z, heads = projections_in(model, source), model.config.num_attention_heads
    width = z[0].shape[-1] // heads

    def patched(layer, head, own):
        return z[layer][..., head * width : (head + 1) * width]

    scores, plain = naive(model, base, patched, data["answers"])
    np.testing.assert_allclose(data["patched"], scores, atol=bound)
    np.testing.assert_allclose(data["scores"][0], plain, atol=1e-5)  # from float32 logits
    norms = np.empty_like(scores)

    def shuffled(layer, head, own):
        order = np.random.default_rng((study.seed, layer, head)).permutation(own.numel())
        mixed = own.flatten()[torch.from_numpy(order)]
        assert not torch.equal(mixed, own.flatten()) and torch.equal(mixed.sort()[0], own.flatten().sort()[0])
        norms[layer, head] = mixed.norm()
        return mixed.view(own.shape)

    scores, _ = naive(model, base, shuffled, data["answers"])
    np.testing.assert_allclose(data["permuted"], scores, atol=bound)
    np.testing.assert_allclose(data["norms"], norms, rtol=1e-5)
    stored = np.stack([part[0].view(-1, heads, width).numpy() for part in z.values()])
    np.testing.assert_allclose(data["z"], stored, rtol=1e-5, atol=max(bound, 1e-6))  # z is kept in float32
    assert np.abs(data["patched"] - plain).max() > 1e-3 and data["path"] == "replayed layers"


def test_the_example_is_the_seeds(measured):
    study, data = measured
    assert study.request["texts"][0].endswith("Emma gave a coffee to") and len(data["base"]) == len(data["source"])
    differing = np.flatnonzero(data["base"] != data["source"])
    assert differing.tolist() == [data["first"]]
    mike, emma = data["answers"]
    assert data["source"][data["first"]] == mike and data["base"][data["first"]] == emma
    assert (data["source"] == mike).sum() == 2
    gap = data["log_softmax"][:, mike] - data["log_softmax"][:, emma]
    np.testing.assert_allclose(data["scores"], gap, atol=1e-5)


def test_patching_the_run_itself_changes_nothing(pair):
    base = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    z, answers = patching.heads_of(pair[0], base), torch.tensor([[5, 6], [7, 8]])
    scores, plain, _ = patching.patch_map(pair[0], base, z, answers, 4)
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
    study = Study(model, prompts=16, held_out=True, folder=folder)
    data = study.pairs.maps().data
    stated = Study(prompts=16, folder=folder).planted(**options)  # the same record, as a study has it
    np.testing.assert_array_equal(stated.effect.value, study.population().noised.value)
    assert stated.names == truth.names
    return data, truth


@pytest.mark.parametrize("options", [{}, {"family": "llama"}, {"backup": True}, {"copies": 2}], ids=str)
def test_a_planted_circuit_is_found_exactly(options, tmp_path):
    data, truth = planted_data(tmp_path, **options)
    for name, base, source in (("noised", "base", "source"), ("denoised", "source", "base")):
        found = measures.normalised(data[name], data[base], data[source], data["clusters"]).value
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
    effect = measures.normalised(*(data[n] for n in ("noised", "base", "source", "clusters"))).value
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


def test_circuits_equal_hooks_that_write_the_means(pair, tmp_path):
    study = study_of(pair, tmp_path, prompts=12)
    kept = [(0, 1), (1, 0), (1, 3), (2, 2)]
    everything = [(layer, head) for layer in range(3) for head in range(4)]
    circuit = study.circuit({"some": kept, "all": everything, "none": []})
    found = {"whole": circuit.whole, **circuit.alone}
    np.testing.assert_allclose(found["all"], found["whole"], atol=1e-5)
    assert list(circuit.table().index) == ["all heads", "some", "all", "none"]
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
    with pytest.raises(ValueError, match="no head"):
        study.circuit({"wrong": [(0, 99)]})


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([(0, 4)], "no head"),
        ([(3, 0)], "no head"),
        ([(0, -1)], "whole numbers from 0"),
        ([(0.5, 1)], "whole numbers from 0"),
        ((0, 1), "whole numbers from 0"),
        ([(9, 9)], "no head"),
        ([(0, 1), (0, 1)], "twice"),
    ],
    ids=str,
)
def test_heads_that_there_are_not_are_refused_before_a_forward_pass(pair, heads, message, tmp_path, monkeypatch):
    study = study_of(pair, tmp_path, prompts=8)
    forbid_forward_passes(monkeypatch)
    with pytest.raises(ValueError, match=message):
        study.paths(heads)
    with pytest.raises(ValueError, match=message):
        study.circuit({"fine": [(0, 0)], "wrong": heads})
    half: list = [(0.5, 1)]
    with pytest.raises(ValueError, match="two whole numbers"):
        study.paths(half)
    with pytest.raises(ValueError, match="two whole numbers"):
        study.circuit({"half": half})


def forbid_forward_passes(monkeypatch):
    for module in (patching, pairs, example):
        monkeypatch.setattr(module, "heads_of", lambda *_: pytest.fail("a forward pass"))
    for module in (patching, pairs):
        monkeypatch.setattr(module, "logit_difference", lambda *_: pytest.fail("a forward pass"))


def test_paths_need_a_head(pair, tmp_path):
    with pytest.raises(ValueError, match="^heads = .*at least one"):
        study_of(pair, tmp_path, prompts=8).paths([])


def test_no_set_of_heads_replaces_the_whole_model(pair, tmp_path):
    with pytest.raises(ValueError, match="^sets: .*all heads"):
        study_of(pair, tmp_path, prompts=8).circuit({"whole": [(0, 0)]})


@pytest.mark.slow
def test_heads_of_a_hybrid_are_places_among_the_layers_with_attention(tmp_path):
    """Its one layer with attention is the model's layer 1 and place 0 of every array."""
    model = architectures.build("qwen3_next", vocab_size=len(words()), max_position_embeddings=64)
    pair = load_ICL_model((model, words()), verbose=False)
    study = study_of(pair, tmp_path, prompts=8, name="given:hybrid")
    data = study.fresh.maps().data
    heads = data["noised"].shape[2]
    assert data["noised"].shape[1:] == (1, heads) and heads > 1
    every = [(0, head) for head in range(heads)]
    circuit = study.circuit({"all": every, "one": [(0, 1)], "none": []})
    found = {"whole": circuit.whole, **circuit.alone}
    np.testing.assert_array_equal(found["all"], found["whole"])
    assert np.abs(found["one"] - found["whole"]).max() > 1e-3 and np.abs(found["one"] - found["none"]).max() > 1e-6
    paths = study.fresh.paths([list(head) for head in every]).data  # its layers cannot be taken apart
    assert np.isnan(paths["edges"]).all() and np.isnan(paths["direct"]).all() and "no attention" in paths["refused"]
    found = study.paths(every)
    assert found.figure(study.population()) is None and found.table().empty
    [said] = found.sentences()
    assert said.startswith("paths: not measured") and "nan" not in said
    with pytest.raises(ValueError, match="no head"):
        study.circuit({"by its own number": [(1, 1)]})


def test_paths_of_a_study_equal_whole_forward_passes(pair, tmp_path):
    study = study_of(pair, tmp_path, prompts=8)
    members = [(0, 1), (1, 2), (2, 0), (2, 3)]
    data = study.fresh.paths([list(head) for head in members]).data
    assert data["edges"].shape == (8, 4, 4, 4) and data["refused"] == ""
    for numbers in group_by_shape(study.fresh.tokens).values():
        base, source, answers = study.fresh.batch(numbers)
        with torch.no_grad():
            for row, sender in enumerate(members):
                for column, receiver in enumerate(members):
                    later = [receiver] if receiver[0] > sender[0] else []
                    direct, edge = slow_paths.together(pair[0], base, source, answers, sender, later)
                    np.testing.assert_allclose(data["direct"][numbers, row], direct, atol=1e-5)
                    found = data["edges"][numbers, row, column, -1]
                    if later:
                        np.testing.assert_allclose(found, edge, atol=1e-5)
                    else:
                        assert np.isnan(found).all()


def test_the_edges_and_the_circuit_of_a_planted_model(tmp_path):
    truth = planted_control(planted.ioi, {}, name_tokens)[1]
    model = load_ICL_model((truth.model, words()), verbose=False)
    study = study_of(model, tmp_path, prompts=16, name="given:planted")
    roles = {role: head for head, role in truth.names.items()}
    members, order = list(roles.values()), list(roles)
    circuit = study.circuit({"circuit": members, "decoys": truth.decoys})
    found, whole = circuit.alone, circuit.whole.mean()
    assert found["circuit"].mean() == pytest.approx(whole, rel=0.02) and abs(found["decoys"].mean()) < 0.1 * whole
    paths = study.paths(members)
    direct = dict(zip(order, paths.direct.value, strict=True))
    assert direct == pytest.approx({"duplicate token": 0, "copier": 0, "mover": 1}, abs=0.02)
    # the mark is the same, the name under it is not: no edges; and none between heads of one layer
    none = [[order.index(a), order.index(b)] for a in order for b in order if roles[a][0] >= roles[b][0]]
    assert np.argwhere(np.isnan(paths.edges.value)).tolist() == sorted(none)
    assert np.nanmax(np.abs(paths.edges.value)) < 0.02
    study = study.replace(corruption="s2_rand")  # no second name, no mark
    record = study.fresh.paths([list(head) for head in members]).data
    data = study.fresh.maps().data
    total = (record["source"] - record["base"]).mean()
    whole = (data["noised"][:, *roles["duplicate token"]] - data["base"]).mean() / total
    paths = study.paths(members)
    row = order.index("duplicate token")
    assert paths.direct.value[row] == pytest.approx(0, abs=0.02) and whole > 0.9
    # copier and mover are all that listen; alone neither need hear all, together they hear it
    edges = {b: paths.edges.value[row, order.index(b)] for b in ("copier", "mover")}
    assert sum(edges.values()) == pytest.approx(whole, abs=0.05), edges


# ------------------------------------------------------------------------------------------------ measures


def test_a_normalised_effect_is_0_for_the_base_and_1_for_the_source():
    rng = np.random.default_rng(0)
    base, source, clusters = rng.normal(3, 1, 40), rng.normal(-3, 1, 40), np.repeat(np.arange(20), 2)
    patched = np.stack([base, source, (base + source) / 2], axis=1)[:, None]
    found = measures.normalised(patched, base, source, clusters)
    np.testing.assert_allclose(found.value, [[0, 1, 0.5]], atol=1e-12)
    np.testing.assert_allclose(found.high - found.low, 0, atol=1e-9)
    swapped = measures.normalised(-patched, -base, -source, clusters)
    np.testing.assert_allclose(swapped.value, found.value)
    one = measures.normalised(patched[:, 0, 2], base, source, clusters)
    assert one.value == pytest.approx(0.5)
    with pytest.raises(ValueError, match="two sampled units, got 1"):
        measures.normalised(patched, base, source, np.zeros(40, int))


def test_intervals_cover_at_their_level_and_know_clusters():
    """Prompts of one cluster say the same here: 10 clusters of 8 are worth 10 prompts, not 80."""
    rng, covered, widths = np.random.default_rng(0), [], []
    for _ in range(200):
        change = np.repeat(rng.normal(0.3, 0.3, 10), 8)
        base, source, clusters = np.zeros(80), np.ones(80), np.repeat(np.arange(10), 8)
        found = measures.normalised(change, base, source, clusters)
        covered.append(found.low < 0.3 < found.high)
        widths.append(float(found.high - found.low))
    assert 0.9 <= np.mean(covered) <= 0.98
    assert np.mean(widths) == pytest.approx(2 * scipy.stats.t.ppf(0.975, 9) * 0.3 / math.sqrt(10), rel=0.1)


def test_prompts_that_share_a_frame_and_names_count_as_one():
    """Eight copies of each of ten prompts say no more than the ten: the intervals are the same."""
    rng = np.random.default_rng(0)
    data = drawn(rng.normal(0, 0.1, (2, 3)), pairs=10) | {"probability": rng.random(10)}
    whole, alone = data["base"], data["base"] * rng.normal(1, 0.3, 10)

    def results(copies):
        many = {name: np.repeat(values, copies, axis=0) for name, values in data.items()}
        again = {SetName(kind, 1): np.repeat(alone, copies) for kind in (Kind.STRONGEST, Kind.WITHOUT)}
        circuit = Circuit(SETTING, many["base"], again, many["clusters"])
        return Population.of(many, SETTING), Untrained.of(many, SETTING), Curve.of(circuit, 6), circuit.table()

    (one, one_twin, one_curve, one_table), (found, twin, curve, table) = results(1), results(8)
    for name in ("intact", "corrupted", "accuracy", "probability"):
        assert getattr(found, name) == pytest.approx(getattr(one, name)), name
    for name, number in one.published().items():
        assert found.published()[name] == pytest.approx(number), name
    assert (twin.accuracy, twin.swap) == (pytest.approx(one_twin.accuracy), pytest.approx(one_twin.swap))
    np.testing.assert_allclose([twin.heads.low, twin.heads.high], [one_twin.heads.low, one_twin.heads.high])
    assert curve.whole == pytest.approx(mean_interval(whole))
    for name in ("alone", "without", "surplus"):
        assert getattr(curve, name)[1] == pytest.approx(getattr(one_curve, name)[1]), name
    assert curve.surplus[1] == pytest.approx(mean_interval(alone - whole)) and table.equals(one_table)


def test_selectivity_by_hand():
    difference = np.zeros((2, 5, 4))
    difference[0] = np.array([1, 2, 3, 4, 6])[:, None] * [1, -1, 1, -1]
    difference[1, 4] = 1
    ratio = measures.selectivity(difference)
    assert ratio[0] == pytest.approx(5 / 1.5) and np.isnan(ratio[1])
    with pytest.raises(ValueError, match="at least 4"):
        measures.selectivity(difference[:, :3])


def test_what_is_shown_follows_from_the_model():
    effects = np.zeros((30, 9))
    effects[20, 3], effects[4, 0] = -2, 1
    assert measures.layer_to_show(effects) == 20 and measures.layer_to_show(effects, 4) == 4
    for layer in (30, -1, 0.5):
        with pytest.raises(ValueError, match="shown_layer"):
            measures.layer_to_show(effects, layer)
    for layers in (1, 4, 12, 13, 30, 36, 80):
        assert len(range(0, layers, measures.layer_step(layers))) <= measures.SHOWN
    assert (measures.layer_step(4), measures.layer_step(30), measures.layer_step(36, 9)) == (1, 3, 9)
    with pytest.raises(ValueError, match="layer_skip"):
        measures.layer_step(4, 0)


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
    found = Population.of(drawn(effects), SETTING)
    assert found.strongest(2) == [(1, 2), (2, 0)] and len(found.strongest(99)) == 12
    share = found.share((1, 2))
    assert share.low < 0.5 < share.high and share.value != found.chosen[1, 2] != found.noised.value[1, 2]
    assert found.accuracy.value == 1 and found.whole == pytest.approx(-8, abs=0.2)
    assert np.argwhere(measures.carriers(found.noised)).tolist() == [[1, 2], [2, 0]] and found.carriers == 2
    assert list(found.table(2).index) == ["L1H2", "L2H0"] and len(found.table(99)) == 12
    np.testing.assert_allclose(found.estimate, found.noised.value)
    said = "\n".join(found.remarks())
    assert said.startswith("L1H2 carries +0.49; direct (all frozen): +0.00") and "nan" not in said
    data = drawn(effects)
    data["direct"] = data["direct"] * np.nan  # a class whose layers cannot be taken apart
    said = "\n".join(Population.of(data, SETTING).remarks())
    assert said.startswith("direct effects: not measured") and "nan" not in said


def test_an_untrained_model_carries_nothing_beyond_chance_and_a_trained_one_does():
    quiet, rng, wrong = drawn(np.zeros((3, 4)), pairs=16), np.random.default_rng(1), 0
    quiet["base"] = np.resize([1.0, -1.0], 16)
    for _ in range(200):
        quiet["noised"] = quiet["base"][:, None, None] + rng.normal(0, 1, (16, 3, 4))
        found = Untrained.of(quiet, SETTING)
        wrong += found.beyond_chance > 0
    assert wrong / 200 <= 0.09 and found.accuracy.value == 0.5 and found.pairs == 16
    loud = np.zeros((3, 4))
    loud[2, 3] = 0.5
    assert Untrained.of(drawn(loud), SETTING).beyond_chance == 1


def test_sets_of_the_curve_by_hand():
    chosen = np.arange(12.0).reshape(3, 4) * [1, -1, 1, -1]
    sets = measures.curve_sets(chosen, draws=3)
    drawn = [name for name in sets if name.kind is Kind.RANDOM]
    assert len({tuple(sets[name]) for name in drawn}) == len(drawn)  # each set once
    of_one = [sets[name] for name in drawn if name.size == 1]
    assert of_one == [[(2, 0)], [(2, 1)], [(2, 2)]]  # all that there are
    assert measures.set_sizes(12) == [1, 2, 4, 8] and measures.set_sizes(8) == [1, 2, 4]
    assert sets[SetName(Kind.STRONGEST, 2)] == [(2, 3), (2, 2)]  # the strongest, not those of the lowest layers
    assert set(sets[SetName(Kind.STRONGEST, 4)]) | set(sets[SetName(Kind.WITHOUT, 4)]) == {
        (a, b) for a in range(3) for b in range(4)
    }
    for name, heads in sets.items():
        assert (
            len(heads) == len(set(heads)) == (12 - name.size if name.kind is Kind.WITHOUT else name.size)
        )  # none twice
        if name.kind is Kind.RANDOM:
            layers = sorted(layer for layer, _ in heads)
            assert layers == sorted(layer for layer, _ in sets[SetName(Kind.STRONGEST, name.size)])
            assert set(heads) != set(sets[SetName(Kind.STRONGEST, name.size)])
    assert set(sets[SetName(Kind.RANDOM, 1)]).isdisjoint(sets[SetName(Kind.STRONGEST, 1)])


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


def test_the_curve_says_what_is_so():
    rng = np.random.default_rng(0)
    whole = rng.normal(8, 1, 60)
    shares = {
        SetName(Kind.STRONGEST, 1): 0.3, SetName(Kind.WITHOUT, 1): 0.8, SetName(Kind.RANDOM, 1): 0,
        SetName(Kind.STRONGEST, 2): 0.95, SetName(Kind.WITHOUT, 2): 0.1, SetName(Kind.RANDOM, 2): 0.2,
    }  # fmt: skip

    def curve(of_two):
        scores = shares | {SetName(Kind.STRONGEST, 2): of_two}
        alone = {name: whole * share for name, share in scores.items()}
        return Curve.of(Circuit(SETTING, whole, alone, np.arange(60)), 4)

    found = curve(0.95)
    assert found.enough == 2 and found.random == {1: [0.0], 2: [pytest.approx(whole.mean() * 0.2)]}
    assert found.table().shape == (2, 4) and found.pairs == 60
    assert [share.value for share in found.faithfulness.values()] == pytest.approx([0.3, 0.95])
    assert found.reached == {0.5: 2, 0.8: 2, 0.9: 2} and curve(0.6).reached == {0.5: 2, 0.8: None, 0.9: None}
    assert "0.8 is reached by no set" in "\n".join(curve(0.6).sentences())
    said = "\n".join(found.sentences())
    assert "strongest 2 heads on nine tenths" in said and "work against" not in said
    said = "\n".join(curve(1.3).sentences())
    assert "2 heads alone give" in said and "work against the answer" in said  # as said: more than the whole
    assert "keep less than nine tenths" in "\n".join(curve(0.5).sentences())


def test_faithfulness_is_a_ratio_of_means_whose_intervals_know_clusters():
    rng = np.random.default_rng(0)
    whole, clusters = np.repeat(rng.normal(8, 2, 20), 3), np.repeat(np.arange(20), 3)
    found = measures.faithfulness(whole, {1: 0.25 * whole, 4: whole + np.repeat(rng.normal(0, 1, 20), 3)}, clusters)
    assert found[1] == pytest.approx((0.25, 0.25, 0.25)) and found[4].low < 1 < found[4].high
    apart = measures.faithfulness(
        whole, {1: 0.25 * whole, 4: whole + np.repeat(rng.normal(0, 1, 20), 3)}, np.arange(60)
    )
    assert apart[4].high - apart[4].low < found[4].high - found[4].low
    assert measures.faithfulness(whole, {}, clusters) == {}
    shares = {1: found[1], 2: found[4], 4: found[1]}
    assert measures.reached(shares, 0.2) == 1 and measures.reached(shares, 0.5) == 2
    assert measures.reached(shares, 2.0) is None
    sure = {size: Interval(share, share - 0.1, share + 0.1) for size, share in {1: 0.6, 2: 0.7, 4: 0.1, 8: 0.3}.items()}
    assert measures.dip(sure) == (2, 4) and measures.dip({}) is None
    assert (
        measures.dip({1: sure[4], 2: sure[8], 4: sure[2], 8: sure[1]}) is None
    )  # the last has no larger set after it that keeps less


def test_what_is_reached_and_lost_again_is_said():
    whole = np.random.default_rng(0).normal(8, 1, 40)
    shares = {1: 0.2, 2: 0.7, 4: 0.3}
    scores = {SetName(Kind.STRONGEST, size): share * whole for size, share in shares.items()}
    scores |= {SetName(Kind.WITHOUT, size): 0 * whole for size in shares}
    said = "\n".join(Curve.of(Circuit(SETTING, whole, scores, np.arange(40)), 8).sentences())
    assert "faithfulness of 0.5 is first reached by 2 heads, 0.70 [0.70, 0.70], and lost again with 4" in said


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
    return data | {"clusters": np.arange(40), "refused": ""}


def test_paths_are_named_where_they_are_certain():
    found = Paths.of(path_data(), [(0, 1), (1, 1), (2, 2)], SETTING)
    assert found.edges.value[0, 2] == pytest.approx(0.5, abs=0.01) and np.isnan(found.edges.low[2, 0])
    assert found.key.value[0, 2] == pytest.approx(0.4, abs=0.01) and found.channel((0, 2)) == "key"
    said = found.sentences()
    assert said[0] == "L0H1 tells L2H2 +0.50 (key +0.40)" and said[2:] == ["L2H2 tells the output +1.00 (through MLPs)"]
    assert said[1].startswith("L1H1 tells L2H2 ") and said[1].endswith(" (query +0.25)")
    assert found.strongest(1) == [(0, 2)] and found.channel((0, 1)) is None
    table = found.table()
    assert list(table.columns) == ["share", "query", "key", "value"] and len(table) == 3
    assert table.index[0] == "L0H1 to L2H2" and table["key"].iloc[0].startswith("0.40 [")


def test_intervals_of_paths_hold_together_for_all_that_there_are():
    data = path_data()
    shares, edges = measures.split_paths(data), data["edges"][:, 0, 2, 3]
    alone = measures.normalised(data["base"] + edges, data["base"], data["source"], data["clusters"])
    ours = shares["edges"][0, 2]
    assert ours.value == pytest.approx(float(alone.value))
    wider = (ours.high - ours.low) / float(alone.high - alone.low)
    ratio = scipy.stats.t.ppf(1 - 0.025 / 15, 39) / scipy.stats.t.ppf(0.975, 39)  # 3 edges by 4 channels, 3 direct
    assert wider == pytest.approx(ratio, rel=0.05)
    none = {**data, "edges": data["edges"] * np.nan, "direct": data["direct"] * np.nan}
    assert all(np.isnan(part.value).all() for part in measures.split_paths(none).values())


def test_published_numbers_are_filled_from_their_own_pair():
    ids = [row["id"] for row in files.published(Study.stem)["values"]]
    patched = np.zeros((12, 12))
    patched[8, 10] = 1.0
    values = measures.tutorial_values({"scores": np.array([-1.0, 3.0]), "patched": patched - 1}, ids)
    at = {name: value for name, (value, _) in values.items()}
    assert [at[f"nnsight_{name}"] for name in ("base", "source", "8.10", "6.0", "sum")] == [-3, 1, 0.25, 0, 0.25]
    assert set(values) == {name for name in ids if name.startswith("nnsight")}
    many = Population.of(drawn(np.zeros((2, 4))), SETTING)
    wang = many.published()
    assert set(wang) <= set(ids) and wang["accuracy"][0] == 1
    circuit = files.published(Study.stem)["circuit"]
    assert measures.roles(circuit, "gpt2")[9, 9] == "name mover" and measures.roles(circuit, "embedded") == {}


def test_agreement_by_hand():
    exact = np.array([[4.0, -3.0, 2.0], [1.0, 0.5, 0.0]])
    same = measures.agreement(exact, 2 * exact, top=(2,))
    assert same.spearman == pytest.approx(1) and same.pearson == pytest.approx(1)
    assert (same.overlap, same.signs, same.worst[2]) == ({2: 1.0}, 1.0, 0)
    other = exact.copy()
    other[0, 1] = 0.1  # the second strongest becomes the second weakest, and changes its sign
    found = measures.agreement(exact, other, top=(2,), least=1)
    assert found.overlap == {2: 0.5} and found.worst == (0, 1, 3) and found.signs == 0.75
    with pytest.raises(ValueError, match="shapes"):
        measures.agreement(exact, exact[:1])


# ------------------------------------------------------------------------------------------------ records


def test_records_are_cached_and_know_what_they_depend_on(tmp_path):
    folder = tmp_path / "tiny"
    toy("gpt2").float().save_pretrained(folder)
    words().save_pretrained(folder)
    study = Study(Model(str(folder), verbose=False), "abc", 12, folder=tmp_path)
    first = study.pairs.maps(), study.example_pair.measured()
    never = study.replace(model=Model(str(folder), loader=lambda: refused(0)))
    again = never.pairs.maps(), never.replace(prompts=99).example_pair.measured()
    for one, two in zip(first, again, strict=True):
        for name, value in one.data.items():
            np.testing.assert_array_equal(value, two.data[name])
    data = first[0].data
    assert data["noised"].shape == (len(data["base"]), 3, 4) and data["clusters"].max() > 5
    with pytest.raises(pytest.fail.Exception, match="a model was loaded"):
        never.replace(corruption="s2_rand").population()
    sets = {"some": [(0, 1), (2, 3)], "none": []}
    kept = study.circuit(sets).alone
    texts = [text.replace("cafe", "school") for text in EXAMPLE]
    for name, scores in never.replace(texts=texts).circuit(sets).alone.items():
        np.testing.assert_array_equal(scores, kept[name])
    roads = [[[0, 1], [2, 3]], [[0, 1], [1, 1], [2, 3]], [[0, 1], [2, 2]], [[0, 2], [2, 3]]]
    found = [study.fresh.paths(road).data for road in roads]
    for road, data in zip(roads, found, strict=True):  # each in a record of its own
        loaded = never.fresh.paths(road).data
        np.testing.assert_array_equal(loaded["edges"], data["edges"])
    assert len({data["edges"].tobytes() for data in found}) == len(roads)
    twin = study.pairs.twin().maps()
    assert twin.request["untrained_seed"] == 0 and not np.array_equal(twin.data["base"], first[0].data["base"])
    for control in (study.untrained(), never.untrained()):
        assert control is not None and control.pairs == len(twin.data["base"])
    assert study.replace(untrained_control=False).untrained() is None
    assert not [*(tmp_path / "blocks").rglob("*.pickle")]


def test_all_parts_together_say_and_store_what_they_are(pair, tmp_path):
    """From records alone, too; values are those of the fields, and no more."""
    study = study_of(
        pair, tmp_path, prompts=12, path_heads=3, layer_skip=2, shown_layer=1, edge_pairs=6, exact_edges=40
    )
    parts = (
        study.example(), study.population(), study.untrained(), study.curve(), study.paths(), study.edges(),
        study.planted(),
    )  # fmt: skip
    findings = results.Findings(*parts)
    first, population, untrained, curve, paths, edges, *_ = parts
    assert {*edges.lines()} <= {*findings.check_lines()}
    assert findings.check_lines()[0] == "heads 3 x 4; tokens 17, prompts differ from token 11 on"
    assert findings.check_lines()[-1].startswith("planted heads that carry anything: ")
    assert "direct (all frozen)" in population.table() and "direct" not in population.table()
    assert first.shape_sentence.startswith("3 layers, each of 17 tokens, 4 heads")
    assert len(first.sentences()) == 3 and len(paths.heads) == 3 and paths.heads == sorted(paths.heads)
    stored = findings.values(study.request)
    assert list(stored) == [
        "request", "model", "scores", "permuted", "patched", "selectivity", "population", "untrained", "circuit",
        "paths", "component graph", "planted",
    ]  # fmt: skip
    assert list(stored["component graph"]) == ["strongest", "drawn", "matter", "found", "agreement", "curves"]
    assert list(stored["population"]) == [
        "intact", "corrupted", "accuracy", "probability", "pairs", "noised", "denoised", "estimate", "direct",
        "agreement", "chosen", "measured",
    ]  # fmt: skip
    assert list(stored["untrained"]) == ["pairs", "accuracy", "swap", "heads"]
    assert list(stored["circuit"]) == [
        "whole", "alone", "without", "surplus", "random", "faithfulness", "reached",
    ]  # fmt: skip
    assert list(stored["paths"]) == ["heads", "edges", "query", "key", "value", "direct"]
    drawn = paths.figure(population)
    assert drawn is not None
    assert [result.setting for result in (population, curve, paths)] == [
        f"given:toy, s2_swap, {population.pairs} pairs",
        f"given:toy, {curve.pairs} fresh pairs; all other heads ablated",
        f"given:toy, s2_swap, {paths.pairs} fresh pairs",
    ]
    assert population.figure(untrained).get_suptitle().replace("\n", " ") == population.finding
    assert curve.heads == 12 and drawn.axes
    words = study.next_words(3)
    assert [row[0] for row in words.words] == [*first.next_words] and words.probability.shape == (2, 3)
    np.testing.assert_allclose(words.probability[:, 0], np.exp(first.log_softmax).max(axis=1))
    with pytest.raises(ValueError, match="^count = 0"):
        study.next_words(0)
    for figure in (
        first.predictions_figure(), first.permutation_figure(), first.activations_figure(),
        first.differences_figure(), first.patching_figure(),
    ):  # fmt: skip
        assert figure.axes or figure.subfigs
    assert study.tutorial() == {}


def test_the_study_of_a_figure_asks_for_what_it_always_did():
    """The requests name the records; other keys or values would measure everything again."""
    model = {"model": "gpt2", "revision": None, "dtype": "auto", "quantized": False, "untrained_seed": None}
    always = {"stem": "ioi_patching", "schema": 3, "method_version": 1, **model, "seed": 7}
    example_pair = {"texts": list(EXAMPLE), "names": ["Mike", "Emma"]}
    generated = {"prompts": 40, "corruption": "abc", "held_out": False}
    study = Study("gpt2", "abc", 40, 7)
    assert study.request == {**always, **example_pair, **generated}
    assert study.example_pair.request == {**always, **example_pair}
    assert study.pairs.request == {**always, **generated}
    assert study.fresh.request == {**always, **generated, "prompts": 32, "seed": 8}
    assert Study("gpt2", prompts=200).ablated.request == {
        **always, **generated, "prompts": 128, "seed": 1,
    }  # fmt: skip
    assert study.pairs.twin(prompts=16).request == {**always, **generated, "prompts": 16, "untrained_seed": 0}


@pytest.mark.parametrize("part", ["measure", "all_paths"])
def test_a_killed_run_goes_on_where_it_stopped_with_equal_bits(part, tmp_path, monkeypatch):
    """Also under redo; what was measured in blocks is what one run measures."""
    pair = load_ICL_model((toy("gpt2").float(), words()), verbose=False)
    study = study_of(pair, tmp_path, prompts=16)
    monkeypatch.setattr(pairs, "BLOCK", 24)  # two pairs at a time

    def run(study):
        return (study.pairs.maps() if part == "measure" else study.pairs.paths([[0, 0], [1, 1]])).data

    whole, count, measure = run(study.replace(folder=tmp_path / "whole")), 0, getattr(pairs, part)

    def counted(*arguments):
        nonlocal count
        count += 1
        if count == stop:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(pairs, part, counted)
    shapes = len(group_by_shape(study.pairs.tokens))
    needed = len(pairs.blocks(study.pairs.tokens, 12)) if part == "measure" else shapes
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
    assert pairs.blocks(tokens, 32) == [[0, 2, 3, 5], [1, 4]]
    assert pairs.blocks(tokens, pairs.BLOCK // 3) == [[0, 2, 3], [5], [1, 4]]
    assert pairs.blocks(tokens, 10 * pairs.BLOCK) == [[0], [2], [3], [5], [1], [4]]


@pytest.mark.parametrize("name", ["embedded", "embedded/generalist"])
def test_every_name_of_the_embedded_model_keeps_to_its_hold_out(name):
    assert Study(name).request["held_out"] and Study(origin(name)).request["held_out"]
    assert not Study("gpt2").request["held_out"]


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
    "prompts = [0-7]: at least 8 pairs": [{"prompts": 7}, {"prompts": 1}],
    "prompts = .*different pairs at most": [{"prompts": 10**9}],
    "prompts = ": [{"prompts": value} for value in (0, -1, 16.5, True, "a", None)],
    "seed = ": [{"seed": value} for value in ("a", -1, 0.5, True, None)],
    "path_heads = ": [{"path_heads": value} for value in (0, -1, 2.5, True, "a", None)],
    "layer_skip = ": [{"layer_skip": value} for value in (0, -1, 2.5, True, "a")],
    "shown_layer = ": [{"shown_layer": value} for value in (-1, 0.5, True, "a")],
    "untrained_control = ": [{"untrained_control": "perhaps"}],
    "Study has no argument 'edit'; it has model": [{"edit": "knock_out"}],
    "Study has no argument 'k'; it has model": [{"k": 4}],
    "model = ": [{"model": ""}, {"model": None}],
}  # fmt: skip


@pytest.mark.parametrize(("message", "arguments"), [(m, a) for m, some in WRONG.items() for a in some], ids=str)
def test_a_wrong_argument_is_refused_when_the_study_is_built(message, arguments):
    with pytest.raises(ValueError, match=f"^{message}"):
        Study(**arguments)
    if not {"edit", "k"} & set(arguments):
        with pytest.raises(ValueError, match=f"^{message}"):
            Study().replace(**arguments)


def test_text_of_a_command_line_is_read():
    study = Study(prompts="16", texts=str(list(EXAMPLE)), names="Mike, Emma", layer_skip="3", untrained_control="false")
    assert study == Study(prompts=16, layer_skip=3, untrained_control=False)


def test_every_corruption_is_known():
    assert [Study(corruption=name).request["corruption"] for name in CORRUPTIONS] == list(CORRUPTIONS)


@pytest.mark.parametrize("layer", [3, 30])
def test_a_layer_that_there_is_not_is_refused_before_a_forward_pass(pair, layer, tmp_path, monkeypatch):
    """That was an IndexError behind all forward passes."""
    study = study_of(pair, tmp_path, prompts=8, shown_layer=layer)
    with monkeypatch.context() as patch:
        forbid_forward_passes(patch)
        for part in (study.check, study.example):
            with pytest.raises(ValueError, match=f"^shown_layer = {layer}: the model has 3 layers, 0 to 2"):
                part()
    study.replace(shown_layer=2).example()
    with pytest.raises(ValueError, match="^shown_layer"):
        study.check()


def test_a_name_whose_places_cannot_be_compared_is_refused_before_a_forward_pass(pair, tmp_path, monkeypatch):
    """Part 4 compares the two places of the answer's name in the source."""
    texts = (BASE, BASE.replace(", Emma", ", Anna"))
    study = study_of(pair, tmp_path, prompts=8, texts=texts)
    forbid_forward_passes(monkeypatch)
    for part in (study.check, study.example):
        with pytest.raises(ValueError, match="^names and texts: .*'Mike' twice, not 1 times"):
            part()


def test_the_check_tells_what_the_population_would(pair, tmp_path, monkeypatch):
    study = study_of(pair, tmp_path, prompts=8)
    forbid_forward_passes(monkeypatch)
    study.check()
    bare = load_ICL_model((pair[0], letters()), verbose=False)
    with pytest.raises(ValueError, match="names"):
        study_of(bare, tmp_path, prompts=8).pairs.check()
    with pytest.raises(ValueError):
        study_of(bare, tmp_path, prompts=8).check()
    assert not list(tmp_path.rglob("*.pickle"))


def test_the_check_loads_nothing_where_everything_is_cached(pair, tmp_path):
    study = study_of(pair, tmp_path, prompts=8)
    study.population()
    study.example()
    study.replace(model=Model("given:toy", loader=lambda: refused(0))).check()


def letters():
    """A tokenizer that keeps no word whole."""
    table = {chr(code): code - 32 for code in range(32, 127)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="~"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="~")


def test_the_method_has_not_changed_without_a_new_version(tmp_path):
    """A golden record. If it fails because the method was changed on purpose, raise method_version and renew it."""
    study = Study(Model(verbose=False), prompts=8, folder=tmp_path)
    data = study.example_pair.measured().data
    assert data["next_words"] == [" Mike", " Emma"]
    assert study.request["method_version"] == 1
    np.testing.assert_allclose(data["scores"], GOLDEN["scores"], atol=1e-3)
    np.testing.assert_allclose(data["patched"][2], GOLDEN["patched, layer 2"], atol=1e-3)
    np.testing.assert_allclose(data["permuted"][2], GOLDEN["permuted, layer 2"], atol=1e-3)
    assert study.population().intact.value == pytest.approx(GOLDEN["mean"], abs=1e-3)


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
    ours, _, _ = patching.patch_map(model, base, patching.heads_of(model, source), torch.tensor([[5, 6]]), 6)
    assert np.corrcoef(scores.ravel(), ours.ravel())[0, 1] < 0.9


@pytest.mark.skipif("ICL_GPT2" not in os.environ, reason="needs GPT-2 small: set ICL_GPT2 to gpt2, or to its folder")
def test_gpt2_small_has_the_published_map(tmp_path):
    """The numbers of data/published/ioi_patching.json that were printed for one pair without BOS."""
    study = Study(os.environ["ICL_GPT2"], folder=tmp_path).tutorial_study
    values = study.tutorial_values()
    published = {row["id"]: row["value"] for row in files.published(Study.stem)["values"]}
    assert len(values) > 16
    for name, (value, _) in values.items():
        assert value == pytest.approx(published[name], abs=0.05 if name == "nnsight_sum" else 0.01), name
    found = study.example()
    base, source = found.scores
    share = found.patched / (source - base)
    strongest = np.argsort(-np.abs(share), axis=None)[:5]
    assert {(8, 10), (10, 7), (7, 3), (7, 9)} <= {divmod(int(place), share.shape[1]) for place in strongest}


def test_the_pair_of_the_tutorial_is_measured_for_its_model_alone(tmp_path, pair):
    study = study_of(pair, tmp_path, prompts=8, shown_layer=2)
    assert study.tutorial() == {}
    assert study.tutorial_study.request == {
        **study.request,
        "texts": [f"When Mary and John went to the store, {name} gave a drink to" for name in ("Mary", "John")],
        "names": ["John", "Mary"],
    }
