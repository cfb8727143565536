"""From a job to the setting under which Megatron's ledgers are replayed."""

from __future__ import annotations

from memcheck.autograd.context import Adapter, Setting
from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Mixer

OLD_ARCHES = frozenset({"sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89"})
"""Before Hopper: TransformerEngine prefers FlashAttention to cuDNN's fused attention, and workspaces are small."""


def is_old(arch: str | None) -> bool:
    """Whether the GPU is older than Hopper. An unknown one is taken for a new one."""
    return arch in OLD_ARCHES


def attention_backend(job: TrainingJob, arch: str | None) -> str:
    """Return ``fused`` (cuDNN) | ``flash`` | ``unfused`` | ``local``.

    ``auto`` follows TransformerEngine's get_attention_backend (attention/dot_product_attention/utils.py): cuDNN from
    compute capability 9.0 on, FlashAttention before.
    """
    if job.option("transformer_impl") == "local":
        return "local"
    stated = str(job.option("attention_backend", "auto"))
    if stated != "auto":
        return stated
    if job.attention == "eager":
        return "unfused"
    return "flash" if is_old(arch) else "fused"


def megatron_setting(job: TrainingJob, architecture: Architecture, arch: str | None = None) -> Setting:
    """Return the settings that all units of a job share, such as dtypes, attention backend and parallel degrees."""
    _refuse_unmodeled(job)
    _refuse_nets(job, architecture)
    layout, recipe = job.layout, job.recipe
    style = job.framework.style
    rows, length = job.micro_batch_size, ceil_div(job.sequence_length, layout.context)
    if job.option("padding_free"):  # ms-swift lays a micro-batch end to end, in TE's layout "thd"
        rows, length = 1, rows * length
    setting = Setting(
        style=style,
        batch=rows,
        sequence=length,
        hidden=architecture.hidden_size,
        tensor_parallel=layout.tensor,
        sequence_parallel=layout.sequence and layout.tensor > 1,
        expert_parallel=layout.expert,
        expert_tensor_parallel=layout.expert_tensor,
        param_dtype=recipe.params,
        compute_dtype=recipe.compute,
        attention=attention_backend(job, arch),
        has_grad=True,
        main_grad_dtype=recipe.gradients,
        expert_imbalance=job.expert_imbalance,
        trained=job.lora is None,
        adapter=_adapter(job),
        context_parallel=layout.context,
        options=argument_options(job),
    )
    return code_of(style).setting(job, architecture, setting)


def _adapter(job: TrainingJob) -> Adapter | None:
    """Return the job's LoRA adapters; None if it trains none."""
    if job.lora is None:
        return None
    refused = None
    if job.layout.zero_stage == 3:
        refused = ("Megatron-FSDP", "/parallelism/zero_stage")
    elif dict(argument_options(job)).get("fp8_format"):
        refused = ("products in fp8", "/training/precision")
    if refused is not None:
        what, pointer = refused
        raise UnsupportedError(f"memcheck has no memory model of adapters with {what}", "price them without", pointer)
    if job.option("mtp_num_layers"):
        message = "adapters of layers that predict further tokens have no memory model"
        raise UnsupportedError(message, "leave them out", "/training/options/mtp_num_layers")
    lora = job.lora
    return Adapter(lora.rank, lora.target_modules, job.recipe.params, dropout=lora.dropout)


UNMODELED = (
    (
        ("cpu_offloading", "fine_grained_activation_offloading"),
        "moves activations to the host, and memcheck has no model of its prefetch buffers",
        "leave it out to get the figure without offloading, which is an upper bound",
    ),
    (
        ("moe_paged_stash", "moe_expert_rank_capacity_factor"),
        "replaces the experts' activations by buffers of its own, of which memcheck has no model",
        "leave it out to get the figure of the dropless dispatcher",
    ),
    (
        ("delay_wgrad_compute",),
        "keeps inputs and output gradients of a layer until its weight gradients are computed, which is not modeled",
        "leave it out, and keep headroom for one layer's activations and gradients",
    ),
)
"""Arguments that change what is kept: their names, why there is no figure, and what to do."""


def _refuse_unmodeled(job: TrainingJob) -> None:
    """Refuse options that have no memory model.

    Raises:
        UnsupportedError: such an option is set, or ``padding_free`` with an attention that takes no packed sequences,
            or CUDA graphs.
    """
    for names, why, remedy in UNMODELED:
        for name in names:
            if job.option(name):
                raise UnsupportedError(f"{name} {why}", remedy, f"/training/options/{name}")
    if job.option("padding_free") and attention_backend(job, None) in ("unfused", "local"):
        message = "TransformerEngine attends to sequences laid end to end in its flash and fused kernels alone"
        raise UnsupportedError(message, "set padding_free to false", "/training/options/padding_free")
    graphs = job.option("cuda_graph_impl")
    if graphs and str(graphs) != "none":
        raise UnsupportedError(
            f"cuda_graph_impl {graphs}: captured graphs keep their tensors in memory pools that are not modeled",
            "leave it out to get the figure without CUDA graphs",
            "/training/options/cuda_graph_impl",
        )


def _refuse_nets(job: TrainingJob, architecture: Architecture) -> None:
    """Check that delta nets are built of the modules that have a memory model."""
    if not any(isinstance(block.mixer, Mixer) for block, _ in architecture.blocks):
        return
    if job.ssm_kernels == "fallback":
        message = "Megatron-core's delta nets do not start without flash-linear-attention"
        raise UnsupportedError(message, "remove it, or write fused", "/training/kernels/ssm")
    if job.option("bridge_backend") == "mcore-bridge" and architecture.model_type == "qwen3_next":
        message = "mcore-bridge builds Qwen 3 Next of transformers' own layers, which have no memory model here"
        help = "write `bridge_backend: megatron-bridge` for Megatron-core's own"
        raise UnsupportedError(message, help, "/training/options/bridge_backend")


def fp8_format(job: TrainingJob) -> object:
    """Formats of forward and backward; None without fp8."""
    return job.option("fp8_format", "hybrid" if job.recipe.recipe == "fp8-mixed" else None)


def argument_options(job: TrainingJob) -> tuple[tuple[str, object], ...]:
    """Return the plan's options, with its activation checkpointing and fp8 recipe under Megatron's argument names."""
    options = dict(job.options)
    checkpointing = job.checkpointing
    if "recompute_granularity" not in options and checkpointing.mode != "none":
        options["recompute_granularity"] = checkpointing.mode
    if checkpointing.modules and "recompute_modules" not in options:
        options["recompute_modules"] = tuple(checkpointing.modules)
    if options.pop("moe_layer_recompute", False):  # deprecated for recompute_modules moe (transformer_config.py)
        options["recompute_granularity"] = "selective"
        named = options.get("recompute_modules")
        listed = named if isinstance(named, (list, tuple)) else [named or "core_attn"]
        options["recompute_modules"] = tuple(dict.fromkeys((*map(str, listed), "moe")))
    if fp8_format(job) is not None:
        options["fp8_format"] = fp8_format(job)
    hashable = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return tuple(sorted(hashable.items()))
