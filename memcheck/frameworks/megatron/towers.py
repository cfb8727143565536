"""A frozen vision tower on Megatron's first stage, as mcore-bridge holds it.

Source: mcore-bridge 1.2 ``model/mm_gpt_model.py`` (MultimodalGPTModel: ``self.visual`` where ``pre_process``) and
``model/mm_gpts/utils.py`` (HuggingFaceVit: transformers' own modules in the model's dtype, whole on every tensor rank).
A batch of text alone sends one blank picture of a few patches through it, of which nothing but a sum is read.
"""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.rank_tensors import Holding, block_tensors
from memcheck.frameworks.torch.tower_tensors import idle_blocks
from memcheck.models.types import Architecture
from memcheck.remembered import lru_cache


@lru_cache(maxsize=16)
def idle_tower_tensors(a: Architecture) -> tuple[LocalTensor, ...]:
    """The frozen tensors of everything outside the language model."""
    found: list[LocalTensor] = []
    for block, n, _ in idle_blocks(a, sees=False):
        found += n * block_tensors(block, Holding(trained=False))
    return tuple(found)
