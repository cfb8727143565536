"""What is alive at the peak of a rank: the largest tensors, and each component's arithmetic."""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, Instant, RankEstimate, TensorGroup
from memcheck.accounts.ranks import Run, Unit, UnitsInFlight, activation_formulas, sum_of
from memcheck.accounts.state import STATES_PER_PARAMETER, LocalTensor, optimizer_state_bytes, weight_bytes
from memcheck.autograd.curve import Inventory, Peak
from memcheck.frameworks.torch.load_and_save import sharding_at
from memcheck.frameworks.torch.rank_steps import TorchRank
from memcheck.frameworks.torch.resident import is_updated, resident_dtype, shard_numel_of, states_dtype
from memcheck.job.types import DTYPE_BYTES, TrainingJob

STEP = ("init", "forward", "loss", "backward", "optimizer")
"""Instants of a step. Other instants come before and after it."""


def with_inventory(job: TrainingJob, plain: RankEstimate, rank: TorchRank) -> RankEstimate:
    """Return the estimate ``plain`` with its largest tensors and its formulas.

    ``rank``: the rank's step, whose units were replayed with an inventory of tensors.
    """
    peak = plain.peak
    high = rank.high(peak.name) if peak.name in STEP else None
    units = [run.unit._replace(name=name) for run in rank.units.runs for name in run.names()]
    formulas = training_formulas(job, units, peak, high)
    return plain._replace(ledger=ledger(job, rank.units.runs, peak, high), formulas=formulas)


