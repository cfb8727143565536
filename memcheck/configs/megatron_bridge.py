"""Megatron-Bridge: a ``ConfigContainer`` in YAML, such as ``run_config.yaml``, and its recipes as Megatron's arguments.

Read at Megatron-Bridge 067f987df of August 2026 (``src/megatron/bridge/training/config.py``, ``mixed_precision.py``,
``comm_overlap.py``, ``models/gpt_provider.py``, ``scripts/training/run_recipe.py``): a provider's fields are those of
Megatron-Core's ``TransformerConfig``, and the training's those of its arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.key_table import key_table

BRIDGE = re.compile(
    r"^\s*_target_:\s*['\"]?(?:megatron\.bridge\.training\.config\.|megatron\.bridge\.models\.)", re.MULTILINE
)
"""A line that such a file has: the class of the container, or of its model."""
SECTIONS = (
    *("dataset", "model", "train", "optimizer", "mixed_precision", "comm_overlap", "ddp", "dist", "checkpoint"),
    *("rerun_state_machine", "peft"),
)
"""Sections that are read, in the order in which they say the same: the model's length follows the dataset's."""
MODEL, PEFT = "hf-model-id", "peft-"
"""The argument for a model of Hugging Face, and what the fields of ``peft`` begin with."""
OTHER_NAMES = {
    "num_moe_experts": "num-experts",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "expert_tensor_parallel_size": "expert-tensor-parallel-size",
    "layernorm_epsilon": "norm-epsilon",
    "sequence_length": "seq-length",
    "gated_linear_unit": "swiglu",
    "seq_length": "seq-length",
    "hf_model_id": MODEL,
    "fp8": "fp8-format",
    "moe_router_padding_for_fp8": "moe-router-padding-for-quantization",
    "skip_getting_attention_mask_from_dataset": "no-create-attention-mask-in-dataloader",
    "enable_offline_packing": "no-create-attention-mask-in-dataloader",
}
"""Fields whose argument has another name."""
GRAPHS = ("cuda_graph_impl", "cuda_graph_scope", "cuda_graph_warmup_steps", "cuda_graph_modules")
"""Fields that count only with captured graphs."""
FALSE_SAYS = {
    "share_embeddings_and_output_weights": ("untie-embeddings-and-output-weights", True),
    "add_bias_linear": ("disable-bias-linear", True),
    "grad_reduce_in_fp32": ("grad-reduce-in-bf16", True),
    "should_pad_vocab": ("make-vocab-size-divisible-by", 1),
}
"""Fields whose false is what an argument says, and the argument with its value."""
READ = frozenset(
    """
    num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels vocab-size seq-length
    tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size
    sequence-parallel moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size recompute-granularity
    recompute-method recompute-num-layers recompute-modules micro-batch-size global-batch-size use-distributed-optimizer
    normalization position-embedding-type optimizer bf16 fp16 use-megatron-fsdp fp8-format hf-model-id
    data-parallel-sharding-strategy pipeline-model-parallel-layout
    """.split()  # noqa: SIM905  # a list of thirty quoted names is harder to read
)
"""Arguments that the reader takes in code, and that its table does not list."""
CURRENT = {
    "fp8_recipe": "tensorwise",
    "first_last_layers_bf16": True,
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
    "fp8_param_gather": True,
}
PRECISIONS: Mapping[str, Mapping[str, object]] = {
    "bf16_mixed": {"bf16": True},
    "16_mixed": {"fp16": True},
    "fp16_mixed": {"fp16": True},
    "bf16_with_fp8_current_scaling_mixed": {"bf16": True, "fp8": "hybrid", **CURRENT},
    "bf16_with_fp8_delayed_scaling_mixed": {
        "bf16": True,
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_param_gather": True,
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": {
        "bf16": True,
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param_gather": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
}
"""Named precisions (``mixed_precision.py``, MIXED_PRECISION_RECIPES), and the fields that they set."""
OPTIONS = {
    **{name: f"train.{name}" for name in ("micro_batch_size", "global_batch_size")},
    **{
        f"{name}_size": f"model.{name}_size"
        for name in (
            *("tensor_model_parallel", "pipeline_model_parallel", "context_parallel", "expert_model_parallel"),
            *("virtual_pipeline_model_parallel", "expert_tensor_parallel"),
        )
    },
    "seq_length": "dataset.seq_length",
}
"""Options of the runner, which recipes of 2025 take as arguments, too, and the fields that they set."""
PROVIDED = ("model.cross_entropy_loss_fusion", "model.should_pad_vocab", "model.moe_grouped_gemm")
"""Fields that every provider of a model sets so (``models/gpt_provider.py``)."""
SHIPPED = os.path.join(os.path.dirname(__file__), "bridge_recipes.json")
"""What bears on memory in each recipe of ``megatron.bridge.recipes`` that is read, by the name of its function; a text
is the name of the same recipe; under the empty name what most have (``benchmarks/bridge_recipes.py``).
"""
MOST_LISTED = 12
"""Fields that a message names."""


def is_bridge(text: str) -> bool:
    """Whether a YAML text is such a file."""
    return BRIDGE.search(text) is not None


def load_bridge(path: str, text: str) -> ConfigFile:
    """The file under the names of Megatron's arguments, each at its place in the YAML; the first section counts.

    Raises:
        ConfigError: the text is no YAML.
    """
    whole = load_yaml(path, text)
    found = arguments_of(whole.values)
    values = {argument: value for argument, (value, _) in found.items()}
    return ConfigFile(path, values, lambda name: whole.at(found[name][1] if name in found else ""), whole.lines)


def arguments_of(container: Mapping[str, object]) -> dict[str, tuple[object, str]]:
    """Megatron's arguments for the fields of a container, each with its value and its field.

    ``container``: dotted names of fields and their values. Fields of the model and the precision that have no
    argument stand together under one key, so that the reading reports them.
    """
    from memcheck.frameworks.megatron.profile import FRAMEWORK  # not loaded where a check meets no such file

    table = key_table("megatron")
    usually_on = set(table.words["switched_off"].values())
    options = {name.replace("_", "-"): name in usually_on for name in FRAMEWORK.options}
    known = READ.union(table.keys(), options, *table.names.values(), table.words["switched_off"], OTHER_NAMES.values())
    found: dict[str, tuple[object, str]] = {}
    other: list[str] = []
    for key, value in sorted(_fields(container), key=_section):
        section, _, name = key.partition(".")
        argument, said = OTHER_NAMES.get(name, name.replace("_", "-")), value
        if name in FALSE_SAYS:
            argument, said = FALSE_SAYS[name][0], value is False and FALSE_SAYS[name][1]
        if section == "peft":
            argument = f"{PEFT}{argument}"
        off = said is False and not options.get(argument, False)
        graphs = name in GRAPHS and container.get("model.cuda_graph_impl") in (None, "none")
        if said is None or off or argument in found or graphs:
            continue
        if argument in known or section == "peft":
            found[argument] = _layout(said) if name == "pipeline_model_parallel_layout" else said, key
        elif section in ("model", "mixed_precision") and name not in table.names["bridge_fields"]:
            other.append(key)
    if other:
        more = f" and {len(other) - MOST_LISTED} more" if len(other) > MOST_LISTED else ""
        found[f"{', '.join(each[:60] for each in other[:MOST_LISTED])}{more}"] = True, other[0]
    return found


def _layout(stages: object) -> object:
    """A pipeline's layout as Megatron's argument has it: ``Et|t|tL`` for lists of the names of layers."""
    if not isinstance(stages, list) or not all(isinstance(each, list) for each in stages):
        return stages
    return "|".join("".join(LETTERS.get(str(layer), "?") for layer in stage) for stage in stages)


LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Layers of a pipeline's layout (megatron/core/transformer/pipeline_parallel_layer_layout.py)."""


def _section(field: tuple[str, object]) -> int:
    return SECTIONS.index(field[0].partition(".")[0])


def _fields(container: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    """The fields of the sections that are read: classes by the key of their section, and dtypes by their names."""
    for key, value in container.items():
        section, _, name = key.partition(".")
        if key == "mixed_precision" and value is not None:
            named = PRECISIONS.get(str(value).replace("-", "_"), {f"`{str(value)[:40]}`": True})
            yield from ((f"{key}.{field}", each) for field, each in named.items())
        elif key == "peft._target_":
            yield "peft.class", str(value).rpartition(".")[2]
        elif section not in SECTIONS or name.rpartition(".")[2].startswith("_") or isinstance(value, dict):
            if name.endswith("_dtype._target_") and section in SECTIONS:  # how OmegaConf writes ``torch.bfloat16``
                yield key.removesuffix("._target_"), DTYPES.get(str(value), value)
        elif name and "." not in name and key != "ddp.grad_reduce_in_fp32":  # the precision's own field goes before it
            yield key, DTYPES.get(str(value), value)


DTYPES = {
    f"{package}{name}": word
    for package in ("torch.", "")
    for name, word in (("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16"))
}
