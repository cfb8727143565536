"""Plans of every kind that the writers are tried on, and the way there and back."""

from __future__ import annotations

import os
from pathlib import Path

from memcheck.configs.config_writer import settings_of
from memcheck.configs.formats import FORMATS, export_plan
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting, Written
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import Resolved, resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents, read_plan
from memcheck.plan.types import Plan

SUFFIXES = {"deepspeed": ".json", "accelerate": ".yaml", "torchtitan": ".toml", "megatron": ".txt"}
HEAD = "memcheck: 1\nmodel: {model}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8, nodes: {nodes}}}\n"
ILLEGAL = ("llama-3.1-70b-96xh100", "qwen2.5-7b-tp8-8xh100")
"""Examples whose degrees do not fit their GPUs or their heads: no config runs them."""

MADE = {
    "megatron-fp8-fp32": (
        "llama-3.2-1b",
        1,
        "parallelism: {zero_stage: 1}",
        (
            "framework: megatron, micro_batch_size: 1, sequence_length: 2048, precision: fp32, attention: eager, "
            "options: {fp8_format: e4m3}"
        ),
    ),
    "deepspeed-zero2-buckets": (
        "llama-3.2-1b",
        1,
        "parallelism: {zero_stage: 2}",
        (
            "framework: deepspeed, micro_batch_size: 2, sequence_length: 4096, gradient_accumulation_steps: 4, "
            "precision: fp16-mixed, options: {reduce_bucket_size: 50000000, overlap_comm: true, "
            "contiguous_gradients: false}"
        ),
    ),
    "deepspeed-zero3-pure-tp": (
        "llama-3.1-8b",
        1,
        "parallelism: {zero_stage: 3, tensor: 2}",
        (
            "framework: deepspeed, micro_batch_size: 1, sequence_length: 2048, precision: bf16-pure, optimizer: lion, "
            "clip_grad_norm: false, options: {stage3_max_live_parameters: 300000000, sub_group_size: 100000000}"
        ),
    ),
    "deepspeed-ulysses-foreach": (
        "llama-3.2-1b",
        1,
        "parallelism: {zero_stage: 1, context: 2}",
        (
            "framework: deepspeed, micro_batch_size: 1, sequence_length: 8192, "
            "optimizer: {name: adamw, implementation: foreach, offload: cpu}"
        ),
    ),
    "deepspeed-8bit": (
        "llama-3.2-1b",
        1,
        "parallelism: {zero_stage: 2}",
        "framework: deepspeed, micro_batch_size: 1, sequence_length: 2048, optimizer: adamw-8bit",
    ),
    "fsdp-hybrid-tp": (
        "llama-3.1-8b",
        4,
        "parallelism: {zero_stage: 3, tensor: 2, shard_group: 4, reshard_after_forward: false}",
        "framework: huggingface, micro_batch_size: 1, sequence_length: 4096, activation_checkpointing: full",
    ),
    "fsdp-context-offload": (
        "llama-3.1-8b",
        1,
        "parallelism: {zero_stage: 3, context: 2}",
        (
            "framework: huggingface, micro_batch_size: 1, sequence_length: 16384, optimizer: {name: adamw, offload: cpu}, "
            "offload: {parameters: cpu}, compile: true"
        ),
    ),
    "ddp-fp32": (
        "llama-3.2-1b",
        1,
        "parallelism: {zero_stage: 0}",
        "framework: huggingface, micro_batch_size: 1, sequence_length: 1024, precision: fp32, optimizer: adafactor",
    ),
    "titan-hsdp-op": (
        "llama-3.1-8b",
        4,
        "parallelism: {zero_stage: 3, shard_group: 8}",
        (
            "framework: torchtitan, micro_batch_size: 2, sequence_length: 8192, gradient_accumulation_steps: 3, "
            "activation_checkpointing: selective, compile: true"
        ),
    ),
    "titan-pipeline": (
        "llama-3.1-70b",
        8,
        "parallelism: {zero_stage: 3, tensor: 4, pipeline: 4, pipeline_schedule: interleaved-1f1b, virtual_stages: 2}",
        (
            "framework: torchtitan, micro_batch_size: 1, sequence_length: 4096, gradient_accumulation_steps: 16, "
            "activation_checkpointing: full"
        ),
    ),
    "titan-every-second": (
        "qwen3-8b",
        1,
        "parallelism: {zero_stage: 3, context: 2}",
        (
            "framework: torchtitan, micro_batch_size: 1, sequence_length: 16384, precision: fp8-mixed, "
            "activation_checkpointing: {mode: full, every_n_layers: 2}, optimizer: {name: adamw, implementation: foreach}"
        ),
    ),
    "titan-moe": (
        "deepseek-v2-lite",
        1,
        "parallelism: {zero_stage: 3, expert: 8}",
        (
            "framework: torchtitan, micro_batch_size: 2, sequence_length: 4096, attention: flex, precision: bf16-pure, "
            "activation_checkpointing: full"
        ),
    ),
    "titan-ddp": (
        "llama-3.1-8b",
        1,
        "parallelism: {tensor: 8}",
        "framework: torchtitan, micro_batch_size: 1, sequence_length: 4096, precision: fp32",
    ),
    "megatron-tp-pp": (
        "llama-3.1-8b",
        2,
        "parallelism: {tensor: 2, pipeline: 4, zero_stage: 1}",
        (
            "framework: megatron, micro_batch_size: 1, sequence_length: 4096, global_batch_size: 32, "
            "activation_checkpointing: {mode: selective, modules: [core_attn, mlp]}"
        ),
    ),
    "megatron-moe": (
        "qwen3-30b-a3b",
        2,
        "parallelism: {tensor: 2, expert: 8, zero_stage: 1}",
        (
            "framework: megatron, micro_batch_size: 1, sequence_length: 4096, activation_checkpointing: full, "
            "options: {moe_token_dispatcher_type: alltoall, moe_permute_fusion: true}"
        ),
    ),
    "megatron-mla": (
        "deepseek-v3",
        32,
        "parallelism: {tensor: 2, expert: 32, pipeline: 4, zero_stage: 1}",
        "framework: megatron, micro_batch_size: 1, sequence_length: 4096, global_batch_size: 256, precision: fp8-mixed",
    ),
    "megatron-fsdp": (
        "llama-3.1-8b",
        1,
        "parallelism: {zero_stage: 3}",
        "framework: megatron, micro_batch_size: 1, sequence_length: 4096",
    ),
    "megatron-interleaved-bias": (
        "qwen2.5-7b",
        1,
        "parallelism: {tensor: 2, pipeline: 2, pipeline_schedule: interleaved-1f1b, virtual_stages: 7, sequence: false}",
        "framework: megatron, micro_batch_size: 2, sequence_length: 2048, global_batch_size: 32, precision: fp16-mixed",
    ),
}
"""Name: model, nodes, layout, recipe."""
FOR = {
    "deepspeed": ("deepspeed",),
    "fsdp": ("accelerate",),
    "ddp": ("accelerate",),
    "titan": ("torchtitan",),
    "megatron": ("megatron",),
}


