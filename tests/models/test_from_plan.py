"""The four ways in which a plan states its model, and overrides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.catalog.names import ConfigFileError, UnknownNameError
from memcheck.families.registry import architecture_of, read_architecture
from memcheck.models.parameters import count_parameters
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Architecture, Rough
from memcheck.plan.types import ModelSpec, RoughSpec
from tests.models.configs import GEMMA2, LLAMA


def resolved(**model: Any) -> Architecture:
    """The architecture of a plan's model."""
    found = architecture_of(ModelSpec(**model))
    assert isinstance(found, Architecture)
    return found


def test_by_name() -> None:
    """A catalog name leads to that model's architecture."""
    assert count_parameters(resolved(name="llama-3.2-1b")) == 1_235_814_400


def test_by_unknown_name() -> None:
    """An unknown name is an error that shows close ones."""
    with pytest.raises(UnknownNameError) as caught:
        resolved(name="llama-3.2-2b")
    assert "llama-3.2-1b" in caught.value.close


def test_by_dimensions() -> None:
    """The plan's own mapping is read as strictly as anything a person writes."""
    assert resolved(architecture=LLAMA) == read_architecture(LLAMA)
    with pytest.raises(ArchitectureError) as caught:
        resolved(architecture={**LLAMA, "use_cach": False})
    assert caught.value.key == "use_cach"


def test_rough() -> None:
    """The rough model passes through: its numbers are the user's."""
    rough = RoughSpec(parameters=700_000_000, layers=32, hidden_size=4096, activation_multiplier=10.0)
    assert architecture_of(ModelSpec(rough=rough)) == Rough(700_000_000, 32, 4096, 10.0, None)


def test_no_model() -> None:
    """A model without any of the four is an error with an example."""
    with pytest.raises(ArchitectureError, match="names no model"):
        architecture_of(ModelSpec())


def test_by_config_file(tmp_path: Path) -> None:
    """A config.json is found relative to the plan, by its own path or by its folder's."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**LLAMA, "unsloth_fixed": True}), encoding="utf-8")
    expected = read_architecture(LLAMA)
    for path in ("model/config.json", "model", "./model/config.json"):
        assert architecture_of(ModelSpec(config=path), str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (b"{\n  'hidden_size': 64\n}", 2, "not JSON"),
        (b"[1, 2]", 1, "list"),
        (b"", 1, "not JSON"),
        (b"\xff\xfe\x00", 0, "not JSON"),
        (b'{"a":' * 100_000, 0, "not JSON"),
        (b'"' + b"x" * (5 * 2**20) + b'"', 0, "larger"),
    ],
)
def test_broken_config_file(tmp_path: Path, text: bytes, line: int, says: str) -> None:
    """What is no JSON object is an error with its place in the file, never a traceback."""
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigFileError) as caught:
        architecture_of(ModelSpec(config="config.json"), str(tmp_path))
    assert caught.value.line == line
    assert says in caught.value.message


def test_infinity_beside_the_sizes_is_read(tmp_path: Path) -> None:
    """Configs are shipped with `Infinity` in keys that are no size; in a size it is an error, and never a number."""
    expected = read_architecture(LLAMA)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "initializer_range": float("inf")}))
    assert architecture_of(ModelSpec(config="config.json"), str(tmp_path)) == expected
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "hidden_size": float("nan")}))
    with pytest.raises(ArchitectureError, match="hidden_size"):
        architecture_of(ModelSpec(config="config.json"), str(tmp_path))


def test_missing_config_file(tmp_path: Path) -> None:
    """A path that leads nowhere is an error that names it."""
    with pytest.raises(ConfigFileError, match=r"cannot read nothing\.json"):
        architecture_of(ModelSpec(config="nothing.json"), str(tmp_path))


def test_overrides_replace_keys() -> None:
    """Overrides change single keys of a catalog model; the rest stays."""
    cut = resolved(name="llama-3.1-8b", overrides={"num_hidden_layers": 12})
    assert cut.num_layers == 12
    assert cut.blocks[0][0] == resolved(name="llama-3.1-8b").blocks[0][0]


def test_override_of_null_switches_off() -> None:
    """null removes a window; leaving the key out keeps what the catalog says."""
    assert resolved(name="mistral-7b-v0.1", overrides={"sliding_window": None}).blocks[0][0].mixer is not None
    windows = [
        block.mixer.window  # type: ignore[union-attr]
        for block, _ in resolved(name="mistral-7b-v0.1", overrides={"sliding_window": None}).blocks
    ]
    assert windows == [None]


def test_unknown_override_is_an_error() -> None:
    """An override that no family reads was meant to do something: it is refused with the close key."""
    with pytest.raises(ArchitectureError) as caught:
        resolved(name="llama-3.1-8b", overrides={"num_hiden_layers": 12})
    assert caught.value.key == "num_hiden_layers"
    assert "num_hidden_layers" in caught.value.help


def test_harmless_override_is_still_an_error() -> None:
    """A key that config.json may carry unread is refused among overrides: a person wrote it."""
    with pytest.raises(ArchitectureError):
        resolved(name="llama-3.1-8b", overrides={"zz_extra": False})


def test_fewer_layers_of_a_listed_pattern() -> None:
    """Where the model lists a type per layer, fewer layers are the first of them."""
    cut = resolved(name="minimax-text-01", overrides={"num_hidden_layers": 8})
    assert cut.num_layers == 8
    assert [n for _, n in cut.blocks] == [7, 1]


def test_nested_overrides_are_merged(tmp_path: Path) -> None:
    """An override inside a section changes one key of it."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"model_type": "gemma3", "text_config": {**GEMMA2, "model_type": "gemma3_text"}, "vision_config": {}}
        ),
        encoding="utf-8",
    )
    overrides = {"vision_config": None, "text_config": {"num_hidden_layers": 2}}
    found = architecture_of(ModelSpec(config="config.json", overrides=overrides), str(tmp_path))
    assert isinstance(found, Architecture)
    assert found.num_layers == 2
