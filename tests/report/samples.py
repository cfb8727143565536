"""Hand-made results: rendering is a pure function of these records."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, Formula, Instant, RankEstimate, TensorGroup
from memcheck.job.types import Assumption
from memcheck.plan.finding import OTHER_HARDWARE, SAME_RESULT, Edit, Finding, Location, Remedy, Span
from memcheck.rules.result import PlanResult, Report, Unreadable

GIB = 2**30

SOURCE = """\
memcheck: 1
name: llama-3.1-8b-docs-sft
model: llama-3.1-8b
hardware:
  gpu: a100-40gb
  gpus_per_node: 4
parallelism:
  tensor: 4
training:
  framework: megatron
  micro_batch_size: 4
  sequence_length: 8192
  gradient_accumulation_steps: 1
  precision: bf16-mixed
  optimizer: adamw
  activation_checkpointing: none
"""
PATH = "plans/llama-3.1-8b-docs-sft.yaml"


def at(line: int, column: int, end_column: int, path: str = PATH, note: str = "", end_line: int = 0) -> Location:
    """A location on one line (or up to ``end_line``)."""
    return Location(path, Span(line, column, end_line or line, end_column), note)


def estimate(device: float = 54.31, capacity: float = 39.38, ranks: int = 1) -> Estimate:
    """An estimate whose components add up to ``device`` GiB."""
    shares = {
        "parameters": 0.07,
        "gradients": 0.14,
        "optimizer_states": 0.14,
        "master_weights": 0.07,
        "activations": 0.45,
        "logits_and_loss": 0.08,
        "communication_buffers": 0.01,
    }
    total = int(device * GIB)
    components = {name: int(total * share) for name, share in shares.items()}
    components["context_and_nccl"] = total - sum(components.values())
    allocated = total - components["context_and_nccl"]
    instants = tuple(
        Instant(name, operation, int(allocated * share), {})
        for name, operation, share in (
            ("init", "init", 0.42),
            ("forward", "layer 31 forward", 0.93),
            ("loss", "cross-entropy in fp32", 0.98),
            ("backward", "softmax backward of layer 31", 1.0),
            ("optimizer", "foreach temporaries", 0.56),
        )
    )
    largest = (
        TensorGroup("mlp.act_fn(gate) * up", "[4, 8192, 3584] bf16", 32, int(7.0 * GIB), "activations"),
        TensorGroup("exp_avg", "[2007567360] fp32", 1, int(3.74 * GIB), "optimizer_states"),
        TensorGroup("main_grad", "[2007567360] fp32", 1, int(7.48 * GIB), "gradients"),
    )
    return Estimate(
        allocated_bytes=allocated,
        reserved_bytes=allocated + GIB // 2,
        device_bytes=total,
        capacity_bytes=int(capacity * GIB),
        interval_bytes=(int(total * 0.98), int(total * 1.02)),
        needed_interval_bytes=(int(total * 0.98), int(total * 1.02)),
        instant="backward",
        operation="softmax backward of layer 31",
        pipeline_rank=0,
        components_bytes=components,
        parameters=8030261248,
        trainable_parameters=8030261248,
        host_bytes_per_node=0,
        ranks=tuple(RankEstimate(rank, instants, 2007567360, largest) for rank in range(ranks)),
        largest=largest,
        formulas=(
            Formula("parameters", "2 bytes x N / tensor", "2 x 8,030,261,248 / 4", 4015130624, "Megatron-LM"),
            Formula(
                "activations", "sum of tensors kept for backward", "32 layers x 0.76 GiB", components["activations"], ""
            ),
        ),
    )


ASSUMPTIONS = (
    Assumption("hardware.nodes", 1, "default"),
    Assumption("parallelism.sequence", True, "default of megatron when tensor > 1"),
    Assumption("training.attention", "flash", "default of megatron"),
    Assumption("training.loss", "standard", "default of megatron"),
    Assumption("training.clip_grad_norm", True, "default of megatron"),
)

REMEDIES = (
    Remedy(
        "Recompute every layer's activations in backward",
        {"training.activation_checkpointing": "full"},
        int(31.2 * GIB),
        31.2 / 39.38,
        0.31,
        True,
        SAME_RESULT,
        (Edit(Span(16, 29, 16, 33), "full"),),
    ),
    Remedy(
        "Smaller micro-batches, more of them",
        {"training.micro_batch_size": 1, "training.gradient_accumulation_steps": 4},
        int(28.1 * GIB),
        28.1 / 39.38,
        0.06,
        True,
        SAME_RESULT,
    ),
    Remedy("A larger GPU", {"hardware.gpu": "h100-80gb"}, int(54.5 * GIB), 54.5 / 79.1, -0.4, False, OTHER_HARDWARE),
)


def over() -> Finding:
    """The finding of a plan that does not fit."""
    return Finding(
        "MEM101",
        "exceeds-capacity",
        "error",
        "needs 54.31 GiB per GPU, 14.93 GiB more than an a100-40gb has (39.38 GiB)",
        at(11, 3, 22),
        "/training/micro_batch_size",
        "full recompute is the cheapest change that makes it fit",
        (("39.38 GiB usable of 40 GB", at(5, 8, 17)), ("activations grow with this", at(12, 20, 24))),
        (),
        REMEDIES,
    )


def result(status: str = "passed", findings: tuple[Finding, ...] = (), **changes: object) -> PlanResult:
    """One plan's result."""
    base = PlanResult(
        path=PATH,
        document=0,
        name="llama-3.1-8b-docs-sft",
        status=status,
        estimate=estimate(28.1),
        assumptions=ASSUMPTIONS,
        findings=findings,
        sources={PATH: tuple(SOURCE.splitlines())},
        values={
            "hardware": {"gpu": "a100-40gb"},
            "training": {"micro_batch_size": 4, "gradient_accumulation_steps": 1, "activation_checkpointing": "none"},
        },
        model="llama-3.1-8b",
        gpu="a100-40gb",
        gpus=4,
        framework="megatron",
        fail_above=0.9,
    )
    return base._replace(**changes)  # type: ignore[arg-type]


