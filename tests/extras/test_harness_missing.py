"""Where lm-evaluation-harness is not installed, the suite says how to get it before it loads anything."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from util.commands.frame import app


def test_without_the_harness_the_cure_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("util.extras.harness")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    cure = r'pip install -e "\.\[harness\]" in the clone'
    with pytest.raises(ImportError, match=cure):
        import_module("util.extras.harness.model")
    with pytest.raises(ImportError, match=cure):
        app("evaluate --top 0.1 --mode zero -- --tasks icl_wordseq1", exit_on_error=False, print_error=False)
