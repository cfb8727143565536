"""The step of a rank that holds several stages of an interleaved pipeline, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.interleaved import ChunkPass
from memcheck.frameworks.torch.split_backward import SplitBackward
from memcheck.frameworks.torch.step import Step
from memcheck.frameworks.torch.step_options import MicroBatch, StepOptions, StepSizes, UnitGroups
from memcheck.frameworks.torch.step_parts import NamedRun

WHERE = "communication_buffers"


class ChunkStep(Step):
    """Records the passes of one chunk, whose stage is a root of FSDP2's by itself."""

    def __init__(
        self,
        how: StepOptions,
        runs: Sequence[NamedRun],
        groups: Sequence[UnitGroups],
        root: Group,
        sizes: StepSizes,
        recorder: Recorder,
    ) -> None:
        super().__init__(how, runs, groups, root, sizes, recorder)
        self.split = SplitBackward(recorder, how, self.units, self.stretches)

    def retain(self, curve: NamedCurve) -> None:
        """What the backward of a unit's inputs leaves for that of its weights."""
        self.split.retain(curve)

    def end_backward(self, first: bool, *, last: bool) -> None:
        """The backward of the weights. ``last``: gradients are reduced after it."""
        self.split.end([self._curve(unit, first) for unit in self.units], last=last)

    def hold_gathered(self, sign: int) -> None:
        """The parameters, while another chunk runs."""
        for first, end in self.stretches:
            self.recorder.hold(WHERE, self.own[first].gathered, sign * (end - first))
        self.recorder.hold(WHERE, self.root.gathered, sign)


def record(
    how: StepOptions,
    runs: Sequence[NamedRun],
    groups: Sequence[UnitGroups],
    root: Group,
    sizes: Sequence[StepSizes],
    recorder: Recorder,
) -> None:
    """Every pass in its order. ``runs``: those of all chunks; ``root``: the group of embedding or of norm and head."""
    steps: list[ChunkStep] = []
    start = 0
    for count, beyond in zip(how.chunk_runs, sizes, strict=True):
        mine, end = runs[start : start + count], start + count
        rooted = any(run.unit.kind not in how.wrapped for run in mine)
        steps.append(ChunkStep(how, mine, groups[start:end], root if rooted else NO_GROUP, beyond, recorder))
        start = end
    for step in steps:
        step.leave_all()
    recorder.mark("init", "states at rest")
    for step in steps:
        step.hold_reduced(how.several_runs)
    left = [list(beyond.held) for beyond in sizes]
    for each in how.passes:
        _pass(each, steps, left[each.chunk].pop(0))
    recorder.mark("optimizer", "optimizer step")


def _pass(each: ChunkPass, steps: Sequence[ChunkStep], held: int) -> None:
    own = steps[each.chunk]
    if each.first and own.units[-1].kind == "head":
        own.hold_graph(1)
    for other in each.beside:
        steps[other].hold_gathered(1)
    own.split.begin(split=each.split)
    own.walk(MicroBatch(each.first, each.last, min(sum(each.others), own.border.sends)), held, muted=each.muted)
    for other in each.beside:
        steps[other].hold_gathered(-1)
