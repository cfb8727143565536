"""Gradients that wait while the layers of two stacks run in turn, and the states that variables hold (HRM-Text)."""

from __future__ import annotations

from memcheck.accounts.unit import Unit
from memcheck.autograd.context import Setting
from memcheck.autograd.curve import Curve
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.rank_tensors import block_tensors, holding
from memcheck.frameworks.torch.stream import stream_dtype
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block, Cycle


def demand_whole_stacks(job: TrainingJob, architecture: Architecture) -> None:
    """Check that the plan neither divides nor freezes layers that run in turn, or that read streams of many earlier
    layers.

    Raises:
        UnsupportedError: the plan does one of these.
    """
    first = architecture.blocks[0][0]
    if first.cycle is None and first.sources is None and first.handed is None:
        return
    if job.layout.pipeline > 1:
        said = "memcheck has no model of stages of layers that run again and again, or that read many before them"
        raise UnsupportedError(said, "replicate the model", "/parallelism/pipeline")
    if any(word not in ("embed", "head", "norm") for word in job.freeze):
        said = "memcheck has no model of frozen layers that run again and again, or that read many before them"
        raise UnsupportedError(said, "freeze `embed` or `head` alone, or train adapters", "/training/freeze")


def state_bytes(setting: Setting) -> int:
    """Bytes of one state."""
    return rounded(setting.batch * setting.sequence * setting.hidden * ITEM_BYTES[stream_dtype(setting)])


def held_states(setting: Setting) -> int:
    """Bytes of both states, which variables of the model's forward hold in addition to the layers' outputs."""
    return 2 * state_bytes(setting)


def waiting(unit: Unit, cycle: Cycle, setting: Setting) -> Unit:
    """A layer's gradients that wait for others.

    A slow run sends one to the slow state that it reads, to which the fast runs add theirs. Autocast casts weights
    with a graph even under ``no_grad``: where it has done so before the first run with a graph, the casts' nodes are
    older than all others, and run when all others have (torch/csrc/autograd/engine.cpp: the youngest node first).
    """
    if not setting.trained:
        return unit
    fresh = _waiting(unit.fresh, cycle, setting)
    return unit._replace(fresh=fresh, again=fresh if unit.again is unit.fresh else _waiting(unit.again, cycle, setting))


def _waiting(curve: Curve, cycle: Cycle, setting: Setting) -> Curve:
    if cycle.slow:
        size = state_bytes(setting)
        hands, takes = size * cycle.joins, size * (cycle.ends and not cycle.final)
        return curve._replace(hands=curve.hands + hands, takes=curve.takes + takes)
    if cycle.cast_before and curve.takes and _narrows(setting):  # which its curve counts, and which stay
        return _with_temporaries(curve, -curve.takes)._replace(takes=0, gradients=0)
    return curve


def gathering(unit: Unit, block: Block, setting: Setting) -> Unit:
    """A layer whose tensors others use, too. AccumulateGrad adds to ``.grad`` when all of their gradients are there:
    until then they wait in its buffer, which is ``.grad`` itself only where there was none before.
    """
    last, first = not block.borrows, not block.reused
    if (last and first) or not block.has_graph or unit.again is unit.fresh:
        return unit
    if _narrows(setting):  # narrow gradients wait instead, in front of the cast
        return unit
    if block.in_turn and setting.adapter is not None:  # each layer's adapters are its own
        return unit
    whole = block_tensors(_shared_part(block), holding(setting))
    sizes = [rounded(t.numel * ITEM_BYTES[t.dtype or setting.params]) for t in whole if t.trained]
    again, size = unit.again, sum(sizes)
    if last:
        return unit._replace(again=again._replace(hands=again.hands + size))
    # two gradients of a linear layer are added out of place: there is a third tensor of its size
    third = max(sizes, default=0) if block.cycle is not None else 0
    again = _with_temporaries(again, third + (size if first else 0))
    return unit._replace(again=again._replace(takes=again.takes + (size if first else 0)))


def _narrows(setting: Setting) -> bool:
    """Whether autocast casts weights."""
    return setting.autocast not in (None, setting.params)


def _with_temporaries(curve: Curve, size: int) -> Curve:
    """The curve with ``size`` more bytes at the highest point of its backward."""
    parts = dict(curve.backward.components)
    parts["temporaries"] = parts.get("temporaries", 0) + size
    high = curve.backward._replace(bytes=curve.backward.bytes + size, components=tuple(parts.items()))
    return curve._replace(backward=high)


def _shared_part(block: Block) -> Block:
    """The part of a block that other layers share: neither the second, recurrent mixer nor the matrices that each layer
    has of its own.
    """
    if not block.in_turn:
        return block._replace(borrows=False)
    return block._replace(borrows=False, beside=None, mixer_output_norm=None, extra_tensors=())


def behind_all(units: list[tuple[Unit, int]], setting: Setting) -> Unit:
    """The first of these units, each with its number, which takes what none of the others has: the gradient of its
    rows, and narrow gradients of weights, which are cast.
    """
    embedding = units[0][0]
    fresh, again = (_left(embedding, units, setting, again=again) for again in (False, True))
    return embedding._replace(fresh=fresh, again=fresh if embedding.again is embedding.fresh else again)


def _left(embedding: Unit, units: list[tuple[Unit, int]], setting: Setting, *, again: bool) -> Curve:
    curves = [(unit.again if again else unit.fresh, times) for unit, times in units]
    own = embedding.again if again else embedding.fresh
    left = sum(times * (curve.hands - curve.takes) for curve, times in curves)
    narrow = left - state_bytes(setting) if setting.trained else 0  # the first slow run's gradient is of the rows
    if narrow <= 0 or setting.autocast is None or again:
        return own._replace(takes=own.takes + left)
    wide = narrow // ITEM_BYTES[setting.autocast] * ITEM_BYTES[setting.params]
    return own._replace(takes=own.takes + left, gradients=own.gradients + wide)
