"""Megatron-LM's functional tests to jobs: argument files to an architecture and a layout.

A plan names a model by a Hugging Face configuration; Megatron's test models (biases with rotary embedding, experts with
biases) have none. So these cases enter at the job, not at the plan. What the arguments do not say, the code at that
commit does: ``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from memcheck.architecture.types import Architecture, Attention, Block, LatentAttention, Mlp, Moe, Norm
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import Layout, Optimizer, TrainingJob
from memcheck.memory.megatron.ranks import megatron_ranks
from memcheck.memory.megatron.workspaces import CUBLAS_WORKSPACE, Device
from memcheck.memory.types import RankEstimate

MIB = 2**20
ARCHITECTURES = {"a100": "sm_80", "h100": "sm_90", "gb200": "sm_100"}
VOCABULARIES = {"GPT2BPETokenizer": 50257, "GPTSentencePieceTokenizer": 256000, "TikTokenizer": 131072}
"""Sizes of the tokenizer files that the tests load; NullTokenizer states ``vocab-size``."""
DETERMINISTIC_CUBLAS_BYTES = 32 * MIB
"""``CUBLAS_WORKSPACE_CONFIG=:4096:8`` of the deterministic tests."""
SMALL_CUBLAS_BYTES = CUBLAS_WORKSPACE
"""torch's default for Blackwell before pytorch/pytorch#175344 of February 2026. Which tests were recorded in such a
container is not written down, but what rests after a step tells: 47.75 MiB less than in their twins."""
PASSED_ON = (
    "transformer-impl",
    "moe-token-dispatcher-type",
    "moe-expert-capacity-factor",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "cross-entropy-fusion-impl",
    "num-distributed-optimizer-instances",
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "num-layers-in-first-pipeline-stage",
    "moe-router-dtype",
    "cp-comm-type",
    "make-vocab-size-divisible-by",
    "attention-backend",
    "num-layers-per-virtual-pipeline-stage",
    "wgrad-deferral-limit",
    "main-grads-dtype",
    "exp-avg-dtype",
    "exp-avg-sq-dtype",
    "moe-grouped-gemm",
    "moe-permute-fusion",
    "cross-entropy-loss-fusion",
    "overlap-moe-expert-parallel-comm",
    "moe-pad-expert-input-to-capacity",
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
    "distribute-saved-activations",
    "use-precision-aware-optimizer",
    "overlap-grad-reduce",
    "defer-embedding-wgrad-compute",
    "microbatch-group-size-per-virtual-pipeline-stage",
    "fp8-format",
    "fp8-recipe",
    "fp8-param-gather",
    "first-last-layers-bf16",
    "moe-router-load-balancing-type",
)
SWITCHED_OFF = {
    "no-bias-gelu-fusion": "bias_gelu_fusion",
    "no-bias-swiglu-fusion": "bias_swiglu_fusion",
    "no-bias-dropout-fusion": "bias_dropout_fusion",
    "no-rope-fusion": "apply_rope_fusion",
    "no-masked-softmax-fusion": "masked_softmax_fusion",
    "no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
}


class Arguments(NamedTuple):
    """One test's arguments, without their dashes."""

    values: dict[str, Any]

    def number(self, name: str, default: float = 0) -> int:
        """An integer argument (the files write some as ``1e6`` or as text)."""
        value = self.values.get(name)
        return int(float(default if value is None else value))

    def real(self, name: str, default: float) -> float:
        """A fractional argument."""
        return float(self.values.get(name, default))

    def on(self, name: str) -> bool:
        """A switch."""
        return bool(self.values.get(name))

    def get(self, name: str, default: object = None) -> Any:
        """An argument as it stands."""
        return self.values.get(name, default)


