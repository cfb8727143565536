"""Each component's arithmetic at the worst rank's peak: formula, the numbers put in, bytes, source."""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, Instant
from memcheck.accounts.state import STATES_PER_PARAMETER
from memcheck.accounts.unit import Unit, UnitsInFlight, activation_formulas, sum_of
from memcheck.autograd.curve import Peak
from memcheck.frameworks.torch.load_and_save import sharding_at
from memcheck.frameworks.torch.resident import is_updated
from memcheck.job.types import DTYPE_BYTES, TrainingJob

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
        if unit.fresh.saved:
            found.append(UnitsInFlight(unit))
    return found
