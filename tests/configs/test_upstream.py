"""What is written, held against the frameworks' own parsers and config classes. Each skips where its package is absent.

torchtitan 0.2.2 is the last release with TOML jobs; its package imports GPU kernels, so that its config module alone is
loaded. Megatron-LM's argparse is in no package: megatron-core's config classes have the same names with underscores.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memcheck.configs import read_megatron as megatron_keys
from memcheck.configs import read_torchtitan as torchtitan_keys
from memcheck.configs.arguments import load_arguments
from memcheck.configs.config_file import flat
from memcheck.configs.key_table import key_table
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON
from tests.configs.jobs import FOR, MADE, examples, made, runs_from, written


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Other people's packages warn when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def texts(root: Path, format: str) -> list[tuple[str, str]]:
    """Every config that can be written in a format, of made plans and of the examples."""
    found = [(name, written(made(name), format).text) for name in MADE if format in FOR[name.partition("-")[0]]]
    for name, document in examples(root / "examples"):
        if runs_from(document, format):
            found.append((name, written(document, format).text))
    assert len(found) >= 4
    return found


def test_deepspeed_accepts_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeedConfig parses every JSON, finds its batches consistent, and has no key left that it does not know."""
    deepspeed = pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    names = {*fields, *(field.alias for field in fields.values() if field.alias)}
    assert deepspeed.__version__.startswith("0.19")
    for name, text in texts(root, "deepspeed"):
        config = json.loads(text)
        assert set(config["zero_optimization"]) <= names, name
        ranks = config["train_batch_size"] // (
            config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
        )
        # the engine divides the world by the tensor and sequence degrees before it checks the product
        config.pop("sequence_parallel_size", None)
        monkeypatch.setattr("deepspeed.runtime.config.dist.is_initialized", lambda: False)
        parsed = DeepSpeedConfig({**config, "train_batch_size": config["train_batch_size"] // ranks})
        assert parsed.zero_config.stage == config["zero_optimization"]["stage"], name
        assert parsed.train_micro_batch_size_per_gpu == config["train_micro_batch_size_per_gpu"], name
        assert parsed.bfloat16_config.enabled == config["bf16"]["enabled"], name


def test_accelerate_accepts_it(root: Path, tmp_path: Path) -> None:
    """ClusterConfig, which refuses unknown keys, loads every YAML; each key of a section is an option of the launcher."""
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    options = {action.dest for action in launch_command_parser()._actions}
    for name, text in texts(root, "accelerate"):
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        config = load_config_from_file(str(path))
        assert config.num_processes >= 1, name
        assert {*config.fsdp_config, *config.deepspeed_config, *config.parallelism_config} <= options, name
    known = key_table("accelerate").rows
    rows = (*known["degrees"], *known["engine"])
    assert {row.path.rpartition(".")[2] for row in rows} <= options


def torchtitan_config() -> Any:
    """``torchtitan/config/job_config.py`` without the package around it."""
    spec = importlib.util.find_spec("torchtitan")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("torchtitan is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    path = folder / "config" / "job_config.py"
    if not path.is_file():
        pytest.skip("a torchtitan without TOML jobs")
    package = types.ModuleType("torchtitan")
    package.__path__ = [str(folder)]
    sys.modules["torchtitan"] = package
    own = importlib.util.spec_from_file_location("torchtitan_job_config", path)
    assert own is not None
    assert own.loader is not None
    module = importlib.util.module_from_spec(own)
    sys.modules["torchtitan_job_config"] = module
    own.loader.exec_module(module)
    return module


def built(record: Any, values: dict[str, Any], where: str) -> Any:
    """A dataclass of nested tables; an unknown key or a word that a Literal lacks fails, as with torchtitan's parser."""
    hints = typing.get_type_hints(record)
    made_of = {}
    for name, value in values.items():
        assert name in hints, f"{where}: {name}"
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            made_of[name] = built(kind, value, f"{where}.{name}")
            continue
        if typing.get_origin(kind) is typing.Literal:
            assert value in typing.get_args(kind), f"{where}.{name} = {value}"
        elif kind in (int, bool, str):
            assert type(value) is kind, f"{where}.{name} = {value!r}"
        made_of[name] = value
    return record(**made_of)


def test_torchtitan_accepts_it(root: Path) -> None:
    """Every key of every TOML is a field of JobConfig with a value of its type."""
    pytest.importorskip("torch")
    module = torchtitan_config()
    if sys.version_info < (3, 11):
        pytest.skip("no tomllib")
    import tomllib

    for name, text in texts(root, "torchtitan"):
        config = built(module.JobConfig, tomllib.loads(text), name)
        assert config.training.local_batch_size >= 1
    defaults = dict(flat(dataclasses.asdict(module.JobConfig())))
    keys = key_table("torchtitan")
    for row in keys.rows["rows"]:
        assert row.path in defaults, row.path
        if row.default is not None and row.kind == "whole":
            assert defaults[row.path] == row.default, row.path
    harmless = [name for names in keys.irrelevant.values() for name in names]
    known = {*harmless, *(row.path for rows in keys.rows.values() for row in rows)}
    known |= {value for value in vars(torchtitan_keys).values() if isinstance(value, str)}
    known |= {name for names in keys.names.values() for name in names} | {"model.name", "model.flavor", BUDGET}
    sections = (*(name for name in harmless if name.endswith(".")), *keys.unmodelled)
    assert [path for path in defaults if path not in known and not path.startswith(sections)] == []


BUDGET = "activation_checkpoint.memory_budget"
"""Seen and refused with the mode that uses it."""


def megatron_fields() -> dict[str, Any]:
    """Every field of megatron-core's config classes and its type."""
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core")
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    classes = (MLATransformerConfig, OptimizerConfig, DistributedDataParallelConfig)
    return {field.name: field.type for each in classes for field in dataclasses.fields(each)}


ARGUMENTS_ALONE = set(
    """
    accumulate_allreduce_grads_in_fp32 bias_gelu_fusion bias_swiglu_fusion create_attention_mask_in_dataloader
    ddp_average_in_collective ddp_bucket_size ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw
    decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers empty_unused_memory_level fp16_lm_cross_entropy
    fp8_format grad_reduce_in_bf16 make_vocab_size_divisible_by megatron_fsdp_grad_comm_dtype
    megatron_fsdp_main_grads_dtype megatron_fsdp_main_params_dtype microbatch_group_size_per_virtual_pipeline_stage
    moe_expert_rank_capacity_factor moe_paged_stash mtp_use_repeated_layer num_layers_per_virtual_pipeline_stage
    overlap_p2p_communication sequence_packing
    """.split()  # noqa: SIM905
)
"""Arguments that the training script translates to other names, and fields that came after megatron-core 0.16.1."""


def test_megatron_knows_its_options() -> None:
    """Every option of a plan is a field of megatron-core's config classes, or an argument of the training script alone."""
    unknown = {name for name in MEGATRON.options if name not in megatron_fields()}
    assert unknown <= ARGUMENTS_ALONE


def test_megatron_accepts_it(root: Path) -> None:
    """The dimensions and options of every written list construct megatron-core's TransformerConfig."""
    fields = megatron_fields()
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    for name, text in texts(root, "megatron"):
        arguments = load_arguments(f"{name}.txt", text, megatron_keys.LISTS).values
        values = {megatron_keys.underscored(key): value for key, value in arguments.items()}
        assert {"num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size"} <= set(values)
        values["num_moe_experts"] = values.pop("num_experts", None)  # the one name that differs
        latent = "multi_latent_attention" in values
        own = {field.name for field in dataclasses.fields(MLATransformerConfig if latent else TransformerConfig)}
        chosen = {
            key: number(value) for key, value in values.items() if key in own & set(fields) and key not in SPECIAL
        }
        chosen["pipeline_dtype"] = torch.bfloat16  # arguments.py takes it from --bf16 and --fp16
        config = (MLATransformerConfig if latent else TransformerConfig)(**chosen)
        assert config.num_layers == number(values["num_layers"]), name


SPECIAL = {
    "fp16",
    "bf16",
    "fp8",
    "fp8_format",
    "recompute_modules",
    "attention_backend",
    "moe_layer_freq",
    "moe_permute_fusion",
}
"""Enums, lists and values that Megatron-LM's own arguments translate first, and what needs TransformerEngine."""


def number(value: object) -> object:
    """An argument's text as argparse types it."""
    text = str(value)
    whole = text.lstrip("-").isdigit()
    return int(text) if whole else float(text) if text.replace(".", "", 1).isdigit() else value
