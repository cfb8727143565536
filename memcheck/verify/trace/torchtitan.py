"""Answers where torchtitan asks for a GPU, for values, or for shapes that fake tensors do not give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from memcheck.verify.trace.kernels import ROUTED
from memcheck.verify.trace.patch import patched


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Meshes on the CPU, and a perfectly balanced router."""
    from torchtitan.tools import utils

    with ExitStack() as stack:
        stack.enter_context(patched(utils, "device_type", "cpu"))
        stack.enter_context(patched(utils, "device_module", torch.cpu))
        from torchtitan.models.common import token_dispatcher  # this and much else take the device when imported

        dispatcher = getattr(token_dispatcher, "AllToAllTokenDispatcher", None)
        if dispatcher is not None:
            stack.enter_context(patched(dispatcher, "dispatch", _balanced(dispatcher.dispatch)))
        _value_heads()
        yield


def _balanced(dispatch: Any) -> Any:
    """The sizes that expert-parallel ranks exchange are values: every peer gets the same."""

    def run(self: Any, x: Any, scores: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
        ROUTED.each = ids.numel() // self.ep_mesh.size() if self.ep_mesh is not None else 0
        return dispatch(self, x, scores, ids, *args, **kwargs)

    return run


def _value_heads() -> None:
    """torch's fake kernel for packed sequences gives the output the queries' head size; with MLA it has the values'."""
    import torch.nn.attention.varlen  # registers the operator

    def fake(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        rows, heads = query.shape[:2]
        return (
            query.new_empty(rows, heads, value.shape[-1]),
            query.new_empty(heads, rows, dtype=torch.float32),
            query.new_empty(2, dtype=torch.uint64),
        )

    torch.library.register_fake("torch_attn::_varlen_attn", fake, allow_override=True)