def job_of(record: dict[str, Any], gpu: str) -> TrainingJob:
    """The job of one test on one GPU."""
    a = Arguments(record["arguments"])
    layout = _layout(a, record)
    micro_batch = a.number("micro-batch-size", 1)
    recipe = "bf16-mixed" if a.on("bf16") else "fp16-mixed" if a.on("fp16") else "fp32"
    return TrainingJob(
        architecture=architecture(a),
        framework="megatron",
        framework_version=None,
        layout=layout,
        recipe=FRAMEWORKS["megatron"].recipes[recipe],
        optimizer=Optimizer("adam", "fused"),
        micro_batch_size=micro_batch,
        sequence_length=a.number("seq-length"),
        gradient_accumulation_steps=a.number("global-batch-size") // (micro_batch * layout.data),
        attention="flash",
        options=tuple(sorted(_options(a, gpu).items())),
    )


def ranks_of(record: dict[str, Any], gpu: str) -> tuple[TrainingJob, tuple[RankEstimate, ...]]:
    """Its job and every pipeline rank."""
    job = job_of(record, gpu)
    workspace = DETERMINISTIC_CUBLAS_BYTES if record["deterministic_cublas"] else None
    if record["measured"][gpu].get("small_cublas"):
        workspace = SMALL_CUBLAS_BYTES
    if not isinstance(job.architecture, Architecture):
        raise TypeError
    return job, megatron_ranks(job, job.architecture, Device(ARCHITECTURES[gpu], workspace))


def architecture(a: Arguments) -> Architecture:
    """The model."""
    hidden, layers = a.number("hidden-size"), a.number("num-layers")
    norm = Norm("rmsnorm", hidden, True, False) if _rms(a) else Norm("layernorm", hidden, True, True)
    dropout = a.real("hidden-dropout", 0.1)
    mixer, dense = _mixer(a), _dense(a)
    kinds = [Block(mixer, dense, norm, norm, dropout=dropout)]
    if a.on("num-experts"):
        kinds.append(Block(mixer, _experts(a), norm, norm, dropout=dropout))
        blocks = tuple((kinds[routed], 1) for routed in _moe_pattern(a.get("moe-layer-freq", 1), layers))
    else:
        blocks = ((kinds[0], layers),)
    learned = a.get("position-embedding-type", "learned_absolute") == "learned_absolute"
    vocabulary = VOCABULARIES.get(a.get("tokenizer-type", ""), VOCABULARIES["GPT2BPETokenizer"])
    return Architecture(
        "gpt2",
        hidden,
        a.number("vocab-size", vocabulary),
        blocks,
        hidden,
        not a.on("untie-embeddings-and-output-weights"),
        norm,
        learned_positions=a.number("max-position-embeddings", a.number("seq-length")) if learned else 0,
        embedding_dropout=dropout,
    )


def _rms(a: Arguments) -> bool:
    return bool(a.get("normalization") == "RMSNorm")


def _width(a: Arguments) -> int:
    hidden = a.number("hidden-size")
    return a.number("ffn-hidden-size", int(hidden * 8 / 3 / 64) * 64 if a.on("swiglu") else 4 * hidden)


def _activation(a: Arguments) -> str:
    return "silu" if a.on("swiglu") else "relu2" if a.on("squared-relu") else "gelu"


def _dense(a: Arguments) -> Mlp:
    return Mlp(_width(a), a.on("swiglu"), _activation(a), not a.on("disable-bias-linear"))


def _experts(a: Arguments) -> Moe:
    sigmoid = a.get("moe-router-score-function") == "sigmoid"
    return Moe(
        a.number("num-experts"),
        a.number("moe-router-topk", 2),
        a.number("moe-ffn-hidden-size", _width(a)),
        a.on("swiglu"),
        _activation(a),
        not a.on("disable-bias-linear"),
        "sigmoid" if sigmoid else "softmax-topk",
        a.number("moe-shared-expert-intermediate-size"),
    )


