"""What torch.compile's partitioner keeps of a block: python -m tests.frameworks.torch.partitioned writes the recorded cases.

A Llama block as torchtitan writes it (one qkv matrix, complex rotary embedding, flash attention, SwiGLU), and its loss,
on fake tensors: dynamo, AOTAutograd with Inductor's decompositions, and the min-cut partitioner, whose forward graph
returns what backward will read.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("compiled_blocks.json")
SIZES = {
    "llama-3.1-8b": (4096, 14336, 32, 8),
    "llama-2-7b": (4096, 11008, 32, 32),
    "llama-3.2-1b": (2048, 8192, 32, 8),
    "llama-3.2-3b": (3072, 8192, 24, 8),
}
TOKENS = 2048
VOCABULARY = 32000


def partition(function: Any, arguments: list[Any]) -> list[tuple[str, int]]:
    """What the compiled forward keeps beside its inputs and its result: (operator, bytes) of each storage."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    kept: list[tuple[str, int]] = []

    def look(graph: Any, _: Any) -> Any:
        seen = {n.meta["val"].untyped_storage()._cdata for n in graph.graph.nodes if n.op == "placeholder"}
        outputs = next(n for n in graph.graph.nodes if n.op == "output").args[0]
        for node in outputs[1:]:
            value = node.meta["val"]
            storage = value.untyped_storage()._cdata
            if storage not in seen:
                seen.add(storage)
                kept.append((getattr(node.target, "__name__", str(node.target)).split(".")[0], value.nbytes))
        return graph

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=look,
        bw_compiler=lambda graph, _: graph,
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
    )
    torch.compile(function, backend=backend, fullgraph=True)(*arguments)
    return kept


def block(name: str, mode: str) -> list[tuple[str, int]]:
    """One block. ``mode``: ``none`` | ``selective`` (every other matrix product, and attention) | ``torchtune``."""
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.utils.checkpoint import checkpoint

    hidden, width, heads, kv_heads = SIZES[name]
    size = hidden // heads
    rows = (heads + 2 * kv_heads) * size
    forward = functools.partial(
        _torchtune if mode == "torchtune" else _forward, heads=heads, kv_heads=kv_heads, size=size
    )

    def run(*arguments: Any) -> Any:
        if mode != "selective":
            return forward(*arguments)
        return checkpoint(forward, *arguments, use_reentrant=False, context_fn=_contexts)

    with FakeTensorMode():
        shapes = [(1, TOKENS, hidden), (hidden,), (rows, hidden), (hidden, heads * size), (hidden,)]
        shapes += [(width, hidden), (width, hidden), (hidden, width)]
        tensors = [torch.empty(s, dtype=torch.bfloat16, requires_grad=True) for s in shapes]
        table = torch.empty(TOKENS, 1, size // 2, dtype=torch.complex64)
        return partition(run, [*tensors, table])


def _forward(x, *rest, heads, kv_heads, size):  # type: ignore[no-untyped-def]
    import torch
    from torch.nn import functional

    n1, wqkv, wo, n2, w1, w3, w2, table = rest

    def rotate(t):  # type: ignore[no-untyped-def]
        pairs = torch.view_as_complex(t.float().reshape(*t.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * table).flatten(-2).type_as(t)

    b, s, h = x.shape
    qkv = functional.linear(functional.rms_norm(x, (h,), n1, 1e-5), wqkv).view(b, s, kv_heads, -1, size)
    q, k, v = qkv.split((heads // kv_heads, 1, 1), dim=3)
    q, k, v = (t.reshape(b, s, -1, size).contiguous() for t in (q, k, v))
    q, k, v = (t.transpose(1, 2) for t in (rotate(q), rotate(k), v))
    attended = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[0]
    x = x + functional.linear(attended.transpose(1, 2).reshape(b, s, -1), wo)
    y = functional.rms_norm(x, (h,), n2, 1e-5)
    return x + functional.linear(functional.silu(functional.linear(y, w1)) * functional.linear(y, w3), w2)


def _torchtune(x, *rest, heads, kv_heads, size):  # type: ignore[no-untyped-def]
    """torchtune's layer: norms in pieces, rotation in fp32, keys and values copied to every head."""
    import torch
    from torch.nn import functional

    n1, wqkv, wo, n2, w1, w3, w2, table = rest
    cosine, sine = torch.view_as_real(table).unbind(-1)

    def norm(t, weight):  # type: ignore[no-untyped-def]
        wide = t.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(t) * weight

    def rotate(t):  # type: ignore[no-untyped-def]
        a, b = t.float().reshape(*t.shape[:-1], -1, 2).unbind(-1)
        return torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(3).type_as(t)

    b, s, _ = x.shape
    y = norm(x, n1)
    q, k, v = (
        functional.linear(y, w).view(b, s, -1, size)
        for w in wqkv.split((heads * size, kv_heads * size, kv_heads * size))
    )
    q, k, v = rotate(q).transpose(1, 2), rotate(k).transpose(1, 2), v.transpose(1, 2)
    k, v = (t.unsqueeze(2).expand(b, kv_heads, heads // kv_heads, s, size).flatten(1, 2) for t in (k, v))
    attended = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[0]
    h = functional.linear(attended.transpose(1, 2).contiguous().view(b, s, -1), wo) + x
    z = norm(h, n2)
    return h + functional.linear(functional.silu(functional.linear(z, w1)) * functional.linear(z, w3), w2)


_count: dict[bool, int] = {}


def _contexts() -> Any:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    _count.clear()
    return create_selective_checkpoint_contexts(_policy)


def _policy(ctx: Any, operator: Any, *_: Any, **__: Any) -> Any:
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    keeps = operator == torch.ops.aten._scaled_dot_product_flash_attention.default
    if operator == torch.ops.aten.mm.default:
        _count[ctx.is_recompute] = _count.get(ctx.is_recompute, 0) + 1
        keeps = _count[ctx.is_recompute] % 2 == 1
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def loss() -> list[tuple[str, int]]:
    """torchtitan's cross_entropy_loss."""
    import torch
    from torch._subclasses import FakeTensorMode

    def cross_entropy(logits, labels):  # type: ignore[no-untyped-def]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    with FakeTensorMode():
        logits = torch.empty(1, TOKENS, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
        return partition(cross_entropy, [logits, torch.empty(1, TOKENS, dtype=torch.long)])


def traced() -> dict[str, Any]:
    """Every case."""
    import torch

    cases = {f"{name}/{mode}": block(name, mode) for name in SIZES for mode in ("none", "selective")}
    cases["llama-3.2-3b/torchtune"] = block("llama-3.2-3b", "torchtune")
    return {"torch": torch.__version__.split("+")[0], "tokens": TOKENS, "blocks": cases, "loss": loss()}


if __name__ == "__main__":
    found = traced()
    lines = [f'  "{k}": {json.dumps(v)}' for k, v in found["blocks"].items()]
    DATA.write_text(
        f'{{\n "torch": "{found["torch"]}",\n "tokens": {TOKENS},\n "blocks": {{\n'
        + ",\n".join(lines)
        + f'\n }},\n "loss": {json.dumps(found["loss"])}\n}}\n'
    )
