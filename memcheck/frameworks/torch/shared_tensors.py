"""Gradients of tensors that several layers share, which are summed until the last layer's has arrived (Zamba 2)."""

from __future__ import annotations

from memcheck.accounts.ranks import Unit
from memcheck.autograd.context import Setting
from memcheck.autograd.curve import Curve
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.frameworks.torch.rank_tensors import block_tensors, setting_placement
from memcheck.models.types import Block, SharedTransformerBlock


def gathering(unit: Unit, block: Block, setting: Setting) -> Unit:
    """Return a unit whose tensors other layers use as well, with gradients that wait for those of all of these layers.

    AccumulateGrad adds to ``.grad`` when all of their gradients exist. Until then they wait in its buffer, which is
    ``.grad`` itself in the first micro-batch.
    """
    last, first = not block.shared_with.later, not block.shared_with.earlier
    if (last and first) or unit.later_curve is unit.first_curve:
        return unit
    if _narrows(setting):  # narrow gradients wait instead, in front of the cast
        return unit
    if isinstance(block, SharedTransformerBlock) and setting.adapter is not None:  # each layer's adapters are its own
        return unit
    all_tensors = block_tensors(_shared_part(block), setting_placement(setting))
    sizes = [rounded(t.numel * ITEM_BYTES[t.dtype or setting.param_dtype]) for t in all_tensors if t.trained]
    again, size = unit.later_curve, sum(sizes)
    if last:
        return unit._replace(later_curve=again._replace(left_gradient_bytes=again.left_gradient_bytes + size))
    again = _with_temporaries(again, size if first else 0)
    return unit._replace(
        later_curve=again._replace(taken_gradient_bytes=again.taken_gradient_bytes + (size if first else 0))
    )


def _narrows(setting: Setting) -> bool:
    """Whether autocast casts weights."""
    return setting.autocast_dtype not in (None, setting.param_dtype)


def _with_temporaries(curve: Curve, size: int) -> Curve:
    """Return a unit's memory curve with ``size`` more bytes of temporaries at the peak of its backward."""
    peak = curve.backward_peak
    components = dict(peak.components)
    components["temporaries"] = components.get("temporaries", 0) + size
    return curve._replace(backward_peak=peak._replace(bytes=peak.bytes + size, components=tuple(components.items())))


def _shared_part(block: Block) -> Block:
    """Return the part of a block whose weights other layers use, too (Zamba's shared transformer).

    Left out are the second, recurrent mixer and the matrices that each layer has by itself.
    """
    if not isinstance(block, SharedTransformerBlock):
        return block._replace(shared_with=block.shared_with._replace(later=False))
    return block._replace(
        shared_with=block.shared_with._replace(later=False), second_mixer=None, mixer_output_norm=None, extra_tensors=()
    )
