"""Draws inputs of ``check`` that nobody wrote: broken bytes, extreme values, plans, configs, names, kinds of files.

An input is a function of its seed and number alone. What may stand in a plan is read off the plan's own schema, so that
a new key is drawn from the day it is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml

from benchmarks.foreign_draw import draw_foreign
from benchmarks.wrapper_draw import draw_wrapper
from memcheck.catalog.names import find_model, gpu_names, model_names
from memcheck.frameworks.registry import FRAMEWORKS

ROOT = Path(__file__).parent.parent
EXTREME: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 255, 1000, 8191, 65_536, 2**31, 2**32 + 1, 2**53, 2**63, 10**18, 10**30, 0.5, 1e-9, 1e300,
    float("inf"), float("nan"), True, False, None, "", " ", "auto", "1e5", "0x10", "90%", "-1", "2**31", "\u202e",
    "a" * 5000, "../../x", "${TP}", "::error::x", "=1+1", "\x1b[31m", [], {}, [[]], [None], {"": None}, [1] * 3000,
)  # fmt: skip
"""Values that some reader may not expect."""
TOKENS = (
    b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"!!binary ", b"!!int ", b"---\n", b"...\n", b"\t", b"\x00",
    b"\xe2\x80\xa8", b"\xff\xfe", b"\xef\xbb\xbf", b"0x", b"1e999", b".inf", b".nan", b"null", b"~", b"{", b"[", b"}",
    b"]", b'"', b"'", b"|\n", b">\n", b"? ", b": ", b"- ", b"#", b"%YAML 1.1\n", b"@", b"`", b"memcheck: 1\n",
    b"[" * 200, b"{a: " * 200, b"\xf0\x9f\x92\xa5", b"\r", b"\x85", b"\x1b[2J", b"1" * 5000, b"9" * 20,
    b"extends: ./plan.yaml\n",
)  # fmt: skip
"""What changes the meaning of a text where it stands."""
SMALL = (1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 64)
LENGTHS = (1, 128, 1000, 2048, 4096, 8192, 32_768)


class Input(NamedTuple):
    """What lies in a folder, and what ``check`` is asked there."""

    kind: str
    files: dict[str, bytes]
    links: dict[str, str]
    """Symbolic links and what they point at."""
    pipes: tuple[str, ...]
    arguments: tuple[str, ...]


def draw_input(seed: int, index: int) -> Input:
    """Input ``index`` of ``seed``."""
    chance = Random(f"{seed}.{index}")  # noqa: S311 - nothing is secret
    return chance.choices(tuple(KINDS.values()), WEIGHTS)[0](chance)


@cache
def written() -> tuple[bytes, ...]:
    """Plans that stand in the examples."""
    return tuple(path.read_bytes() for path in sorted((ROOT / "examples").glob("*.yaml")))


@cache
def schema() -> dict[str, Any]:
    """The schema of a plan."""
    found: dict[str, Any] = json.loads((ROOT / "schemas/plan.schema.json").read_bytes())
    return found


def _of_bytes(chance: Random) -> Input:
    """A plan's bytes, broken in a few places."""
    text = _broken(chance, chance.choice(written()))
    return Input("bytes", {"plan.yaml": text}, {}, (), ("plan.yaml",))


def _broken(chance: Random, text: bytes) -> bytes:
    for _ in range(chance.randint(1, 8)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((0, 1, 1, 4, 30, 200)))
        instead = chance.choice((b"", text[start:end] * 2, bytes([chance.randrange(256)]), chance.choice(TOKENS)))
        text = text[:start] + instead + text[end:]
    return text


def _of_schema(chance: Random) -> Input:
    """A plan in which some values are as far out as the schema's types have them, or farther."""
    plan = _valid(chance)
    for _ in range(chance.randint(1, 4)):
        parent, key = chance.choice(list(_places(plan)))
        parent[key] = deepcopy(chance.choice(EXTREME))  # another change may be made inside of it
    return Input("schema", {"plan.yaml": _dump(plan)}, {}, (), ("plan.yaml",))


def _of_plan(chance: Random) -> Input:
    """A plan that the schema takes."""
    return Input("plan", {"plan.yaml": _dump(_valid(chance))}, {}, (), ("plan.yaml",))


def _of_config(chance: Random) -> Input:
    """A model's own configuration with some keys changed, missing or new."""
    plan = _valid(chance)
    config = dict(find_model(chance.choice(model_names())).config)
    for _ in range(chance.randint(1, 4)):
        key = chance.choice(sorted(config) or ["model_type"])
        change = chance.randrange(3)
        if change == 0 and config:
            del config[key]
        elif change == 1:
            config[key] = chance.choice(EXTREME)
        else:
            config[chance.choice(("num_experts", "layer_types", "quantization_config", "x", "vision_config"))] = (
                chance.choice(EXTREME)
            )
    text = json.dumps(config).encode()
    plan["model"] = {"config": "./config.json"}
    return Input(
        "config",
        {"plan.yaml": _dump(plan), "config.json": _broken(chance, text) if chance.random() < 0.2 else text},
        {},
        (),
        ("plan.yaml",),
    )


