"""Dtype of what runs from layer to layer: autocast makes a LayerNorm's output fp32 over weights that are not."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.models.feed_forward_types import T5Mlp
from memcheck.models.types import AltUpBlock, Architecture, Block, Moe, Norm, WideStreamBlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import Vision


def stream_dtype(setting: Setting) -> str:
    """Dtype of the residual stream: under autocast that of the embedding's weights, unless something widened it."""
    return setting.stream or setting.params


def embedded_dtype(architecture: Architecture, setting: Setting) -> str:
    """Dtype of the embedding's rows: that of its weights, also where what follows makes the stream fp32."""
    widened = widens_stream(architecture, autocast=bool(setting.autocast)) or widens_inside(architecture, setting)
    return setting.params if widened else stream_dtype(setting)


def widens_stream(a: Architecture, *, autocast: bool) -> bool:
    """Whether the stream is fp32 over narrower weights: by the embedding's LayerNorm, or by the first layer."""
    layers = [block for block, _ in a.blocks]
    ends = [a.embedding_norm, *(block.mlp_norm for block in layers if block.post_norm or _keeps_dtype(block))]
    altup = any(isinstance(block, AltUpBlock) for block in layers)  # scales the other streams by fp32 magnitudes
    widened = autocast and (altup or any(_is_layernorm(norm) for norm in ends))
    return widened or any(isinstance(block, WideStreamBlock) for block in layers)


def _keeps_dtype(block: Block) -> bool:
    """Whether the feed-forward network returns the dtype that its norm hands it: sums of experts do, whose matrices
    are in autocast's (transformers integrations/moe.py, ``grouped_mm_experts_forward``: ``to(hidden_states.dtype)``).
    """
    return isinstance(block.mlp, Moe) and not block.parallel


def widens_inside(a: Architecture, setting: Setting) -> bool:
    """Whether feed-forward networks make the stream fp32: their last matrix is, to which they cast (T5's in fp16)."""
    last = [b.mlp.tensors[-1].name for b, _ in a.blocks if isinstance(b.mlp, T5Mlp)]
    return not setting.autocast and any(part in name for part in setting.kept for name in last)


def widens_encoded(a: Architecture) -> bool:
    """Whether the encoder's output is fp32 under autocast: a LayerNorm follows its layers."""
    return a.encoder is not None and _is_layernorm(a.encoder.final_norm)


def widened_tower(vision: Vision, base: Setting) -> str | None:
    """Dtype of a tower's stream where CLIP's LayerNorm in front of its layers makes it; None where the weights do."""
    return "fp32" if base.autocast and any(t.name.endswith("pre_layrnorm.weight") for t in vision.stem) else None


def _is_layernorm(norm: Norm | None) -> bool:
    return norm is not None and norm.kind == "layernorm"
