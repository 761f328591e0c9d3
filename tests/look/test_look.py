"""The page that shows heads on a text: its numbers beside plain code, what it refuses, hostile text."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests import eager_runs
from tests.clone import text
from util import look as page
from util.commands.frame import main
from util.engine.components import direct_effects
from util.load_model_and_data import load_ICL_model
from util.look import STRONGEST, example, look
from util.show.part import STORED
from util.study.model import Model

TEXT = "When Mike and Emma went to the cafe, Mike gave a coffee to"
HOSTILE = "</script><script>alert(1)</script> <!-- &amp; \" ' \u2028 {{ data }}\n\t😀"


@pytest.fixture(scope="module")
def model():
    """The embedded model in float64, by the name that its stored atlas has."""
    built, tokenizer = load_ICL_model("embedded")
    return Model("embedded", loader=lambda: (built.double(), tokenizer))


def data_of(html):
    """What the script of a page reads."""
    return json.loads(html.partition('id="data">')[2].partition("</script>")[0])


def numbers(text, kind):
    return np.frombuffer(base64.b64decode(text), np.dtype(kind).newbyteorder("<"))


@torch.no_grad()
def direct(model, ids, plain, query):
    """By how much all logits at a query fall without what each head writes there, [L, H, V]."""
    changes = {layer: -z[:, query : query + 1] for layer, z in plain.z.items()}
    every = torch.arange(plain.logits.shape[-1])[None]
    found = direct_effects(model, ids, changes, every, [query])
    assert found is not None
    fall = (found[1] - found[0])[:, :, 0, 0].numpy()
    return fall - fall.mean(-1, keepdims=True)


@pytest.mark.parametrize("positions", [None, [-1, 3]], ids=["all tokens", "two tokens"])
def test_the_numbers_of_a_page_are_those_of_plain_code(model, positions, wide_softmax):
    net, tokenizer = model.pair
    heads = [(2, 6), (0, 2), (2, 5)]
    told = data_of(look(model, heads, TEXT, positions).html())
    ids = torch.tensor([tokenizer(TEXT).input_ids])
    plain, length = eager_runs.read(net, ids), ids.shape[1]
    assert len(told["tokens"]) == length and "".join(told["tokens"][1:]) == TEXT
    assert told["queries"] == (list(range(length)) if positions is None else [3, length - 1])
    attention = np.stack([plain.weights[layer][0, head].numpy() for layer, head in heads])
    queries = told["queries"]
    rows = [attention[head, query, : query + 1] for head in range(3) for query in queries]
    assert np.abs(numbers(told["reads"], np.uint16) / 65535 - np.concatenate(rows)).max() <= 0.51 / 65535
    columns = [attention[head, query:, query] for head in range(3) for query in queries]
    written = numbers(told["readers"], np.uint16)
    assert not len(written) if positions is None else np.abs(written / 65535 - np.concatenate(columns)).max() < 1e-5
    words = numbers(told["words"], np.uint32).reshape(3, len(queries), 2 * STRONGEST)
    effects = numbers(told["effects"], np.int16).reshape(words.shape) * told["step"]
    falls = direct(net, ids, plain, length - 1)
    for place, (layer, head) in enumerate(heads):
        fall = falls[layer, head]
        order = np.argsort(-fall)
        expected = [*order[:STRONGEST], *order[::-1][:STRONGEST]]
        assert_allclose(effects[place, -1], fall[expected], atol=told["step"])
        assert [told["vocabulary"][word] for word in words[place, -1]] == [tokenizer.decode([int(w)]) for w in expected]


def test_a_long_text_is_looked_at_from_its_last_token_and_by_named_heads(model):
    text = " ".join(["Mike gave a coffee to Emma."] * 12)
    looked = look(model, [(2, 6)], text)
    assert looked.queries == [len(looked.tokens) - 1] and looked.reads.shape == (1, 1, len(looked.tokens))
    with pytest.raises(ValueError, match="tokens; name the heads to look at, or give up to 64 tokens"):
        look(model, None, text)


WRONG = [
    ((None, "", None), "the text is empty; give one"),
    (([(4, 0)], TEXT, None), "the model has 4 layers of 8 heads, not [(4, 0)]"),
    ((None, TEXT, [99]), "tokens, from 0; there are none at [99]"),
    (([(-1, 0)], TEXT, None), "the model has 4 layers of 8 heads, not [(-1, 0)]"),
    (([], TEXT, None), "name one head and one position at least"),
]


@pytest.mark.parametrize("arguments, message", WRONG)
def test_what_there_is_not_is_refused(arguments, message, model):
    with pytest.raises(ValueError) as error:
        look(model, *arguments)
    assert message in str(error.value)


def test_hostile_text_stays_text(model):
    html = look(model, [(0, 0)], HOSTILE).html("<b>x")
    assert html.count("<script") == 2 and "<b>x" not in html
    assert "".join(data_of(html)["tokens"][1:]).replace("…", "") == HOSTILE


def test_the_roles_of_a_page_are_those_of_the_atlas(model, monkeypatch):
    roles = look(model, [(2, 4)], "a b").roles
    assert roles is not None and roles["L2H4"][0][:2] == ("induction", "") and roles["L2H5"][0][1] == " (not confirmed)"
    monkeypatch.setattr(page, "stored_atlas", lambda request: None)
    assert data_of(look(model, [(2, 4)], "a b").html())["known"] is False


def test_the_command_writes_a_page_of_a_task(tmp_path, capsys):
    main(["look", "--heads", "L2H4", "--task", "ioi", "--out", str(tmp_path)])
    html = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'look.html'}\n") and data_of(html)["looked"] == [[2, 4]]
    assert "<code>python -m util look embedded --heads L2H4 --task ioi</code>" in html


@pytest.mark.parametrize("task, start", [("capitalization", "forest\tForest\n"), ("trec", "question: ")])
def test_tasks_have_an_example(task, start, model):
    assert example(task, model).startswith(start)


def test_an_unknown_task_is_refused_with_all_there_are():
    with pytest.raises(ValueError, match="no task 'x'; choose from ioi, copying, .*trec"):
        example("x", Model("embedded"))


def test_a_notebook_shows_the_page_and_a_picture(model, monkeypatch):
    shown = []
    monkeypatch.setattr(page, "display", lambda output, raw=False: shown.append(output))
    look(model, None, TEXT)._ipython_display_()
    frame, picture = shown
    assert "srcdoc" in frame["text/html"] and "<script" not in frame["text/html"]
    assert len(picture.axes) == 2


@pytest.mark.parametrize("model", STORED[1:])
def test_the_committed_page_has_the_script_and_style_of_the_template(model):
    committed = text(f"figures/{model}/look.html")
    template = Path(page.__file__).with_suffix(".html").read_text(encoding="utf-8")
    lines = [line for line in template.splitlines() if "{{" not in line and "{%" not in line]
    missing = [line for line in lines if line not in committed]
    assert not missing and len(lines) > 50, f"write it again: python -m util look {model} --task ioi"
