"""Synthetic accidents: a plan with one wrong number, and the message with which the run then dies.

``python -m benchmarks.accidents`` estimates each plan once as it is stated and once as it really ran. The message has
the engine's own figures of the real run: what is live at its peak, and the tensor that is made there. The GPU is as
large as the stated plan needs and the real run lacks. The explanation has to name the wrong number. ``--show`` prints
every answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from memcheck.accounts.estimate import Estimate, Instant
from memcheck.accounts.state import segment_size
from memcheck.plan.read import load_documents
from memcheck.record import Record
from memcheck.verify.subject import Subject, changed, load_subject
from memcheck.why.causes import explain
from memcheck.why.explained import Cause
from memcheck.why.log import read_log
from memcheck.why.readings import growth

GIB, MIB = 2**30, 2**20
CONTEXT = 600 * MIB

FRAMES: dict[str, tuple[str, ...]] = {
    "forward": (
        "outputs = model(**inputs)",
        "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))",
    ),
    "attention": ("outputs = model(**inputs)", "attn_weights = torch.matmul(query_states, key_states.transpose(2, 3))"),
    "loss": ("loss = self.compute_loss(model, inputs)", "loss = nn.functional.cross_entropy(source, target)"),
    "backward": ("loss.backward()", "Variable._execution_engine.run_backward("),
    "optimizer": ("optimizer.step()", "device_exp_avgs = torch._foreach_mul(exp_avgs, beta1)"),
    "load": ("model = AutoModelForCausalLM.from_pretrained(name)", "new_value = value.to(device)"),
    "save": ("self._save_checkpoint(model, trial)", "state_dict = get_model_state_dict(model, options=full)"),
    "evaluation": ("metrics = self.evaluate(ignore_keys=keys)", "logits = nested_concat(logits, new_logits)"),
}
"""Lines of the traceback by the phase in which a run dies, the innermost last."""
PLACES = {
    "forward": "transformers/models/llama/modeling_llama.py",
    "attention": "transformers/models/llama/modeling_llama.py",
    "loss": "transformers/loss/loss_utils.py",
    "backward": "torch/autograd/graph.py",
    "optimizer": "torch/optim/adamw.py",
    "load": "transformers/modeling_utils.py",
    "save": "transformers/trainer.py",
    "evaluation": "transformers/trainer.py",
}
FUNCTIONS = {
    "evaluation": "evaluation_loop",
    "save": "_save_checkpoint",
    "load": "from_pretrained",
    "optimizer": "step",
}


def base(
    model: str,
    *,
    gpus: int = 1,
    framework: str = "pytorch",
    parallelism: Mapping[str, Any] | None = None,
    **training: Any,
) -> dict[str, Any]:
    """A plan without its GPU's memory."""
    return {
        "memcheck": 1,
        "model": model,
        "hardware": {"gpu": {"name": "accident", "memory_gib": 4000}, "gpus_per_node": gpus},
        "parallelism": dict(parallelism or {}),
        "training": {
            "framework": framework,
            "micro_batch_size": 1,
            "sequence_length": 4096,
            "precision": "bf16-mixed",
            "gradient_accumulation_steps": 1,
            **training,
        },
    }


SHARDED: dict[str, Any] = {"zero_stage": 3}
BASES: dict[str, dict[str, Any]] = {
    "one": base("llama-3.2-1b", micro_batch_size=2, sequence_length=2048),
    "gpt": base("gpt2-xl", micro_batch_size=2, sequence_length=1024),
    "seven": base("qwen2.5-7b", gpus=8, parallelism=SHARDED, activation_checkpointing="full"),
    "trainer": base(
        "llama-3.1-8b", gpus=8, framework="huggingface", parallelism=SHARDED, activation_checkpointing="full"
    ),
    "fused": base(
        "qwen2.5-7b",
        gpus=8,
        framework="huggingface",
        parallelism=SHARDED,
        activation_checkpointing="full",
        loss="fused-linear",
        sequence_length=16384,
    ),
    "liger": base("llama-3.2-1b", framework="huggingface", loss="fused-linear", sequence_length=8192),
    "short": base(
        "qwen2.5-7b",
        gpus=8,
        framework="huggingface",
        parallelism=SHARDED,
        activation_checkpointing="full",
        loss="fused-linear",
    ),
    "long": base(
        "llama-3.1-8b",
        gpus=8,
        framework="huggingface",
        parallelism=SHARDED,
        activation_checkpointing="full",
        sequence_length=16384,
    ),
    "steps": base(
        "llama-3.1-8b", gpus=8, parallelism=SHARDED, activation_checkpointing="full", gradient_accumulation_steps=4
    ),
    "experts": base(
        "qwen3-30b-a3b",
        gpus=8,
        framework="torchtitan",
        parallelism={"zero_stage": 3, "expert": 8},
        activation_checkpointing="selective",
        loss={"kind": "chunked", "chunks": 8},
        sequence_length=4096,
    ),
}


