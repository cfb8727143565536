"""Each framework's folder answers to the same names. That their types fit is what mypy checks of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memcheck.autograd.context import Setting
from memcheck.autograd.curve import replay
from memcheck.catalog.names import find_model
from memcheck.families.registry import read_architecture
from memcheck.frameworks.litgpt import layers as litgpt_layers
from memcheck.frameworks.registry import FRAMEWORKS, layers_of
from memcheck.frameworks.torchtitan import layers as torchtitan_layers
from memcheck.frameworks.torchtune import layers as torchtune_layers
from memcheck.frameworks.transformers import layers as transformers_layers

if TYPE_CHECKING:
    from memcheck.frameworks.registry import Layers

DOORS: dict[str, Layers] = {
    "huggingface": transformers_layers,
    "pytorch": transformers_layers,
    "deepspeed": transformers_layers,
    "torchtitan": torchtitan_layers,
    "litgpt": litgpt_layers,
    "torchtune": torchtune_layers,
}
LLAMA = read_architecture(find_model("llama-3.2-1b").config)


@pytest.mark.parametrize("name", DOORS)
def test_a_style_leads_to_its_folder(name: str) -> None:
    """Frameworks that train transformers' classes share their layers."""
    style = FRAMEWORKS[name].style
    assert layers_of(style) == DOORS[name]


@pytest.mark.parametrize("name", DOORS)
def test_a_recomputed_layer_keeps_its_input_alone(name: str) -> None:
    """Whether the layer checkpoints itself or ``replay`` does."""
    setting = Setting(FRAMEWORKS[name].style, 1, 1024, LLAMA.hidden_size)
    shape, whole = (1024, LLAMA.hidden_size), 2 * 1024 * LLAMA.hidden_size
    kept = {}
    for mode in ("none", "full"):
        forward, checkpoints = layers_of(setting.style).recomputing(LLAMA.layers()[0], mode)
        kept[mode] = replay(forward, setting, shape, "bf16", recompute=checkpoints).saved_bytes
    assert kept["full"] == whole < kept["none"]


def test_rotary_tables_belong_to_the_forward_or_to_the_layers() -> None:
    """torchtitan's layers hold theirs, torchtune's models one of all positions; LitGPT's are fp32 where transformers'
    have the stream's dtype.
    """
    found = {}
    for name in DOORS:
        style = FRAMEWORKS[name].style
        layers, setting = layers_of(style), Setting(style, 1, 1024, LLAMA.hidden_size)
        caches = layers.rotary_caches(LLAMA, 1024, 16, adapted=False)
        found[name] = layers.rotary_tables(LLAMA, setting), caches
    table = 1024 * 64 * 2
    assert found["huggingface"] == (2 * table, 0)
    assert found["torchtune"] == (0, LLAMA.max_position_embeddings * 64 * 4)
    assert found["litgpt"] == (4 * table, 0)
    assert found["torchtitan"] == (0, 16 * 2 * table)
