"""torchtitan's layers see tokens, and not how they are cut into sequences: grids replay them once for all such cuts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.engine_speed import plan, resolved
from memcheck.autograd.context import Setting
from memcheck.autograd.curve import Curve
from memcheck.catalog.names import model_names
from memcheck.errors import MemcheckError
from memcheck.families.registry import architecture_of
from memcheck.frameworks.torch.units import base_setting, block_curve, replayed_block
from memcheck.job.lookup import stated
from memcheck.models.types import Architecture, Block, Mixer
from memcheck.plan.types import ModelSpec

BATCH, LENGTH = 3, 1000
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"tensor_parallel": 2, "sequence_parallel": True},
    {"context_parallel": 2},
    {"expert_parallel": 2},
)
RECIPES: tuple[dict[str, Any], ...] = (
    {},
    {"autocast_dtype": "bf16", "param_dtype": "fp32", "compute_dtype": "fp32"},
    {"has_grad": True},
)


def architecture(name: str) -> Architecture:
    """A model of the catalog."""
    found = architecture_of(ModelSpec(name=name))
    assert isinstance(found, Architecture)
    return found


def curve(block: Block, setting: Setting, mode: str) -> Curve | str:
    """The layer's curve with its setting as it is, or why it has none."""
    try:
        return replayed_block(block, setting, mode)
    except MemcheckError as error:
        return str(error)


def decoders() -> Iterator[tuple[str, Architecture]]:
    """A decoder of the catalog for each combination of what layers are made of, whatever their sizes."""
    known = set()
    for name in model_names():
        model = architecture(name)
        parts = frozenset(part for block, _ in model.blocks for part in stated(block))
        # torchtitan has no encoder-decoders; a plan of Gemma 3n, whose tower has no default, has to state its pictures
        if model.encoder is None and not model.embedders and parts not in known:
            known.add(parts)
            yield name, model


@pytest.mark.slow
def test_sequences_of_a_batch_are_tokens() -> None:
    """Three sequences and one of three times the length: every byte and label, in every mode, layout and recipe."""
    for name, model in decoders():
        job = resolved(plan(name, 1, "torchtitan")).job
        base = base_setting(job, model, None)._replace(batch=BATCH, sequence=LENGTH)  # type: ignore[arg-type]
        for block in {id(block): block for block, _ in model.blocks}.values():
            if isinstance(block.mixer, Mixer):
                continue
            for layout, recipe, mode in itertools.product(LAYOUTS, RECIPES, ("none", "selective", "full")):
                setting = base._replace(**layout, **recipe)
                together = setting._replace(batch=1, sequence=BATCH * LENGTH)
                expected = curve(block, setting, mode)
                assert expected == curve(block, together, mode), (name, layout, recipe, mode)
                if isinstance(expected, Curve):
                    same = block_curve(block, setting, mode) is block_curve(block, together, mode)
                    assert same, (name, layout, recipe, mode)
