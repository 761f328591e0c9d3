"""Tasks of one's own: named by a file, a folder or an object of a Python file, known to all by one name."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import toys
from util.load_model_and_data import load_tokenizer
from util.prompts import classification, own_tasks, word_pair_prompts, word_pairs
from util.prompts.prompt import UnsupportedTokenizer
from util.prompts.word_pairs import LISTS, Pair

WORDS = ("red", "blue", "green", "black", "white", "brown", "pink", "grey", "gold", "silver", "dark", "light")
PAIRS = {word: word[::-1] for word in WORDS}
TEXTS = [{"text": f"{word}: a colour", "label": "warm" if word in WORDS[::2] else "cold"} for word in WORDS]


@pytest.fixture(autouse=True)
def register(monkeypatch):
    monkeypatch.setattr(own_tasks, "_REGISTERED", {})


def word_tokenizer():
    """A tokenizer with a token for each word between tabs and ends of lines; it knows the words of PAIRS."""
    return toys.by_pattern(r"[^\t\n]+|\t|\n", ["\t", "\n", *PAIRS, *PAIRS.values()])


def csv_of(rows):
    return "\n".join(",".join(row) for row in ([*rows[0]], *([*row.values()] for row in rows))) + "\n"


def pair_rows(columns=("input", "output"), **more):
    """Rows of PAIRS. more: by column, what a row has there."""
    return [dict(zip(columns, pair, strict=True)) | {c: of(*pair) for c, of in more.items()} for pair in PAIRS.items()]


def written(folder, name, rows):
    """Rows in a place of some kind, and its name as a user would write it."""
    file = folder / name
    if name.endswith(".csv"):
        file.write_text(csv_of(rows))
    elif name.lower().endswith(".jsonl"):
        file.write_text("\n".join(map(json.dumps, rows)))
    else:
        file.write_text(json.dumps(rows))
    return str(file)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".JSONL"])
def test_a_file_is_a_task_by_its_name(tmp_path, suffix):
    for columns in own_tasks.PAIRS:
        place = written(tmp_path, f"colours{suffix}", pair_rows(columns))
        task = word_pairs.find(place)
        assert task.pairs == tuple(Pair(x, y) for x, y in PAIRS.items())
        assert task.name == "colours" and task is word_pairs.find("colours") and task.corruptions == (0, 1, 2, 3, 4)
    texts = classification.task(written(tmp_path, f"texts{suffix}", TEXTS))
    assert texts.rows == tuple((row["text"], row["label"]) for row in TEXTS) and texts.labels == ("warm", "cold")
    assert "texts" not in word_pairs.names() and classification.prompts(classification.task("texts"), 2, limit=1)
    for find, other in ((word_pairs.find, "texts"), (classification.task, "colours")):
        with pytest.raises(ValueError, match=f"'{other}' is no .* task, which is needed here"):
            find(other)
        with pytest.raises(ValueError, match=rf"{other}\S+: a .* task is needed here, one split with the columns "):
            find(str(tmp_path / f"{other}{suffix}"))


def test_the_embedded_model_gets_other_words_that_it_knows(tmp_path):
    task = word_pairs.find(written(tmp_path, "colours.csv", pair_rows()), trained=True)
    assert task.lists == word_pairs.find("copying", trained=True).lists != LISTS == word_pairs.find("colours").lists


def test_a_saved_data_set_is_a_task_by_the_name_of_its_folder(tmp_path, monkeypatch):
    colours, texts = (str(tmp_path / name) for name in ("colours", "texts"))
    for folder in (colours, texts):
        Path(folder).mkdir()
        (Path(folder) / "dataset_info.json").write_text("{}")
    package = SimpleNamespace()
    package.load_from_disk = lambda _: package.rows
    monkeypatch.setitem(sys.modules, "datasets", package)
    for columns in own_tasks.PAIRS:  # another content is another task
        package.rows = [dict(zip((*columns, "more"), (x, x.upper(), 1), strict=True)) for x in columns]
        assert word_pairs.find(colours).pairs == tuple(Pair(x, x.upper()) for x in columns)
        assert word_pairs.find("colours") == word_pairs.find(colours)
    for rows, message in (
        ([{"a": "b"}], "one split with the columns input and output, or x and y; it has a"),
        ({"train": 1}, "it has the splits train; save one of them"),
    ):
        package.rows = rows
        with pytest.raises(ValueError, match=f"{colours}.*{message}"):
            word_pairs.find(colours)

    class Rows(list):
        features = {"label": SimpleNamespace(names=["cold", "warm"])}

    package.rows = Rows({"text": word, "label": number % 2} for number, word in enumerate(WORDS))
    assert classification.task(texts).labels == ("cold", "warm")
    package.rows[-1]["label"] = -1  # not the last class
    with pytest.raises(ValueError, match="a label is hidden"):
        classification.task(texts)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        word_pairs.find(colours)


PYTHON = """
from util.prompts.classification import Task
from util.prompts.word_pairs import WordPairTask, register