class Accident(Record):
    """A stated plan, what was wrong with it, and how the run dies."""

    kind: str
    """The cause that has to be named; empty where none may be called likely."""
    base: str
    changes: Mapping[str, Any] = MappingProxyType({})
    """Of the plan, to what really ran."""
    phase: str = ""
    """Lines of the traceback; empty: those of the instant of the peak."""


def _t(key: str, value: Any) -> dict[str, Any]:
    return {f"training.{key}": value}


EVALUATION = {"micro_batch_size": 8, "logits": "kept", "steps": 4}
ACCIDENTS: tuple[Accident, ...] = (
    Accident("larger-micro-batch", "one", _t("micro_batch_size", 8)),
    Accident("larger-micro-batch", "seven", _t("micro_batch_size", 6)),
    Accident("larger-micro-batch", "gpt", _t("micro_batch_size", 8)),
    Accident("longer-sequence", "one", _t("sequence_length", 5632)),
    Accident("longer-sequence", "seven", _t("sequence_length", 18560)),
    Accident("longer-sequence", "trainer", _t("sequence_length", 9600)),
    Accident("more-tokens", "seven", _t("sequence_length", 9273)),
    Accident("more-tokens", "trainer", _t("sequence_length", 21461)),
    Accident("logits-kept", "fused", _t("loss", "standard")),
    Accident("logits-kept", "fused", _t("loss", "standard"), "loss"),
    Accident("logits-kept", "liger", _t("loss", "standard")),
    Accident("eager-attention", "one", _t("attention", "eager"), "attention"),
    Accident("eager-attention", "gpt", _t("attention", "eager"), "attention"),
    Accident("eager-attention", "long", _t("attention", "eager"), "attention"),
    Accident("recompute-off", "seven", _t("activation_checkpointing", "none")),
    Accident("recompute-off", "steps", _t("activation_checkpointing", "none"), "forward"),
    Accident("recompute-off", "fused", _t("activation_checkpointing", "none"), "forward"),
    Accident("not-sharded", "seven", {"parallelism.zero_stage": 0}),
    Accident("not-sharded", "steps", {"parallelism.zero_stage": 0}),
    Accident("not-sharded", "fused", {"parallelism.zero_stage": 0}),
    Accident("gradients-not-synchronised", "steps", {"parallelism.gradient_sync": "last"}),
    Accident("imbalance", "experts", _t("expert_imbalance", 4.0)),
    Accident("imbalance", "experts", _t("expert_imbalance", 6.0)),
    Accident("evaluation", "trainer", _t("evaluation", EVALUATION)),
    Accident("evaluation", "long", _t("evaluation", EVALUATION)),
    Accident("evaluation", "trainer", _t("evaluation", {**EVALUATION, "steps": 2, "micro_batch_size": 16})),
    Accident("save", "trainer", _t("checkpoint", {"state_dict": "full", "offload": "none"})),
    Accident("save", "fused", _t("checkpoint", {"state_dict": "full", "offload": "none"})),
    Accident("load", "short", _t("initialization", {"place": "device", "weights": "fp32"})),
    Accident("load", "trainer", _t("initialization", {"place": "device", "weights": "fp32"})),
    Accident("leak", "one"),
    Accident("leak", "seven"),
    Accident("leak", "trainer"),
    Accident("fragmentation", "one"),
    Accident("fragmentation", "trainer"),
    Accident("fragmentation", "gpt"),
    Accident("other-process", "one"),
    Accident("other-process", "seven"),
    Accident("smaller-card", "trainer"),
    Accident("smaller-card", "one"),
)
"""One wrong number each."""

