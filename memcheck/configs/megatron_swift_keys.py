"""Keys of Megatron-SWIFT, ms-swift over Megatron-Core, and the plan keys. Read at ms-swift 3602360a of August 2026
(``swift/megatron/arguments/*.py``, ``swift/megatron/utils/megatron_lm_utils.py``) and mcore-bridge 1.6.5
(``config/model_config.py``, ``model/gpt_model.py``).
"""

from __future__ import annotations

import re

from memcheck.configs import megatron_keys, trainer_keys
from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.types import KeyRow
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON

VERSION = "ms-swift at 3602360a (August 2026), mcore-bridge 1.6.5"
TITLE = "Megatron-SWIFT"

COMMANDS = ("sft", "pt", "rlhf")
MODEL = "model"
EVIDENCE = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "context_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "recompute_granularity",
)
"""Megatron's keys. Only Megatron-SWIFT's YAML has two of them together with a model by its id."""
LAYOUT = (
    KeyRow("tensor_model_parallel_size", "parallelism.tensor", default=1),
    KeyRow("context_parallel_size", "parallelism.context", default=1),
    KeyRow("pipeline_model_parallel_size", "parallelism.pipeline", default=1),
    KeyRow("expert_model_parallel_size", "parallelism.expert", default=1),
    KeyRow("micro_batch_size", "training.micro_batch_size", default=1),
    KeyRow("global_batch_size", "training.global_batch_size", default=16),
)
EXPERT_TENSOR = KeyRow("expert_tensor_parallel_size", "parallelism.expert_tensor", default=1)
OPTIMIZERS: dict[str, object] = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon"}
OPTIMIZER = KeyRow("optimizer", "training.optimizer.name", "word", words=OPTIMIZERS)

SETTLED = (*megatron_keys.SETTLED, "attention_backend", "moe_router_dtype", "mtp_num_layers")
"""Options that the plan says with a key of its own, or that only code with several of them can read."""
VIRTUAL = "microbatch_group_size_per_virtual_pipeline_stage"
OPTIONS = (
    *(
        KeyRow(row.key.rpartition(".")[2], row.key, row.kind)
        for row in megatron_keys.OPTIONS
        if row.key.rpartition(".")[2] not in SETTLED
    ),
    KeyRow("microbatch_group_size_per_vp_stage", f"training.options.{VIRTUAL}"),
)
LISTS = frozenset({*(name for name, types in MEGATRON.options.items() if list in types), *trainer_keys.LISTS})
DEFAULTS: dict[str, tuple[object, str]] = {
    "apply_rope_fusion": (False, ""),
    "moe_grouped_gemm": (True, ""),
    "moe_token_dispatcher_type": ("alltoall", ""),
    "gradient_accumulation_fusion": (False, "it is on where apex is installed, which no argument says"),
    "make_vocab_size_divisible_by": (1, "mcore-bridge pads the vocabulary to the tensor ranks alone"),
    "bridge_backend": ("mcore-bridge", ""),
}
"""What ms-swift and its bridge take where a launch is silent, and Megatron-LM or memcheck does not."""
EXPERTS = ("moe_grouped_gemm", "moe_token_dispatcher_type", "moe_router_dtype")
"""Defaults that only a model with experts has."""

REFUSED = {
    "use_ray": "Ray places rollouts on the GPUs of the training",
    "new_special_tokens": "a vocabulary that grows by tokens of its own",
    "freeze_parameters": "parameters that are frozen by name",
    "freeze_parameters_regex": "parameters that are frozen by name",
    "freeze_parameters_ratio": "a share of the parameters that is frozen",
    "trainable_parameters": "parameters that are trained by name",
    "trainable_parameters_regex": "parameters that are trained by name",
    "modules_to_save": "modules that are trained whole in addition to adapters",
    "fp4_format": "products in fp4",
    "overlap_param_gather_with_optimizer_step": "gathers within the optimizer's step",
    "sequence_packing_scheduler": "micro-batches that are packed while they are made",
    "language_model_only": "a multimodal model without its tower",
    "mtp_num_layers": "layers that predict further tokens, in mcore-bridge's own classes",
    "target_regex": "adapters whose modules a pattern names",
    "megatron_extra_kwargs": "arguments of Megatron's configuration that are handed on unread",
    "mlp_padding_free": "feed-forward networks without the padding that attention has",
    "enable_dft_loss": "the loss of DFT",
    "enable_channel_loss": "losses by channel",
    "optimizer_cuda_graph": "captured graphs, which keep their tensors in pools of their own",
    "linear_decoupled_in_proj": "projections that are divided otherwise",
}
"""Arguments that move memory in a way of which memcheck has no model here."""
OFF = (None, False, "false", "False", "none", "None", 0, 0.0, "0", "0.0", "", "[]")
"""Values of the above that ask for nothing."""
ROLLOUTS = ("grpo", "gkd")
BACKENDS = {"flash_2": "flash", "flash_3": "flash", "flash_4": "flash"}
"""``_init_attention_backend``."""
FOLDERS = ("adapters", "mcore_adapter", "ref_adapters", "mcore_ref_adapter")
"""Adapters that are gone on with: they make a job one of adapters (megatron_args.py)."""
TARGETS_REFUSED = ("all-embedding", "all-router", "router", "word_embeddings", "embedding", "output_layer")
"""Target modules for which mcore-bridge has adapters and memcheck has no memory model."""

_MEGATRON = re.compile(rf"(?:^|[\s;&])megatron\s+({'|'.join(COMMANDS)})(?=\s|$)")


def command(config: ConfigFile) -> str:
    """The command of Megatron-SWIFT that a script runs."""
    lines = (without_comment(line)[:2000] for line in config.lines)
    return next((found[1] for line in lines if (found := _MEGATRON.search(line))), "")


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is Megatron-SWIFT's; empty where none does.

    The config has a model with ``megatron sft`` or with two of Megatron's keys, or that command with one such key.
    """
    named = config.has(MODEL) and isinstance(config.values[MODEL], str)
    found = [name for name in EVIDENCE if config.has(name)]
    if named and (command(config) or len(found) > 1):
        return MODEL
    return found[0] if found and command(config) else ""
