"""A plan as a DeepSpeed JSON config, for transformers' Trainer."""

from __future__ import annotations

import json

from memcheck.configs import read_deepspeed as deepspeed
from memcheck.configs.config_writer import SCRIPTS, ConfigWriter, Export, neutral, settings_of
from memcheck.configs.read_deepspeed import KEYS
from memcheck.configs.types import Written
from memcheck.frameworks.registry import FRAMEWORKS

ELSEWHERE = {
    "hardware.nodes": "deepspeed --num_nodes, or torchrun --nnodes",
    "hardware.gpus_per_node": "deepspeed --num_gpus, or torchrun --nproc-per-node",
    "training.sequence_length": "the data: SFTConfig's max_length, or the packing of the dataset",
    "training.attention": "the model: attn_implementation of from_pretrained",
    "training.method": "PEFT: peft_config",
    "training.lora.rank": "PEFT: LoraConfig's r",
    "training.lora.target_modules": "PEFT: LoraConfig's target_modules",
    "training.lora.dtype": "PEFT: autocast_adapter_dtype",
    "training.freeze": "the script: requires_grad_(False)",
    "training.compile": "TrainingArguments: torch_compile",
    "training.loss.kind": "TrainingArguments: use_liger_kernel, or the trainer's own loss",
    "training.loss.chunks": "the trainer's own loss",
    "training.loss.upcast": "the trainer's own loss",
    "training.loss.keep_logits": "the trainer's own loop",
    "training.activation_checkpointing.mode": "TrainingArguments: gradient_checkpointing",
    "training.activation_checkpointing.reentrant": "TrainingArguments: gradient_checkpointing_kwargs",
    "training.expandable_segments": "PYTORCH_ALLOC_CONF, in the environment",
}
"""What transformers and its launchers say, and not the engine's config."""
PARAMETERS = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}


def write(export: Export) -> Written:
    """The JSON of an engine."""
    job = export.job
    writer = ConfigWriter(settings_of(job), neutral(FRAMEWORKS["deepspeed"], job.layout), KEYS.version)
    writer.remark("model", "the script names it: --model_name_or_path")
    _batch(writer)
    _precision(writer)
    _optimizer(writer)
    for key in deepspeed.REMOVED:
        if writer.take(key) is not None:
            writer.lose(key, f"{KEYS.version} has no such key any more")
    writer.rows(row for row in KEYS.rows["rows"] if row.key not in deepspeed.REMOVED)
    for key in ("tensor_parallel.autotp_size", "sequence_parallel_size"):
        _drop(writer, key)
    for key, where in (ELSEWHERE | SCRIPTS).items():
        writer.elsewhere(key, where)
    return Written("deepspeed", json.dumps(writer.tree, indent=2) + "\n", (*export.notices, *writer.finish()))


def _drop(writer: ConfigWriter, path: str) -> None:
    """A degree of 1 needs no section."""
    section, _, name = path.rpartition(".")
    table = writer.tree.get(section, {}) if section else writer.tree
    if table.get(name) == 1:
        del table[name]
    if section and not table:
        writer.tree.pop(section, None)


def _batch(writer: ConfigWriter) -> None:
    micro, steps = writer.take("training.micro_batch_size"), writer.take("training.gradient_accumulation_steps")
    data = writer.take("parallelism.data")
    writer.put(deepspeed.TOTAL, micro * steps * data)
    writer.put(deepspeed.MICRO, micro)
    writer.put(deepspeed.STEPS, steps)
    clip = writer.take("training.clip_grad_norm")
    writer.put(deepspeed.CLIP, 1.0 if clip else 0.0)
    if clip:
        writer.remark("training.clip_grad_norm", "the plan does not say at which norm; 1.0 is transformers' default")


def _precision(writer: ConfigWriter) -> None:
    recipe = writer.take("training.precision.recipe")
    known = ("fp32", "bf16-mixed", "fp16-mixed", "bf16-pure")
    if recipe not in known:
        writer.lose("training.precision", f"DeepSpeed has no {recipe}")
    writer.put(KEYS.names["bf16"][0], recipe in ("bf16-mixed", "bf16-pure"))
    writer.put(deepspeed.FP16, recipe == "fp16-mixed")
    if recipe == "bf16-pure":
        for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
            writer.put(f"bf16.{name}", True)


def _optimizer(writer: ConfigWriter) -> None:
    name, how = writer.take("training.optimizer.name"), writer.take("training.optimizer.implementation")
    if name not in KEYS.words["types"]:
        writer.put("zero_allow_untested_optimizer", True)
        writer.remark("training.optimizer.name", f"TrainingArguments makes it: optim for {name}")
        return
    writer.put(deepspeed.OPTIMIZER, KEYS.words["types"][name])
    writer.put("optimizer.params", dict(PARAMETERS if name != "sgd" else {"lr": "auto"}))
    usual = FRAMEWORKS["deepspeed"].optimizers.by_name.get(name, FRAMEWORKS["deepspeed"].optimizers.implementation)
    if name in ("adam", "adamw") and how == "foreach":
        writer.put(deepspeed.TORCH_ADAM, True)
    elif how != usual:
        writer.lose("training.optimizer.implementation", f"DeepSpeed has no {how} {name}")
    if name == "sgd-momentum":
        writer.put(deepspeed.MOMENTUM, 0.9)
        writer.remark("training.optimizer.name", "the plan does not say which momentum; 0.9 is common")