TWICE: tuple[Accident, ...] = (
    Accident("", "one", {**_t("micro_batch_size", 4), **_t("attention", "eager")}, "backward"),
    Accident("", "seven", {**_t("activation_checkpointing", "none"), **_t("sequence_length", 6144)}),
    Accident("", "trainer", {**_t("micro_batch_size", 3), "parallelism.zero_stage": 0}),
    Accident("", "steps", {"parallelism.gradient_sync": "last", **_t("activation_checkpointing", "none")}),
    Accident("", "fused", {**_t("loss", "standard"), **_t("activation_checkpointing", "none")}),
    Accident("", "seven", _t("precision", "fp32")),
    Accident("", "trainer", {**_t("precision", "fp32"), **_t("micro_batch_size", 2)}),
    Accident("", "experts", {**_t("expert_imbalance", 2.0), "parallelism.zero_stage": 1, "parallelism.expert": 1}),
    Accident("", "gpt", {**_t("micro_batch_size", 3), **_t("precision", "fp32")}),
    Accident("", "steps", {"parallelism.shard_group": 2, **_t("sequence_length", 6144)}),
)
"""Two wrong numbers, or one that is in no list: no single one may be called likely."""


class Made(Record):
    """A stated plan and the evidence of an accident."""

    plan: dict[str, Any]
    log: bytes


def loaded(plan: Mapping[str, Any]) -> Subject:
    """A plan with its estimate."""
    (document,) = load_documents("plan.yaml", json.dumps(plan).encode())
    found = load_subject(document)
    if not isinstance(found, Subject):
        raise TypeError([f.message for f in found.findings])
    return found


def moment(estimate: Estimate, phase: str) -> Instant:
    """The highest moment of the phase in which a run dies; that of the whole run where none is given."""
    rank = next(r for r in estimate.ranks if r.pipeline_rank == estimate.pipeline_rank)
    name = "forward" if phase == "attention" else phase
    return next((i for i in rank.instants if i.name == name), rank.peak)


