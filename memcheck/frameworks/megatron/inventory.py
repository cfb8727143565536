"""What is alive at the peak of a Megatron rank: the largest tensors, and each component's arithmetic."""

from __future__ import annotations

from itertools import groupby

from memcheck.accounts.estimate import Formula, Instant, RankEstimate, TensorGroup
from memcheck.accounts.ranks import UnitsInFlight, activation_formulas, sum_of
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.curve import Peak
from memcheck.autograd.tensor import ceil_div, rounded
from memcheck.frameworks.megatron import buffers, fsdp
from memcheck.frameworks.megatron.profile import FRAMEWORK
from memcheck.frameworks.megatron.schedule import PassRun
from memcheck.frameworks.megatron.setting import argument_options
from memcheck.frameworks.megatron.step import Rank, SchedulePeaks
from memcheck.frameworks.megatron.tensors import BUILDING
from memcheck.job.types import TrainingJob
from memcheck.record import Record

DISTRIBUTED = "Megatron-core distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py"
SHARDED = "Megatron-core distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py"
PLAIN = "Megatron-core optimizer/optimizer.py, Float16OptimizerWithFloat16Params"
BUFFERS = "Megatron-core pipeline_parallel/schedules.py, core/utils.py GlobalMemoryBuffer"
WORKSPACES = "TransformerEngine pytorch/cpp_extensions/gemm.py, module/base.py; torch CublasHandlePool.cpp"
"""Upstream files that formulas name as their sources."""


class RanksOfState(Record):
    """Over how many ranks a state is divided."""

    dense: int
    """Ranks that share the state of a dense tensor."""
    experts: int
    """Ranks that share the state of an expert's tensor."""


class State(Record):
    """One kind of resident state: how many bytes an element has, and over how many ranks it is divided."""

    component: str
    """The component that the state's bytes count in, such as ``optimizer_states``."""
    label: str
    """What the inventory writes before a tensor's name."""
    dtypes: tuple[str, ...]
    """Dtypes of the tensors that the state has for each parameter tensor."""
    bytes_per_element: tuple[float, ...]
    """Bytes per element of each of these tensors."""
    ranks: RanksOfState

    def parts(self, tensor: LocalTensor) -> int:
        """Return over how many ranks the state of one tensor is divided."""
        return self.ranks.experts if tensor.expert else self.ranks.dense

    def bytes(self, tensor: LocalTensor) -> int:
        """Return the bytes that this rank holds of one tensor's state."""
        elements = ceil_div(tensor.numel, self.parts(tensor))
        return sum(rounded(int(elements * size)) for size in self.bytes_per_element)


def with_inventory(job: TrainingJob, estimate: RankEstimate, rank: Rank, schedule: tuple[PassRun, ...]) -> RankEstimate:
    """Add the largest tensors and the formulas to a rank's estimate.

    ``rank``: its curves were replayed with an inventory.
    """
    peak, step = estimate.peak, SchedulePeaks(rank, schedule)
    index = [name for name, _ in step.tops].index(peak.name)
    unit_peak, saving_units = step.high(index), _saving_units(rank, step, index)
    return estimate._replace(
        ledger=_ledger(job, rank, peak, unit_peak, saving_units),
        formulas=_formulas(job, rank, peak, unit_peak, saving_units),
    )


def states(job: TrainingJob) -> tuple[State, ...]:
    """List the resident states of a rank: parameters, gradients, master weights and optimizer states, with dtypes.

    Each has two numbers of ranks that share it: for dense parameters, and for experts. States of 0 bytes are left out.
    The bytes are those of ``buffers`` and ``fsdp.state_bytes``.
    """
    sharded = fsdp.is_sharded(job)
    names = fsdp.sharded_dtype_names(job) if sharded else buffers.dtype_names(job)
    item_bytes = buffers.dtypes_of(names)
    shard_ranks = RanksOfState(
        dense=buffers.optimizer_ranks(job, expert=False), experts=buffers.optimizer_ranks(job, expert=True)
    )
    whole = RanksOfState(dense=1, experts=1)
    optimizer_ranks = shard_ranks if sharded or buffers.distributed(job) else whole
    on_device = buffers.on_device_share(job)
    rows = (
        State(
            component="parameters",
            label="",
            dtypes=(names.parameter,),
            bytes_per_element=(item_bytes.parameter_bytes,),
            ranks=shard_ranks if _shards_parameters(job) else whole,
        ),
        State(
            component="gradients",
            label="main gradient of ",
            dtypes=(names.gradient,),
            bytes_per_element=(item_bytes.gradient_bytes,),
            ranks=shard_ranks if sharded else whole,
        ),
        State(
            component="master_weights",
            label="master copy of ",
            dtypes=(names.master,),
            bytes_per_element=(item_bytes.master_bytes * on_device,),
            ranks=optimizer_ranks,
        ),
        State(
            component="optimizer_states",
            label=f"{job.optimizer.name} states of ",
            dtypes=names.states,
            bytes_per_element=tuple(state_bytes * on_device for state_bytes in item_bytes.state_bytes),
            ranks=optimizer_ranks,
        ),
    )
    return tuple(row for row in rows if any(row.bytes_per_element))


