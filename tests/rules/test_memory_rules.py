"""What is said about an estimate: one verdict, in the words of a budget."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import Estimate, HostMoment
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.plan.finding import Finding
from memcheck.plan.read import read_plan
from memcheck.rules.run import check_memory, make_context
from tests.rules.plans import document

GIB = 2**30
CAPACITY = 80 * GIB


def estimate(fraction: float, upper: float = 0.0, host: int = 0) -> Estimate:
    """An estimate that fills this fraction of 80 GiB."""
    device = int(fraction * CAPACITY)
    parts = {"activations": device * 3 // 5, "parameters": device // 4}
    parts["gradients"] = device - sum(parts.values())
    offloaded = (("optimizer_states", host * 3 // 4), ("gradients", host // 4))
    return Estimate(
        allocated_bytes=device,
        reserved_bytes=device,
        device_bytes=device,
        capacity_bytes=CAPACITY,
        interval_bytes=(0, 2 * CAPACITY),
        needed_interval_bytes=(int(device * 0.95), int((upper or fraction) * CAPACITY)),
        instant="backward",
        operation="softmax backward",
        pipeline_rank=1,
        components_bytes=parts,
        parameters=8,
        trainable_parameters=8,
        host_bytes_per_node=host,
        ranks=(),
        host_components=offloaded if host else (),
        host_moments=(HostMoment("step", "holding what is offloaded", offloaded),) if host else (),
    )


def findings(answer: Estimate, policy: str = "", parallelism: str = "", host: str = "") -> list[Finding]:
    """What the memory rules say with limits of 90 and 85 %."""
    source = document(parallelism, "framework: megatron, gradient_accumulation_steps: 8")
    assert isinstance(source.values, dict)
    values = {**source.values, "policy": {"waste_below": policy} if policy else {}}
    if host:
        values["hardware"] = {**values["hardware"], "host_memory_gib": int(host)}
    source = source._replace(values=values)
    plan, _ = read_plan(source)
    assert plan is not None
    context = make_context(plan, source, resolve(plan, FRAMEWORKS, base_dir="."), fail_above=0.9, warn_above=0.85)
    return check_memory(context._replace(estimate=answer))


@pytest.mark.parametrize(
    ("fraction", "upper", "codes"),
    [
        (0.5, 0.6, []),
        (0.85, 0.88, []),
        (0.86, 0.9, ["MEM103"]),
        (0.9, 0.9, ["MEM103"]),
        (0.84, 0.901, ["MEM104"]),
        (0.901, 0.95, ["MEM102"]),
        (1.0, 1.05, ["MEM102"]),
        (1.001, 1.1, ["MEM101"]),
        (12.0, 13.0, ["MEM101"]),
        (0.8, 1.01, ["MEM104"]),
        (0.88, 1.01, ["MEM103", "MEM104"]),  # of which a report shows the second
    ],
)
def test_one_verdict(fraction: float, upper: float, codes: list[str]) -> None:
    """Above capacity, above the limit, above the threshold, or an interval that crosses it: never two errors."""
    assert [f.code for f in findings(estimate(fraction, upper))] == codes


def test_the_message_is_the_budget() -> None:
    """The finding says what is needed of what, how much is missing, where and when, and what is largest."""
    (finding,) = findings(estimate(1.25), parallelism="pipeline: 2")
    assert finding.message == (
        "needs 100.00 GiB of the 80.00 GiB of h100-80gb (125.0%), 20.00 GiB too much; pipeline rank 1 of 2 peaks in "
        "backward (softmax backward); largest: activations 60.00 GiB and parameters 25.00 GiB"
    )
    assert finding.help


def test_the_finding_points_at_the_batch_when_activations_lead() -> None:
    """The primary place is a key that decides the largest part, the other keys are related."""
    (finding,) = findings(estimate(1.25), parallelism="tensor: 2")
    assert finding.pointer in {"/training/micro_batch_size", "/training/sequence_length"}
    assert {label for label, _ in finding.related} >= {"1 x 4096 = 4096 tokens"}


def test_the_finding_points_at_the_sharding_when_states_lead() -> None:
    """Where parameters, gradients and states are most of the peak, a degree is the place."""
    answer = estimate(1.25)._replace(components_bytes={"optimizer_states": 90 * GIB, "activations": 10 * GIB})
    (finding,) = findings(answer, parallelism="tensor: 2")
    assert finding.pointer == "/parallelism/tensor"


@pytest.mark.parametrize(("policy", "fraction", "codes"), [("", 0.1, []), ("40%", 0.39, ["MEM105"]), ("40%", 0.4, [])])
def test_waste_is_a_policy(policy: str, fraction: float, codes: list[str]) -> None:
    """Unused memory is mentioned only where the plan asks for it."""
    assert [f.code for f in findings(estimate(fraction), policy)] == codes


@pytest.mark.parametrize(("host", "codes"), [("", []), ("100", []), ("99", ["MEM106"])])
def test_host_memory(host: str, codes: list[str]) -> None:
    """A node's memory is compared with what is offloaded to it, where the plan states it."""
    found = findings(estimate(0.5, host=100 * GIB), host=host)
    assert [f.code for f in found] == codes
    assert all(f.message.endswith("; optimizer states 75.00 GiB and gradients 25.00 GiB") for f in found)


@pytest.mark.parametrize(
    ("job", "labels"),
    [
        ({"training": "expert_imbalance: 2.5"}, {"the busiest rank gets 2.5 x the mean"}),
        ({"inference": "batch_size: 8, context_length: 131072"}, {"8 x 131072 tokens in the cache"}),
    ],
)
def test_what_takes_part_is_labelled(job: dict[str, str], labels: set[str]) -> None:
    """Unbalanced experts and the size of a cache are named on their lines."""
    source = document(model="mixtral-8x7b", **job)
    plan, _ = read_plan(source)
    assert plan is not None
    context = make_context(plan, source, resolve(plan, FRAMEWORKS, base_dir="."), fail_above=0.9, warn_above=0.85)
    (finding,) = check_memory(context._replace(estimate=estimate(1.2)))
    assert labels <= {label for label, _ in finding.related}
