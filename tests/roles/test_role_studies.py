"""Scores and effects of roles, compared with plain eager runs that share no code with the suite."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests import eager_runs
from tests.engine.test_replay import frozen
from tests.figures.induction_scores.made_up_shots import GAIN
from util.figures.controls import planted_control
from util.load_model_and_data import staicc_prompts
from util.models import planted
from util.prompts import own_tasks, word_pairs
from util.prompts.ioi import other_answers
from util.prompts.own_tasks import column as words_of
from util.roles import name_roles
from util.roles.effects import other_cells
from util.roles.function_vectors import CORRUPTED, VectorRoles
from util.roles.label_roles import LabelRoles, LabelTask
from util.roles.name_roles import NameRoles
from util.roles.rules import FACTOR, Role, Score
from util.roles.sequences_study import SequenceRoles
from util.stats.answers import TaskCheck

CHOSEN = [(0, 1), (2, 3)]  # the heads whose effects are measured, whatever their scores are


@pytest.fixture
def chosen(monkeypatch):
    monkeypatch.setattr(Score, "chosen", list(CHOSEN))


def eager(study, ids, **edits):
    return eager_runs.read(study.pair[0], ids, **edits)


def cuts(head, cells):
    return {(*head, 0, query, key) for query, key in cells}


def test_control_cells_are_others_of_the_same_rows():
    cut = np.array([[9, 4], [9, 6], [5, 2], [2, 1]])
    drawn = other_cells(cut, 1, (0,))
    assert drawn[:, 0].tolist() == [5, 9, 9]  # token 2 has no other earlier token than BOS
    assert (drawn[:, 1] >= 1).all() and (drawn[:, 1] < drawn[:, 0]).all()
    assert len({*map(tuple, drawn.tolist())} - {*map(tuple, cut.tolist())}) == 3
    assert other_cells(cut, 1, (0,)).tolist() == drawn.tolist()


# ------------------------------------------------------------------------------------------------ sequences


def test_nulls_and_effects_on_sequences_are_those_of_eager_runs(toy, chosen, tmp_path):
    study = SequenceRoles(toy, 6, 2, 4, folder=tmp_path)
    cells = {
        Role.PREVIOUS_TOKEN: [(query, query - 1) for query in range(2, 13)],
        Role.INDUCTION: [(query, query - 5) for query in range(7, 13)],
    }

    def log_probability(ids, **edits):
        logs = eager(study, ids, **edits).logits[0].log_softmax(-1)
        return np.mean([float(logs[at, ids[at + 1]]) for at in range(7, 12)])

    for evidence in study.evidence():
        scored = [query for query, _ in cells[evidence.role] if query > 6]
        assert evidence.score.null.item() == pytest.approx(FACTOR * np.mean([1 / (query + 1) for query in scored]))
        for row, ids in enumerate(study.drawn.ids[evidence.score.halves[1]].tolist()):
            for column, head in enumerate(CHOSEN):
                lost = log_probability(ids) - log_probability(ids, cuts=cuts(head, cells[evidence.role]))
                assert evidence.effect[row, column] == pytest.approx(lost, abs=1e-4)


# ------------------------------------------------------------------------------------------------ IOI


def direct_by_hand(study, tokens, layer, head, answers):
    """By how much logits fall where a head writes what it writes in the source, and all else is as in the base."""
    model, base, source = study.pair[0], torch.tensor([tokens.base]), torch.tensor([tokens.source])
    changed = frozen(model, base, source, layer, head, -1, torch.tensor([answers]))[0]
    return (model(base).logits[0, -1, answers] - changed).tolist()


def test_scores_and_effects_on_names_are_those_of_eager_runs(toy, chosen, tmp_path):
    study = NameRoles(toy, prompts=8, folder=tmp_path)
    found = {one.role: one for one in study.evidence()}
    first, second = found[Role.MOVER].score.halves
    assert not {*study.clusters[first]} & {*study.clusters[second]}  # prompts of one frame and names stay together
    for row, number in enumerate(second):
        tokens = study.tokens[number]
        place, (io, s), end = tokens.positions, tokens.answers, len(tokens.base) - 1
        base, source = eager(study, tokens.base), eager(study, tokens.source)
        others = other_answers(study.drawn[number], study._names, study.pair[1], study.seed)

        def lost(base=base, tokens=tokens, io=io, s=s, **edits):
            logits = base.logits[0, -1] - eager(study, tokens.base, **edits).logits[0, -1]
            return float(logits[io] - logits[s])

        for column, (layer, head) in enumerate(CHOSEN):
            for role, (query, key) in name_roles.PATTERNS.items():
                attention = float(base.weights[layer][0, head, place[query], place[key]])
                assert found[role].score.value[number, layer, head] == pytest.approx(attention, abs=1e-5)
                assert found[role].score.null[number, 0, 0] == pytest.approx(FACTOR / (place[query] + 1))
            written = {(layer, 0, end, head): source.z[layer][0, end, head]}
            direct, control = (values[row, column] for values in (found[Role.MOVER].effect, found[Role.MOVER].control))
            effects = {role: one.effect[row, column] for role, one in found.items()}
            assert effects == {
                Role.DUPLICATE_TOKEN: pytest.approx(
                    lost(cuts=cuts((layer, head), [(place["S2"], place["S1"])])), abs=1e-3
                ),
                Role.INHIBITION: pytest.approx(lost(writes=written) - direct, abs=1e-3),
                Role.MOVER: direct,
                Role.NEGATIVE_MOVER: -direct,
            }
            assert found[Role.INHIBITION].control[row, column] == abs(direct)
            assert found[Role.NEGATIVE_MOVER].control[row, column] == control
            by_hand = direct_by_hand(study, tokens, layer, head, [io, s, *others])
            assert direct == pytest.approx(by_hand[0] - by_hand[1], abs=1e-3)
            assert control == pytest.approx(abs(by_hand[2] - by_hand[3]), abs=1e-3)


def test_without_direct_effects_there_is_the_first_role_alone(toy, chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(name_roles, "direct_effects", lambda *a: None)
    found = NameRoles(toy, prompts=8, folder=tmp_path).evidence()
    assert [one.role for one in found] == [Role.DUPLICATE_TOKEN]


# ------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize("done", [True, False])
def test_scores_and_effects_on_labels_are_those_of_eager_runs(toy, chosen, done, tmp_path, monkeypatch):
    """Of which label it is where the task is done, else of label mass."""
    monkeypatch.setattr(LabelRoles, "task", SimpleNamespace(done=done, name="trec", k=2))
    study = LabelRoles(toy, "trec", 2, 4, folder=tmp_path)
    forerunner, reader = study.evidence()
    second = forerunner.score.halves[1]
    for row, number in enumerate(second):
        tokens, ids = study._plan.tokens[number], study._plan.ids[number]
        base = eager(study, ids)
        gold, names = study._plan.gold[number], study._plan.first_tokens[number].tolist()

        def score(run, gold=gold, names=names):
            log_prob = run.logits[0, -1].log_softmax(-1)[names].double()
            return float(log_prob[gold] - log_prob.logsumexp(0) if done else log_prob.logsumexp(0))

        s, y, lengths = tokens.forerunners, tokens.labels[:2], tokens.label_lengths[:2]
        labels = [start + more for start, length in zip(tokens.labels, tokens.label_lengths, strict=True)
                  for more in range(length)]  # fmt: skip
        others = [token for token in range(2, len(ids)) if token not in labels]
        cells = {
            Role.FORERUNNER: [(at + more, s[i]) for i, at in enumerate(y) for more in range(lengths[i])],
            Role.LABEL_READER: [(s[2], at + more) for i, at in enumerate(y) for more in range(lengths[i])],
        }
        for column, (layer, head) in enumerate(CHOSEN):
            weights = base.weights[layer][0, head].numpy()
            assert forerunner.score.value[number, layer, head] == pytest.approx(
                np.mean([weights[y[i], s[i]] for i in range(2)]), abs=1e-5
            )
            elsewhere = np.mean([weights[token, token - 1] for token in others])
            uniform = FACTOR * np.mean([1 / (at + 1) for at in y])
            assert forerunner.score.null[number, layer, head] == pytest.approx(max(elsewhere, uniform), abs=1e-5)
            assert reader.score.value[number, layer, head] == pytest.approx(
                sum(weights[s[2], at] for at in y), abs=1e-5
            )
            assert reader.score.null[number, 0, 0] == pytest.approx(FACTOR * 2 / (s[2] + 1))
            for one in (forerunner, reader):
                cut = eager(study, ids, cuts=cuts((layer, head), cells[one.role]))
                assert one.effect[row, column] == pytest.approx(score(base) - score(cut), abs=1e-3)


@pytest.mark.parametrize("passes", [None, ("sst5", 2)])
def test_roles_about_labels_are_tested_on_the_first_task_that_is_done_else_on_the_first(
    toy, passes, tmp_path, monkeypatch
):
    def check(self, candidates):
        p = 0.01 if (self.dataset, self.k) == passes and candidates == 4 else 1.0
        return TaskCheck(self.dataset, self.k, 0.9, 0.8, 0.5, GAIN, GAIN, p, self.prompts)

    monkeypatch.setattr(LabelTask, "check", check)
    study = LabelRoles(toy, ("trec", "sst5"), (2, 1), 4, folder=tmp_path)
    name, k = passes or ("trec", 2)
    assert (study.task.name, study.task.k, study.task.done) == (name, k, passes is not None)
    assert study.items == staicc_prompts(name, k)[:4] and study.request["dataset"] == name
    assert [one.dataset for one in study._candidates] == ["trec", "sst5"] * 2
    assert study.notes == ([] if passes else ["no data set passed, what is lost is label mass (trec, k = 2)"])


# ------------------------------------------------------------------------------------------------ function vectors


TASKS = ("copying", "present_past", "person_sport")


def test_likeness_and_effects_of_mean_outputs_are_those_of_eager_runs(toy, chosen, tmp_path):
    """The null lies midway between the likeness to other tasks and 1; the control is another task, each in turn."""
    study = VectorRoles(toy, TASKS, 2, 4, intact=3, folder=tmp_path)
    (found,) = study.evidence()
    parts, number = study._studies[study._corruption], CORRUPTED[study._corruption]
    tokens = toy.pair[1]
    for column, (layer, head) in enumerate(CHOSEN):
        means = np.stack([part.means[layer, head] for part in parts])
        units = means / np.linalg.norm(means, axis=1, keepdims=True)
        alike, added = [], []  # by prompt and task
        for place in range(4):
            items = [part.corrupted.items[place] for part in parts]
            for task, item in enumerate(items):
                prompt = tokens(item.clean.text)["input_ids"]
                z = eager(study, prompt).z[layer][0, -1, head].numpy()
                likeness = units @ z / np.linalg.norm(z)
                alike.append((likeness[task], np.delete(likeness, task).mean()))
                ids, another = tokens(item.donors[number].text)["input_ids"], (task + 1 + item.index % 2) % 3
                at, answer = (layer, 0, len(ids) - 1, head), tokens(item.clean.with_label())["input_ids"][len(prompt)]
                plain, *patched = (
                    float(eager(study, ids, writes=writes).logits[0, -1].softmax(-1)[answer])
                    for writes in (None, *({at: torch.from_numpy(means[of])} for of in (task, another)))
                )
                added.append(np.subtract(patched, plain))
        own, other = np.reshape(alike, (4, 3, 2)).mean(1).T
        assert found.score.value[:, layer, head] == pytest.approx(own, abs=1e-4)
        assert found.score.null[:, layer, head] == pytest.approx((1 + other) / 2, abs=1e-4)
        effect, control = np.reshape(added, (4, 3, 2)).mean(1).T[:, found.score.halves[1]]
        assert found.effect[:, column] == pytest.approx(effect, abs=1e-5)
        assert found.control[:, column] == pytest.approx(control, abs=1e-5)


def planted_tasks(monkeypatch, outputs):
    """Four tasks with few outputs each: what was shown tells the answer nearly."""
    words = [word for word in words_of("embedded_words", "word") if word.islower()]
    for number, shown in enumerate(outputs):
        inputs = words[50 * number : 50 * number + 50]
        pairs = tuple(word_pairs.Pair(x, shown[place % len(shown)]) for place, x in enumerate(inputs))
        task = word_pairs.WordPairTask(f"planted {number}", pairs, balanced=True)
        monkeypatch.setitem(own_tasks._REGISTERED, task.name, (task, ""))
    return tuple(f"planted {number}" for number in range(len(outputs)))


@pytest.mark.slow
@pytest.mark.parametrize("family", planted.FAMILIES)
def test_a_planted_head_that_tells_the_task_is_a_function_vector_head(family, tmp_path, monkeypatch):
    """An induction head writes the outputs of the demonstrations, which are those of the task."""
    model, truth = planted_control(planted.induction, {"family": family})
    outputs = ("red", "blue", "green"), ("dog", "cat", "horse"), ("king", "milk", "bread"), ("winter", "gold", "silver")
    study = VectorRoles(model, planted_tasks(monkeypatch, outputs), 6, 24, intact=16, folder=tmp_path)
    (found,) = study.evidence()
    assert tuple(found.confirmed) == truth.heads["induction"]


@pytest.mark.parametrize(
    "kind, wrong, message",
    [
        (LabelRoles, {"ks": 0}, "^ks"),
        (LabelRoles, {"ks": [10**6]}, "^k = 1000000"),
        (LabelRoles, {"prompts": 400}, "400"),
        (VectorRoles, {"tasks": ("copying",)}, "give two or more"),
    ],
)
def test_wrong_arguments_are_refused_before_a_model_is_loaded(kind, wrong, message):
    with pytest.raises(ValueError, match=message):
        kind("no such model", **wrong)
