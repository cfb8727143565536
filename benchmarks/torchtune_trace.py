"""Trace steps of torchtune's own models: python -m benchmarks.torchtune_trace [--only REGEX].

Needs the extra ``verify`` and torchtune. Each record of ``data/torchtune.json`` is a plan. torchtune's builder makes
the model on fake tensors, its checkpointing and its losses are the recipes', and three steps are followed as ``memcheck
verify`` follows them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from benchmarks.base_trace import followed, subject_of, trace_again
from benchmarks.torchtune_steps import distillation_step, preference_step

LLAMA_2_POSITIONS = 4096
NAMES = {"o_proj": "output_proj"}


def main() -> int:
    """Trace the recorded cases again, and write what was seen."""
    return trace_again("torchtune.json", ("torchtune", "torch"), traced, __doc__)


def traced(plan: dict[str, Any]) -> dict[str, int]:
    """The highest bytes of each instant of one plan's step."""
    import torch

    from memcheck.verify.build.step import StepParts
    from memcheck.verify.trace.tracer import Tracer
    from memcheck.verify.trace.world import fake_tensors

    subject = subject_of(plan)
    job = subject.job
    loss_of = _loss(job.loss.kind)
    with fake_tensors():
        tracer = Tracer(lambda: False, lambda *_: None, in_place=True)
        torch.set_default_dtype(torch.bfloat16)  # as the recipes do while they make a model
        try:
            model = _model(job)
        finally:
            torch.set_default_dtype(torch.float32)
        model.train()
        if job.objective.name != "dpo":
            loss_of.set_model_output(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, fused=True)
        shape = (job.micro_batch_size * job.objective.rows, job.sequence_length)
        ids, labels = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        others = [_other(companion, job) for companion in job.companions]
        for each in (model, *others):
            each.norm.register_forward_hook(lambda *_: setattr(tracer, "phase", "loss"))

        def plain_step() -> None:
            tracer.phase = "forward"
            outputs = model(tokens=ids)
            loss = loss_of(outputs, labels)
            del outputs
            tracer.phase = "backward"
            loss.backward()
            del loss
            tracer.phase = "optimizer"
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step = plain_step
        if job.objective.name == "dpo":
            step = preference_step(model, next(iter(others), None), tracer, optimizer, (ids, labels))
        elif job.objective.name == "distill":
            both = (loss_of, _divergence(job.objective.beta))
            others[0].set_num_output_chunks(loss_of.num_output_chunks)
            step = distillation_step(model, others[0], tracer, optimizer, both, (ids, labels))
        parts = StepParts(
            model=model, inner=model, optimizers=[optimizer], inputs=[ids, labels], received=list, step=step
        )
        return followed(parts, tracer, [p for other in others for p in (*other.parameters(), *other.buffers())])


def _other(companion: Any, job: Any) -> Any:
    """A reference or a teacher: frozen, without checkpointing."""
    import torch

    plain = job._replace(architecture=companion.architecture, lora=None)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = _model(plain._replace(checkpointing=job.checkpointing._replace(mode="none")))
    finally:
        torch.set_default_dtype(torch.float32)
    return model.eval().requires_grad_(requires_grad=False)


def _divergence(beta: float) -> Any:
    from torchtune.modules import loss

    if beta in (0, 1):
        return loss.ReverseKLWithChunkedOutputLoss() if beta else loss.ForwardKLWithChunkedOutputLoss()
    return loss.SymmetricKLWithChunkedOutputLoss(sym_kd_ratio=1 - beta)


def _loss(kind: str) -> Any:
    import torch
    from torchtune.modules.loss import CEWithChunkedOutputLoss, LinearCrossEntropyLoss

    choose = torch.where

    def where(condition: torch.Tensor, *others: Any) -> Any:  # no label is ignored, which fake tensors do not know
        return choose(condition, *others) if others else (torch.arange(condition.numel()),)

    torch.where = where
    return LinearCrossEntropyLoss() if kind == "fused-linear" else CEWithChunkedOutputLoss()


def _model(job: Any) -> Any:
    """torchtune's model of a plan's architecture, its adapters the only trained tensors, its layers checkpointed."""
    from torchtune.modules import TransformerSelfAttentionLayer
    from torchtune.training import set_activation_checkpointing

    architecture = job.architecture
    block, layers = architecture.blocks[0]
    attention = block.mixer
    family = architecture.model_type
    if family == "llama":
        family = "llama2" if architecture.max_position_embeddings <= LLAMA_2_POSITIONS else "llama3"
    sizes: dict[str, Any] = {
        "vocab_size": architecture.vocab_size,
        "num_layers": layers * len(architecture.blocks),
        "num_heads": attention.heads,
        "num_kv_heads": attention.kv_heads,
        "embed_dim": architecture.hidden_size,
        "intermediate_dim": block.mlp.width,
        "max_seq_len": architecture.max_position_embeddings,
    }
    if family in ("gemma", "gemma2", "qwen3"):
        sizes["head_dim"] = attention.head_dim
    if family == "gemma2":
        sizes["sliding_window_size"] = job.sequence_length // 2
    if family == "qwen3":
        sizes |= {"q_norm": True, "k_norm": True, **{f"{name}_proj_bias": False for name in "qkv"}}
    if family in ("qwen2", "qwen3"):
        sizes |= {"tie_word_embeddings": architecture.tie_word_embeddings, "rope_base": 1_000_000}
    if job.lora is not None:
        targets = [NAMES.get(name, name) for name in job.lora.target_modules]
        of_attention = [name for name in targets if name.endswith("_proj") and name[0] in "qkvo"]
        sizes |= {"lora_rank": job.lora.rank, "lora_alpha": 2 * job.lora.rank}
        sizes |= {"lora_attn_modules": of_attention, "apply_lora_to_mlp": "gate_proj" in targets}
    prefix = "lora_" if job.lora is not None else ""
    builder = getattr(import_module(f"torchtune.models.{family}._component_builders"), prefix + family)
    model = builder(**sizes)
    if job.lora is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
    if job.checkpointing.mode == "full":
        set_activation_checkpointing(model, auto_wrap_policy={TransformerSelfAttentionLayer})
    return model


if __name__ == "__main__":
    sys.exit(main())