def made(name: str) -> Document:
    """One of the plans above."""
    model, nodes, layout, training = MADE[name]
    text = f"{HEAD.format(model=model, nodes=nodes)}{layout}\ntraining: {{{training}}}\n"
    (document,) = load_documents(f"{name}.yaml", text.encode())
    return document


def examples(folder: Path) -> list[tuple[str, Document]]:
    """Every training plan of the examples but the illegal one."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        for document in load_documents(str(path), path.read_bytes()):
            values = document.values
            legal = isinstance(values, dict) and "inference" not in values and path.stem not in ILLEGAL
            if legal and isinstance(values["model"], str):
                found.append((f"{path.stem}#{document.index}", document))
    return found


def resolved(document: Document) -> tuple[Plan, Resolved]:
    """The plan and its job."""
    plan, findings = read_plan(document)
    assert plan is not None, findings
    return plan, resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path) or ".")


def written(document: Document, format: str) -> Written:
    """The config of a plan."""
    plan, found = resolved(document)
    return export_plan(plan, found, format, document.path)


def back(document: Document, format: str, config: Written) -> Imported:
    """The plan of a config, with what the config says is said elsewhere, as people would state it."""
    plan, found = resolved(document)
    job = found.job
    assert isinstance(job, TrainingJob)
    settings = settings_of(job)
    stated: dict[str, object] = {"hardware.gpu": plan.hardware.gpu.name}
    stated.update({key: settings[key] for key in ("hardware.nodes", "hardware.gpus_per_node")})
    stated.update({notice.key: settings[notice.key] for notice in config.notices if notice.kind == "elsewhere"})
    remarks = [notice.key for notice in config.notices if notice.kind == "remark"]
    if "model" in remarks:
        stated["model"] = plan.model.name
        stated["training.sequence_length"] = job.sequence_length
    if format == "accelerate":
        stated["training.micro_batch_size"] = job.micro_batch_size
    if "training.precision" in remarks:
        stated["training.precision"] = job.recipe.recipe
    if "training.optimizer.name" in remarks and "type" not in config.text.partition('"optimizer"')[2]:
        stated["training.optimizer.name"] = job.optimizer.name
    typed = {key: ReadSetting(list(each) if isinstance(each, tuple) else each, "test") for key, each in stated.items()}
    return import_config(f"exported{SUFFIXES[format]}", config.text.encode(), typed, format)


def peaks(document: Document) -> tuple[int, int]:
    """Allocated and device bytes."""
    _, found = resolved(document)
    answer = estimate(found.job, found.gpu, found.overhead)
    return answer.allocated_bytes, answer.device_bytes


def runs_from(document: Document, format: str) -> bool:
    """Whether the plan's framework reads that format."""
    _, found = resolved(document)
    return isinstance(found.job, TrainingJob) and found.job.framework.name in FORMATS[format].frameworks
