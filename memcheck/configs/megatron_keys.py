"""Megatron-LM's arguments, and the plan keys for the same things. Read at commit d98e8a64dd of August 2026
(``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``, ``core/model_parallel_config.py``) and,
for the names of the configuration classes, at megatron-core 0.16.1.
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import any_key
from memcheck.configs.types import KeyRow
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON

VERSION = "Megatron-LM at d98e8a64dd (August 2026)"
TITLE = "Megatron-LM"

MODEL = "model.architecture"
WHOLE_DIMENSIONS = (
    "num-layers",
    "hidden-size",
    "num-attention-heads",
    "ffn-hidden-size",
    "num-query-groups",
    "kv-channels",
    "max-position-embeddings",
    "vocab-size",
    "q-lora-rank",
    "kv-lora-rank",
    "qk-head-dim",
    "qk-pos-emb-head-dim",
    "v-head-dim",
    "num-experts",
    "moe-router-topk",
    "moe-ffn-hidden-size",
    "moe-shared-expert-intermediate-size",
    "linear-num-key-heads",
    "linear-num-value-heads",
    "linear-key-head-dim",
    "linear-value-head-dim",
    "linear-conv-kernel-dim",
)
SWITCHED_DIMENSIONS = (
    "group-query-attention",
    "untie-embeddings-and-output-weights",
    "disable-bias-linear",
    "add-qkv-bias",
    "swiglu",
    "quick-geglu",
    "squared-relu",
    "qk-layernorm",
    "multi-latent-attention",
    "moe-router-pre-softmax",
    "moe-shared-expert-gate",
    "attention-output-gate",
)


def underscored(argument: str) -> str:
    """``--hidden-size`` as the plan and the configuration classes spell it."""
    return argument.replace("-", "_")


def dashed(name: str) -> str:
    """The argument of a configuration key."""
    return name.replace("_", "-")


DIMENSIONS = (
    *(KeyRow(name, f"{MODEL}.{underscored(name)}") for name in WHOLE_DIMENSIONS),
    *(KeyRow(name, f"{MODEL}.{underscored(name)}", "flag") for name in SWITCHED_DIMENSIONS),
    KeyRow("position-embedding-type", f"{MODEL}.position_embedding_type", "text"),
    KeyRow("normalization", f"{MODEL}.normalization", "text"),
    KeyRow("rotary-percent", f"{MODEL}.rotary_percent", "number"),
    KeyRow("moe-layer-freq", f"{MODEL}.moe_layer_freq", "text"),
    KeyRow("experimental-attention-variant", f"{MODEL}.experimental_attention_variant", "text"),
    KeyRow("linear-attention-freq", f"{MODEL}.linear_attention_freq", "text"),
    KeyRow("moe-router-score-function", f"{MODEL}.moe_router_score_function", "text"),
    KeyRow("hidden-dropout", f"{MODEL}.hidden_dropout", "number"),
    KeyRow("attention-dropout", f"{MODEL}.attention_dropout", "number"),
)
"""What the model is: the keys of the family ``megatron-lm``."""

LAYOUT = (
    KeyRow("tensor-model-parallel-size", "parallelism.tensor", default=1, aliases=("model-parallel-size",)),
    KeyRow("context-parallel-size", "parallelism.context", default=1),
    KeyRow("pipeline-model-parallel-size", "parallelism.pipeline", default=1),
    KeyRow("expert-model-parallel-size", "parallelism.expert", default=1),
    KeyRow("seq-length", "training.sequence_length"),
    KeyRow("micro-batch-size", "training.micro_batch_size", aliases=("batch-size",)),
    KeyRow("global-batch-size", "training.global_batch_size"),
)
SAVING = (
    KeyRow(
        path="ckpt-format",
        key="training.checkpoint.state_dict",
        kind="word",
        words={
            "torch_dist": "sharded",
            "torch": "full",
            "torch_dcp": "sharded",
            "fsdp_dtensor": "sharded",
            "zarr": "sharded",
        },
    ),
    KeyRow("async-save", "training.checkpoint.asynchronous", "flag"),
)
"""The legacy format gathers a data-parallel group's optimizer states in the host memory of its first rank."""
SWITCHES: dict[str, tuple[str, object]] = {
    "no-save-optim": ("training.checkpoint.optimizer", False),
    "use-cpu-initialization": ("training.initialization.place", "host"),
}
"""Switches that set one value of the plan."""
LAUNCHER = (
    KeyRow("nnodes", "hardware.nodes"),
    KeyRow("nproc-per-node", "hardware.gpus_per_node", aliases=("nproc_per_node",)),
)
"""torchrun's, where a script holds them."""
EXPERT_TENSOR = KeyRow("expert-tensor-parallel-size", "parallelism.expert_tensor")
SERVING = (
    KeyRow("inference-max-seq-length", "inference.context_length"),
    KeyRow("inference-max-requests", "inference.batch_size", aliases=("inference-max-batch-size",)),
)
"""Arguments of Megatron's inference server and of its text generation."""
OPTIMIZERS: dict[str, object] = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon", "lion": "lion"}
"""Megatron's Adam decouples weight decay; its SGD has a momentum of 0.9 unless told otherwise."""
OPTIMIZER = KeyRow(path="optimizer", key="training.optimizer.name", kind="word", words=OPTIMIZERS)

