"""Writes a plan as Megatron-LM arguments, one per line, with the architecture as Megatron-LM's dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from memcheck.configs import read_megatron as megatron
from memcheck.configs.config_writer import ConfigWriter, Export, neutral, settings_of, spelled
from memcheck.configs.read_megatron import KEYS
from memcheck.configs.types import Written
from memcheck.families.registry import read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import TrainingJob
from memcheck.models.families.megatron_lm import MODEL_TYPE
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer, Mlp, Moe

GELU = {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu"}


def dimensions(a: Architecture) -> dict[str, object]:
    """The keys of the family ``megatron-lm`` that describe a model as closely as they can."""
    layers = a.layers()
    found: dict[str, object] = {
        "num_layers": len(layers),
        "hidden_size": a.hidden_size,
        "vocab_size": a.vocab_size,
        "untie_embeddings_and_output_weights": not a.tie_word_embeddings,
    }
    if a.final_norm is not None and a.final_norm.kind.startswith("rmsnorm"):
        found["normalization"] = "RMSNorm"
    mixer = next((b.mixer for b in layers if isinstance(b.mixer, (Attention, LatentAttention))), None)
    delta = next((b.mixer for b in layers if isinstance(b.mixer, Mixer) and b.mixer.kind == "gated-delta-net"), None)
    if delta is not None:
        found.update(_delta_nets(delta))
        found["linear_attention_freq"] = _pattern([isinstance(b.mixer, Mixer) for b in layers])
    if isinstance(mixer, Attention):
        found.update(_attention(mixer))
    elif mixer is not None:
        found.update(_latent(mixer))
    positions = a.learned_positions or a.max_position_embeddings
    if positions:
        found["max_position_embeddings"] = positions
    rotary = isinstance(mixer, LatentAttention) or (mixer is not None and mixer.rotary_dim > 0)
    found["position_embedding_type"] = "learned_absolute" if a.learned_positions else "rope" if rotary else "none"
    dense = next((b.mlp for b in layers if isinstance(b.mlp, Mlp)), None)
    moe = next((b.mlp for b in layers if isinstance(b.mlp, Moe)), None)
    if dense is not None:
        found["ffn_hidden_size"] = dense.width
    if moe is not None:
        found.update(_moe(moe))
        if dense is None:
            found["ffn_hidden_size"] = moe.width
        if dense is not None:
            found["moe_layer_freq"] = _pattern([isinstance(b.mlp, Moe) for b in layers])
    active = dense or moe
    if active is not None:
        found["quick_geglu"] = active.gated and active.activation == "quick_gelu"
        found["swiglu"] = active.gated and not found["quick_geglu"]
        found["squared_relu"] = active.activation == "relu2" and not active.gated
        found["disable_bias_linear"] = not active.bias
    if isinstance(mixer, Attention):
        found["add_qkv_bias"] = mixer.qkv_bias and active is not None and not active.bias
    found["hidden_dropout"] = layers[0].dropout
    found["attention_dropout"] = mixer.dropout if mixer is not None else 0.0
    return {name: value for name, value in found.items() if value is not False}


def _attention(mixer: Attention) -> dict[str, object]:
    found: dict[str, object] = {"num_attention_heads": mixer.heads, "kv_channels": mixer.head_dim}
    if mixer.kv_heads != mixer.heads:
        found["group_query_attention"] = True
        found["num_query_groups"] = mixer.kv_heads
    if 0 < mixer.rotary_dim < mixer.head_dim:
        found["rotary_percent"] = mixer.rotary_dim / mixer.head_dim
    found["qk_layernorm"] = mixer.query_norm is not None
    found["attention_output_gate"] = mixer.output_gate
    return found


def _latent(mixer: LatentAttention) -> dict[str, object]:
    found: dict[str, object] = {"num_attention_heads": mixer.heads, "multi_latent_attention": True}
    if mixer.q_lora_rank:
        found["q_lora_rank"] = mixer.q_lora_rank
    return {
        **found,
        "kv_lora_rank": mixer.kv_lora_rank,
        "qk_head_dim": mixer.qk_nope_head_dim,
        "qk_pos_emb_head_dim": mixer.qk_rope_head_dim,
        "v_head_dim": mixer.v_head_dim,
        "qk_layernorm": True,
    }


def _moe(moe: Moe) -> dict[str, object]:
    found: dict[str, object] = {
        "num_experts": moe.experts,
        "moe_router_topk": moe.experts_per_token,
        "moe_ffn_hidden_size": moe.width,
    }
    if moe.shared.width:
        found["moe_shared_expert_intermediate_size"] = moe.shared.width
        found["moe_shared_expert_gate"] = moe.shared.gate
    if moe.router == "sigmoid":
        found["moe_router_score_function"] = "sigmoid"
    elif moe.router == "softmax":
        found["moe_router_pre_softmax"] = True
    return found


def _delta_nets(mixer: Mixer) -> dict[str, object]:
    return {
        "experimental_attention_variant": "gated_delta_net",
        "linear_num_key_heads": mixer.key_heads or mixer.heads,
        "linear_num_value_heads": mixer.heads,
        "linear_key_head_dim": mixer.key_dim,
        "linear_value_head_dim": mixer.head_dim,
        "linear_conv_kernel_dim": mixer.kernel,
    }


def _pattern(chosen: list[bool]) -> str:
    """``--moe-layer-freq ([0]*3+[1]*58)``."""
    runs = [(each, len(list(run))) for each, run in groupby(chosen)]
    return "(" + "+".join(f"[{int(each)}]*{count}" for each, count in runs) + ")"


def differences(a: Architecture, found: dict[str, object]) -> list[str]:
    """What of a model these dimensions do not say: they are read back, and compared part by part."""
    try:
        back = read_architecture({"model_type": MODEL_TYPE, **found})
    except ArchitectureError as error:
        return [error.message]
    lines: dict[str, None] = {}
    if a.num_layers != back.num_layers:
        lines[f"{a.num_layers} layers"] = None
    for mine, theirs in zip(a.layers(), back.layers(), strict=False):
        for said, wanted in zip(_shape(mine), _shape(theirs), strict=True):
            if said != wanted:
                lines[f"Megatron-LM's GPT has no {said}; written is {wanted}"] = None
    lines.update((f"Megatron-LM's GPT has no {what}", None) for what in _extras(a))
    return list(lines)


def _shape(block: Block) -> Iterator[str]:
    """The parts of a block in words that two descriptions of the same layer share."""
    mixer, mlp = block.mixer, block.mlp
    if isinstance(mixer, Attention):
        yield f"attention of {mixer.heads} heads in {mixer.kv_heads} groups of width {mixer.head_dim}"
        yield f"biases of query, key, value: {mixer.qkv_bias}, of the output: {mixer.out_bias}"
        yield f"rotary dimensions: {mixer.rotary_dim}, norms of query and key: {mixer.query_norm is not None}"
        yield f"output gate: {mixer.output_gate}"
    elif isinstance(mixer, LatentAttention):
        ranks = (
            mixer.q_lora_rank,
            mixer.kv_lora_rank,
            mixer.qk_nope_head_dim,
            mixer.qk_rope_head_dim,
            mixer.v_head_dim,
        )
        yield f"latent attention of {mixer.heads} heads with {ranks}"
        yield f"bias of latent attention: {mixer.bias}"
        yield ""
        yield ""
    else:
        yield f"mixer of kind {getattr(mixer, 'kind', None)}"
        sizes = _delta_nets(mixer).items() if isinstance(mixer, Mixer) else ()
        yield ", ".join(f"{name} {value}" for name, value in sizes)
        yield ""
        yield ""
    if isinstance(mlp, (Mlp, Moe)):
        activation = "gelu" if mlp.activation in GELU else mlp.activation
        yield f"{'gated ' if mlp.gated else ''}{activation} of width {mlp.width}, bias {mlp.bias}"
    else:
        yield "no feed-forward network"
    if isinstance(mlp, Moe):
        chosen = f"{mlp.experts_per_token} per token by {mlp.router}"
        yield f"{mlp.experts} experts, {chosen}, shared width {mlp.shared.width}"
        yield f"gate of the shared expert: {mlp.shared.gate}"
    else:
        yield ""
        yield ""
    yield ", ".join(sorted({_norm(norm.kind) for norm in block.norms})) + f" x {len(block.norms)}"


def _norm(kind: str) -> str:
    return "RMSNorm" if kind.startswith("rmsnorm") else "LayerNorm"


def _extras(a: Architecture) -> Iterator[str]:
    attentions = [b.mixer for b in a.layers() if isinstance(b.mixer, Attention)]
    if any(each.window for each in attentions):
        yield "sliding window in this form (--window-size says one for every layer)"
    if any(each.softcap for each in attentions) or a.final_softcap:
        yield "soft-capping"
    if any(each.sinks for each in attentions):
        yield "attention sinks"
    if any(each.alibi for each in attentions):
        yield "ALiBi"
    if any(each.parallel for each in a.layers()):
        yield "parallel attention and feed-forward"
    if a.embedding_norm is not None:
        yield "norm of the embedding"
    if a.head_bias:
        yield "bias of the output layer"


OPTION = "training.options."
CHECKPOINTING = "training.activation_checkpointing"
LAUNCHER = "torchrun starts as many processes: --nnodes N --nproc-per-node N"
PRECISIONS = {"bf16-mixed": ("bf16",), "fp16-mixed": ("fp16",), "fp8-mixed": ("bf16",), "fp32": ()}
STRATEGIES = {stage: word for word, stage in KEYS.words["strategies"].items()}


def write(export: Export) -> Written:
    """The arguments of a job."""
    job = export.job
    writer = ConfigWriter(settings_of(job), neutral(FRAMEWORKS["megatron"], job.layout), KEYS.version)
    _model(writer, job)
    _batch(writer)
    writer.rows(row for row in KEYS.rows["layout"] if row.key in writer.settings)
    _layout(writer, job)
    _sharding(writer, job)
    _precision(writer)
    _optimizer(writer)
    _recompute(writer)
    _options(writer, job)
    writer.rows(KEYS.rows["saving"])
    if "use-megatron-fsdp" in writer.tree:  # the only format it saves in (megatron/training/arguments.py)
        writer.put("ckpt-format", "fsdp_dtensor")
    for name, (key, value) in KEYS.words["switches"].items():
        if writer.take(key) == value:
            writer.put(name, True)
    for key in ("hardware.nodes", "hardware.gpus_per_node"):
        writer.elsewhere(key, LAUNCHER)
    writer.elsewhere("training.expandable_segments", "PYTORCH_CUDA_ALLOC_CONF, in the environment")
    notices = (*export.notices, *writer.finish())
    lines = [_argument(name, value) for name, value in writer.tree.items()]
    return Written("megatron", "\n".join([export.header(KEYS.version, notices), *filter(None, lines)]) + "\n", notices)


def _argument(name: str, value: object) -> str:
    """A switch that is on, or a name with its value; a switch that is off is no argument."""
    if isinstance(value, bool):
        return f"--{name}" if value else ""
    if isinstance(value, list):
        return f"--{name} {' '.join(map(spelled, value))}"
    text = spelled(value)
    return f'--{name} "{text}"' if set(text) & set("()|*[] ") else f"--{name} {text}"


def _model(writer: ConfigWriter, job: TrainingJob) -> None:
    architecture = job.architecture
    if not isinstance(architecture, Architecture):
        writer.lose("model", "a rough model has no dimensions to write")
        return
    found = dimensions(architecture)
    for which in ("hidden_dropout", "attention_dropout"):
        stated = writer.take(f"{OPTION}{which}")
        if stated is not None:
            found[which] = stated
    for name, value in found.items():
        writer.put(megatron.dashed(name), value)
    if found.get("normalization") != "RMSNorm" and architecture.final_norm is not None:
        writer.put("apply-layernorm-1p", architecture.final_norm.kind == "layernorm-1p")
    for difference in differences(architecture, found):
        writer.lose("model", difference)


def _batch(writer: ConfigWriter) -> None:
    micro, steps = writer.number("training.micro_batch_size"), writer.take("training.gradient_accumulation_steps")
    writer.put("global-batch-size", micro * steps * writer.take("parallelism.data"))


def _layout(writer: ConfigWriter, job: TrainingJob) -> None:
    layout = job.layout
    if layout.tensor > 1:
        writer.put("sequence-parallel", writer.take("parallelism.sequence"))
    experts = writer.tree.get("num-experts")
    expert_tensor = writer.take("parallelism.expert_tensor")
    if experts:
        writer.put("expert-tensor-parallel-size", expert_tensor)
    if layout.pipeline > 1:
        per_chunk = writer.take(f"{OPTION}num_layers_per_virtual_pipeline_stage")
        virtual, schedule = writer.take("parallelism.virtual_stages"), writer.take("parallelism.pipeline_schedule")
        if per_chunk:
            writer.put("num-layers-per-virtual-pipeline-stage", per_chunk)
        elif virtual > 1:
            writer.put("num-virtual-stages-per-pipeline-rank", virtual)
        if schedule != ("interleaved-1f1b" if virtual > 1 else "1f1b"):
            writer.lose("parallelism.pipeline_schedule", f"Megatron-LM has no {schedule} of {virtual} stages per rank")


def _sharding(writer: ConfigWriter, job: TrainingJob) -> None:
    stage = writer.take("parallelism.zero_stage")
    writer.take(f"{OPTION}use_distributed_optimizer")
    writer.put("use-distributed-optimizer", stage > 0)
    fsdp = bool(writer.take(f"{OPTION}use_megatron_fsdp")) or stage in (2, 3)
    writer.take(f"{OPTION}data_parallel_sharding_strategy")
    if fsdp:
        writer.put("use-megatron-fsdp", True)
        writer.put("data-parallel-sharding-strategy", STRATEGIES[stage])
    group, whole = writer.take("parallelism.shard_group"), job.layout.data * job.layout.context
    instances = writer.take(f"{OPTION}num_distributed_optimizer_instances")
    if group is not None and group != whole and whole % group == 0:
        instances = whole // group
    if instances is not None:
        writer.put("num-distributed-optimizer-instances", instances)


def _precision(writer: ConfigWriter) -> None:
    recipe = writer.take("training.precision.recipe")
    if recipe not in PRECISIONS:
        writer.lose("training.precision", f"Megatron-LM has no {recipe}")
        return
    for name in PRECISIONS[recipe]:
        writer.put(name, True)
    format8 = writer.take(f"{OPTION}fp8_format")
    if format8 or recipe == "fp8-mixed":  # products are in fp8 with fp32 parameters as well
        writer.put("fp8-format", format8 or "hybrid")


def _optimizer(writer: ConfigWriter) -> None:
    writer.rows((KEYS.row("optimizer"),))
    if writer.take("training.optimizer.implementation") != "fused":
        writer.lose("training.optimizer.implementation", "Megatron-LM's optimizers are fused")
    offload = writer.take("training.optimizer.offload")
    if offload == "cpu":
        writer.put("optimizer-cpu-offload", True)
    elif offload != "none":
        writer.lose("training.optimizer.offload", f"Megatron-LM does not offload states to {offload}")
    writer.put("clip-grad", 1.0 if writer.take("training.clip_grad_norm") else 0.0)


def _recompute(writer: ConfigWriter) -> None:
    mode = writer.take(f"{CHECKPOINTING}.mode")
    writer.take(f"{OPTION}recompute_granularity")
    modules = writer.take(f"{CHECKPOINTING}.modules") or writer.take(f"{OPTION}recompute_modules") or ()
    writer.take(f"{OPTION}recompute_modules")
    if mode == "none":
        return
    writer.put("recompute-granularity", mode)
    if mode == "selective" and modules:
        writer.put("recompute-modules", list(modules) if not isinstance(modules, str) else modules)
    if mode == "full" and f"{OPTION}recompute_method" not in writer.settings:
        writer.put("recompute-method", "uniform")
        writer.put("recompute-num-layers", 1)


def _options(writer: ConfigWriter, job: TrainingJob) -> None:
    attention = writer.take("training.attention")
    if attention == "eager":
        writer.put("attention-backend", "unfused")
    writer.rows(row for row in megatron.OPTIONS if row.key in writer.settings)
    for name, option in KEYS.words["switched_off"].items():
        if writer.take(f"{OPTION}{option}") is False:
            writer.put(name, True)
    for option, usual in KEYS.words["assumed"].items():
        on = job.option(option, usual)
        switch = next((name for name, off in KEYS.words["switched_off"].items() if off == option), "")
        if switch:
            writer.put(switch, not on)
        elif writer.tree.get("num-experts"):
            writer.put(megatron.dashed(option), bool(on))
