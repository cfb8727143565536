"""Write down what bears on memory in the configs that torchtune ships, for ``tune run RECIPE --config NAME``.

    python -m benchmarks.torchtune_recipes FOLDER

``FOLDER`` is a checkout of torchtune at the commit that ``memcheck/configs/keys/torchtune.yaml`` names. A key is kept
if the reading changes without it; of a config that trains nothing no key is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.shipped import deciding_keys, table_of
from memcheck.configs.config_file import load_yaml
from memcheck.configs.importing import import_config
from memcheck.configs.plan_text import nested
from memcheck.configs.torchtune_launch import SHIPPED
from memcheck.configs.types import ReadSetting

STATED = {
    "hardware.gpu": ReadSetting("h100-80gb", ""),
    "hardware.gpus_per_node": ReadSetting(8, ""),
}
ALWAYS = ("model._component_", "optimizer._component_", "loss._component_")
"""Keys that the command line replaces by their section's name."""


def said(name: str, values: dict[str, Any]) -> object:
    """What the reader says to these flat keys."""
    config = yaml.safe_dump(nested(values)).encode()
    found = import_config(f"{name}.yaml", config, STATED, format="torchtune")
    settings = {key: str(each.value) for key, each in found.settings.items()}
    return settings, sorted(each.message for each in (*found.notes, *found.problems))


def kept(name: str, text: str) -> dict[str, Any]:
    """The keys of one config without which the reading is another."""
    values = {key: value for key, value in load_yaml(f"{name}.yaml", text).values.items() if value is not None}
    if not any(key.endswith("optimizer._component_") for key in values):
        return {}
    always = [key for key in values if key.endswith(ALWAYS)]
    return deciding_keys(values, lambda less: said(name, less), always)


def main() -> int:
    """Write the file."""
    folder = Path(sys.argv[1]) / "recipes" / "configs"
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        name = str(path.relative_to(folder).with_suffix(""))
        keys = kept(name, path.read_text(encoding="utf-8"))
        if keys:
            found[name] = keys
    text = table_of(found, {})
    Path(SHIPPED).write_text(text, encoding="utf-8")
    print(f"{len(found)} configs, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
