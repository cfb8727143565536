"""Write down what bears on memory in the recipes that Megatron-Bridge ships, for ``run_recipe.py --recipe NAME``.

    python -m benchmarks.bridge_recipes FOLDER

``FOLDER`` is a checkout of Megatron-Bridge at the commit that ``memcheck/configs/megatron_bridge.py`` names. Its
recipes are called with stand-ins for every other module, and what they set is taken down. A field is kept if the
reading changes without it. A recipe that memcheck cannot estimate is left out, with the reason on the screen.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shipped import deciding_keys, table_of
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.key_table import key_table
from memcheck.configs.megatron_bridge import PRECISIONS, SECTIONS, SHIPPED, arguments_of
from memcheck.configs.plan_text import nested
from memcheck.configs.read_megatron import DIMENSIONS, read_megatron
from memcheck.configs.types import ReadConfig
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Location, Span

ROOT = "megatron.bridge.recipes"
OUTSIDE = ("megatron", "torch", "numpy", "PIL", "datasets", "transformers", "transformer_engine", "nemo_run")
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
DEFAULTS = {
    "model.cross_entropy_loss_fusion": True,  # models/gpt_provider.py
    "model.should_pad_vocab": False,  # models/gpt_provider.py
    "model.moe_grouped_gemm": True,  # models/conversion, of every family with experts
}
"""What a provider says where a recipe says nothing."""
ALWAYS = ("model.sequence_parallel", "model.expert_tensor_parallel_size")
"""Fields that count with other degrees than the recipe's."""


class Made:
    """What a call of a stand-in gives: it keeps what it is given, and any attribute of it is another."""

    def __init__(self, name: str, said: dict[str, Any]) -> None:
        self.__dict__.update(_name=name, _said=said)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._said:
            return self._said[name]
        if name.startswith(("from_hf", "to_megatron", "get_model_config")):
            return lambda *given, **_: Made("model", {"hf_model_id": given[0]} if given else self._said)
        if name.endswith("parallel_size"):
            return 1
        return self._said.setdefault(name, Made(name, {}))

    def __setattr__(self, name: str, value: Any) -> None:
        self._said[name] = value

    def __call__(self, *given: Any, **said: Any) -> Made:
        """What it makes of its keywords; of a named precision, the fields that it stands for."""
        name = given[0] if self._name == "get_mixed_precision_config" else self._name
        if self._name == "get_mixed_precision_config" or name in PRECISIONS:
            said = dict(PRECISIONS.get(name, {f"`{name}`": True}))
        return Made(self._name, said)

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __or__(self, other: object) -> Made:
        return self

    __ror__ = __getitem__ = __or__

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (object,)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def fields(self, before: str = "") -> dict[str, Any]:
        """The dotted names of all that it keeps, and the classes of what it keeps."""
        found: dict[str, Any] = {}
        for name, each in self._said.items():
            if isinstance(each, Made):
                found |= {f"{before}{name}._target_": vars(each)["_name"], **each.fields(f"{before}{name}.")}
            else:
                found[f"{before}{name}"] = each
        return found


class StandIn(types.ModuleType):
    """A module of which every name is a stand-in."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in DTYPES:
            return DTYPES[name]
        return type("PEFT", (), {}) if name == "PEFT" else Made(name, {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the recipes in the checkout, and a stand-in for every other module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "src"

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        """The place of a module."""
        at = self.folder.joinpath(*fullname.split("."))
        if fullname.startswith(ROOT) and at.with_suffix(".py").is_file():
            return importlib.util.spec_from_file_location(fullname, at.with_suffix(".py"))
        if fullname.startswith(ROOT) and at.is_dir():
            file = at / "__init__.py"
            return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[str(at)])
        inside = fullname.partition(".")[0] in OUTSIDE
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if inside else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The stand-in."""
        return StandIn(spec.name)  # a package, by its spec

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


