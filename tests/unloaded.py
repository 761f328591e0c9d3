"""A model that must not be loaded: what is stored has to do, or a refusal comes first."""

from dataclasses import replace

from util.study.model import Model


def never(*_, **__):
    raise AssertionError("a cached record must not load a model")


NEVER = Model("given:toy", loader=never)


def unloaded(study, **changes):
    """The same study, but for changes, of a model that must not be loaded."""
    return study.replace(model=replace(study.model, loader=never), **changes)
