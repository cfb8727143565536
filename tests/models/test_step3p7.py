"""Step 3.7's configuration: what its class reads of a file, and what it does not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.families.registry import read_architecture
from memcheck.models.parameters import count_parameters
from memcheck.models.reader import ArchitectureError

TEXT: dict[str, Any] = json.loads(Path(__file__).with_name("written.json").read_text())["step3p5"]
WHOLE: dict[str, Any] = {"model_type": "step3p7", "text_config": TEXT, "vision_config": {}}
CLASS_DEFAULTS = 197_824_847_872
"""Parameters of ``Step3p7ForConditionalGeneration`` on the meta device (transformers 5.23), built of no keys at all."""


def changed(**keys: Any) -> dict[str, Any]:
    """The whole configuration with other keys of its language model."""
    found = copy.deepcopy(WHOLE)
    found["text_config"] |= keys
    return found


def test_the_class_s_own_defaults() -> None:
    """The count of its defaults, whose vocabulary has 128,815 words."""
    assert count_parameters(read_architecture(WHOLE)) == CLASS_DEFAULTS


def test_the_published_vocabulary_has_81_words_more() -> None:
    """A file that states its dimensions beside ``model_type: step3p7``, without ``text_config``, is one of which the
    class reads nothing: it counts its defaults. 128,896 words are a row more of embedding and head for each of 81.
    """
    assert count_parameters(read_architecture(changed(vocab_size=128896))) == CLASS_DEFAULTS + 81 * 2 * 4096


def test_such_a_file_is_refused() -> None:
    """There is no tower in it, and the model has one."""
    with pytest.raises(ArchitectureError, match="vision_config is missing"):
        read_architecture({**TEXT, "model_type": "step3p7"})


def test_keys_of_the_hub_s_files() -> None:
    """Sparse layers, heads of windowed layers and rotated shares under the names that the class takes over."""
    types = ["full_attention", "sliding_attention"] + ["full_attention"] * 43
    ours = {"layer_types": types, "sliding_window": 512}
    plain = changed(
        **ours,
        num_sliding_attention_heads=96,
        mlp_layer_types=["dense"] * 4 + ["sparse"] * 41,
        rope_parameters={"full_attention": {"partial_rotary_factor": 0.5}, "sliding_attention": {}},
    )
    named = changed(**ours, num_sliding_attention_heads=None, mlp_layer_types=None, rope_parameters=None)
    named["text_config"] |= {
        "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in types],
        "moe_layers_enum": ",".join(str(i) for i in range(4, 45)),
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
    }
    assert read_architecture(named) == read_architecture(plain)


@pytest.mark.parametrize(
    ("key", "value"), [("moe_layers_enum", "3,x"), ("mlp_bias", True), ("partial_rotary_factors", [0.5] * 4)]
)
def test_what_is_not_read_is_refused(key: str, value: object) -> None:
    """Unreadable lists, and biases without a memory model."""
    with pytest.raises(ArchitectureError) as found:
        read_architecture(changed(**{key: value, "mlp_layer_types": None}))
    assert found.value.key == f"text_config.{key}"
