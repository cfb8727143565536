"""Parameter counts of models that transformers built on the meta device, and the files that it wrote for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.added import added
from memcheck.families.registry import read_architecture
from memcheck.models.parameters import count_parameters

ADDED = added()
HELD = {f"model.layers.0.input_hidden_states_{part}": f"model.input_hidden_states_{part}" for part in ("bias", "scale")}
"""Tensors of the model that its first layer reads, and that are held with that layer (ZAYA)."""


def test_a_family_counts_as_transformers_does() -> None:
    """The count from the keys equals that of the model, with every key of the written file read."""
    for kind in sorted(ADDED):
        record = ADDED[kind]
        assert count_parameters(read_architecture(record["config"])) == record["parameters"], kind
        assert count_parameters(read_architecture(record["config"], strict=True)) == record["parameters"], kind


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("kind", sorted(ADDED))
def test_the_record_is_what_transformers_builds(kind: str) -> None:
    """The names and shapes of every tensor are those of the model on the meta device."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    from memcheck.models.parameters import block_tensors, outer_tensors
    from memcheck.verify.build.model import class_of

    config: dict[str, Any] = json.loads(json.dumps(ADDED[kind]["config"]))
    model_type = config.pop("model_type")
    with torch.device("meta"):
        real_config = transformers.AutoConfig.for_model(model_type, **config)
        model = class_of(model_type)(real_config)
    tied = set(model._tied_weights_keys or ())
    named = sorted(model.named_parameters(remove_duplicate=False), key=lambda each: each[0] in tied)
    real = sorted({id(p): (name, tuple(p.shape)) for name, p in reversed(named)}.values())
    architecture = read_architecture(ADDED[kind]["config"])
    ours = [(t.name, t.shape) for t in outer_tensors(architecture)]
    for i, block in enumerate(architecture.layers()):
        ours += [(f"{architecture.paths.layers}.{i}.{t.name}", t.shape) for t in block_tensors(block)]
    if (encoder := architecture.encoder) is not None:
        layers = [block for block, count in encoder.blocks for _ in range(count)]
        ours += [
            (f"{encoder.layers_path}.{i}.{t.name}", t.shape)
            for i, block in enumerate(layers)
            for t in block_tensors(block)
        ]
        ours += [(t.name, t.shape) for t in encoder.tensors]
    if any(
        block.shared_with.later for block, _ in architecture.blocks
    ):  # one layer's name stands for all that share a tensor
        assert sorted(shape for _, shape in ours) == sorted(shape for _, shape in real)
    else:
        assert sorted((HELD.get(name, name), shape) for name, shape in ours) == real
