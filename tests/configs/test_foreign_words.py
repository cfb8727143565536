"""Every key that a reader knows is answered in a plan, wherever people write it: one table for readers and plans."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache

import pytest

from memcheck import configs
from memcheck.configs import key_index
from memcheck.configs.key_table import INDEX as KEYS
from memcheck.configs.key_table import key_table
from memcheck.plan.foreign import INDEX, plain
from memcheck.plan.mend import unknown_key
from memcheck.plan.schema import branches, load_schema
from memcheck.plan.text import read_bytes

PLACES = ((), ("training",), ("hardware",), ("parallelism",), ("inference",), ("training", "lora"))
GENERIC = ("`memcheck schema`", " has `")
"""What a key is told that nobody knows."""
READ = {"take", "has", "whole"}
"""Methods of a config that ask for one key."""


@pytest.mark.slow
def test_the_index_files_are_those_of_the_tables() -> None:
    """`python -m memcheck.configs.key_index` was run after the last change of a table."""
    assert read_bytes(KEYS).decode() == key_index.render_tables()
    assert read_bytes(INDEX).decode() == key_index.render()


@cache
def properties(place: tuple[str, ...]) -> dict[str, object]:
    """The keys that a plan has at a place."""
    root = load_schema()
    schema = root
    for token in place:
        schema = next(each for each in branches(schema["properties"][token], root) if "properties" in each)
    return dict(next(each for each in branches(schema, root) if "properties" in each)["properties"])


def unanswered(key: str) -> list[str]:
    """The places at which nothing is said of a key."""
    found = []
    for place in PLACES:
        names = properties(place)
        if key in names:
            continue
        help, _ = unknown_key(key, list(place), {key: 1}, {"properties": names}, serving=place == ("inference",))
        if help.startswith(GENERIC) or any(each in help for each in GENERIC if each.startswith(" ")):
            found.append(f"{'.'.join(place) or 'top'}: {key}: {help}")
    return found


def known_keys() -> set[str]:
    """Keys of the tables, of the arguments' dataclasses, and those that readers ask a config for in code."""
    found = {name.rstrip(".") for name, _ in key_index.of_tables()}
    fields = key_table("transformers").as_set("training_arguments", "trl", "handbook", "examples")
    return found | fields | set(_asked())


def _asked() -> Iterator[str]:
    for each in sorted(pkgutil.iter_modules(configs.__path__), key=lambda each: each.name):
        if each.name.startswith("read_"):
            module = importlib.import_module(f"memcheck.configs.{each.name}")
            for node in ast.walk(ast.parse(inspect.getsource(module))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READ:
                    yield from _texts(node.args[:1], vars(module))


def _texts(nodes: list[ast.expr], names: dict[str, object]) -> Iterator[str]:
    for node in nodes:
        value: object = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Name):
            value = names.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = getattr(names.get(node.value.id), node.attr, None)
        if isinstance(value, str) and value:
            yield value


@pytest.mark.slow
def test_every_key_of_a_reader_is_answered_at_every_place() -> None:
    """By its whole path and by its last word, in the spelling of a command line, too."""
    keys = known_keys()
    assert len(keys) > 1500
    missing = []
    for key in sorted(keys):
        short = key.rpartition(".")[2]
        spelled = {key, key.replace("-", "_")}
        if short.replace("-", "_").isidentifier() and plain(short) not in key_index.GENERIC:
            spelled |= {short}
        missing += [each for name in spelled for each in unanswered(name)]
    assert missing == []


def test_what_people_bring_is_answered() -> None:
    """Words of HF, PEFT, TRL, Megatron, vLLM and clouds, whether a reader has them or not."""
    for key in [
        *(
            "tensor_parallel_size",
            "gpu_memory_utilization",
            "max_model_len",
            "max_num_seqs",
            "enforce_eager",
            "swap_space",
        ),
        *(
            "kv_cache_dtype",
            "mem_fraction_static",
            "tp_size",
            "quantization",
            "instance_type",
            "accelerators",
            "num_nodes",
        ),
        *("world_size", "machine_type", "nproc_per_node", "gpu_type", "region", "use_spot", "spot", "region", "vram"),
        *(
            "device_map",
            "bnb_4bit_compute_dtype",
            "lora_alpha",
            "r",
            "modules_to_save",
            "bias",
            "task_type",
            "peft_config",
        ),
        *(
            "num_train_epochs",
            "optim",
            "bf16",
            "fp16",
            "tf32",
            "max_seq_length",
            "packing",
            "dataset_text_field",
            "neftune",
        ),
        *("distributed_type", "fsdp_config", "deepspeed", "zero_optimization", "offload_optimizer", "use_flash_attn"),
        *("tensor-model-parallel-size", "num-layers", "use_distributed_optimizer", "recompute_activations", "bf16"),
    ]:
        assert unanswered(key) == [], key
