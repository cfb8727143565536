"""What is alive at the peak of a rank: the largest tensors, and each component's arithmetic."""

from __future__ import annotations

from memcheck.accounts.estimate import Instant, RankEstimate, TensorGroup
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes, weight_bytes
from memcheck.autograd.curve import Inventory, Peak
from memcheck.frameworks.torch.rank_steps import TorchRank
from memcheck.frameworks.torch.rank_units import Run
from memcheck.frameworks.torch.resident import is_updated, resident_dtype, shard_of, states_dtype
from memcheck.job.types import DTYPE_BYTES, TrainingJob

STEP = ("init", "forward", "loss", "backward", "optimizer")
"""Instants of a step. Other instants come before and after it."""


def with_inventory(job: TrainingJob, plain: RankEstimate, rank: TorchRank) -> RankEstimate:
    """The estimate with its largest tensors and its formulas. ``rank``: of units replayed with their inventory."""
    from memcheck.frameworks.torch.formulas import training_formulas

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
            mine = shard_of(job, t, cut.parameters, cut.flat)
            dtype = resident_dtype(job, t)
            size = weight_bytes(t, dtype, mine)
            rows = [("adapters" if ".lora_" in t.name else "parameters", "", size, mine, dtype)]
            if is_updated(job, t) and held:
                mine, dtype = shard_of(job, t, cut.optimizer, cut.flat), states_dtype(job, t)
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
            put(run.unit.fresh.saved_inventory, before)
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
