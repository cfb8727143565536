"""torchtune's keys, and the plan keys for the same things. Read at torchtune bd2a0fc7c of April 2026 (``recipes/*.py``,
``torchtune/training/*.py``, ``torchtune/modules/loss/*.py``).
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.types import KeyRow

VERSION = "torchtune at bd2a0fc7c (April 2026)"
TITLE = "torchtune"
COMPONENT = "_component_"
"""The key of a section that names the class or function of a component, such as ``torchtune.models.llama3.llama3_8b``.
"""


def recognise(config: ConfigFile) -> str:
    """A component of torchtune's; or a command line that runs one of its recipes."""
    for key, value in config.values.items():
        if key.rpartition(".")[2] == COMPONENT and str(value).startswith("torchtune."):
            return key
    return launched(config)


def launched(config: ConfigFile) -> str:
    """``config`` where the text is a launch line, ``tune run ... --config``; empty for a config, whose comments may
    also name the command.
    """
    runs = (line for line in config.lines if not line.lstrip().startswith("#"))
    return "config" if config.has("config") and any("tune run" in line for line in runs) else ""


MODEL = f"model.{COMPONENT}"
LENGTH = "tokenizer.max_seq_len"
CUT = "dataset.max_seq_len"
"""What cuts rows before 0.3, where the tokenizer has no length of its own."""
NO_TRAINING = ("tasks", "prompt", "prompt.user", "max_new_tokens", "quantizer", f"quantizer.{COMPONENT}")
"""Keys of the recipes that evaluate, generate and quantize."""

CONSTRUCTS: dict[str, str] = {
    f"policy_model.{COMPONENT}": "PPO, which generates between its steps and holds four models",
    f"reward_and_value_model.{COMPONENT}": "PPO, which generates between its steps and holds four models",
    "grpo_samples": "GRPO, which generates between its steps",
    "orchestration.num_inference_workers": "asynchronous GRPO, with a rollout engine of its own",
    "early_exit_loss.layers": "training with an early-exit loss over several layers",
    "layer_dropout.prob": "training with layer dropout",
    "enable_fp8_training": "fp8 training by torchao",
}
"""Keys of recipes without a memory model, and what their jobs are."""

FAKED = "Int8DynActInt4WeightQATQuantizer"
"""The quantizer of quantization-aware training with a memory model."""

PREFERENCES = "DPOLoss"
"""The loss over preferences that has a memory model."""
DIVERGENCES: dict[str, float] = {
    "ForwardKLWithChunkedOutputLoss": 0.0,
    "ReverseKLWithChunkedOutputLoss": 1.0,
    "SymmetricKLWithChunkedOutputLoss": 0.5,
}
"""Losses from a teacher, each with the plan's ``beta``; the symmetric one is the sum of both whatever its ratio."""
OBJECTIVES: dict[str, str] = {
    "RSOLoss": "RSO",
    "SimPOLoss": "SimPO",
    "PPOLoss": "PPO",
    "GRPOLoss": "GRPO",
    "GRPOSimpleLoss": "GRPO",
    "GRPOCompletionLoss": "GRPO",
    "LinearGRPOLoss": "GRPO",
}
"""Losses of objectives other than next-token prediction, and the name of each objective."""

LOSSES: dict[str, str] = {
    "LinearCrossEntropyLoss": "fused-linear",
    "CEWithChunkedOutputLoss": "chunked",
    "CrossEntropyLoss": "standard",
}
CHUNKS = "num_output_chunks"

