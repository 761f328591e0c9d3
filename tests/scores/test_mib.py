"""Files of the MIB circuit track: what is written is read to the bit, what is damaged is refused by name."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from util.scores import mib
from util.scores.graph import ComponentGraph
from util.scores.mib import Columns, Importances, importances_file, pairs, read

GRAPH = ComponentGraph(2, 3)


def importances(graph=GRAPH, seed=0):
    random = np.random.default_rng(seed)
    scores = random.normal(size=graph.shape) * 10.0 ** random.integers(-300, 300, graph.shape)
    return Importances.of(graph, 64, scores, graph.top(scores, graph.size // 2, absolute=True))


# ------------------------------------------------------------------------------------------------ importances


@pytest.mark.parametrize("graph", [GRAPH, ComponentGraph(1, 1), ComponentGraph(3, 2, parallel=True)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read_to_the_bit(graph, seed, tmp_path):
    written = importances(graph, seed)
    file = written.write(importances_file(tmp_path, "ioi", "gpt2"))
    assert file == tmp_path / "ioi_gpt2" / "importances.json"
    back = read(file)
    assert (back.graph, back.d_model) == (graph, 64)
    assert back.scores.tobytes() == written.scores.tobytes()
    np.testing.assert_array_equal(back.edges, written.edges)
    np.testing.assert_array_equal(back.nodes, written.nodes)
    assert back.write(tmp_path / "again.json").read_bytes() == file.read_bytes()


def test_the_file_has_the_names_of_the_track(tmp_path):
    written = importances()
    content = json.loads(written.write(tmp_path / "file.json").read_text())
    assert content["cfg"] == {"n_layers": 2, "n_heads": 3, "parallel_attn_mlp": False, "d_model": 64}
    assert list(content["nodes"]) == list(GRAPH.nodes) and set(content["edges"]) == set(GRAPH.names())
    for name, edge in content["edges"].items():
        place = GRAPH.place(name)
        assert edge == {"score": written.scores[place], "in_graph": bool(written.edges[place])}
    assert [node["in_graph"] for node in content["nodes"].values()] == GRAPH.nodes_of(written.edges).tolist()


def test_without_a_circuit_everything_is_in_the_graph():
    whole = Importances.of(GRAPH, 8, np.full(GRAPH.shape, 2.0))
    assert whole.edges.sum() == GRAPH.size and whole.nodes.all()
    assert (whole.scores[GRAPH.edges] == 2).all() and (whole.scores[~GRAPH.edges] == 0).all()


def test_the_order_of_the_file_and_other_entries_do_not_matter(tmp_path):
    """Files of others have scores of nodes too, and write whole numbers without a point."""
    written = importances()
    content = json.loads(written.write(tmp_path / "file.json").read_text())
    content["edges"] = dict(reversed(content["edges"].items()))
    content["edges"]["input->m0"]["score"] = 3
    content["nodes"]["m0"]["score"] = 0.5
    content["cfg"]["model"] = "gpt2"
    (tmp_path / "file.json").write_text(json.dumps(content))
    back = read(tmp_path / "file.json")
    expected = written.scores.copy()
    expected[GRAPH.place("input->m0")] = 3
    np.testing.assert_array_equal(back.scores, expected)


def test_scores_that_are_not_finite_are_not_written(tmp_path):
    scores = np.zeros(GRAPH.shape)
    scores[GRAPH.place("m0->logits")] = np.nan
    with pytest.raises(ValueError, match="not finite, .* m0->logits"):
        Importances.of(GRAPH, 8, scores)
    with pytest.raises(ValueError, match="not finite"):
        Importances(GRAPH, 8, scores, GRAPH.edges, np.ones(10, bool)).write(tmp_path / "file.json")
    assert not list(tmp_path.iterdir())


def without(content, kind, name):
    del content[kind][name]


def renamed(content, kind, name, other):
    content[kind][other] = content[kind].pop(name)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda c: c.pop("cfg"), "the file has no 'cfg'"),
        (lambda c: c.pop("edges"), "the file has no 'edges'"),
        (lambda c: c.update(nodes=[]), r"'nodes' of the file is \[\], and not of type dict"),
        (lambda c: c["cfg"].pop("d_model"), "cfg has no 'd_model'"),
        (lambda c: c["cfg"].update(n_heads=True), "'n_heads' of cfg is True, and not of type int"),
        (lambda c: c["cfg"].update(n_heads=3.0), "'n_heads' of cfg is 3.0"),
        (lambda c: c["cfg"].update(n_layers=0), "cfg has a size below 1"),
        (lambda c: c["cfg"].update(parallel_attn_mlp=0), "'parallel_attn_mlp' of cfg is 0, and not of type bool"),
        (lambda c: c["cfg"].update(parallel_attn_mlp=True), "edges: 6 are unknown, first 'a0.h0->m0'"),
        (lambda c: c["cfg"].update(n_heads=2), "nodes: 2 are unknown, first 'a0.h2'"),
        (lambda c: c["cfg"].update(n_layers=1), "nodes: 4 are unknown, first 'a1.h0'"),
        (lambda c: c["cfg"].update(n_heads=4), "nodes: 2 are missing, first 'a0.h3'"),
        (lambda c: c["cfg"].update(n_layers=10**9), "cfg is of a graph with [0-9]{10,} edges, and the file has 75"),
        (lambda c: without(c, "edges", "a0.h1->m1"), "edges: 1 is missing, first 'a0.h1->m1'"),
        (lambda c: without(c, "nodes", "logits"), "nodes: 1 is missing, first 'logits'"),
        (lambda c: c["edges"].update({"m1->m0": {"score": 1.0, "in_graph": True}}), "1 is unknown, first 'm1->m0'"),
        (lambda c: renamed(c, "edges", "input->a0.h0<q>", "input->a0.h0"), "1 is missing, first 'input->a0.h0<q>'"),
        (lambda c: c["edges"]["m0->m1"].pop("score"), "m0->m1 has no 'score'"),
        (lambda c: c["edges"].update({"m0->m1": 3.0}), "m0->m1 has no 'score'"),
        (lambda c: c["edges"]["m0->m1"].update(score=np.nan), "the score of m0->m1 is nan"),
        (lambda c: c["edges"]["m0->m1"].update(score=-np.inf), "the score of m0->m1 is -inf"),
        (lambda c: c["edges"]["m0->m1"].update(score="1.0"), "'score' of m0->m1 is 1.0, and not of type float"),
        (lambda c: c["edges"]["m0->m1"].update(score=True), "'score' of m0->m1 is True"),
        (lambda c: c["edges"]["m0->m1"].update(score=10**400), "'score' of m0->m1 is 1000"),
        (lambda c: c["edges"]["m0->m1"].update(score=None), "'score' of m0->m1 is None"),
        (lambda c: c["edges"]["m0->m1"].update(in_graph=1), "'in_graph' of m0->m1 is 1"),
        (lambda c: c["nodes"]["m0"].update(in_graph=None), "'in_graph' of m0 is None"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(damage, message, tmp_path):
    content = json.loads(importances().write(tmp_path / "file.json").read_text())
    damage(content)
    (tmp_path / "file.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"file.json: .*{message}"):
        read(tmp_path / "file.json")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text[:-20], "file.json: "),
        (lambda text: "[1]", "file.json: the file has no 'cfg'"),
        (lambda text: text.replace('"m0->m1"', '"m0->logits"'), "'m0->logits' is there more than once"),
        (lambda text: text.replace('"n_heads"', '"n_layers": 2, "n_heads"'), "'n_layers' is there more than once"),
        (lambda text: text.replace('"score": ', '"score": 1e999, "was": ', 1), "the score of input->a0.h0<q> is inf"),
    ],
)
def test_a_damaged_text_says_what_is_wrong(change, message, tmp_path):
    file = importances().write(tmp_path / "file.json")
    file.write_text(change(file.read_text()))
    with pytest.raises(ValueError, match=message):
        read(file)


@pytest.mark.parametrize("names", [("", "gpt2"), ("ioi", ""), ("../ioi", "gpt2"), ("ioi", "openai/gpt2")])
def test_a_folder_is_named_by_task_and_model(names, tmp_path):
    with pytest.raises(ValueError, match="^(task|model) = "):
        importances_file(tmp_path, *names)


# ------------------------------------------------------------------------------------------------ prompts

IOI = [
    {
        "prompt": f"When {a} and {b} went to the shop, {b} gave a drink to",
        "s2_io_flip_counterfactual": {"prompt": f"When {a} and {b} went to the shop, {a} gave a drink to"},
        "metadata": {"indirect_object": a, "subject": b},
    }
    for a, b in [("Mary", "John"), ("Anna", "Paul"), ("Tom", "Eve")]
]
CHOICES = [
    {
        "prompt": "A. red\nB. blue\nThe sky is blue. Answer:",
        "choices": {"label": ["A", "B"], "text": ["red", "blue"]},
        "answerKey": 1,
        "symbol_counterfactual": {
            "prompt": "X. red\nY. blue\nThe sky is blue. Answer:",
            "choices": {"label": ["X", "Y"], "text": ["red", "blue"]},
            "answerKey": 1,
        },
    }
]
SUMS = [{"prompt": "3 + 4 =", "label": 7, "random_counterfactual": {"prompt": "2 + 6 =", "label": "8"}}]


def stored(rows, file):
    text = json.dumps(rows) if file.suffix == ".json" else "".join(f"{json.dumps(row)}\n" for row in rows)
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_pairs_of_every_task(name, tmp_path):
    ioi = pairs(stored(IOI, tmp_path / name), "ioi")
    assert len(ioi) == 3 and (ioi.answers[1], ioi.wrong[1]) == ("Anna", "Paul")
    assert ioi.base[1] == "When Anna and Paul went to the shop, Paul gave a drink to"
    assert ioi.source[1] == "When Anna and Paul went to the shop, Anna gave a drink to"
    for task in ("mcqa", "arc"):
        choices = pairs(stored(CHOICES, tmp_path / name), task)
        assert (choices.answers, choices.wrong) == (("B",), ("Y",)) and choices.source[0].startswith("X. red")
    sums = pairs(stored(SUMS, tmp_path / name), "arithmetic")
    assert (sums.base, sums.source, sums.answers, sums.wrong) == (("3 + 4 =",), ("2 + 6 =",), ("7",), ("8",))


def test_other_columns_can_be_named_and_rows_limited(tmp_path):
    rows = [{"text": "a", "other": "b", "options": ["no", "yes"], "right": i % 2, "wrong": 1 - i % 2} for i in range(4)]
    columns = Columns("text", "other", "options[right]", "options[wrong]")
    found = pairs(stored(rows, tmp_path / "rows.jsonl"), columns, limit=3)
    assert (found.answers, found.wrong) == (("no", "yes", "no"), ("yes", "no", "yes"))


class Dataset(list):
    """As much of a data set of `datasets` as is asked for."""

    from_parquet = staticmethod(lambda file: Dataset(IOI))


def installed(monkeypatch, on_disk):
    package = SimpleNamespace(load_from_disk=lambda folder: on_disk, Dataset=Dataset)
    monkeypatch.setitem(sys.modules, "datasets", package)


def test_folders_and_parquet_are_read_by_datasets(monkeypatch, tmp_path):
    installed(monkeypatch, Dataset(IOI))
    (tmp_path / "rows.parquet").touch()
    assert pairs(tmp_path, "ioi") == pairs(tmp_path / "rows.parquet", "ioi")
    assert len(pairs(tmp_path, "ioi", limit=2)) == 2
    installed(monkeypatch, {"train": Dataset(IOI), "test": Dataset(IOI[:1])})
    assert len(pairs(tmp_path, "ioi", split="test")) == 1
    for split in (None, "validation"):
        with pytest.raises(ValueError, match=f"split = {split!r}; it has train, test"):
            pairs(tmp_path, "ioi", split=split)


def test_without_datasets_the_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    (tmp_path / "rows.parquet").touch()
    for place in (tmp_path, tmp_path / "rows.parquet"):
        with pytest.raises(ImportError, match=r"needs the package datasets .*save the rows as \.jsonl"):
            pairs(place, "ioi")


@pytest.mark.parametrize(
    "change, task, message",
    [
        (lambda row: row.pop("prompt"), "ioi", "row 0 has no column 'prompt'.* it has s2_io_flip_counterfactual, meta"),
        (lambda row: row["metadata"].pop("subject"), "ioi", "no column 'metadata.subject': .* it has indirect_object"),
        (lambda row: row.update(metadata="none"), "ioi", r"no column 'metadata.indirect_object': .* no entries \(none"),
        (lambda row: row["metadata"].update(subject=" "), "ioi", "metadata.subject is ' ', and no text"),
        (lambda row: row["metadata"].update(subject=None), "ioi", "metadata.subject is 'None', and no text"),
        (lambda row: row["metadata"].update(subject=True), "ioi", "metadata.subject is 'True', and no text"),
        (lambda row: row.update(prompt=["a"]), "ioi", "prompt is .* and no text"),
        (lambda row: None, "mcqa", "row 0 has no column 'symbol_counterfactual.prompt'"),
        (lambda row: None, "arithmetic", "row 0 has no column 'random_counterfactual.prompt'"),
        (lambda row: None, "boolq", "task 'boolq': give Columns, or one of ioi, mcqa, arc, arithmetic"),
    ],
)
def test_rows_that_lack_something_say_what(change, task, message, tmp_path):
    rows = json.loads(json.dumps(IOI))
    change(rows[0])
    with pytest.raises(ValueError, match=message):
        pairs(stored(rows, tmp_path / "rows.json"), task)


@pytest.mark.parametrize("key", [2, -1, "1", None, True])
def test_an_answer_that_is_no_choice_is_refused(key, tmp_path):
    rows = json.loads(json.dumps(CHOICES))
    rows[0]["answerKey"] = key
    with pytest.raises(ValueError, match="row 0: answerKey is .*, which is no place in choices.label"):
        pairs(stored(rows, tmp_path / "rows.json"), "mcqa")


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("rows.txt", "prompt", "give a .jsonl, .json, .csv or .parquet file"),
        ("rows.csv", "prompt", "there are no rows"),
        ("rows.json", "{}", "must be a list of objects"),
        ("rows.json", "[1]", "row 0 has no column"),
        ("rows.json", "[]", "there are no rows"),
        ("rows.jsonl", "", "there are no rows"),
        ("rows.jsonl", "{", "rows.jsonl: "),
        ("rows.json", None, "no such file"),
    ],
)
def test_other_files_are_refused(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        pairs(tmp_path / name, "ioi")


def test_wrong_limits_and_columns_are_refused(tmp_path):
    with pytest.raises(ValueError, match="^limit = 0"):
        pairs(stored(IOI, tmp_path / "rows.json"), "ioi", limit=0)
    for place in ("a[b", "a[b][c]", "[b]", "a]"):
        with pytest.raises(ValueError, match='give a column as "prompt"'):
            Columns("prompt", "prompt", "prompt", place)
    with pytest.raises(ValueError, match="^base = ''"):
        Columns("", "prompt", "prompt", "prompt")


def by_words():
    """A tokenizer whose tokens are words."""
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words)


def test_unequal_numbers_of_tokens_are_refused(tmp_path):
    rows: list[Any] = json.loads(json.dumps(IOI))
    pairs(stored(rows, tmp_path / "rows.json"), "ioi").check_aligned(by_words())
    rows[1]["prompt"] += " the old"
    with pytest.raises(
        ValueError,
        match=r"^1 of 3 pairs have unequal numbers of tokens; the first is row 1, with 16 and 14: 'When Anna",
    ):
        pairs(stored(rows, tmp_path / "rows.json"), "ioi").check_aligned(by_words())


def test_every_task_has_its_counterfactual():
    assert {task: columns.source.split(".")[0] for task, columns in mib.COLUMNS.items()} == {
        "ioi": "s2_io_flip_counterfactual",
        "mcqa": "symbol_counterfactual",
        "arc": "symbol_counterfactual",
        "arithmetic": "random_counterfactual",
    }