def _shards_parameters(job: TrainingJob) -> bool:
    return fsdp.is_sharded(job) and fsdp.strategy(job) == "optim_grads_params"


def _saving_units(rank: Rank, step: SchedulePeaks, index: int) -> list[UnitsInFlight]:
    """List the units whose saved tensors are live at an instant's peak, and for how many micro-batches.

    ``step``: the peaks of the rank's step. ``index``: of the instant. In its own chunk the running pass has saved the
    tensors of the units before the one that runs.
    """
    name, running_unit = step.tops[index][0], step.moment(index).operation.rpartition(" in ")[2]
    if name not in ("forward", "loss", "backward"):
        return []
    moment = step.pass_at(index)
    saving: list[UnitsInFlight] = []
    for chunk_index, units in enumerate(rank.chunks):
        passes = chunk_index == moment.running_pass.chunk
        for unit in units:
            passes = passes and unit.name != running_unit
            times = moment.micro_batches_by_chunk[chunk_index] + passes
            if times and unit.first_curve.saved_bytes:
                saving.append(UnitsInFlight(unit, times))
    return saving


def _ledger(
    job: TrainingJob,
    rank: Rank,
    peak: Instant,
    unit_peak: Peak | None,
    saving_units: list[UnitsInFlight],
) -> tuple[TensorGroup, ...]:
    """List the groups of equal tensors live at the peak, the largest first: states, saved tensors, temporaries.

    ``unit_peak``: the peak of the unit that runs; None outside a pass. ``saving_units``: units whose saved tensors are
    live. Frozen parameters have no other state than themselves.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}  # (label, shape, component): [tensors, bytes]

    def add_group(label: str, shape: str, component: str, n_bytes: int, times: int = 1) -> None:
        """Add bytes to the row of equal tensors; rows without bytes are left out."""
        if n_bytes:
            group = groups.setdefault((label, shape, component), [0, 0])
            group[0] += times
            group[1] += times * n_bytes

    rows = [row for row in states(job) if row.component in peak.components_bytes]
    peak_entries = unit_peak.inventory if unit_peak is not None else ()
    for tensors, times in _distinct_tensors(rank):
        for t in tensors:
            for row in rows if t.trained else rows[:1]:
                dtypes = "+".join(dict.fromkeys(row.dtypes))
                ranks = row.parts(t)
                fraction = f"1/{ranks} of " if ranks > 1 else ""
                local_shape = f"{fraction}{_shape(t.shape)} {dtypes}"
                add_group(row.label + t.name, local_shape, row.component, row.bytes(t), times)
    for _, same_units in groupby(saving_units, key=lambda units: id(units.unit.first_curve.saved_inventory)):
        equal_units = list(same_units)
        for label, shape, dtype, n_bytes, component, _ in equal_units[0].unit.first_curve.saved_inventory:
            add_group(label, f"{_shape(shape)} {dtype}", component, n_bytes, sum(units.times for units in equal_units))
    for label, shape, dtype, n_bytes, component, _ in peak_entries:
        add_group(label, f"{_shape(shape)} {dtype}", component, n_bytes)
    rows_by_size = [
        TensorGroup(label, shape_and_dtype, count, n_bytes, component)
        for (label, shape_and_dtype, component), (count, n_bytes) in groups.items()
    ]
    return tuple(sorted(rows_by_size, key=lambda group: -group.bytes))


def _distinct_tensors(rank: Rank) -> list[tuple[tuple[LocalTensor, ...], int]]:
    """List the rank's units by their tensors, as (tensors, how many units have them)."""
    units = [unit.tensors for chunk in rank.chunks for unit in chunk]
    return [(next(same), 1 + sum(1 for _ in same)) for _, same in groupby(units, key=id)]


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _formulas(
    job: TrainingJob, rank: Rank, peak: Instant, unit_peak: Peak | None, saving_units: list[UnitsInFlight]
) -> tuple[Formula, ...]:
    """Write the arithmetic of each component that is live at the peak, for ``--formulas``.

    ``unit_peak``: the peak of the unit that runs; None outside a pass. ``saving_units``: units whose saved tensors are
    live.
    """
    at_peak = peak.components_bytes
    tensors = [(t, times) for equal_tensors, times in _distinct_tensors(rank) for t in equal_tensors]
    formulas = [
        _state_formula(job, row, tensors, at_peak[row.component]) for row in states(job) if at_peak.get(row.component)
    ]
    if peak.operation == BUILDING:
        copied = "; once more in the tensors that have not been copied into them yet"
        for i, formula in enumerate(formulas):
            if formula.component == "parameters":
                formulas[i] = formula._replace(formula=formula.formula + copied)
    if at_peak.get("activations"):
        activations = activation_formulas(saving_units, peak, at_peak["activations"], FRAMEWORK.style.source)
        formulas += [_with_recompute_note(job, formula) for formula in activations]
    always_bytes = dict(rank.always_held)
    for component in ("logits_and_loss", "temporaries"):
        if at_peak.get(component):
            formulas.append(_live_formula(component, peak, unit_peak, always_bytes.get(component, 0)))
    if at_peak.get("communication_buffers"):
        formulas.append(_exchange_formula(rank, peak, always_bytes.get("communication_buffers", 0)))
    return tuple(formulas)