def _of_file(chance: Random) -> Input:
    """A plan under a name, or of a kind, that a careful reader looks at twice."""
    name = chance.choice(
        (
            "--config=x.yaml",
            "-j",
            "a\nb.yaml",
            "\x1b[31m.yaml",
            "::error::.yaml",
            "a b.yaml",
            "é.yaml",
            "=x.yaml",
            "\u202e.yaml",
            "x" * 200 + ".yaml",
        )
    )
    good = chance.choice(written())
    files: dict[str, bytes] = {name: good if chance.random() < 0.5 else _broken(chance, good)}
    links: dict[str, str] = {}
    pipes: tuple[str, ...] = ()
    odd = chance.randrange(6)
    if odd == 0:
        links["loop.yaml"] = "loop.yaml"
    elif odd == 1:
        links["away.yaml"] = chance.choice(("/dev/zero", "/proc/self/environ", "/etc/passwd", "../../x"))
    elif odd == 2:
        pipes = ("pipe.yaml",)
    elif odd == 3:
        files["memcheck.toml"] = chance.choice(
            (b"", b"fail-above = 1e999", b"[policy]\nx = 1", b"ignore = [1]", b"\xff", b'select = ["MEM999"]')
        )
    elif odd == 4:
        files["base.yaml"] = b"extends: ./plan.yaml\nmemcheck: 1\n"
        files["plan.yaml"] = b"extends: ./base.yaml\nmemcheck: 1\n"
    arguments = chance.choice(((".",), ("--", name), ("--skip-unmarked", "--", name)))
    return Input("file", files, links, pipes, arguments)


def _of_framework(chance: Random) -> Input:
    """A training framework's own config on some GPUs."""
    files, arguments = draw_foreign(chance, EXTREME, _broken)
    return Input("framework", files, {}, (), arguments)


def of_wrapper(chance: Random) -> Input:
    """A file that wraps a launch, or a team's own; some are broken in a few places."""
    name, text, options = draw_wrapper(chance)
    data = text.encode()
    data = _broken(chance, data) if chance.random() < 0.3 else data
    return Input("wrapper", {name: data}, {}, (), (*options, name))


KINDS: dict[str, Callable[[Random], Input]] = {
    "bytes": _of_bytes,
    "schema": _of_schema,
    "plan": _of_plan,
    "config": _of_config,
    "file": _of_file,
    "framework": _of_framework,
    "wrapper": of_wrapper,
}
WEIGHTS = (5, 4, 3, 3, 1, 4, 4)


def _valid(chance: Random) -> dict[str, Any]:
    """A plan of catalog names with keys that the schema, and mostly the framework, has."""
    framework = chance.choice(sorted(FRAMEWORKS))
    training: dict[str, Any] = {
        "framework": framework,
        "micro_batch_size": chance.choice(SMALL),
        "sequence_length": chance.choice(LENGTHS),
    }
    properties = schema()["definitions"]["training"]["properties"]
    for key in chance.sample(sorted(properties), chance.randint(0, 6)):
        if key not in training and key != "global_batch_size":
            training[key] = draw_value(chance, properties[key])
    options = FRAMEWORKS[framework].options
    if options and chance.random() < 0.3:
        key = chance.choice(sorted(options))
        kind = chance.choice(options[key])
        training["options"] = {
            key: {bool: True, int: chance.choice(SMALL), float: 0.5, str: "auto", list: ["core_attn"]}.get(kind, 1)
        }
    plan: dict[str, Any] = {
        "memcheck": 1,
        "model": chance.choice(model_names()),
        "hardware": {
            "gpu": chance.choice(gpu_names()),
            "gpus_per_node": chance.choice((1, 2, 8)),
            "nodes": chance.choice((1, 1, 1, 2, 8, 125)),
        },
        "training": training,
    }
    if chance.random() < 0.1:
        del plan["training"]
        plan["inference"] = {"batch_size": chance.choice(SMALL), "context_length": chance.choice(LENGTHS)}
    if chance.random() < 0.6:
        keys = schema()["definitions"]["parallelism"]["properties"]
        plan["parallelism"] = {
            key: draw_value(chance, keys[key])
            for key in chance.sample(sorted(keys), chance.randint(1, 4))
            if key != "data"
        }
    if chance.random() < 0.1:
        plan["policy"] = draw_value(chance, schema()["definitions"]["policy"])
    return plan


def draw_value(chance: Random, part: dict[str, Any]) -> Any:
    """A value that a part of the schema takes; where only a pattern says what that is, an example."""
    while "$ref" in part or "anyOf" in part:
        named = part.get("$ref", "").rsplit("/", 1)[-1]
        part = schema()["definitions"][named] if named else chance.choice(part["anyOf"])
    kind = part.get("type")
    if "const" in part or "enum" in part:
        return chance.choice(part.get("enum") or [part.get("const")])
    if kind == "boolean":
        return chance.random() < 0.5
    if kind in {"integer", "number"}:
        return _number(chance, part)
    if kind == "object" and "properties" in part:
        keys = part["properties"]
        named = set(part.get("required", ())) | set(chance.sample(sorted(keys), chance.randint(0, min(3, len(keys)))))
        return {key: draw_value(chance, keys[key]) for key in sorted(named)}
    return chance.choice(part.get("examples") or ("auto", "cpu", "x"))


def _number(chance: Random, part: dict[str, Any]) -> float:
    """A small number mostly, else one of the ends of what is allowed."""
    least, most = part.get("minimum", 0), part.get("maximum", 2**31)
    small = chance.choice(SMALL) if part["type"] == "integer" else chance.choice((0.1, 0.5, 0.9, 1.0))
    number: float = chance.choice((least, most)) if chance.random() < 0.15 else small
    return min(max(number, least), most)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a plan that holds a value: its container and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in list(items):
        yield value, key
        yield from _places(inside)


def _dump(plan: dict[str, Any]) -> bytes:
    text: str = yaml.safe_dump(plan, sort_keys=False, allow_unicode=True)
    return text.encode("utf-8", "surrogatepass")
