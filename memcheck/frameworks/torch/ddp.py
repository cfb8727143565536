"""DistributedDataParallel: its buckets, and its hooks in a step.

Source: torch/csrc/distributed/c10d/reducer.cpp.

Gradients of tensors that several layers share, which are summed until the last layer's has arrived (Zamba 2).
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.program import Amount, NamedCurve, Recorder
from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Setting
from memcheck.autograd.curve import Curve
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.frameworks.torch.data_parallel import DataParallel, MicroBatch, NamedUnit, StepUnits, uses_fsdp
from memcheck.frameworks.torch.rank_tensors import block_tensors, setting_placement
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Block, SharedTransformerBlock
from memcheck.record import Record


class Buckets(Record):
    """Whether DDP wraps the model, and from when on its buckets are the gradients."""

    exist: bool
    """DDP wraps the model."""
    are_gradients: bool
    """The buckets are the gradients, from the first micro-batch on."""
    become_gradients: bool
    """Whether the buckets become the gradients in the micro-batch that synchronises.

    no_sync disables DDP's hooks: the gradients are new tensors in addition to the buckets, until
    mark_variable_ready_dense copies each into its bucket and makes it a view.
    """


def buckets(job: TrainingJob) -> Buckets:
    """Return how DDP's buckets and the gradients of a job share memory."""
    layout = job.layout
    several_ranks = layout.data * layout.context > 1
    is_torch_ddp = job.framework.data_parallel == "torch" and not uses_fsdp(job) and layout.zero_stage in (0, 1)
    exist = several_ranks and is_torch_ddp
    are_views = exist and layout.gradient_as_bucket_view
    # under no_sync gradients are tensors of their own until the last micro-batch copies them to the buckets
    views_come_late = are_views and layout.gradient_sync == "last" and job.gradient_accumulation_steps > 1
    return Buckets(exist, are_views and not views_come_late, views_come_late)


class Replicated(Record):
    """How a step treats gradients where every rank has all of them: under DDP, or on one GPU."""

    buckets_are_gradients: bool
    """The buckets are the gradients, from the first micro-batch on."""
    buckets_become_gradients: bool
    """Whether the buckets become the gradients in the micro-batch that synchronises."""

    @property
    def sizes(self) -> int:
        """No sizes: the buckets are resident."""
        return 0

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> ReplicatedHooks:
        """The hooks of one step."""
        return ReplicatedHooks(recorder, step_units, self)


class ReplicatedHooks(DataParallel):
    """DDP's hooks on gradients, which fill its buckets."""

    def __init__(self, recorder: Recorder, step_units: StepUnits, options: Replicated) -> None:
        super().__init__(recorder, step_units)
        self.options, self.last = options, False

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return the curve of a unit; gradients that are views of buckets are always added to."""
        return unit.later_curve if self.options.buckets_are_gradients else super().curve(unit, first)

    def frees_first_gradients(self, pair_before: bool) -> bool:
        """Return whether the sum of both passes goes to existing gradients, which includes views of buckets."""
        return pair_before or self.options.buckets_are_gradients

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Note whether this is the last micro-batch, in which DDP reduces."""
        self.last = micro_batch.is_last

    def after_backward(self, i: int, end: int, curve: NamedCurve, gradients: Amount) -> None:
        """Release the gradients of unit ``i`` that become views of their buckets in this backward."""
        super().after_backward(i, end, curve, gradients)
        if self.last and self.options.buckets_become_gradients:
            self.recorder.release("communication_buffers", self.units[i].first_curve.gradient_bytes)


def unused_gradients(job: TrainingJob, units_and_counts: Iterable[tuple[tuple[LocalTensor, ...], int]]) -> int:
    """Return the bytes that DDP's gradient buckets reserve for parameters of modules that never run.

    ``units_and_counts``: the tensors of each distinct unit, and the number of equal units. Source: reducer.cpp,
    initialize_buckets, which reserves space for every parameter that requires a gradient.
    """
    unused = [(t, count) for tensors, count in units_and_counts for t in tensors if t.idle_fsdp_group]
    return sum(count * t.numel * DTYPE_BYTES[t.dtype or job.recipe.gradients] for t, count in unused)


def gathering(unit: Unit, block: Block, setting: Setting) -> Unit:
    """Return a unit whose tensors other layers use as well, with gradients that wait for those of all of these layers.

    AccumulateGrad adds to ``.grad`` when all of their gradients exist. Until then they wait in its buffer, which is
    ``.grad`` itself in the first micro-batch.
    """
    is_last, is_first = not block.shared_with.later, not block.shared_with.earlier
    if (is_last and is_first) or unit.later_curve is unit.first_curve:
        return unit
    if _narrows(setting):  # narrow gradients are pending instead, before they are cast
        return unit
    if isinstance(block, SharedTransformerBlock) and setting.adapter is not None:  # each layer's adapters are its own
        return unit
    all_tensors = block_tensors(_shared_part(block), setting_placement(setting))
    sizes = [rounded(t.numel * ITEM_BYTES[t.dtype or setting.param_dtype]) for t in all_tensors if t.trained]
    again, gradient_bytes = unit.later_curve, sum(sizes)
    # backward runs the last layer first: its gradients are pending until the first layer adds its own
    if is_last:
        left_bytes = again.gradient_bytes_for_earlier_units + gradient_bytes
        return unit._replace(later_curve=again._replace(gradient_bytes_for_earlier_units=left_bytes))
    completed_bytes = gradient_bytes if is_first else 0
    again = _with_temporaries(again, completed_bytes)
    taken_bytes = again.gradient_bytes_of_later_units + completed_bytes
    return unit._replace(later_curve=again._replace(gradient_bytes_of_later_units=taken_bytes))


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
