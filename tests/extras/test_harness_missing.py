"""Where lm-evaluation-harness is not installed, the suite says how to get it before it loads anything."""

from __future__ import annotations

import sys

import pytest

from util.commands.frame import app
from util.extras.harness import evaluate


def test_without_the_harness_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setattr(evaluate, "as_model", lambda name: pytest.fail("a model was asked for"))
    with pytest.raises(ValueError, match=r'pip install -e "\.\[harness\]" in the clone'):
        evaluate.evaluate("embedded", ["icl_wordseq1"])
    with pytest.raises(ValueError, match=r'pip install -e "\.\[harness\]" in the clone'):
        app("evaluate --top 0.1 --mode zero -- --tasks icl_wordseq1", exit_on_error=False, print_error=False)