OPTIMIZERS: dict[str, str] = {
    "torch.optim.AdamW": "adamw",
    "torch.optim.Adam": "adam",
    "torch.optim.SGD": "sgd",
    "torch.optim.Adafactor": "",
    "bitsandbytes.optim.AdamW8bit": "adamw-8bit",
    "bitsandbytes.optim.PagedAdamW": "paged-adamw",
    "bitsandbytes.optim.PagedAdamW32bit": "paged-adamw",
    "bitsandbytes.optim.PagedAdamW8bit": "paged-adamw-8bit",
    "bitsandbytes.optim.Lion8bit": "lion-8bit",
    "torchao.optim.AdamW8bit": "adamw-torchao-8bit",
    "torchao.optim.AdamW4bit": "adamw-torchao-4bit",
    "torchao.optim.AdamWFp8": "adamw-torchao-fp8",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw-torchao-8bit",
    "torchao.prototype.low_bit_optim.AdamW4bit": "adamw-torchao-4bit",
    "torchao.prototype.low_bit_optim.AdamWFp8": "adamw-torchao-fp8",
}
"""Components that step; torch's Adafactor keeps other states than the one that is priced."""

ROWS = (
    KeyRow("batch_size", "training.micro_batch_size"),
    KeyRow("gradient_accumulation_steps", "training.gradient_accumulation_steps", default=1),
    KeyRow("dtype", "training.precision", kind="word", words={"bf16": "bf16-pure", "fp32": "fp32"}),
)

MODULES: dict[str, str] = {
    "q_proj": "q_proj",
    "k_proj": "k_proj",
    "v_proj": "v_proj",
    "output_proj": "o_proj",
}
"""torchtune's attention, and what transformers calls it; ``w1``, ``w2``, ``w3`` are gate, down and up."""
MLP = ("gate_proj", "down_proj", "up_proj")
ADAPTERS = (
    "lora_attn_modules",
    "apply_lora_to_mlp",
    "apply_lora_to_output",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "use_dora",
    "quantize_base",
)
OWN_PLANS: dict[str, str] = {
    "tensor_parallel_dim": "tensor parallelism",
    "context_parallel_dim": "context parallelism",
}
"""Degrees whose plans torchtune writes itself."""

UNMODELLED: dict[str, tuple[object, str]] = {
    "resize_token_embeddings": (False, "tokens that the tokenizer has beyond the model's enlarge embedding and head"),
    "memory_efficient_fsdp_wrap": (False, "embedding and head in groups of their own are priced as part of the root's"),
    "enable_async_checkpointing": (False, "a checkpoint that is written while training goes on is not modelled"),
    "cudnn_deterministic_mode": (None, "workspaces of deterministic kernels are not modelled"),
    "debug_logging_enabled": (False, "what is logged of the batches is not modelled"),
}

IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data": (
        "dataset.",
        "dataset_val.",
        "dataset",
        "datasets",
        "shuffle",
        "collate_fn",
        "dataloader.",
        "batch_size_val",
        "tokenizer.",
        "seed",
        "epochs",
        "max_steps_per_epoch",
        "num_workers",
    ),
    "schedules": (
        "lr_scheduler.",
        "fake_quant_after_n_steps",
        *(
            f"optimizer.{name}"
            for name in (
                *("lr", "betas", "eps", "weight_decay", "maximize", "nesterov", "dampening", "percentile_clipping"),
                *("bf16_stochastic_round", "capturable", "differentiable"),
            )
        ),
    ),
    "files: the whole state is priced at a checkpoint": (
        "output_dir",
        "checkpointer.",
        "ref_checkpointer.",
        "teacher_checkpointer.",
        "resume_from_checkpoint",
        "save_adapter_weights_only",
        "save_every_n_steps",
        "save_every_n_epochs",
        "use_distributed_state_dict",
        "name",
        "base_model_path",
        "low_cpu_ram",
    ),
    "logs": (
        "metric_logger.",
        "log_every_n_steps",
        "log_peak_memory_stats",
        "log_level",
        "profiler.",
        "debug_num_samples_per_step",
    ),
    "how the model computes: its tensors are the same": (
        "model.attn_dropout",
        "model.norm_eps",
        "model.rope_base",
        "model.max_seq_len",
        "model.lora_alpha",
        "tensor_parallel_plan.",
        "context_parallel_rotate_method",
        "activation_offloading_use_streams",
        "use_flex",
    ),
    "shares of a loss": ("kd_ratio",),
    "the device": ("device",),
}
