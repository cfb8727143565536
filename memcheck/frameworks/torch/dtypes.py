"""Dtypes that a model does not share: parameters that stay in fp32, and the stream from layer to layer."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Setting
from memcheck.job.types import TrainingJob
from memcheck.models.module_types import T5Mlp
from memcheck.models.types import AltUpBlock, Architecture, Block, Moe, Norm, Rough, WideStreamBlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import Vision


ENDS = "fp32_embeddings"
"""The option for what Axolotl does without adapters and FSDP, where no flash attention follows (``loaders/model.py``,
``_convert_embedding_modules_dtype``): whatever has ``norm`` in its name, routers, embedding and head.
"""
UPCAST = ("norm", ".gate.", "embed_tokens", "lm_head")


def kept_names(job: TrainingJob) -> tuple[str, ...]:
    """Return parts of the names of parameters that stay in fp32 in a model of 16 bits.

    The class lists them (``_keep_in_fp32_modules``), or the trainer upcasts them. An engine of its own casts the whole
    model when it takes it over (DeepSpeed runtime/engine.py, ``_configure_distributed_model``).
    """
    profile, architecture = job.framework, job.architecture
    if not profile.runs_transformers or profile.own_engine or isinstance(architecture, Rough):
        return ()
    upcast = UPCAST if upcasts_ends(job) else ()
    return {
        "bf16": architecture.fp32_params.always + upcast,
        "fp16": architecture.fp32_params.always + architecture.fp32_params.of_fp16 + upcast,
    }.get(job.recipe.params, ())


def upcasts_ends(job: TrainingJob) -> bool:
    """Whether the trainer makes norms, embeddings and head fp32 when the model is loaded (``ENDS``)."""
    return bool(job.option(ENDS, default=False)) and job.recipe.params != "fp32"


def unquantised(job: TrainingJob) -> tuple[str, ...]:
    """Return parts of the names of linear layers that are not quantised.

    These are those of ``_keep_in_fp32_modules``, in any dtype (quantizers/base.py, ``get_modules_to_not_convert``).
    GPTQ's files say themselves what they quantise.
    """
    architecture, by_class = (
        job.architecture,
        job.framework.runs_transformers and not job.base_format.startswith("gptq"),
    )
    return architecture.fp32_params.of_fp16 if by_class and not isinstance(architecture, Rough) else ()


def as_stored(job: TrainingJob, tensors: tuple[LocalTensor, ...]) -> tuple[LocalTensor, ...]:
    """The tensors, with fp32 for those that are stored in fp32 in a model of another dtype."""
    return widened(tensors, kept_names(job), trained=job.upcast)


@lru_cache(maxsize=4096)
def widened(tensors: tuple[LocalTensor, ...], names: tuple[str, ...], *, trained: bool) -> tuple[LocalTensor, ...]:
    """Return the tensors, of which some are stored in fp32.

    ``names``: substrings of the names of these; a tensor that has a dtype already, such as an adapter, keeps it.
    ``trained``: all trained tensors are in fp32.
    """
    if not (names or trained):
        return tensors
    with_dtypes = []
    for t in tensors:
        is_named = t.dtype is None and any(name in t.name for name in names)
        with_dtypes.append(t._replace(dtype="fp32") if is_named or (trained and t.trained) else t)
    in_fp32 = tuple(with_dtypes)
    return tensors if in_fp32 == tensors else in_fp32  # an equal tuple is shared by its identity


def stream_dtype(setting: Setting) -> str:
    """Dtype of the residual stream: under autocast that of the embedding's weights, unless something widened it."""
    return setting.residual_dtype or setting.param_dtype


def embedded_dtype(architecture: Architecture, setting: Setting) -> str:
    """Return the dtype of the embedding's rows: that of its weights, also where what follows makes the stream fp32."""
    widened = widens_stream(architecture, autocast=bool(setting.autocast_dtype)) or widens_inside(architecture, setting)
    return setting.param_dtype if widened else stream_dtype(setting)


def widens_stream(architecture: Architecture, *, autocast: bool) -> bool:
    """Say whether the stream is fp32 over narrower weights: by the embedding's LayerNorm, or by the first layer."""
    layers = [block for block, _ in architecture.blocks]
    ends = [
        architecture.embedding_norm,
        *(block.mlp_norm for block in layers if block.residual == "post-norm" or _keeps_dtype(block)),
    ]
    altup = any(isinstance(block, AltUpBlock) for block in layers)  # scales the other streams by fp32 magnitudes
    widened = autocast and (altup or any(_is_layernorm(norm) for norm in ends))
    return widened or any(isinstance(block, WideStreamBlock) for block in layers)


def _keeps_dtype(block: Block) -> bool:
    """Say whether the feed-forward network returns its input's dtype.

    Sums of experts do, whose matrices are in autocast's dtype (transformers integrations/moe.py).
    """
    return isinstance(block.mlp, Moe) and not block.parallel


def widens_inside(architecture: Architecture, setting: Setting) -> bool:
    """Say whether feed-forward networks make the stream fp32: their last matrix is, to which they cast (T5's in
    fp16).
    """
    last = [b.mlp.tensors[-1].name for b, _ in architecture.blocks if isinstance(b.mlp, T5Mlp)]
    return not setting.autocast_dtype and any(part in name for part in setting.fp32_params for name in last)


def widens_encoded(architecture: Architecture) -> bool:
    """Whether the encoder's output is fp32 under autocast: a LayerNorm follows its layers."""
    return architecture.encoder is not None and _is_layernorm(architecture.encoder.final_norm)


def widened_tower(vision: Vision, base: Setting) -> str | None:
    """Dtype of a tower's stream where CLIP's LayerNorm in front of its layers makes it; None where the weights do."""
    return "fp32" if base.autocast_dtype and any(t.name.endswith("pre_layrnorm.weight") for t in vision.stem) else None


def _is_layernorm(norm: Norm | None) -> bool:
    return norm is not None and norm.kind == "layernorm"
