"""What is alive at the peak of a rank: the largest tensors, and each component's arithmetic."""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, Instant, RankEstimate, TensorGroup
from memcheck.accounts.state import STATES_PER_PARAMETER, LocalTensor, optimizer_state_bytes, weight_bytes
from memcheck.accounts.unit import Unit, UnitsInFlight, activation_formulas, sum_of
from memcheck.autograd.curve import Inventory, Peak
from memcheck.frameworks.torch.load_and_save import sharding_at
from memcheck.frameworks.torch.rank_steps import TorchRank
from memcheck.frameworks.torch.rank_units import Run
from memcheck.frameworks.torch.resident import is_updated, resident_dtype, shard_numel_of, states_dtype
from memcheck.job.types import DTYPE_BYTES, TrainingJob

STEP = ("init", "forward", "loss", "backward", "optimizer")
"""Instants of a step. Other instants come before and after it."""


def with_inventory(job: TrainingJob, plain: RankEstimate, rank: TorchRank) -> RankEstimate:
    """The estimate with its largest tensors and its formulas. ``rank``: of units replayed with their inventory."""
    peak = plain.peak
    high = rank.high(peak.name) if peak.name in STEP else None
    units = [run.unit._replace(name=name) for run in rank.units.runs for name in run.names()]
    formulas = training_formulas(job, units, peak, high)
    return plain._replace(largest=largest_tensors(job, rank.units.runs, peak, high), formulas=formulas)


def largest_tensors(
    job: TrainingJob, runs: list[Run], peak: Instant, high: Peak | None, top: int = 12
) -> tuple[TensorGroup, ...]:
    """The largest groups of equal live tensors at a rank's peak."""
    groups: dict[tuple[str, str, str], list[int]] = {}

    def put(inventory: Inventory, times: int) -> None:
        for label, shape, dtype, n_bytes, component, copies in inventory if times else ():
            key = (label, f"[{', '.join(map(str, shape))}] {dtype}", component)
            g = groups.setdefault(key, [0, 0])
            g[0] += times * copies
            g[1] += times * n_bytes

    from memcheck.frameworks.torch.load_and_save import sharding_at

    cut = sharding_at(job, peak.name)
    held = peak.components_bytes.get("optimizer_states")
    for run in runs:
        for t in run.unit.tensors:
            mine = shard_numel_of(job, t, cut.parameters, cut.flat)
            dtype = resident_dtype(job, t)
            size = weight_bytes(t, dtype, mine)
            rows = [("adapters" if ".lora_" in t.name else "parameters", "", size, mine, dtype)]
            if is_updated(job, t) and held:
                mine, dtype = shard_numel_of(job, t, cut.optimizer, cut.flat), states_dtype(job, t)
                states = optimizer_state_bytes(t, mine, job.optimizer.name, dtype)
                rows.append(("optimizer_states", f"{job.optimizer.name} states of ", states, mine, dtype))
            for component, of, n_bytes, elements, stated in rows:
                if n_bytes:
                    shape = resident_shape(t, elements, stated, n_bytes)
                    g = groups.setdefault((of + t.name, shape, component), [0, 0])
                    g[0] += run.times
                    g[1] += run.times * n_bytes
    if peak.name in ("forward", "loss", "backward"):
        where = peak.operation.rpartition(" in ")[2]
        for run in runs:
            names = run.names()
            before = names.index(where) if where in names else run.times
            put(run.unit.first_curve.saved_inventory, before)
            if before < run.times:
                put(high.inventory if high is not None else (), 1)
                break
    found = sorted(groups.items(), key=lambda kv: -kv[1][1])[:top]
    return tuple(TensorGroup(k[0], k[1], v[0], v[1], k[2]) for k, v in found)


def resident_shape(tensor: LocalTensor, elements: int, dtype: str, n_bytes: int) -> str:
    """``1/32 of [28672, 8192] fp32``: the whole tensor and the rank's part of it.

    Omits the dtype where the bytes are not those of one or two copies in it: a quantised tensor also has scales.
    """
    whole = f"[{', '.join(map(str, tensor.shape))}]"
    each = elements * DTYPE_BYTES[dtype]
    plain = any(0 <= n_bytes - copies * each < 1024 * copies for copies in (1, 2))
    part = "" if elements >= tensor.numel else f"1/{round(tensor.numel / elements)} of "
    return f"{part}{whole} {dtype}" if plain else f"{part}{whole}"


