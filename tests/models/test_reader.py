"""Reading single keys: types, ranges, aliases, and what nobody read."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.families.registry import read_architecture
from memcheck.models.reader import ArchitectureError, ConfigReader
from tests.models.configs import GPT2, LLAMA, without


def error(config: dict[str, Any], *, strict: bool = False) -> ArchitectureError:
    """The error that reading the configuration ends in."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(config, strict=strict)
    return caught.value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "64"),
        ("hidden_size", 64.0),
        ("hidden_size", True),
        ("hidden_size", None),
        ("hidden_size", [64]),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -3),
        ("num_hidden_layers", 10**9),
        ("vocab_size", 2**60),
        ("attention_bias", 1),
        ("tie_word_embeddings", "yes"),
        ("attention_dropout", 1.5),
        ("attention_dropout", "0.1"),
        ("hidden_act", 3),
    ],
)
def test_wrong_value_is_an_error_about_its_key(key: str, value: object) -> None:
    """A value of the wrong type or out of range is never coerced; the error names the key and shows the value."""
    found = error({**LLAMA, key: value})
    assert found.key == key
    assert key in found.message


def test_unknown_activation_suggests_the_known_one() -> None:
    """The activation function decides which tensors are kept, so a misspelt one is refused with the close name."""
    found = error({**LLAMA, "hidden_act": "gelu_pytroch_tanh"})
    assert found.key == "hidden_act"
    assert "gelu_pytorch_tanh" in found.help


def test_heads_must_divide() -> None:
    """Key-value heads divide the heads, and heads divide the hidden size unless head_dim says otherwise."""
    assert error({**LLAMA, "num_key_value_heads": 3}).key == "num_key_value_heads"
    assert error({**LLAMA, "hidden_size": 65}).key == "num_attention_heads"
    assert read_architecture({**LLAMA, "hidden_size": 65, "head_dim": 16}).hidden_size == 65


def test_own_aliases_are_read() -> None:
    """GPT-2's class knows Llama's names of its dimensions as well."""
    renamed = {
        "model_type": "gpt2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "vocab_size": 100,
        "intermediate_size": 256,
    }
    assert read_architecture(renamed) == read_architecture(GPT2)


def test_aliases_that_disagree_are_an_error() -> None:
    """Two names of one dimension with two values leave no right answer."""
    found = error({**GPT2, "hidden_size": 128})
    assert found.key == "hidden_size"
    assert "n_embd" in found.message


def test_foreign_name_is_named_in_the_error() -> None:
    """n_embd in a Llama configuration is another family's name; the error says which key to write."""
    found = error({**without(LLAMA, "hidden_size"), "n_embd": 64})
    assert found.key == "hidden_size"
    assert "hidden_size instead of n_embd" in found.help


def test_misspelt_key_is_suggested() -> None:
    """A key that nobody reads and that resembles one is refused even if its value could not be a size."""
    found = error({**LLAMA, "tie_word_embedding": False})
    assert found.key == "tie_word_embedding"
    assert "tie_word_embeddings" in found.help


def test_missing_key_suggests_the_misspelt_one() -> None:
    """A required key that is missing points at what was probably meant to be it."""
    found = error({**without(LLAMA, "intermediate_size"), "intermedate_size": 96})
    assert found.key == "intermediate_size"
    assert "intermedate_size" in found.help


@pytest.mark.parametrize("value", [7, True, [1, 2], {"layers": 4}])
def test_unread_key_that_may_be_a_size_is_an_error(value: object) -> None:
    """A whole number, a switch that is on, or a container of either could change a tensor."""
    assert error({**LLAMA, "zz_extra": value}).key == "zz_extra"


@pytest.mark.parametrize("value", [None, False, 0.5, "text", []])
def test_unread_key_that_cannot_be_a_size_is_a_note(value: object) -> None:
    """A config.json carries whatever its authors' tools wrote; harmless values do not stop it."""
    read = read_architecture({**LLAMA, "zz_extra": value})
    assert [n for n in read.notes if "zz_extra" in n] == ([] if value is None else ["zz_extra was not read"])


@pytest.mark.parametrize("value", [7, False, 0.5, "text", None])
def test_a_person_may_not_write_unknown_keys(value: object) -> None:
    """In a mapping written by hand every key has to mean something."""
    assert error({**LLAMA, "zz_extra": value}, strict=True).key == "zz_extra"


def test_keys_without_a_size_are_accepted() -> None:
    """What every config.json carries is on the list of irrelevant keys."""
    noise = {
        "architectures": ["LlamaForCausalLM"],
        "auto_map": {"AutoConfig": "x.Y"},
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192},
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
        "use_cache": True,
        "_name_or_path": "x",
    }
    assert read_architecture({**LLAMA, **noise}, strict=True) == read_architecture(LLAMA)


def test_redundant_keys_are_compared() -> None:
    """Tools write head_dim and key-value heads for families without such keys: right ones pass, wrong ones do not."""
    redundant = {"head_dim": 16, "num_key_value_heads": 4}
    assert read_architecture({**GPT2, **redundant}, strict=True) == read_architecture(GPT2)
    found = error({**GPT2, "num_key_value_heads": 2})
    assert found.key == "num_key_value_heads"
    assert "makes it 4" in found.message


def test_quantisation_is_mentioned() -> None:
    """How the checkpoint is stored is not how the plan holds weights; dropping the key in silence would hide that."""
    read = read_architecture({**LLAMA, "quantization_config": {"quant_method": "fp8", "bits": 8}})
    assert any("quantization_config" in n for n in read.notes)


def test_rotary_share_is_read_where_either_version_keeps_it() -> None:
    """partial_rotary_factor stands at the top in older files and inside rope_parameters in newer ones."""
    phi = {**LLAMA, "model_type": "phi"}
    old = read_architecture({**phi, "partial_rotary_factor": 0.25})
    new = read_architecture({**phi, "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e4}})
    assert old.rotary_dim == new.rotary_dim == 4
    assert read_architecture(phi).rotary_dim == 8


def test_reader_lists_nested_leftovers() -> None:
    """Keys inside a section are reported with their path."""
    reader = ConfigReader({"outer": {"inner": 1, "read": 2}}, "x")
    assert reader.section("outer").integer("read") == 2
    assert reader.unread() == [("outer.inner", 1)]
