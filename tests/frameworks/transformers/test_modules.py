"""What runs a module is found by its type."""

from __future__ import annotations

from importlib import import_module

import pytest

from memcheck.frameworks.transformers.modules import FORWARDS, forward_of
from memcheck.models import module_types, types
from memcheck.models import types as additions
from memcheck.models.families import cohere, hy_v3, phimoe
from memcheck.models.types import AltUpBlock, Mlp, UnscaledAltUpBlock

MODULES = (additions, module_types, types, cohere, hy_v3, phimoe)


@pytest.mark.parametrize("name", FORWARDS)
def test_every_line_names_a_type_and_a_function(name: str) -> None:
    """A line whose type or function is gone would never be noticed."""
    assert any(hasattr(module, name) for module in MODULES)
    file, _, function = FORWARDS[name].partition(":")
    assert callable(getattr(import_module("memcheck.frameworks.transformers." + file), function))


def test_a_plain_module_runs_as_its_kind_does() -> None:
    """Only types of their own have functions of their own; what refines such a type runs by the same function."""
    assert forward_of(Mlp(8, gated=True, activation="silu", bias=False, tensors=())) is None
    blocks = [kind(mixer=None, mlp=None, input_norm=None, mlp_norm=None) for kind in (AltUpBlock, UnscaledAltUpBlock)]
    assert forward_of(blocks[0]) is forward_of(blocks[1]) is not None
