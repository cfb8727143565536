"""Turns the plan's JSON Schema into a page: one section per mapping, one item per key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from memcheck.plan.foreign import RENAMED

Schema = dict[str, Any]

TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "object": "mapping",
}


MOST = """\
memcheck: 1                        # the version of the format, and the mark of a plan
name: sft-8b                       # what reports call it; default: the file's name
model: llama-3.1-8b                # a catalog name or Hugging Face id; or a mapping

hardware:
  gpu: h100-80gb                   # `memcheck list gpus` prints the names
  gpus_per_node: 8
  nodes: 2
  host_memory_gib: 1024            # of a node; host memory is checked if it is stated

parallelism:                       # nodes x gpus_per_node = tensor x context x pipeline x data
  tensor: 1                        # GPUs that share each layer
  context: 1                       # GPUs that share each sequence
  pipeline: 1                      # stages
  expert: 1                        # GPUs that share the experts of a layer
  zero_stage: 3                    # 0: DDP, 1 and 2: ZeRO, 3: FSDP or ZeRO-3

training:
  framework: huggingface           # whose code runs the step
  trainer: trl                     # whose loss and loop, on top of huggingface
  framework_version: "5.2"         # default: the newest release
  method: full                     # full, lora, qlora
  micro_batch_size: 1              # sequences per GPU and forward pass
  sequence_length: 8192            # tokens per sequence
  sequences: packed                # packed, padded, ...: whether rows are full
  gradient_accumulation_steps: 4   # or global_batch_size
  precision: bf16-mixed            # or a mapping with dtypes
  optimizer: adamw                 # or a mapping, such as {name: adamw, offload: cpu}
  activation_checkpointing: full   # none, selective, full
  attention: sdpa                  # eager, sdpa, flash, flex
  loss: standard                   # standard, chunked, fused-linear, ...
"""
"""The keys that most plans need, as a plan."""


def plan_format(schema: Schema) -> str:
    """The whole page."""
    lines = [
        "# The plan format, version 1",
        "",
        "Most plans need no more than these 25 keys:",
        "",
        "```yaml",
        *MOST.splitlines(),
        "```",
        "",
        "- Only `memcheck`, `model`, `hardware` and `training` (or `inference`) are required. Every default that was",
        "  used is in the output.",
        "- Unknown keys are errors, with the closest key.",
        "- Several plans in one file are separated by `---`. Anchors and merge keys work.",
        "- `memcheck schema plan` prints the schema for your editor, which this page is made from.",
        "",
        "Below is every key: its values, its default in brackets, and what it means.",
        "",
    ]
    for path, mapping in mappings(schema, "", schema["definitions"]):
        lines += section(path, mapping, schema["definitions"])
    return "\n".join([*lines, *other_names()]).rstrip() + "\n"


def other_names() -> list[str]:
    """The keys of other tools that have an exact equal."""
    lines = ["## Keys under the names of other tools", ""]
    lines += ["They are errors ([MEM016](../rules/MEM0xx.md#mem016)). `check --fix` writes the plan's key and value."]
    lines += ["A value that is not listed has no exact equal and is left to you.", ""]
    others: dict[str, list[str]] = {}
    for entry in RENAMED:
        values = ", ".join(f"`{old}` → `{new}`" for old, new in entry.values.items() if old != new)
        values = f" ({values})" if values else ""
        others.setdefault(f"{entry.section}.{entry.new}".lstrip("."), []).append(f"`{entry.old}`{values}")
    return [*lines, *(f"- `{key}`: {', '.join(names)}" for key, names in others.items())]


def mappings(schema: Schema, path: str, definitions: Schema) -> Iterator[tuple[str, Schema]]:
    """Every mapping with keys of its own, and where it stands, outermost first."""
    for branch in branches(schema, definitions):
        if "properties" in branch:
            yield path, branch
            for key, value in branch["properties"].items():
                yield from mappings(value, f"{path}.{key}".lstrip("."), definitions)


def branches(schema: Schema, definitions: Schema) -> list[Schema]:
    """The alternatives of a value, references followed."""
    schema = followed(schema, definitions)
    if "anyOf" in schema and "properties" not in schema:
        return [found for branch in schema["anyOf"] for found in branches(branch, definitions)]
    return [schema]


def followed(schema: Schema, definitions: Schema) -> Schema:
    """The schema a reference leads to."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/definitions/")]
    return schema


def section(path: str, mapping: Schema, definitions: Schema) -> list[str]:
    """One mapping: its heading, what it is, and an item per key."""
    if path:
        depth = "##" if "." not in path else "###"
        lines = [f"{depth} `{path}`", "", mapping.get("description", ""), ""]
    else:
        lines = ["## Top level", ""]
    for key, value in mapping["properties"].items():
        about = followed(value, definitions)
        own = f"{path}.{key}".lstrip(".")
        kinds = dict.fromkeys(kind(branch, own, definitions) for branch in branches(value, definitions))
        default = f" [{code(about['default'])}]" if about.get("default") not in (None, {}, []) else ""
        told = meaning(about) if told_here(about, definitions) else ""
        lines.append(f"- **`{key}`**: {', '.join(kinds)}{default}{'. ' if told else ''}{told}".replace("\n", " "))
    return [*lines, ""]


def told_here(about: Schema, definitions: Schema) -> bool:
    """Whether a key says what it means. A mapping does under its own heading, and the short form of a mapping does
    where the mapping's first key has the same values.
    """
    mappings = [branch["properties"] for branch in branches(about, definitions) if "properties" in branch]
    if "properties" in followed(about, definitions):
        return False
    enums = [branch["enum"] for branch in branches(about, definitions) if "enum" in branch]
    first = [followed(value, definitions).get("enum") for keys in mappings for value in keys.values()]
    return not any(enum in first for enum in enums)


def kind(schema: Schema, path: str, definitions: Schema) -> str:
    """What a value may be."""
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind(followed(schema['items'], definitions), path, definitions)}"
    if "properties" in schema:
        return f"[mapping](#{path.replace('.', '')})"
    name = TYPES.get(schema.get("type", ""), "")
    title = schema.get("title", "")
    if title.startswith(("a ", "an ")):  # a branch says in its title what it takes
        return title
    return f"{name}{limits(schema)}"


def limits(schema: Schema) -> str:
    """The range of a number; upper ends that only keep out slips of the keyboard are left out."""
    if "minimum" in schema and schema.get("maximum", 100) < 100:
        return f" {schema['minimum']} to {schema['maximum']}"
    if "minimum" in schema:
        return f" ≥ {schema['minimum']}"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']}"
    return ""


def meaning(schema: Schema) -> str:
    """The description, with the first example of a text."""
    text = schema.get("description", "")
    examples = [value for value in schema.get("examples", []) if not isinstance(value, dict)]
    told = "enum" in schema or "const" in schema or schema.get("type") in ("boolean", "integer", "number")
    if examples and not told and examples[0] != schema.get("default"):
        text += f" Example: {code(examples[0])}."
    return text


def code(value: object) -> str:
    """A value as YAML would have it, for people."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text}`"
