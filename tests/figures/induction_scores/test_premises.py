"""MNLI's premises as the reference of means: samples, means, records that tasks share, and what is refused."""

from pathlib import Path

import pytest
import torch
from numpy.testing import assert_array_equal

from tests import architectures, text_rows, toys
from tests.unloaded import NEVER
from util import load_model_and_data as door
from util.engine.call import NO_LIMIT
from util.figures import task_study
from util.figures.edits import Edit
from util.figures.task_study import TaskStudy, samples
from util.load_model_and_data import load_tokenizer
from util.study.model import Model, digest
from util.study.study import Study

CONTEXT = 96  # the prompts of the tasks have up to 92 tokens
HEADS = [(0, 1), (2, 0), (2, 3)]


def premises(count):
    """Made-up premises of unlike lengths, none of them twice."""
    words = ("a dog", "ran to", "the tree", "and", "looked up", "again", "at the moon", "slowly")
    return [f"Report {n}: " + " ".join(words[: 1 + n % len(words)]) + "." for n in range(count)]


def written(folder, texts):
    """A folder with these premises, and a hypothesis that nobody reads."""
    text_rows.as_jsonl([{"premise": text, "hypothesis": "h", "label": 0} for text in texts], folder / "train")
    return str(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return written(tmp_path_factory.mktemp("texts") / "mnli", premises(60))


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request):
    tokenizer = toys.words()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT}
    return architectures.prepared(request.param, torch.float64, **sizes), tokenizer


def study_of(pair, place, folder, **options):
    model = Model.given(pair[0], pair[1], f"given:{pair[0].config.model_type}")
    settings = {"task": "wordseq2", "k": 0, "prompts": 3, "reference": "mnli", "reference_prompts": 5}
    return TaskStudy(model, folder=folder, **settings | {"reference_data": place} | options)


# ------------------------------------------------------------------------------------------------ samples


def plain_samples(texts, tokenizer, tokens, count):
    """The same by tokenizing the joined text anew with every premise."""
    found, joined = [], ""
    for text in texts:
        joined = f"{joined} {text}" if joined else text
        ids = tokenizer(joined)["input_ids"]
        if len(ids) >= tokens:
            found.append(tuple(ids[:tokens]))
            joined = ""
    return found[:count]


@pytest.mark.parametrize("tokens, count", [(1, 3), (17, 4), (64, 100), (64, 1)])
def test_samples_end_with_the_premise_that_fills_them(tokens, count):
    tokenizer = load_tokenizer("embedded")
    found = [row.ids for row in samples(premises(60), tokenizer, tokens, count)]
    assert found == plain_samples(premises(60), tokenizer, tokens, count) and 0 < len(found) <= count


def test_a_sample_has_3000_tokens_or_the_context(pair, place, tmp_path, monkeypatch):
    study = study_of(pair, place, tmp_path, reference_prompts=4)
    assert [len(row) for row in study.reference_rows] == [CONTEXT] * 4
    monkeypatch.setattr(task_study, "context_length", lambda model: NO_LIMIT)
    with pytest.raises(ValueError, match="premises do not fill one sample of 3000 tokens"):
        _ = study_of(pair, place, tmp_path).reference_rows


# ------------------------------------------------------------------------------------------------ means


def test_all_tasks_share_the_records_of_means(pair, place, tmp_path):
    study = study_of(pair, place, tmp_path)
    edit = Edit.ablate(HEADS, "input_mean")
    first, by_position = study.means(), study.means_by_position(edit)
    files = {file.name for file in tmp_path.iterdir()}
    other = study.replace(task="recursion", k=2, prompts=4, seed=7)
    assert_array_equal(other.means()["mean"], first["mean"])
    assert_array_equal(other.means_by_position(edit), by_position)
    assert {file.name for file in tmp_path.iterdir()} == files
    assert [*other.origins] == [*study.origins] and other.request != study.request
    assert study.replace(reference_prompts=4).means()["prompts"] == 4


# ------------------------------------------------------------------------------------------------ requests


def test_requests_say_which_premises(place, tmp_path):
    study = TaskStudy(NEVER, reference="mnli", reference_data=place)
    added = {"reference_version": digest(premises(60)), "reference_tokens": 3000}
    plain = TaskStudy(NEVER).request
    assert study.request == {**plain, "reference": "mnli", **added} and not plain.keys() & added.keys()
    assert study.replace(reference_data=written(tmp_path / "same", premises(60))).request == study.request
    other = study.replace(reference_data=written(tmp_path / "other", premises(59)))
    assert other.request["reference_version"] != study.request["reference_version"]
    assert study.texts[-60:] == premises(60)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "rows, message",
    [
        (None, "^reference_data = '.*': .*one file train is needed"),
        ('{"text": "a"}', "row 0: there is no column 'premise'; .* with the column premise"),
        ("", "there are no rows; give a folder"),
    ],
)
def test_premises_that_are_missing_are_refused_before_work(rows, message, tmp_path):
    if rows is not None:
        (tmp_path / "train.jsonl").write_text(rows)
    with pytest.raises(ValueError, match=message):
        TaskStudy(NEVER, reference="mnli", reference_data=tmp_path)


def settings_of(**settings):
    return Study("induction_scores", NEVER, **settings).settings


def test_without_the_hub_the_papers_settings_say_what_is_missing(monkeypatch, tmp_path):
    def unreachable(*_):
        raise ValueError("cannot read train of nyu-mll/glue from the hub; or give a folder with train.jsonl")

    monkeypatch.setattr(door, "_hub_rows", unreachable)
    door._reference_texts.cache_clear()
    with pytest.raises(ValueError, match="^reference_data = None: cannot read train of nyu-mll/glue"):
        TaskStudy(NEVER, reference="mnli")
    with pytest.raises(ValueError, match="^reference_data = None: cannot read .*a folder with train"):
        settings_of(settings="paper", text_tasks=["sst2"])
    with pytest.raises(ValueError, match="^reference_data = '.*mnli': there is no folder"):
        settings_of(settings="paper", text_tasks=["sst2"], text_data=str(tmp_path))
    assert settings_of(settings="paper", text_tasks=[], reference="staicc").reference == "staicc"


def test_the_papers_settings_take_500_samples_of_text_data(place, monkeypatch):
    monkeypatch.setattr(door, "_hub_rows", lambda *_: pytest.fail("the hub is asked"))
    texts = place.removesuffix("/mnli")
    text_rows.written("rte", Path(texts) / "rte")
    for settings, reference in (("paper", ("mnli", 500, place)), ("default", ("task", 64, None))):
        study = Study("induction_scores", NEVER, prompts=5, settings=settings, text_tasks=["rte"], text_data=texts)
        first = task_study.task_studies(study, "wordseq1")[0]
        assert (first.reference, first.reference_prompts, first.reference_data) == reference
