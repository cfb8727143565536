"""Draws configs of training frameworks that nobody wrote, of every format that stands here with a small one of its own.

Keys are those that jobs often set; some take a value that no reader expects, some are left out or misspelt, and some
texts are broken in a few places.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

import yaml

from memcheck.catalog.names import gpu_names

Spoil = Callable[[Random, bytes], bytes]
LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B-Instruct"
BATCH, LENGTH, FLAG = (1, 2, 4, 16), (512, 4096, 32_768), (True, False)
TRAINER: dict[str, tuple[Any, ...]] = {
    "gradient_accumulation_steps": (1, 4, 64),
    "gradient_checkpointing": FLAG,
    "optim": ("adamw_torch", "adamw_bnb_8bit", "paged_adamw_32bit", "adafactor", "galore_adamw", "x"),
    "bf16": FLAG,
    "fp16": FLAG,
    "torch_compile": FLAG,
    "max_grad_norm": (0.0, 1.0),
    "eval_strategy": ("no", "steps"),
    "per_device_eval_batch_size": BATCH,
    "deepspeed": ("ds.json", {"zero_optimization": {"stage": 3}}),
    "fsdp": ("full_shard auto_wrap", ["full_shard"], ""),
}
LORA: dict[str, tuple[Any, ...]] = {
    "lora_r": (1, 16, 256),
    "lora_alpha": (16,),
    "lora_dropout": (0.0, 0.1),
    "lora_target_modules": ("all-linear", ["q_proj", "v_proj"], ["nothing"]),
}


class Foreign(NamedTuple):
    """A format: what makes a config one of it, keys that may stand beside, and how it is written."""

    file: str
    own: Mapping[str, Any]
    keys: Mapping[str, tuple[Any, ...]]


FOREIGN: dict[str, Foreign] = {
    "axolotl": Foreign(
        "config.yaml",
        {"base_model": LLAMA, "micro_batch_size": 1, "sequence_len": 4096, "datasets": [{"path": "x", "type": "y"}]},
        {
            **TRAINER,
            **LORA,
            "adapter": ("lora", "qlora", ""),
            "load_in_4bit": FLAG,
            "sample_packing": FLAG,
            "flash_attention": FLAG,
            "optimizer": ("adamw_torch_fused", "lion_8bit", "muon"),
            "rl": ("dpo", "kto", "grpo"),
            "tensor_parallel_size": (1, 2, 3),
            "context_parallel_size": (1, 2),
            "fsdp_version": (1, 2),
            "unfrozen_parameters": (["lm_head"],),
            "plugins": (["axolotl.integrations.liger.LigerPlugin"], ["x"]),
        },
    ),
    "llamafactory": Foreign(
        "train.yaml",
        {"model_name_or_path": QWEN, "stage": "sft", "do_train": True, "finetuning_type": "lora", "dataset": "x",
         "template": "qwen", "cutoff_len": 2048, "per_device_train_batch_size": 1},
        {
            **TRAINER,
            "lora_rank": (8, 64),
            "lora_target": ("all", "q_proj,v_proj"),
            "quantization_bit": (4, 8, 3),
            "flash_attn": ("fa2", "auto", "disabled"),
            "pref_loss": ("sigmoid", "orpo", "simpo"),
            "freeze_trainable_layers": (2, -2, 0),
            "packing": FLAG,
            "use_galore": FLAG,
            "enable_liger_kernel": FLAG,
        },
    ),
    "trl": Foreign(
        "recipe.yaml",
        {"model_name_or_path": LLAMA, "dataset_name": "x", "max_length": 2048, "per_device_train_batch_size": 2,
         "output_dir": "y", "learning_rate": 2.0e-5, "num_train_epochs": 1},
        {
            **TRAINER,
            **LORA,
            "use_peft": FLAG,
            "load_in_4bit": FLAG,
            "loss_type": ("sigmoid", "chunked_nll", ["ipo"]),
            "packing": FLAG,
            "attn_implementation": ("flash_attention_2", "sdpa", "eager"),
            "use_liger_kernel": FLAG,
            "activation_offloading": FLAG,
            "dtype": ("bfloat16", "float32", "auto"),
        },
    ),
    "deepspeed": Foreign(
        "ds.json",
        {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
        {
            "gradient_accumulation_steps": (1, 8, "auto"),
            "train_batch_size": (16, 64, 7, "auto"),
            "gradient_clipping": (0.0, 1.0, "auto"),
            "zero_optimization": (
                {"stage": 3, "offload_optimizer": {"device": "cpu"}},
                {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}},
                {"stage": 1, "reduce_bucket_size": "auto", "zero_hpz_partition_size": 4},
                {"stage": 9},
            ),
            "optimizer": ({"type": "AdamW", "params": {"lr": "auto"}}, {"type": "OneBitAdam"}, {"type": 7}),
            "activation_checkpointing": ({"cpu_checkpointing": True},),
            "tensor_parallel": ({"autotp_size": 2},),
            "fp16": ({"enabled": True},),
        },
    ),
    "accelerate": Foreign(
        "accelerate.yaml",
        {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_machines": 1, "num_processes": 8},
        {
            "distributed_type": ("DEEPSPEED", "MULTI_GPU", "MEGATRON_LM", "NO", "x"),
            "fsdp_config": ({"fsdp_version": 2, "fsdp_reshard_after_forward": False}, {"fsdp_offload_params": True}),
            "deepspeed_config": ({"zero_stage": 3, "offload_optimizer_device": "cpu"}, {"deepspeed_config_file": "d"}),
            "parallelism_config": ({"parallelism_config_tp_size": 2},),
            "dynamo_config": ({"dynamo_backend": "INDUCTOR"},),
            "num_processes": (1, 7, 16),
            "num_machines": (1, 2, 0),
            "mixed_precision": ("fp8", "no", "fp16"),
        },
    ),
    "torchtitan": Foreign(
        "titan.toml",
        {"model.name": "llama3", "model.flavor": "8B", "training.local_batch_size": 1, "training.seq_len": 8192},
        {
            "parallelism.data_parallel_shard_degree": (-1, 2, 8),
            "parallelism.tensor_parallel_degree": (1, 2, 3),
            "parallelism.pipeline_parallel_degree": (1, 2, 5),
            "parallelism.pipeline_parallel_schedule": ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "x"),
            "parallelism.context_parallel_degree": (1, 2),
            "parallelism.fsdp_reshard_after_forward": ("always", "never", "default"),
            "activation_checkpoint.mode": ("full", "selective", "none", "x"),
            "activation_checkpoint.selective_ac_option": ("op", "2", "0"),
            "training.mixed_precision_param": ("bfloat16", "float32"),
            "training.global_batch_size": (-1, 8, 7),
            "optimizer.name": ("AdamW", "Adam", "x"),
            "compile.enable": FLAG,
            "model.flavor": ("70B", "405B", "debugmodel", "x"),
        },
    ),
    "megatron": Foreign(
        "train.sh",
        {"num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 4096, "micro-batch-size": 1,
         "max-position-embeddings": 4096, "vocab-size": 50_304, "bf16": True},
        {
            "tensor-model-parallel-size": (1, 2, 3, 8),
            "pipeline-model-parallel-size": (1, 2, 7),
            "num-layers-per-virtual-pipeline-stage": (1, 5),
            "global-batch-size": (8, 64, 7),
            "group-query-attention": FLAG,
            "num-query-groups": (1, 8, 3),
            "swiglu": FLAG,
            "ffn-hidden-size": (11_008, 1),
            "recompute-granularity": ("full", "selective", "x"),
            "recompute-method": ("uniform", "block"),
            "recompute-num-layers": (1, 64),
            "use-distributed-optimizer": FLAG,
            "sequence-parallel": FLAG,
            "num-experts": (8, 0),
            "moe-router-topk": (2, 9),
            "expert-model-parallel-size": (1, 4),
            "context-parallel-size": (1, 2),
            "fp8-format": ("hybrid",),
            "untie-embeddings-and-output-weights": FLAG,
        },
    ),
}  # fmt: skip
"""Each recognised by its own keys (``memcheck/configs/formats.py``)."""


def draw_foreign(chance: Random, extreme: tuple[Any, ...], spoil: Spoil) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Files and arguments: one config on some GPUs, by itself or as the source of a plan.

    ``extreme``: values that some reader may not expect.
    """
    name = chance.choice(sorted(FOREIGN))
    kind = FOREIGN[name]
    config = dict(kind.own)
    for key in chance.sample(sorted(kind.keys), chance.randint(0, min(7, len(kind.keys)))):
        config[key] = chance.choice(kind.keys[key])
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        key = chance.choice(sorted(config))
        change = chance.randrange(3)
        if change == 0:
            del config[key]
        elif change == 1:
            config[key] = chance.choice(extreme)
        else:
            config[key + chance.choice(("s", "_", "\u202e", ".x"))] = config.pop(key)
    text = WRITERS[kind.file.rpartition(".")[2]](config).encode("utf-8", "surrogatepass")
    text = spoil(chance, text) if chance.random() < 0.2 else text
    gpu, gpus, nodes = chance.choice(gpu_names()), chance.choice((1, 2, 8, 8)), chance.choice((1, 1, 1, 2, 16))
    if chance.random() < (0.2 if name in UNSAID else 0.6):
        arguments = (kind.file, "--gpu", gpu, "--gpus-per-node", str(gpus), "--nodes", str(nodes))
        return {kind.file: text}, arguments
    hardware = {"gpu": gpu} if name == "accelerate" else {"gpu": gpu, "gpus_per_node": gpus, "nodes": nodes}
    plan: dict[str, Any] = {"memcheck": 1, "source": {name: kind.file}, "hardware": hardware, **UNSAID.get(name, {})}
    if chance.random() < 0.2:
        plan["training"] = {"sequence_length": 2048, "micro_batch_size": 1}
    return {kind.file: text, "plan.yaml": _yaml(plan).encode()}, ("plan.yaml",)


UNSAID: dict[str, dict[str, Any]] = {
    "deepspeed": {"model": "llama-3.2-1b", "training": {"sequence_length": 2048}},
    "accelerate": {"model": "llama-3.2-1b", "training": {"sequence_length": 2048, "micro_batch_size": 1}},
}
"""What a format does not say, for the plan to say."""


def _yaml(config: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return text


def _toml(config: dict[str, Any]) -> str:
    """Sections in the order of their first key; JSON's values are mostly TOML's."""
    sections: dict[str, list[str]] = {}
    for key, value in config.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())


def _shell(config: dict[str, Any]) -> str:
    """A launch line; a switch that is off is left out."""
    words = [f"--{key}" if value is True else f"--{key} {value}" for key, value in config.items() if value is not False]
    return "#!/bin/bash\ntorchrun --nproc-per-node 8 pretrain_gpt.py \\\n  " + " \\\n  ".join(words) + "\n"


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "yaml": _yaml,
    "json": lambda config: json.dumps(config, indent=2),
    "toml": _toml,
    "sh": _shell,
}