def _live_formula(component: str, peak: Instant, unit_peak: Peak | None, workspace_bytes: int) -> Formula:
    """Write the formula of a component whose tensors live while one unit runs.

    ``workspace_bytes``: bytes of the component that are allocated all step.
    """
    live_tensors = unit_peak.inventory if unit_peak is not None else ()
    rows = tuple(row for row in live_tensors if row[4] == component)
    numbers = f"live during {peak.operation}"
    if not workspace_bytes:
        return sum_of(component, rows, peak.components_bytes[component], numbers)
    numbers += f"; {workspace_bytes:,} B of workspaces always"
    formula = sum_of(component, rows, peak.components_bytes[component], numbers)
    return formula._replace(source=f"{formula.source}; {WORKSPACES}")


def _exchange_formula(rank: Rank, peak: Instant, gathered_bytes: int) -> Formula:
    """Write the formula of communication buffers. ``gathered_bytes``: bytes of them that are allocated all step."""
    text, source = "global memory buffer + gradients sent between stages", BUFFERS
    if rank.extras:  # Megatron-FSDP
        text, source = text + " + parameters gathered and gradients that wait", f"{BUFFERS}; {SHARDED}"
    numbers = (f"{gathered_bytes:,} B always; " if gathered_bytes else "") + f"during {peak.operation}"
    component = "communication_buffers"
    return Formula(component, text, numbers, peak.components_bytes[component], source)


def _state_formula(job: TrainingJob, row: State, tensors: list[tuple[LocalTensor, int]], n_bytes: int) -> Formula:
    """Write the formula of one resident state: elements / ranks x bytes, for dense parameters and for experts.

    ``row``: the state, such as master weights. ``tensors``: parameters of the rank, with the number of equal ones.
    ``n_bytes``: the state's bytes at the peak.
    """
    terms = []
    for expert, ranks in ((False, row.ranks.dense), (True, row.ranks.experts)):
        includes_frozen = row.component == "parameters"
        elements = sum(times * t.numel for t, times in tensors if t.expert == expert and (t.trained or includes_frozen))
        if elements:
            noun = "expert elements" if expert else "elements"
            terms.append(f"{elements:,} {noun}" + (f" / {ranks} ranks" if ranks > 1 else ""))
    bytes_per_element = " + ".join(
        f"{size:g} B ({dtype})" for dtype, size in zip(row.dtypes, row.bytes_per_element, strict=True)
    )
    numbers = f"({' + '.join(terms)}) x " if len(terms) > 1 else f"{''.join(terms)} x "
    source = PLAIN
    if fsdp.is_sharded(job):
        source = SHARDED
    elif buffers.distributed(job):
        source = DISTRIBUTED
    return Formula(
        row.component,
        "elements / ranks that share them x bytes; contiguous buffers padded to the ranks",
        numbers + (f"({bytes_per_element})" if len(row.bytes_per_element) > 1 else bytes_per_element),
        n_bytes,
        source,
    )


def _with_recompute_note(job: TrainingJob, formula: Formula) -> Formula:
    """Add why the whole qkv projection is live when core attention is recomputed (MEM414)."""
    options = dict(argument_options(job))
    if options.get("recompute_granularity") != "selective" or "linear_qkv [" not in formula.formula:
        return formula
    note = "linear_qkv stays whole: v, an argument of the checkpoint around core attention, is a view of it"
    return formula._replace(numbers=f"{formula.numbers}; {note}")