def ledger(job: TrainingJob, runs: list[Run], peak: Instant, high: Peak | None) -> tuple[TensorGroup, ...]:
    """Return every group of equal tensors that is alive at a rank's peak, the largest first.

    ``runs``: the rank's units in forward order. ``high``: the peak of the unit that runs then; None if the peak is
    between steps.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}  # (label, shape and dtype, component): count and bytes

    def put(inventory: Inventory, times: int) -> None:
        """Add each tensor of a unit, ``times`` times, to the row of tensors with its label, shape and dtype."""
        if not times:
            return
        for label, shape, dtype, n_bytes, component, copies in inventory:
            key = (label, f"[{', '.join(map(str, shape))}] {dtype}", component)
            count_and_bytes = groups.setdefault(key, [0, 0])
            count_and_bytes[0] += times * copies
            count_and_bytes[1] += times * n_bytes

    shards = sharding_at(job, peak.name)
    has_states = peak.components_bytes.get("optimizer_states")
    # parameters and optimizer states, which are resident
    for run in runs:
        for t in run.unit.tensors:
            shard_numel = shard_numel_of(job, t, shards.parameter_ranks, shards.uses_flat_buffers)
            dtype = resident_dtype(job, t)
            size = weight_bytes(t, dtype, shard_numel)
            rows = [("adapters" if ".lora_" in t.name else "parameters", "", size, shard_numel, dtype)]
            if is_updated(job, t) and has_states:
                shard_numel, dtype = (
                    shard_numel_of(job, t, shards.optimizer_ranks, shards.uses_flat_buffers),
                    states_dtype(job, t),
                )
                states = optimizer_state_bytes(t, shard_numel, job.optimizer.name, dtype)
                rows.append(("optimizer_states", f"{job.optimizer.name} states of ", states, shard_numel, dtype))
            for component, prefix, n_bytes, elements, stored_dtype in rows:
                if n_bytes:
                    shape = resident_shape(t, elements, stored_dtype, n_bytes)
                    count_and_bytes = groups.setdefault((prefix + t.name, shape, component), [0, 0])
                    count_and_bytes[0] += run.times
                    count_and_bytes[1] += run.times * n_bytes
    # saved tensors of the units before the one at the peak, and what is alive inside that one
    if peak.name in ("forward", "loss", "backward"):
        where = peak.operation.rpartition(" in ")[2]
        for run in runs:
            names = run.names()
            before = names.index(where) if where in names else run.times
            put(run.unit.first_curve.saved_inventory, before)
            if before < run.times:
                put(high.inventory if high is not None else (), 1)
                break
    largest = sorted(groups.items(), key=lambda item: -item[1][1])
    return tuple(
        TensorGroup(label, shape, count, n_bytes, component) for (label, shape, component), (count, n_bytes) in largest
    )


def resident_shape(tensor: LocalTensor, elements: int, dtype: str, n_bytes: int) -> str:
    """Return a resident tensor's shape for reports, as ``1/32 of [28672, 8192] fp32`` on a rank that has 1/32 of it.

    ``elements``, ``n_bytes``: on this rank. The dtype is left out if the bytes are not those of one or two copies in
    it: a quantised tensor also has scales.
    """
    shape = f"[{', '.join(map(str, tensor.shape))}]"
    copy_bytes = elements * DTYPE_BYTES[dtype]
    # bytes of one copy, or of two, each rounded up to a block of at most 1,024 bytes more
    is_unquantised = any(0 <= n_bytes - copies * copy_bytes < copies * 1024 for copies in (1, 2))
    fraction = "" if elements >= tensor.numel else f"1/{round(tensor.numel / elements)} of "
    return f"{fraction}{shape} {dtype}" if is_unquantised else f"{fraction}{shape}"


RECIPES = "docs/internals/memory-model.md, bytes per parameter of each stack"
SHARDING = {
    True: "DeepSpeed ZeRO, FSDP1 and Megatron's distributed optimizer cut flat buffers",
    False: "torch.distributed FSDP2 cuts dim 0 of each tensor and pads it",
}


def training_formulas(job: TrainingJob, units: list[Unit], peak: Instant, high: Peak | None) -> tuple[Formula, ...]:
    """Write one formula for each component that has bytes at the peak, with its numbers and its source.

    ``units``: of the rank in forward order. ``peak``: the instant of the peak, with its bytes by component. ``high``:
    the peak of the unit that runs then; None between steps.
    """
    formulas: list[Formula] = []
    at_peak = peak.components_bytes
    formulas += _states(job, units, peak)
    if at_peak.get("activations"):
        source = job.framework.style.source
        formulas += activation_formulas(_before(units, peak), peak, at_peak["activations"], source)
    for component in ("logits_and_loss", "temporaries"):
        if at_peak.get(component) and high is not None:
            rows = tuple(row for row in high.inventory if row[4] == component)
            formulas.append(sum_of(component, rows, at_peak[component], f"live during {peak.operation}"))
    if at_peak.get("communication_buffers"):
        formulas.append(
            Formula(
                "communication_buffers",
                "gathered parameters + flat gather buffers + reduce-scatter inputs alive at the peak",
                f"during {peak.operation}",
                bytes=at_peak["communication_buffers"],
                source="torch 2.13 torch/distributed/fsdp/_fully_shard, "
                "DistributedDataParallel reducer, DeepSpeed stage*.py",
            )
        )
    return tuple(formulas)


def _states(job: TrainingJob, units: list[Unit], peak: Instant) -> list[Formula]:
    """Write one formula for each of parameters, gradients, master weights and optimizer states alive at the peak.

    ``units``: of the rank. ``peak``: the instant of the peak, with its bytes by component.
    """
    recipe, cut, at_peak = job.recipe, sharding_at(job, peak.name), peak.components_bytes
    numels_by_tensors: dict[int, tuple[int, int, int]] = {}  # equal layers share one tuple of tensors
    total = trained = updated = 0
    for unit in units:
        numels = numels_by_tensors.get(id(unit.tensors))
        if numels is None:
            numels = numels_by_tensors[id(unit.tensors)] = (
                sum([t.numel for t in unit.tensors]),
                sum([t.numel for t in unit.tensors if t.trained]),
                sum([t.numel for t in unit.tensors if is_updated(job, t)]),
            )
        numel, trained_numel, updated_numel = numels
        total += numel
        trained += trained_numel
        updated += updated_numel
    count = STATES_PER_PARAMETER[job.optimizer.name]
    master = 0 if recipe.master == "none" else DTYPE_BYTES[recipe.master]
    state_bytes = DTYPE_BYTES[recipe.optimizer_states]
    rows = (
        ("parameters", total, cut.parameter_ranks, f"{DTYPE_BYTES[recipe.params]} B ({recipe.params})"),
        ("gradients", trained, cut.gradient_ranks, f"{DTYPE_BYTES[recipe.gradients]} B ({recipe.gradients})"),
        ("master_weights", updated, cut.optimizer_ranks, f"{master} B ({recipe.master})"),
        ("optimizer_states", updated, cut.optimizer_ranks, f"{count} x {state_bytes} B ({recipe.optimizer_states})"),
    )
    formulas = []
    for component, elements, ranks, width in rows:
        if not at_peak.get(component):
            continue
        shards = f" / {ranks} ranks" if ranks > 1 else ""
        text = "sum over tensors of elements / shards x bytes, each block rounded up to 512 B"
        if component == "gradients":
            text += "; only those that exist at the peak"
        if peak.name == "save":
            text += "; all of them, in addition to this rank's shards"
        formulas.append(
            Formula(
                component,
                text,
                f"{elements:,} elements{shards} x {width}",
                bytes=at_peak[component],
                source=f"{RECIPES}; {SHARDING[cut.uses_flat_buffers]}" if ranks > 1 else RECIPES,
            )
        )
    return formulas


def _before(units: list[Unit], peak: Instant) -> list[UnitsInFlight]:
    """Return the units whose saved tensors are alive while the unit at the peak runs: all units before it."""
    where = peak.operation.rpartition(" in ")[2]
    in_flight: list[UnitsInFlight] = []
    for unit in units:
        if unit.name == where:
            break
        if unit.first_curve.saved_bytes:
            in_flight.append(UnitsInFlight(unit))
    return in_flight