def recipes(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The fields of each recipe by the name of its function, and for each other name the recipe that it stands for."""
    sys.meta_path.insert(0, Finder(folder))
    found: dict[str, dict[str, Any]] = {}
    others: dict[str, str] = {}
    for path in sorted((folder / "src" / ROOT.replace(".", "/")).rglob("*.py")):
        module = str(path.relative_to(folder / "src").with_suffix("")).replace("/", ".")
        if path.name.startswith("_") or ".utils." in module or module.endswith(".common"):
            continue
        for name, function in vars(importlib.import_module(module)).items():
            code = getattr(function, "__module__", "")
            if not (name.endswith("_config") and code.startswith(ROOT) and ".utils." not in code):
                continue
            if function.__name__ != name:
                others[name] = function.__name__
            if function.__name__ not in found and not name.startswith("_"):
                try:
                    made = function()
                except (
                    TypeError,
                    ValueError,
                    NotImplementedError,
                ) as error:  # a helper, or one that asks more of its model
                    print(f"{name}: {error}")
                    continue
                found[function.__name__] = made.fields() if isinstance(made, Made) else {}
    return found, others


def reading(fields: dict[str, Any]) -> ReadConfig:
    """The reading of a container with these fields."""
    values = {name: value for name, (value, _) in arguments_of(fields).items()}
    return read_megatron(ConfigFile("recipe.py", values, lambda _: Location("recipe.py", Span(2, 1, 2, 1)), ()), None)


def said(fields: dict[str, Any]) -> tuple[object, list[str]]:
    """What the reader says to these fields: its settings, and its notes and problems."""
    found = reading(fields)
    settings = {key: str(each.value) for key, each in found.settings.items()}
    return settings, sorted(each.message for each in (*found.notes, *found.problems))


def kept(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of one recipe without which the reading is another."""
    dims = {row.path.replace("-", "_") for row in DIMENSIONS}
    without_memory = key_table("megatron").names["bridge_models"]
    values = {
        key: value
        for key, value in {**DEFAULTS, **fields}.items()
        if key.partition(".")[0] in SECTIONS
        and not (key.startswith("model.") and key[6:] in without_memory)
        and key not in ("model.seq_length", "model._target_")
        and not (key.startswith("optimizer.") and value == "fp32")
    }
    if values.get("model.cuda_graph_impl") in (None, "none"):
        values.pop("model.cuda_graph_scope", None)
    if fields.get("model.expert_model_parallel_size") in (None, 1):
        for key in ("model.moe_grouped_gemm", "model.expert_tensor_parallel_size"):
            values.pop(key, None)
    if "model.hf_model_id" not in values or any(key[6:] in dims for key in values if key.startswith("model.")):
        print(f"{name}: its model is no model of Hugging Face's alone")
        return {}
    _, messages = said(values)
    if messages:
        print(f"{name}: {'; '.join(messages)[:200]}")
        return {}
    return deciding_keys(values, said, ALWAYS)


def estimated(name: str, fields: dict[str, Any]) -> bool:
    """Whether a plan of these settings has an estimate."""
    settings = {key: each.value for key, each in reading(fields).settings.items()}
    gpus = next((int(each[:-3]) for each in name.split("_") if each.endswith("gpu")), 8)
    settings |= {"hardware.gpu": "h100-80gb", "hardware.gpus_per_node": min(gpus, 8), "hardware.nodes": -(-gpus // 8)}
    (result, *_), traces = check_file("plan.yaml", json.dumps({"memcheck": 1, **nested(settings)}).encode(), Gate())
    if traces or result.estimate is None:
        why = "; ".join(each.message for each in result.findings if each.severity == "error")
        print(f"{name}: {why[:300]}")
        return False
    print(f"{name}: {result.estimate.needed_bytes / 2**30:.1f} GiB on {gpus} GPUs")
    return True


def main() -> int:
    """Write the file."""
    os.chdir("/")
    whole, others = recipes(Path(sys.argv[1]))
    found = {name: keys for name, fields in whole.items() if (keys := kept(name, fields)) and estimated(name, keys)}
    text = table_of(found, others)
    Path(SHIPPED).write_text(text, encoding="utf-8")
    print(f"{len(found)} recipes, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