STRATEGIES: dict[str, int] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``--data-parallel-sharding-strategy`` of Megatron-FSDP."""

RENAMED = {
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}
"""Later releases' names of the same thing."""
SWITCHED_OFF = {
    "no-bias-gelu-fusion": "bias_gelu_fusion",
    "no-bias-swiglu-fusion": "bias_swiglu_fusion",
    "no-bias-dropout-fusion": "bias_dropout_fusion",
    "no-rope-fusion": "apply_rope_fusion",
    "no-masked-softmax-fusion": "masked_softmax_fusion",
    "no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
    "no-persist-layer-norm": "persist_layer_norm",
    "no-create-attention-mask-in-dataloader": "create_attention_mask_in_dataloader",
    "no-overlap-p2p-communication": "overlap_p2p_communication",
    "no-align-param-gather": "align_param_gather",
}
"""Switches that turn something off which is on by default."""

ASSUMED = {"create_attention_mask_in_dataloader": False, "moe_grouped_gemm": True}
"""What memcheck takes for these options when a plan is silent, where Megatron-LM's own default is the opposite."""

SETTLED = (
    "use_distributed_optimizer",
    "data_parallel_sharding_strategy",
    "use_megatron_fsdp",
    "num_layers_per_virtual_pipeline_stage",
    "recompute_granularity",
    "recompute_modules",
    "hidden_dropout",
    "attention_dropout",
    "fp8_format",
    "padding_free",
    "bridge_backend",
)
"""Options that the plan says with a key of its own, that only code with several of them can read, or that are another
launcher's.
"""


def _kind(name: str) -> str:
    types = MEGATRON.options[name]
    if bool in types:
        return "flag"
    if list in types and str not in types:
        return "list"
    return "number" if float in types else "whole" if int in types else "text"


LISTS = frozenset(dashed(name) for name, types in MEGATRON.options.items() if list in types)
"""Arguments that take several words."""
NUMBERS = ("hierarchical-context-parallel-sizes",)
"""Lists of whole numbers alone."""
OPTIONS = tuple(
    KeyRow(dashed(name), f"training.options.{name}", _kind(name)) for name in MEGATRON.options if name not in SETTLED
)
"""Arguments that are options of a plan under the same name."""

OWN = (
    *(row.path for row in LAYOUT if row.path.endswith("parallel-size")),
    "use-checkpoint-args",
    "use-distributed-optimizer",
    "use-mcore-models",
)
"""Arguments that only Megatron-LM has."""
SHARED = (
    *(name for name in WHOLE_DIMENSIONS if name not in ("vocab-size", "q-lora-rank", "kv-lora-rank")),
    *(row.path for row in LAYOUT if row.path not in OWN),
)
"""Arguments that others have, too: several of them together are its."""


def recognise(config: ConfigFile) -> str:
    """One argument of its own, or three that it shares; what only others run has one or two of these."""
    shared = [name for name in SHARED if name in config.values]
    return any_key(*OWN)(config) or (shared[0] if len(shared) >= 3 else "")


