"""Reports to pass on, of hand-made results with everything that such a report shows."""

from __future__ import annotations

from memcheck.accounts.dossier import Dossier, OnGpu, RankDevice
from memcheck.accounts.estimate import Estimate
from memcheck.plan.finding import Finding
from memcheck.rules.result import PlanResult, Report
from tests.report import samples
from tests.report.samples import GIB


def estimate(device: float, ranks: int = 1) -> Estimate:
    """An estimate whose instants say what they hold."""
    plain = samples.estimate(device, ranks=ranks)
    inside = {name: count for name, count in plain.components_bytes.items() if name != "context_and_nccl"}
    share = {"init": ("parameters", "optimizer_states"), "backward": tuple(inside)}
    told = tuple(
        instant._replace(components_bytes={name: inside[name] for name in share.get(instant.name, tuple(inside)[:5])})
        for instant in plain.ranks[0].instants
    )
    return plain._replace(ranks=tuple(rank._replace(instants=told) for rank in plain.ranks))


def dossier(answer: Estimate, gpu: str) -> Dossier:
    """What goes with it: one GPU where it fits, one where it may, two where it does not, one where it cannot run."""
    need = answer.needed_bytes
    low = int(need * 0.98)
    others = (
        OnGpu("a100-80gb", int(79.15 * GIB), need, int(need * 1.05), 312, relative_speed=1.25),
        OnGpu("tight", int(need * 1.12), need, int(need * 1.13), 400),
        OnGpu("full", int(need * 1.01), need, int(need * 1.02), None),
        OnGpu("t4", int(14.5 * GIB), need, int(need * 1.05), 65),
        OnGpu("v100-32gb", int(31.7 * GIB), bf16_tflops=None, refused="MEM301: v100-32gb has no bf16"),
    )
    own = OnGpu(gpu, answer.capacity_bytes, need, answer.needed_interval_bytes[1], 312, relative_speed=1.0)
    ranks = tuple(RankDevice(rank.pipeline_rank, "backward", dict(answer.parts_bytes)) for rank in answer.ranks)
    return Dossier(
        ranks,
        tuple(each._replace(needed_low_bytes=low) for each in (own, *others)),
        "megatron/dense; allocator: megatron/default",
        8,
    )


def result(device: float, ranks: int = 1, status: str = "passed", **changes: object) -> PlanResult:
    """One plan with everything."""
    answer = estimate(device, ranks)
    return samples.result(status, estimate=answer, dossier=dossier(answer, "a100-40gb"))._replace(**changes)  # type: ignore[arg-type]


def forwarded() -> Report:
    """Plans that fit, may fit, are above their limit, do not fit; one with a warning, one on four ranks, one broken."""
    warning = Finding("MEM203", "tensor-across-nodes", "warning", "tensor: 16 spans 2 nodes", samples.at(8, 11, 12))
    return samples.report(
        result(28.1),
        result(54.31, status="failed", findings=(samples.over(),)),
        result(34.0, ranks=4, name="with a warning", findings=(warning,)),
        result(36.2, name="above its limit", status="failed", findings=(samples.over(),)),
        result(38.9, name="uncertain", fail_above=1.0),
        samples.broken(),
        unreadable=(samples.Unreadable("gone.yaml", "No such file"),),
    )
