"""Looking names up: one record is read, unknown ones get suggestions, the index is up to date."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.catalog import index as index_module
from memcheck.catalog.index import KINDS, build_index, render_index, render_sizes
from memcheck.catalog.names import DATA, SIZES, UnknownNameError, canonical_names, find_gpu, find_model
from memcheck.errors import ConfigurationError


@pytest.mark.parametrize("kind", KINDS)
def test_index_is_up_to_date(kind: str) -> None:
    """index.json is what `python -m memcheck.catalog.index` writes: run it after adding or renaming a record."""
    stored = (Path(DATA) / f"{kind}s" / "index.json").read_text(encoding="utf-8")
    assert stored == render_index(kind)


def test_table_of_gpus_is_up_to_date() -> None:
    """sizes.json is what `python -m memcheck.catalog.index` writes of the records: run it after changing one."""
    assert Path(SIZES).read_text(encoding="utf-8") == render_sizes()


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_named_as_they_are_found(kind: str) -> None:
    """File names are lower case and free of spaces, so a canonical name is found without the index."""
    names = canonical_names(kind)
    assert all(name == name.lower() and " " not in name for name in names)
    files = {f.removesuffix(".yaml") for f in os.listdir(os.path.join(DATA, kind + "s")) if f.endswith(".yaml")}
    assert files == set(names)


def test_two_records_may_not_claim_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias that leads to two records is refused when the index is built."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"id: x/{name}\naliases: [x/Both]\n", encoding="utf-8")
    monkeypatch.setattr(index_module, "DATA", str(tmp_path))
    with pytest.raises(ConfigurationError, match="'x/both' is claimed by one and two"):
        build_index("model")


def test_a_shared_name_needs_two_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is said to be shared has to be shared, and may be nobody's own."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    monkeypatch.setattr(index_module, "DATA", str(tmp_path))
    (folder / "one.yaml").write_text("shared_names: [Both]\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="'both' is shared by one and nothing else"):
        build_index("gpu")
    (folder / "two.yaml").write_text("aliases: [Both]\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="'both' is shared by one and two"):
        build_index("gpu")
    (folder / "two.yaml").write_text("shared_names: [Both]\n", encoding="utf-8")
    assert build_index("gpu") == {"both": ["one", "two"], "one": "one", "two": "two"}


@pytest.mark.parametrize(
    ("name", "close"),
    [("llama-3.1-9b", "llama-3.1-8b"), ("qwen-2.5-7b", "qwen2.5-7b"), ("meta-llama/Llama3.1-8B", "llama-3.1-8b")],
)
def test_unknown_model_shows_close_names(name: str, close: str) -> None:
    """A misspelt model gets up to three suggestions, the likeliest first."""
    with pytest.raises(UnknownNameError) as caught:
        find_model(name)
    assert caught.value.close[0] == close
    assert len(caught.value.close) <= 3
    assert close in caught.value.help


@pytest.mark.parametrize("name", ["", " ", "../models/llama-3.1-8b", "a/b/c", ".", "x\0y", "index"])
def test_strange_names_are_unknown(name: str) -> None:
    """Whatever stands where a name belongs is an unknown name, not a path into the file system."""
    with pytest.raises(UnknownNameError):
        find_model(name)


def test_unknown_gpu_without_anything_close() -> None:
    """With nothing similar the error says how to see what there is."""
    with pytest.raises(UnknownNameError) as caught:
        find_gpu("zzzzzzzz")
    assert caught.value.close == ()
    assert "memcheck list gpus" in caught.value.help


def test_a_lookup_reads_one_record(tmp_path: Path) -> None:
    """A canonical name opens its own file and nothing else of the catalog: no index, no other record."""
    code = (
        "import sys, json; opened = [];"
        "sys.addaudithook(lambda event, args: event == 'open' and opened.append(str(args[0])));"
        "from memcheck.catalog.names import find_model; find_model('llama-3.1-8b');"
        "print(json.dumps([p for p in opened if '/catalog/data/' in p.replace(chr(92), '/')]))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert [os.path.basename(path) for path in json.loads(printed)] == ["llama-3.1-8b.yaml"]