upper = WordPairTask("upper", [(word, word.upper()) for word in {words!r}], other_rule=lambda word: word)
register(WordPairTask("known", upper.pairs))
texts = Task("texts", tuple((word, word[:1] < "d" and "early" or "late") for word in {words!r}), ("early", "late"))
"""


def test_an_object_of_a_python_file_is_a_task(tmp_path):
    file = tmp_path / "my_tasks.py"
    for words in (WORDS, WORDS[::-1]):  # a changed file is read again
        file.write_text(PYTHON.format(words=words).replace("late", "late" if words is WORDS else "behind"))
        task = word_pairs.find(f"{file}:upper")
        assert task.other("red") == "red" and [pair.x for pair in task.pairs] == [*words]
        assert word_pairs.find("upper") is task and word_pairs.find(f"{file}:known").pairs == task.pairs
        assert classification.task(f"{file}:texts").labels[0] == "early"
    with pytest.raises(ValueError, match=r"my_tasks.py has no task 'lower': assign a WordPairTask or a "):
        word_pairs.find(f"{file}:lower")
    with pytest.raises(ValueError, match="is no word-pair task, which is needed here"):
        word_pairs.find(f"{file}:texts")
    for text, message in (("1 / 0", "ZeroDivisionError: division"), ("import nothing_of_the_kind", "No module named")):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"cannot run .*my_tasks.py: .*{message}"):
            word_pairs.find(f"{file}:upper")
    with pytest.raises(ValueError, match="cannot run .*none.py: FileNotFoundError"):
        word_pairs.find(str(tmp_path / "none.py:upper"))


def test_one_name_is_one_task(tmp_path):
    first, second = (tmp_path / name for name in ("first", "second"))
    for folder in (first, second):
        folder.mkdir()
    place = written(first, "colours.csv", pair_rows())
    assert word_pairs.find(place) == word_pairs.find(written(second, "colours.csv", pair_rows()))  # moved, or copied
    with pytest.raises(ValueError, match="there is a task 'colours' already; give yours another name"):
        word_pairs.find(written(second, "colours.csv", pair_rows()[:-1]))
    for find, name in ((word_pairs.find, "copying"), (classification.task, "repetition")):
        with pytest.raises(ValueError, match=f"there is a task '{name}' already"):
            find(written(first, f"{name}.csv", pair_rows() if name == "copying" else TEXTS))
    classification.register(classification.Task("copying", (("a", "b"), ("c", "d")), ("b", "d")))
    with pytest.raises(ValueError, match="there are two tasks 'copying', the suite's and yours"):
        word_pairs.find("copying")


def test_corruptions_and_another_rule_of_ones_own(tmp_path):
    shifted = dict(zip(WORDS, (*WORDS[1:], WORDS[0]), strict=True))
    rows = pair_rows(
        mark=lambda x, y: "*" * (x == "red"),
        other_rule=lambda x, y: x,
        unrelated_input=lambda x, y: shifted[x],
        same_task_output=lambda x, y: shifted[x],
    )
    task = word_pairs.find(written(tmp_path, "colours.csv", rows))
    assert task.corruptions == (0, 1, 2, 3, 4, 5) and task.other("blue") == "blue" and task.pairs[0].kind == "*"
    tokenizer = word_tokenizer()
    drawn = word_pair_prompts.prompts(task, tokenizer, 4, k=3, corruptions=(0, 1, 5), ambiguous=0)
    assert len(drawn.items) == 4

    def lines(prompt):
        return [line.split("\t") for line in prompt.text.split("\n")]

    for item in drawn.items:
        clean, unrelated, same, other = map(lines, (item.clean, *item.donors.values()))
        assert unrelated == [[shifted[x], *y] for x, *y in clean]  # the query, too
        assert same == [[x, *(shifted[x] for _ in y if _)] if y != [""] else [x, ""] for x, *y in clean]
        assert all(x == y for x, y in other[:-1]) and other[-1] == clean[-1]
    with_donors = word_pair_prompts.prompts(task, tokenizer, 4, k=5, corruptions=(0, 1), ambiguous=0)
    assert with_donors.items  # other pairs are not needed for them


BAD = {
    "input,output\nred,der\nblue,\n": r"row 2: '' is empty",
    "input,output\nred,der\nred,dre\n": r"row 2: 'red' is an input twice, also of row 1; keep one",
    "input,output,unrelatd_input\nred,der,x\nblue,eulb,y\n": "unknown column 'unrelatd_input'; corruptions have unrela",
    "input,output,unrelated_input\nred,der,x\nblue,eulb,\n": "row 2: corruption unrelated changes neither 'blue' nor",
    'input,output,unrelated_input\nred,der,x\nblue,eulb,"a\tb"\n': r"row 2: 'a\\tb' contains '\\t', which ends a part",
    'input,output,other_rule\nred,der,x\nblue,eulb,"a\nb"\n': r"row 2: 'a\\nb' contains '\\n', which ends a part",
    "text,label\na,up\nb,\n": "row 2: label is '', and no text",
    "text,label\na,up\nb,down\na,down\n": "row 3: 'a' occurs more than once, as 1; keep one of each",
    "text,label\na,up\nb,down\nc,Up\n": "row 3: label 'Up' is 'up' before; write it in one way",
    "text,label\na,up\nb,up\n": "all rows have the label 'up'; two labels or more are needed",
    "text,label\na,up\nb, c,down\n": "row 2 has 3 cells for 2 columns; a text with a comma stands",
    'text,label\na,up\n"b\n\nc",down\n': "row 2: .* is empty or contains one of the layout's separators",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_rows_have_their_number(tmp_path, text):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    find = classification.task if text.startswith("text") else word_pairs.find
    with pytest.raises(ValueError, match=rf"bad.csv[,:] .*{BAD[text]}"):
        find(str(file))


def test_a_task_of_which_hardly_a_query_can_be_asked_says_so(tmp_path, capfd):
    """Of two queries there were intervals of 0.66 without a word, and of one a traceback."""
    plurals = toys.by_pattern(r"[a-z]+?(?=s?(?:[\t\n]|$))|s|\t|\n", ["\t", "\n", "s", *PAIRS, *PAIRS.values()])
    for place, asked in enumerate((1, 2)):
        pairs = [{"input": word, "output": word[::-1] if i < asked else f"{word}s"} for i, word in enumerate(WORDS)]
        task = word_pairs.find(written(tmp_path, f"plurals{place}.csv", pairs))
        if asked == 2:
            assert word_pair_prompts.prompts(task, plurals, 4, k=4).askable == 2
            continue
        with pytest.raises(
            UnsupportedTokenizer, match="one query alone can be asked .*begins as the query said again 11"
        ):
            word_pair_prompts.prompts(task, plurals, 4, k=4)
    assert "plurals1: 2 of 12 queries can be asked (query: its answer begins as the q" in capfd.readouterr().err


def test_a_tokenizer_whose_unknown_token_is_its_bos_carries_a_file(tmp_path):
    """As those of GPT-2, Pythia and Phi-2, which were refused."""
    tokenizer = word_tokenizer()
    tokenizer.unk_token = tokenizer.bos_token
    task = word_pairs.find(written(tmp_path, "colours.csv", pair_rows(("Input", "Output"))))
    assert len(task.pairs) == len(PAIRS) and word_pair_prompts.prompts(task, tokenizer, 2, k=2).items


def test_rows_that_a_tokenizer_cannot_carry_have_their_number(tmp_path):
    rows = [*pair_rows(), {"input": "azure", "output": "eruza"}]
    task = word_pairs.find(written(tmp_path, "colours.csv", rows))
    with pytest.raises(UnsupportedTokenizer, match=r"colours.csv, row 13: the tokenizer cannot carry 'azure' and 'eru"):
        word_pair_prompts.prompts(task, word_tokenizer(), 2, k=2)
    colon = word_pairs.WordPairTask("colours", task.pairs, layout=word_pairs.COLON, source="colours.csv")
    with pytest.raises(
        UnsupportedTokenizer, match=r"row 1: .*cannot carry 'red' and 'der' .*another layout \(tab, arrow, colon\)"
    ):
        word_pair_prompts.prompts(colon, word_tokenizer(), 2, k=2)


def test_a_tokenizer_is_read_without_its_weights():
    assert len(load_tokenizer("embedded")) == 5120
