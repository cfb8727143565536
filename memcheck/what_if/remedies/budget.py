"""How much a search may take: seconds on the clock of the machine, or steps that are the same on every machine."""

from __future__ import annotations

import time

from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.models.types import Architecture, Attention, Block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class BudgetSpentError(Exception):
    """A search, or a part of it, has used up its budget. The caller goes on with what was found."""


class Budget:
    """Seconds from now on, or steps, of which parts are given out; None for no end."""

    def __init__(self, seconds: float | None = None, effort: Effort | None = None, steps: int = 0) -> None:
        """``effort``: counts the steps of the search, of which there may be ``steps``."""
        self.seconds = seconds
        self.effort, self.steps, self.most = effort, steps, steps
        self.until = None if seconds is None else time.monotonic() + seconds
        self.unsearched = 0
        """Plans that the search did not look at, in the spaces that it began."""
        self.spent = False
        """Whether anything was cut short."""

    def check(self) -> None:
        """Go on, or not.

        Raises:
            BudgetSpentError: the time is up, or the steps are made.
        """
        late = self.until is not None and time.monotonic() > self.until
        if late or (self.effort is not None and self.effort.steps > self.most):
            self.spent = True
            raise BudgetSpentError

    def part(self, share: float = 1.0, by: float = 1.0) -> BudgetPart:
        """Return a share of what is left for what is done inside, which ends without an error when it is used up.

        ``by``: the share of all steps by which it ends.
        """
        return BudgetPart(self, share, by)


class BudgetPart:
    """A part of a budget, as a context."""

    __slots__ = ("_before", "_budget", "_by", "_share")

    def __init__(self, budget: Budget, share: float, by: float) -> None:
        self._budget, self._share, self._by = budget, share, by

    def __enter__(self) -> None:
        """Limit the time and the steps that are left to this part's share of them."""
        budget = self._budget
        self._before = before, most = budget.until, budget.most
        budget.most = min(most, int(budget.steps * self._by))
        if before is not None:
            now = time.monotonic()
            budget.until = now + max(0.0, before - now) * self._share

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Restore the limits; a part that is used up ends without an error."""
        self._budget.until, self._budget.most = self._before
        return isinstance(error, BudgetSpentError)


MOST = 7_500
"""Steps of the search for the remedies of one finding: dozens of estimates of a large model, hundreds of others."""
LOOK = 10
"""Steps to read a changed plan and check it against the rules."""
ESTIMATE, SHARDED = 3, 13
"""Steps to walk the training step of one rank, without and with ZeRO-3's gathers around every unit."""
WALKED, WALKED_SHARDED, WALKS = 10, 30, 100
"""Steps per hundred walks of a unit, without and with ZeRO-3's gathers."""
OUTER_UNITS = 2
"""Units of a rank that are no layers: embedding and head."""
SERVED = 10
"""Steps to predict the memory of a serving engine."""
REPLAY, KIND, ADAPTED = 14, 8, 16
"""Steps to replay all units anew, and in addition per kind of layer, without and with adapters."""
LAYERS_A_STEP = 80
"""Layers whose tensors are gone through in one step."""
MOST_LAYERS_OF_RUN = 4
"""Layers of a run of equal ones that are walked."""
MOST_MICRO_BATCHES, MOST_WITHOUT_PIPELINE = 8, 3
"""Micro-batches that are walked; later ones repeat them."""
TOWER_KINDS = 2
"""Kinds of units that a vision tower or an encoder counts as."""
MOST_RANKS = 3
"""Pipeline ranks that differ: the first, those between, the last."""


class Effort:
    """Counts the steps of one search. Units that were replayed for an earlier plan of it are not replayed again."""

    def __init__(self, job: TrainingJob | InferenceJob) -> None:
        """``job``: the plan's as written; all others have its model."""
        architecture = job.architecture
        self.steps = 0
        self._kinds = self._runs = self._layers = 1
        self._replayed: set[tuple[object, ...]] = set()
        if isinstance(architecture, Architecture):
            runs = _runs(architecture.blocks)
            self._kinds = len({block for block, _ in architecture.blocks})
            if architecture.vision is not None or architecture.encoder is not None:
                self._kinds += TOWER_KINDS
            self._runs = sum(min(times, MOST_LAYERS_OF_RUN) for times in runs)
            self._layers = architecture.num_layers

    def look(self) -> None:
        """Count the steps of reading a changed plan."""
        self.steps += LOOK

    def estimate(self, job: TrainingJob | InferenceJob) -> None:
        """Count the steps of predicting the memory of a changed plan."""
        if isinstance(job, InferenceJob):
            self.steps += SERVED
            return
        layout = job.layout
        sharded = layout.zero_stage == 3
        most_micro_batches = MOST_MICRO_BATCHES if layout.pipeline > 1 else MOST_WITHOUT_PIPELINE
        micro_batches = min(job.gradient_accumulation_steps, most_micro_batches)
        ranks = len(job.torch) * min(layout.pipeline, MOST_RANKS)
        # where every second layer is recomputed, none is like its neighbour
        units = self._layers if job.checkpointing.every_n_layers > 1 else self._runs
        layers_per_rank = -(-units // layout.pipeline)  # rounded up
        units_per_rank = layers_per_rank + OUTER_UNITS
        walks = ranks * micro_batches * units_per_rank
        self.steps += ranks * (SHARDED if sharded else ESTIMATE) + self._layers // LAYERS_A_STEP
        self.steps += walks * (WALKED_SHARDED if sharded else WALKED) // WALKS
        replayed = _units_of(job)
        if replayed not in self._replayed:
            self._replayed.add(replayed)
            self.steps += REPLAY + self._kinds * (KIND if job.method == "full" else ADAPTED)


def _runs(blocks: tuple[tuple[Block, int], ...]) -> list[int]:
    """Return how many layers follow each other that differ in no more than the window of their attention."""
    found: list[int] = []
    before: Block | None = None
    for block, times in blocks:
        mixer = block.mixer
        alike = block._replace(mixer=mixer._replace(window=None)) if isinstance(mixer, Attention) else block
        if alike == before:
            found[-1] += times
        else:
            found.append(times)
        before = alike
    return found


ONE_RANK = Layout()


def _units_of(job: TrainingJob) -> tuple[object, ...]:
    """Return the job without what its units do not depend on, for the most part."""
    layout = job.layout
    alone = ONE_RANK._replace(
        tensor=layout.tensor,
        sequence=layout.sequence,
        context=layout.context,
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
    )
    return (
        alone,
        job.recipe,
        job.micro_batch_size,
        job.sequence_length,
        job.gradient_accumulation_steps > 1,
        job.optimizer.in_backward,
        *job[job._fields.index("method") : job._fields.index("torch")],
    )
