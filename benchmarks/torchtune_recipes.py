"""Write down what bears on memory in the configs that torchtune ships, for ``tune run RECIPE --config NAME``.

    python -m benchmarks.torchtune_recipes FOLDER

``FOLDER`` is a checkout of torchtune at the commit that ``memcheck/configs/keys/torchtune.yaml`` names. A key is kept
if the reading changes without it; of a config that trains nothing no key is kept.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

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
COMMON = 0.5
"""The share of configs that have a key and value, from which on it stands once for all."""


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
    whole = said(name, values)
    for key in [each for each in values if not each.endswith(ALWAYS)]:
        less = {each: value for each, value in values.items() if each != key}
        if said(name, less) == whole:
            values = less
    return values


def main() -> int:
    """Write the file."""
    folder = Path(sys.argv[1]) / "recipes" / "configs"
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        name = str(path.relative_to(folder).with_suffix(""))
        keys = kept(name, path.read_text(encoding="utf-8"))
        if keys:
            found[name] = keys
    counts = Counter((key, json.dumps(value)) for keys in found.values() for key, value in keys.items())
    common = {key: json.loads(value) for (key, value), count in counts.items() if count > COMMON * len(found)}
    rows = {
        name: {
            **{key: None for key in common if key not in keys},
            **{key: value for key, value in keys.items() if key not in common or common[key] != value},
        }
        for name, keys in found.items()
    }
    lines = [f" {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items()]
    text = "{\n" + f' "": {json.dumps(common)},\n' + ",\n".join(lines) + "\n}\n"
    Path(SHIPPED).write_text(text, encoding="utf-8")
    print(f"{len(found)} configs, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
