"""In which order an optimizer that loops over parameters finds them: what it updated last still has its quotient."""

import pytest

from benchmarks.added import added
from benchmarks.families import plans
from memcheck.families.registry import read_architecture
from memcheck.models.parameters import block_tensors

EXPERTS_FIRST = ("axk1", "bailing_hybrid", "dots1", "lfm2_moe", "mellum", "solar_open")
OUTPUT_FIRST = "phi3"
"""Its attention makes the output's matrix before that of its inputs, and a forward pass finds them by their number."""
ROUTER_FIRST = ("granitemoeshared", "cohere2_moe", "deepseek_v4", "qwen3_5_moe_text")


def names(kind: str, layer: int = -1) -> list[str]:
    """The tensors of one of its blocks, in the order in which the model has them."""
    return [t.name for t in block_tensors(read_architecture(added()[kind]["config"]).blocks[layer][0])]


@pytest.mark.parametrize("kind", [*EXPERTS_FIRST, *ROUTER_FIRST])
def test_experts_before_their_router(kind: str) -> None:
    """DeepSeek's kin makes its experts before their router; Mixtral's kin behind it."""
    found = names(kind)
    router = next(i for i, n in enumerate(found) if ".gate.weight" in n or ".router." in n)
    experts = next(i for i, n in enumerate(found) if "experts.gate_up_proj" in n)
    assert (experts < router) is (kind in EXPERTS_FIRST)


def test_parameters_of_a_module_before_those_of_its_children() -> None:
    """A_log, dt_bias and D stand before every matrix of a Mamba 2, sinks before projections."""
    assert names("mamba2", 0)[:4] == ["mixer.dt_bias", "mixer.A_log", "mixer.D", "mixer.conv1d.weight"]
    assert names("qwen3_5_moe_text", 0)[4] == "linear_attn.out_proj.weight"
    assert names("mimo_v2_flash", 1)[0] == "self_attn.sinks"


@pytest.mark.torch
@pytest.mark.slow
def test_loops_are_never_too_low() -> None:
    """For every family's own model, a loop over its parameters takes no more than is said."""
    torch = pytest.importorskip("torch")
    from benchmarks.asked import request_of
    from memcheck.accounts.ranks import Part
    from memcheck.accounts.state import LocalTensor
    from memcheck.frameworks.torch.rank_units import part_units
    from memcheck.frameworks.torch.resident import step_temporaries
    from memcheck.verify.build.model import build_model

    def loop(shapes: list[tuple[int, ...]]) -> int:
        tensors = [LocalTensor("", shape, trained=True) for shape in shapes]
        return step_temporaries([(t, t.numel) for t in tensors], "adamw", "for-loop", "fp32")

    seen: set[str] = set()
    low: dict[str, tuple[int, int]] = {}
    for name, plan in plans().items():
        kind = name.partition(",")[0]
        if kind in seen or "lora" in name or plan.get("parallelism") or kind.startswith(OUTPUT_FIRST):
            continue
        seen.add(kind)
        request = request_of(name, plan)
        job, architecture = request.job, request.architecture
        with torch.device("meta"):
            model = build_model(job, architecture, request.config)
        layers = sum(times for _, times in architecture.blocks)
        units = part_units(job, architecture, Part(first_layer=0, end_layer=layers, has_embedding=True, has_head=True))
        said = loop([t.shape for unit in units for t in unit.tensors])
        built = loop([tuple(p.shape) for p in model.parameters()])
        if said < built:
            low[kind] = (said, built)
    assert not low
