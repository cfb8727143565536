"""Makes a plan's dossier, with the engine that judged the plan."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.dossier import Dossier, OnGpu, RankDevice
from memcheck.accounts.estimate import CACHE, Estimate
from memcheck.catalog.names import find_gpu
from memcheck.judge import Gate
from memcheck.memory.fit import on_host
from memcheck.memory.overhead import slack
from memcheck.memory.overhead_terms import interval_basis
from memcheck.rules.run import check_layout
from memcheck.rules.types import RuleContext
from memcheck.what_if.compare import DATA_CENTRE
from memcheck.what_if.points import Evaluator, Point


def dossier(context: RuleContext, answer: Estimate, gate: Gate) -> Dossier:
    """Return everything beyond the estimate that the plan itself decides."""
    basis, cases = interval_basis(context.job)
    return Dossier(ranks=rank_devices(context, answer), gpus=on_gpus(context, answer, gate), basis=basis, cases=cases)


def rank_devices(context: RuleContext, answer: Estimate) -> tuple[RankDevice, ...]:
    """Return what every pipeline rank holds; on the worst one they are those of the estimate."""
    job, gpu, overhead = context.job, context.resolved.gpu, context.resolved.overhead
    found = []
    for rank in answer.ranks:
        extra = slack(job, gpu, overhead, rank.peak.allocated_bytes, pools=rank.pools)
        components = dict(rank.peak.components_bytes)
        for name, n_bytes in (
            ("fragmentation", extra.fragmentation - extra.cache),
            ("context_and_nccl", extra.context_and_nccl),
            (CACHE, extra.cache),
        ):
            components[name] = components.get(name, 0) + n_bytes
        found.append(RankDevice(rank.pipeline_rank, rank.peak.name, {k: v for k, v in components.items() if v}))
    return tuple(found)


def on_gpus(context: RuleContext, answer: Estimate, gate: Gate) -> tuple[OnGpu, ...]:
    """The plan on its own GPU, then on each of the data centre's."""
    return tuple(each_gpu(context, answer, gate))


def each_gpu(
    context: RuleContext, answer: Estimate, gate: Gate, names: tuple[str, ...] = DATA_CENTRE
) -> Iterator[OnGpu]:
    """Yield the plan on its own GPU, then on each of those named, without them the data centre's, one after the other.

    What is wrong with the plan itself keeps no figures back: they are those of the plan once it is mended.
    """
    errors = [f for f in check_layout(context)[0] if f.severity == "error" and gate.counts(f.code)]
    codes = tuple(dict.fromkeys(finding.code for finding in errors))
    strict = Evaluator(context.document, gate)
    lenient = Evaluator(context.document, gate._replace(ignore=(*gate.ignore, *codes))) if codes else strict
    gpu, here = context.resolved.gpu, lenient.point({})
    yield OnGpu(
        gpu=gpu.name,
        capacity_bytes=gpu.memory_bytes,
        needed_bytes=answer.needed_bytes,
        needed_low_bytes=answer.needed_interval_bytes[0],
        needed_high_bytes=answer.needed_interval_bytes[1],
        bf16_tflops=gpu.bf16_tflops,
        fails="".join(f"{error.code}: {error.message}" for error in errors[:1]),
        host_short=not on_host(answer.host_bytes_per_node, context.host_bytes),
        relative_speed=None if here.step is None else 1.0,
    )
    for name in names:
        if name == gpu.name:
            continue
        change = {"hardware.gpu": name}
        there = strict.point(change)
        if there.estimated or not set(there.codes) <= set(codes):
            yield on_gpu(name, there, here)
        else:
            yield on_gpu(name, lenient.point(change), here)._replace(fails=_first(there))


def _first(there: Point) -> str:
    """What is wrong: the first rule and what it says."""
    return "".join(f"{problem.code}: {problem.message}" for problem in there.problems[:1])


def on_gpu(name: str, there: Point, here: Point) -> OnGpu:
    """Return the plan with another GPU, as ``memcheck compare`` has it."""
    gpu = find_gpu(name)
    found = OnGpu(name, gpu.memory_bytes, bf16_tflops=gpu.bf16_tflops)
    if not there.estimated:
        return found._replace(refused=_first(there))
    found = found._replace(
        needed_bytes=there.needed_bytes,
        needed_low_bytes=there.needed_interval_bytes[0],
        needed_high_bytes=there.needed_interval_bytes[1],
        host_short=there.host_short,
    )
    if there.step is None or here.step is None:
        return found
    return found._replace(
        relative_speed=there.step.tokens_per_second_per_gpu / here.step.tokens_per_second_per_gpu,
        assumed=tuple(f"{a.key} = {a.value}: {a.why}" for a in there.step.assumptions),
    )