RECIPES = "docs/internals/memory-model.md, bytes per parameter of each stack"
SHARDING = {
    True: "DeepSpeed ZeRO, FSDP1 and Megatron's distributed optimizer cut flat buffers",
    False: "torch.distributed FSDP2 cuts dim 0 of each tensor and pads it",
}


def training_formulas(job: TrainingJob, units: list[Unit], peak: Instant, high: Peak | None) -> tuple[Formula, ...]:
    """One formula per component that is alive at the peak."""
    found: list[Formula] = []
    at_peak = peak.components_bytes
    found += _states(job, units, peak)
    if at_peak.get("activations"):
        source = job.framework.style.source
        found += activation_formulas(_before(units, peak), peak, at_peak["activations"], source)
    for component in ("logits_and_loss", "temporaries"):
        if at_peak.get(component) and high is not None:
            rows = tuple(r for r in high.inventory if r[4] == component)
            found.append(sum_of(component, rows, at_peak[component], f"live during {peak.operation}"))
    if at_peak.get("communication_buffers"):
        found.append(
            Formula(
                "communication_buffers",
                "gathered parameters + flat gather buffers + reduce-scatter inputs alive at the peak",
                f"during {peak.operation}",
                bytes=at_peak["communication_buffers"],
                source="torch 2.13 torch/distributed/fsdp/_fully_shard, "
                "DistributedDataParallel reducer, DeepSpeed stage*.py",
            )
        )
    return tuple(found)


def _states(job: TrainingJob, units: list[Unit], peak: Instant) -> list[Formula]:
    recipe, cut, at_peak = job.recipe, sharding_at(job, peak.name), peak.components_bytes
    known = {  # layers that are alike share their tensors
        id(u.tensors): (
            sum([t.numel for t in u.tensors]),
            sum([t.numel for t in u.tensors if t.trained]),
            sum([t.numel for t in u.tensors if is_updated(job, t)]),
        )
        for u in {id(u.tensors): u for u in units}.values()
    }
    total, trained, updated = (sum([known[id(u.tensors)][which] for u in units]) for which in (0, 1, 2))
    count = STATES_PER_PARAMETER[job.optimizer.name]
    master = 0 if recipe.master == "none" else DTYPE_BYTES[recipe.master]
    rows = (
        ("parameters", total, cut.parameters, f"{DTYPE_BYTES[recipe.params]} B ({recipe.params})"),
        ("gradients", trained, cut.gradients, f"{DTYPE_BYTES[recipe.gradients]} B ({recipe.gradients})"),
        (
            "master_weights",
            updated,
            cut.optimizer,
            f"{master} B ({recipe.master})",
        ),
        (
            "optimizer_states",
            updated,
            cut.optimizer,
            f"{count} x {DTYPE_BYTES[recipe.optimizer_states]} B ({recipe.optimizer_states})",
        ),
    )
    found = []
    for component, elements, ways, width in rows:
        if not at_peak.get(component):
            continue
        shards = f" / {ways} ranks" if ways > 1 else ""
        text = "sum over tensors of elements / shards x bytes, each block rounded up to 512 B"
        if component == "gradients":
            text += "; only those that exist at the peak"
        if peak.name == "save":
            text += "; all of them, in addition to this rank's shards"
        found.append(
            Formula(
                component,
                text,
                f"{elements:,} elements{shards} x {width}",
                bytes=at_peak[component],
                source=f"{RECIPES}; {SHARDING[cut.flat]}" if ways > 1 else RECIPES,
            )
        )
    return found


def _before(units: list[Unit], peak: Instant) -> list[UnitsInFlight]:
    """Units whose saved tensors are alive while the unit at the peak runs."""
    where = peak.operation.rpartition(" in ")[2]
    found: list[UnitsInFlight] = []
    for unit in units:
        if unit.name == where:
            break
        if unit.first_curve.saved_bytes:
            found.append(UnitsInFlight(unit))
    return found