REFUSED = {
    "hybrid-layer-pattern": "a Mamba hybrid",
    "hybrid-override-pattern": "a Mamba hybrid",
    "is-hybrid-model": "a Mamba hybrid",
    "mamba-num-heads": "a Mamba hybrid",
    "encoder-num-layers": "an encoder-decoder (T5)",
    "encoder-seq-length": "an encoder-decoder (T5)",
    "bert-no-binary-head": "an encoder (BERT)",
    "img-h": "a vision model",
    "patch-dim": "a vision model",
    "patch-size": "a multimodal model",
    "mrope-section": "a multimodal model",
    "disable-vision-class-token": "a multimodal model",
    "dataset-provider": "a multimodal model",
    "model-provider": "a multimodal model",
    "perform-rl-step": "reinforcement learning, where an inference engine shares the GPU",
    "export-kd-teacher-load": "distillation, where a teacher is loaded as well",
    "flextron": "an elastic model",
    "experimental-attention-variant": "a model with an experimental attention (sparse, or with other gates)",
    "linear-attention-type": "a model with linear attention",
    "linear-attention-freq": "a model with linear attention",
    "dsa-indexer-n-heads": "a model with sparse attention",
    "dsa-indexer-topk": "a model with sparse attention",
    "hybrid-attention-ratio": "a Mamba hybrid",
    "hybrid-mlp-ratio": "a Mamba hybrid",
    "mamba-state-dim": "a Mamba hybrid",
    "mamba-head-dim": "a Mamba hybrid",
    "heterogeneous-layers-config-path": "a model whose layers differ by a file",
    "heterogeneous-layers-config-encoded-json": "a model whose layers differ by a file",
    "vision-model-type": "a multimodal model",
    "retro-project-dir": "a retrieval model (RETRO)",
    "retro-tasks": "a retrieval model (RETRO)",
    "task": "an evaluation or a fine-tuning of tasks/main.py",
    "skip-train": "an evaluation, which trains nothing",
    "retro-add-retriever": "a retrieval model (RETRO)",
    "deepspeed_config": "one of DeepSpeed's engine around Megatron-LM's model",
    "zero-stage": "one of DeepSpeed's engine around Megatron-LM's model",
    "moe-latent-size": "a model whose experts stand on a narrower projection",
    "enable-mhc-connections": "a model with several residual streams",
    "fp32-residual-connection": "one with its residual stream in fp32",
    "use-torch-fsdp2": "one of PyTorch's FSDP 2 inside Megatron",
    "embed-layernorm": "a fork's model with a norm after the embedding",
    "glu-activation": "a fork's model with a feed-forward network of its own",
    "glu_activation": "a fork's model with a feed-forward network of its own",
}
"""Arguments that say that the job trains something else than a decoder of text alone."""
DELTA_NETS = ("experimental-attention-variant", "linear-attention-freq")
"""Arguments of gated delta nets. They describe a model that a plan can state, if the first one names such a net."""
SERVERS = (
    "inference-dynamic-batching",
    "inference-dynamic-batching-buffer-size-gb",
    "inference-dynamic-batching-max-requests",
    "inference-dynamic-batching-max-requests-override",
    "inference-dynamic-batching-max-tokens",
    "inference-dynamic-batching-num-cuda-graphs",
    "inference-max-requests",
    "inference-max-batch-size",
    "num-tokens-to-generate",
    "output-path",
    "prompts",
)
"""Arguments of text generation and of the inference server, which no training has."""
SERVING_SCRIPTS = ("run_text_generation_server", "gpt_static_inference", "gpt_dynamic_inference", "generate_samples")
TOKENIZERS = ("merge-file", "tokenizer-type", "tokenizer-model")
"""Tokenizer arguments. Every decoder with a vocabulary file also has one of them."""
REFUSED_SCRIPTS = {
    "pretrain_bert.py": "an encoder (BERT)",
    "pretrain_t5.py": "an encoder-decoder (T5)",
    "pretrain_mamba.py": "a Mamba hybrid",
    "pretrain_vlm.py": "a vision-language model",
    "/convert_model.py": "a conversion, which trains nothing",
    "/export.py": "an export, which trains nothing",
    "/generate.py": "a generation, which trains nothing",
    "/mmlu.py": "an evaluation, which trains nothing",
    "/prune.py": "a pruning, which trains nothing",
    "/quantize.py": "a quantization, which trains nothing",
    "/validate.py": "an evaluation, which trains nothing",
    "train_rl.py": "reinforcement learning, where an inference engine shares the GPU",
}
UNMODELLED: dict[str, tuple[object, str]] = {
    "rampup-batch-size": (None, "the batch grows during training; memcheck prices the full one"),
    "step-batch-size-schedule": (
        None,
        "the batch grows during training; memcheck prices the one of --global-batch-size",
    ),
    "spec": (None, "a layer specification of its own may keep other tensors"),
    "reuse-grad-buf-for-mxfp8-param-ag": (False, "sharing the gradient buffer is not modelled"),
    "tp-comm-overlap-cfg": (None, "the buffers of overlapped tensor parallelism follow memcheck's own defaults"),
    "overlap-cpu-optimizer-d2h-h2d": (False, "the buffers of an overlapped offload are not modelled"),
    "te-rng-tracker": (False, "TransformerEngine's random states are not modelled"),
    "cuda-graph-modules": (None, "captured graphs keep private pools, which are not modelled"),
    "cuda-graph-warmup-steps": (None, "captured graphs keep private pools, which are not modelled"),
    "use-legacy-models": (False, "the layers before Megatron-core's are priced as core's"),
    "overlap-p2p-communication-warmup-flush": (False, "inputs that are received ahead of their turn are not modelled"),
    "no-use-layer-wise-param-layout": (False, "the older layout, which gathers what Muon stepped, is not modelled"),
    "deterministic-mode": (False, "workspaces of deterministic kernels are not modelled"),
    "use-packed-sequence": (False, "packed sequences are not modelled"),
}
"""Arguments that move memory and have no place in a plan."""
