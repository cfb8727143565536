"""A ``ConfigContainer`` of Megatron-Bridge in YAML, such as ``run_config.yaml``, as Megatron's arguments.

Read at Megatron-Bridge of 2026 (``src/megatron/bridge/training/config.py``, ``models/transformer_config.py``):
a provider's fields are those of Megatron-Core's ``TransformerConfig``, and the training's those of its arguments.
"""

from __future__ import annotations

import re

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.key_table import key_table

BRIDGE = re.compile(
    r"^\s*_target_:\s*['\"]?(?:megatron\.bridge\.training\.config\.|megatron\.bridge\.models\.)", re.MULTILINE
)
"""A line that such a file has: the class of the container, or of its model."""
SECTIONS = ("model", "train", "optimizer", "ddp", "dataset", "dist", "rerun_state_machine", "checkpoint")
OTHER_NAMES = {
    "num_moe_experts": "num-experts",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "expert_tensor_parallel_size": "expert-tensor-parallel-size",
    "layernorm_epsilon": "norm-epsilon",
    "sequence_length": "seq-length",
    "gated_linear_unit": "swiglu",
    "seq_length": "seq-length",
}
"""Fields whose argument has another name."""
FALSE_SAYS = {
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "add_bias_linear": "disable-bias-linear",
}
"""Fields that are true by default, and the switch of their opposite."""
READ = frozenset(
    """
    num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels vocab-size seq-length
    tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size
    sequence-parallel moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size recompute-granularity
    recompute-method recompute-num-layers recompute-modules micro-batch-size global-batch-size use-distributed-optimizer
    normalization position-embedding-type optimizer bf16 fp16 use-megatron-fsdp
    """.split()  # noqa: SIM905  # a list of thirty quoted names is harder to read
)
"""Arguments that the reader takes in code, and that its table does not list."""
PRECISIONS = {"bf16_mixed": "bf16", "bf16-mixed": "bf16", "16-mixed": "fp16", "fp16_mixed": "fp16"}


def is_bridge(text: str) -> bool:
    """Whether a YAML text is such a file."""
    return BRIDGE.search(text) is not None


def load_bridge(path: str, text: str) -> ConfigFile:
    """The file under the names of Megatron's arguments, each at its place in the YAML; the first section counts.

    Fields that Megatron has no argument for stand together under one key, so that the reading reports them.

    Raises:
        ConfigError: the text is no YAML.
    """
    whole = load_yaml(path, text)
    table = key_table("megatron")
    known = READ.union(table.keys(), *table.names.values())
    values: dict[str, object] = {}
    keys: dict[str, str] = {}
    other: list[str] = []
    for key, value in whole.values.items():
        section, _, name = key.partition(".")
        argument, said = OTHER_NAMES.get(name, name.replace("_", "-")), value
        if key == "mixed_precision":
            argument, said = PRECISIONS.get(str(value), "mixed-precision"), str(value) not in PRECISIONS and value
            said = said or True
        elif name in FALSE_SAYS:
            argument, said = FALSE_SAYS[name], value is False
        if said in (None, False) or key.rpartition(".")[2].startswith("_") or argument in values:
            continue
        if "." in name or (section not in SECTIONS and key != "mixed_precision") or isinstance(said, dict):
            continue
        if argument in known or argument in OTHER_NAMES.values():
            values[argument], keys[argument] = said, key
        elif section == "model" or key == "mixed_precision":
            other.append(key)
    if other:
        more = f" and {len(other) - MOST_LISTED} more" if len(other) > MOST_LISTED else ""
        listed = f"{', '.join(each[:60] for each in other[:MOST_LISTED])}{more}"
        values[listed], keys[listed] = True, other[0]
    return ConfigFile(path, values, lambda name: whole.at(keys.get(name, "")), whole.lines)


MOST_LISTED = 12
"""Fields that a message names."""
