"""A model that must not be loaded, or not run: what is stored has to do, or a refusal comes first."""

from dataclasses import replace

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook

from util.study.model import Model


def never(*_, **__):
    raise AssertionError("a cached record must not load a model")


NEVER = Model("given:toy", loader=never)


def no_pass():
    """Inside the block no model runs."""
    return register_module_forward_pre_hook(lambda *_: pytest.fail("a forward pass"))


def unloaded(study, **changes):
    """The same study, but for changes, of a model that must not be loaded."""
    return study.replace(model=replace(study.model, loader=never), **changes)