def broken() -> PlanResult:
    """A plan that could not be estimated."""
    finding = Finding(
        "MEM010",
        "unknown-key",
        "error",
        "unknown key `micro_batchsize` in training; did you mean `micro_batch_size`?",
        at(11, 3, 18),
        "/training/micro_batchsize",
    )
    return result("error", (finding,), estimate=None, assumptions=(), name="broken")


def report(*plans: PlanResult, unreadable: tuple[Unreadable, ...] = ()) -> Report:
    """A run over these plans."""
    return Report("0.1.0", plans, unreadable)


EVIL = "a\"b<c>&'d]]>\x1b[31m\x00\ud800\ufffe\n\t=1+1 [x](http://evil) ::error::"
"""What must not get out of a report as it is: markup, escapes, characters that no XML may hold, links, commands."""


def evil() -> Report:
    """A plan whose author put that wherever text can be put, and a path of that name that cannot be read."""
    where = at(11, 3, 22, path=EVIL, note=EVIL)
    edit = Edit(Span(11, 3, 11, 22), EVIL)
    remedy = REMEDIES[0]._replace(title=EVIL, set={"training.loss": EVIL}, edits=(edit,))
    finding = over()._replace(message=EVIL, help=EVIL, location=where, related=((EVIL, where),), fix=(edit,))
    sources = {EVIL: tuple(SOURCE.splitlines())}
    plan = result("failed", (finding._replace(remedies=(remedy,)),), path=EVIL, name=EVIL, sources=sources, gpu=EVIL)
    return report(plan, result(path=EVIL, name=EVIL, gpu=EVIL), unreadable=(Unreadable(EVIL, EVIL),))


def mixed() -> Report:
    """One plan of each kind."""
    warning = Finding("MEM203", "tensor-across-nodes", "warning", "tensor: 16 spans 2 nodes of 8 GPUs", at(8, 11, 12))
    return report(
        result(),
        result("failed", (over(),), estimate=estimate()),
        result("passed", (warning,), estimate=estimate(34.0), name="second"),
        broken(),
    )