def _mixer(a: Arguments) -> Attention | LatentAttention:
    heads, dropout = a.number("num-attention-heads"), a.real("attention-dropout", 0.1)
    if a.on("multi-latent-attention"):
        return LatentAttention(
            heads,
            a.number("q-lora-rank") or None,
            a.number("kv-lora-rank", 32),
            a.number("qk-head-dim", 128),
            a.number("qk-pos-emb-head-dim", 64),
            a.number("v-head-dim", 128),
            dropout=dropout,
        )
    width = a.number("kv-channels", a.number("hidden-size") // heads)
    grouped = a.on("group-query-attention") and a.on("num-query-groups")
    bias = not a.on("disable-bias-linear")
    norm = Norm("rmsnorm", width, True, False) if _rms(a) else Norm("layernorm", width, True, True)
    rotary = a.get("position-embedding-type") == "rope"
    return Attention(
        heads,
        a.number("num-query-groups") if grouped else heads,
        width,
        qkv_bias=bias or a.on("add-qkv-bias"),
        out_bias=bias,
        rotary_dim=int(width * a.real("rotary-percent", 1.0)) if rotary else 0,
        dropout=dropout,
        query_norm=norm if a.on("qk-layernorm") else None,
        key_norm=norm if a.on("qk-layernorm") else None,
    )


def _moe_pattern(frequency: object, layers: int) -> list[bool]:
    """``moe-layer-freq``: every n-th layer, or a list written as ``([0]*1+[1]*3)``."""
    text = str(frequency).strip()
    if text.lstrip("-").isdigit():
        return [i % int(text) == 0 for i in range(layers)]
    found: list[bool] = []
    for part in text.strip("()").split("+"):
        values, _, times = part.partition("*")
        row = [v.strip() == "1" for v in values.strip().strip("[]").split(",") if v.strip()]
        found.extend(row * int(times or 1))
    return found


def _layout(a: Arguments, record: dict[str, Any]) -> Layout:
    tensor, pipeline = a.number("tensor-model-parallel-size", 1), a.number("pipeline-model-parallel-size", 1)
    context, data = a.number("context-parallel-size", 1), record["dp"]
    per_chunk = a.number("num-layers-per-virtual-pipeline-stage")
    chunks = a.number("num-virtual-stages-per-pipeline-rank", 1)
    if per_chunk:
        chunks = a.number("num-layers") // pipeline // per_chunk
    sharded = a.on("use-distributed-optimizer")
    return Layout(
        nodes=record["nodes"],
        gpus_per_node=record["gpus_per_node"],
        tensor=tensor,
        sequence=a.on("sequence-parallel") and tensor > 1,
        context=context,
        pipeline=pipeline,
        pipeline_schedule="interleaved-1f1b" if per_chunk or chunks > 1 else "1f1b",
        virtual_stages=max(1, chunks),
        expert=a.number("expert-model-parallel-size", 1),
        expert_tensor=a.number("expert-tensor-parallel-size", tensor) if a.on("num-experts") else 1,
        data=data,
        zero_stage=3 if a.on("use-megatron-fsdp") else 1 if sharded else 0,
        shard_group=data * context if sharded else 1,
    )


def _options(a: Arguments, gpu: str) -> dict[str, object]:
    found = {name.replace("-", "_"): a.get(name) for name in PASSED_ON if a.get(name) not in (None, False)}
    if "num_layers_in_first_pipeline_stage" in found:
        found.setdefault("decoder_first_pipeline_num_layers", found.pop("num_layers_in_first_pipeline_stage"))
    found.update({option: False for name, option in SWITCHED_OFF.items() if a.on(name)})
    if not a.on("no-create-attention-mask-in-dataloader"):
        found["create_attention_mask_in_dataloader"] = True
    if a.on("num-experts"):
        found.setdefault("moe_grouped_gemm", False)
    if not a.on("attention-softmax-in-fp32"):
        found["attention_softmax_in_fp32"] = True
    if found.get("transformer_impl") == "local":
        found.pop("attention_backend", None)
    elif found.get("attention_backend", "auto") == "auto":
        # TransformerEngine's choice: FlashAttention on Ampere, cuDNN's kernel on Hopper and later unless dropout has to
        # be deterministic
        dropout = a.on("deterministic-mode") and a.real("attention-dropout", 0.1) > 0
        flash = gpu == "a100" or (dropout and gpu != "h100")
        found["attention_backend"] = "flash" if flash else "fused"
    return found