def failing_tensor(estimate: Estimate, phase: str = "") -> int:
    """Bytes of the tensor that is made at that moment: the one that the operation names, else the largest there is."""
    ledger = next(r for r in estimate.ranks if r.pipeline_rank == estimate.pipeline_rank).ledger
    name = "softmax" if phase == "attention" else moment(estimate, phase).operation.rpartition(" in ")[0]
    rows = [(row, row.bytes // row.copies) for row in ledger if row.copies]
    made = [size for row, size in rows if row.name == name]
    saved = [size for row, size in rows if row.component == "activations"] if phase == "forward" else []
    kept = [size for row, size in rows if row.component == "parameters"]
    return max(made, default=0) or max(saved, default=0) or max(kept, default=64 * MIB)


def make(accident: Accident) -> Made:
    """The stated plan on a GPU that it fits, and the log of a run that dies there."""
    plan = BASES[accident.base]
    stated = loaded(plan)
    run = loaded(dict(changed(stated.document, accident.changes).values)) if accident.changes else stated  # type: ignore[call-overload]
    shape = _SHAPES.get(accident.kind, _dies_at_its_peak)
    memory, message = shape(stated.estimate, run.estimate, accident.phase)
    phase = accident.phase or run.estimate.instant
    phase = "leak" if accident.kind == "leak" else phase if phase in FRAMES else "forward"
    hardware = {**plan["hardware"], "gpu": {"name": "accident", "memory_gib": round(memory / GIB, 2)}}
    lines = [] if phase == "leak" else _traceback(phase)
    before = _steps(stated.estimate) if phase == "leak" else []
    return Made({**plan, "hardware": hardware}, "\n".join([*before, *lines, message]).encode())


def _traceback(phase: str) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for number, line in enumerate(FRAMES[phase]):
        place, function = ("train.py", "main") if not number else (PLACES[phase], FUNCTIONS.get(phase, "forward"))
        lines += [f'  File "{place}", line {80 + number}, in {function}', f"    {line}"]
    return lines


def _steps(estimate: Estimate) -> list[str]:
    """Steps of torchtitan's log, each a little higher."""
    start = estimate.reserved_bytes / GIB
    return [f"step: {n * 10}  loss: 2.{n:04}  memory: {start + n * 0.4:.2f}GiB(55.00%)" for n in range(1, 9)]


def printed(count: int) -> str:
    """A size as torch prints it (``c10/util/StringUtil.cpp``, ``format_size``)."""
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{count / MIB:.2f} MiB"


def out_of_memory(total: int, allocated: int, unused: int, tried: int, free: int, other: int = 0) -> str:
    """The error of torch 2.6."""
    own = allocated + unused + CONTEXT
    others = f"Process 4711 has {printed(other)} memory in use. " if other else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {printed(tried)}. GPU 0 has a total capacity "
        f"of {printed(total)} of which {printed(free)} is free. {others}Including non-PyTorch memory, this process has "
        f"{printed(own)} memory in use. Of the allocated memory {printed(allocated)} is allocated by PyTorch, and "
        f"{printed(unused)} is reserved by PyTorch but unallocated."
    )


def _dies_at_its_peak(stated: Estimate, run: Estimate, phase: str) -> tuple[int, str]:
    tensor = failing_tensor(run, phase)
    tried = segment_size(tensor)
    allocated = moment(run, phase).allocated_bytes - tensor
    unused, free = max(32 * MIB, allocated // 60), tried // 2
    total = allocated + unused + CONTEXT + free
    return total, out_of_memory(total, allocated, unused, tried, free)


def _leaks(stated: Estimate, run: Estimate, phase: str) -> tuple[int, str]:
    total = stated.needed_interval_bytes[1] + 6 * GIB
    tried, free = 128 * MIB, 90 * MIB
    unused = 200 * MIB
    return total, out_of_memory(total, total - CONTEXT - unused - free, unused, tried, free)


def _in_pieces(stated: Estimate, run: Estimate, phase: str) -> tuple[int, str]:
    tensor = failing_tensor(stated)
    tried = segment_size(tensor)
    allocated, unused, free = stated.allocated_bytes - tensor, tried + tried // 3, tried // 3
    total = max(allocated + unused + CONTEXT + free, stated.needed_interval_bytes[1] + 64 * MIB)
    return total, out_of_memory(total, allocated, total - allocated - CONTEXT - free, tried, free)


def _with_another(stated: Estimate, run: Estimate, phase: str) -> tuple[int, str]:
    tensor = failing_tensor(stated)
    tried = segment_size(tensor)
    total = stated.needed_interval_bytes[1] + 12 * GIB
    allocated, unused, free = stated.allocated_bytes - tensor, 300 * MIB, tried // 2
    return total, out_of_memory(total, allocated, unused, tried, free, total - allocated - unused - free - CONTEXT)


def _on_less(stated: Estimate, run: Estimate, phase: str) -> tuple[int, str]:
    tensor = failing_tensor(stated)
    tried = segment_size(tensor)
    allocated, unused, free = stated.allocated_bytes - tensor, 300 * MIB, tried // 3
    total = allocated + unused + CONTEXT + free
    return 2 * stated.needed_interval_bytes[1], out_of_memory(total, allocated, unused, tried, free)


_SHAPES = {
    "leak": _leaks,
    "fragmentation": _in_pieces,
    "other-process": _with_another,
    "smaller-card": _on_less,
}
"""How the figures follow for what no other plan explains."""


def causes(accident: Accident) -> tuple[Cause, ...]:
    """What the explanation names, the likeliest first."""
    made = make(accident)
    message = read_log(made.log).first
    if message is None:
        return ()
    return explain(loaded(made.plan).document, message, growth(made.log.decode())).causes


def main() -> None:
    """Print the scores."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--show", action="store_true")
    shows = ask.parse_args().show
    first = 0
    for accident in ACCIDENTS:
        found = causes(accident)
        first += bool(found) and found[0].id == accident.kind
        if shows or not found or found[0].id != accident.kind:
            print(accident.kind, accident.base, [(c.id, c.certainty) for c in found][:4])
    likely = 0
    for accident in TWICE:
        found = causes(accident)
        wrong = [c.id for c in found if c.certainty == "likely"]
        likely += bool(wrong)
        if shows or wrong:
            print("two wrong numbers", accident.base, accident.changes, [(c.id, c.certainty) for c in found][:3])
    print(f"{first} of {len(ACCIDENTS)} ranked first; {likely} of {len(TWICE)} with two wrong numbers called likely")


if __name__ == "__main__":
    main()
