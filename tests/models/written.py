"""The config.json that transformers writes for every family: needs the extra ``verify``.

python -m tests.models.written   # write written.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.added import STATED
from memcheck.families.registry import FAMILIES

FILE = Path(__file__).with_name("written.json")
OTHERS = ("kimi_k2", "megatron-gpt", "megatron-lm")
"""Types that transformers does not know."""
MORE: dict[str, dict[str, Any]] = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""Keys without which the class's own defaults build no model."""


def types() -> list[str]:
    """Every family that transformers has a class for."""
    return [kind for kind in FAMILIES if kind not in OTHERS]


def written(kind: str) -> dict[str, Any]:
    """Every key of the family's default configuration, as ``to_json_file`` writes it."""
    from transformers import AutoConfig

    stated = {**STATED.get(kind, {}), **MORE.get(kind, {})}
    found: dict[str, Any] = json.loads(AutoConfig.for_model(kind, **stated).to_json_string(use_diff=False))
    return found


def main() -> None:
    """Write the file: one family a line."""
    lines = [f"{json.dumps(kind)}: {json.dumps(written(kind))}" for kind in types()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
