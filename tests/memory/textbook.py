"""The formulas of the papers and calculators, beside which the ledger's numbers can be read.

They are what people know, not what memcheck answers with: tests hold the ledger
to them where their assumptions are met (unfused attention, dropout, 16-bit activations).
"""

from __future__ import annotations

from memcheck.record import Record

GIB = 2**30


def layer_activations(
    tokens: int,
    batch: int,
    hidden: int,
    heads: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> int:
    """Activation bytes of one transformer layer with 16-bit activations and dropout.

    s b h (34 + 5 a s / h); tensor parallelism: s b h (10 + 24 / t + 5 a s / (h t)); with sequence parallelism all of it
    is divided by t; selective recompute drops the attention term; full recompute keeps 2 s b h.
    Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", table 2.
    For s 4,096, b 1, h 4,096: 34 s b h = 570,425,344 bytes.
    """
    sbh = tokens * batch * hidden
    attention = 5 * heads * tokens * tokens * batch
    if recompute == "full":
        return 2 * sbh
    if recompute == "selective":
        attention = 0
    if sequence_parallel:
        return (34 * sbh + attention) // tensor
    return 10 * sbh + (24 * sbh + attention) // tensor


class Total(Record):
    """A calculator's answer in bytes."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    overhead_percent: int = 10

    @property
    def total(self) -> int:
        """The sum with the flat overhead."""
        parts = self.parameters + self.gradients + self.optimizer + self.activations
        return parts * (100 + self.overhead_percent) // 100


def adam_training(parameters: int, activations: int, *, bytes_per_parameter: int = 2, state_bytes: int = 12) -> Total:
    """Weights and gradients in ``bytes_per_parameter``, ``state_bytes`` of Adam (fp32 master and two moments: 12).

    Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3.1
    (2 + 2 + 12 bytes per parameter), plus the 10 % that calculators add.
    """
    return Total(
        parameters=bytes_per_parameter * parameters,
        gradients=bytes_per_parameter * parameters,
        optimizer=state_bytes * parameters,
        activations=activations,
    )


def coarse_activations(layers: int, tokens: int, batch: int, hidden: int, heads: int, ffn: int) -> int:
    """layers x 2 x (b a s^2 + b s (6 h + f)): the estimate of web calculators without checkpointing.

    Llama-2-7B, batch 1, 4,096 tokens: 40.7 GiB.
    """
    return layers * 2 * (batch * heads * tokens * tokens + batch * tokens * (6 * hidden + ffn))


def kv_cache(layers: int, kv_heads: int, head_dim: int, tokens: int, batch: int, item: int) -> int:
    """2 x layers x kv_heads x head_dim x tokens x batch x bytes."""
    return 2 * layers * kv_heads * head_dim * tokens * batch * item


def multiplied_activations(
    batch: int, tokens: int, hidden: int, layers: int, multiplier: float, item: int, *, checkpointing: float = 1.0
) -> int:
    """b s h x layers x multiplier x bytes x checkpoint factor: what generic web forms ask for (multiplier 8 to 12)."""
    return int(batch * tokens * hidden * layers * multiplier * item * checkpointing)


def distributed_adam(parameters: int, ways: int) -> int:
    """Megatron's bf16 parameters and fp32 main gradients, master weights and moments over ``ways`` ranks: 6 + 12 / d.

    Megatron-LM ``docs/user-guide/features/dist_optimizer.md``.
    """
    return 6 * parameters + 12 * parameters // ways
