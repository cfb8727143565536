"""The timing of every framework, apart from their profiles, which a check reads without it."""

from __future__ import annotations

from memcheck.frameworks.deepspeed.timing import TIMING as DEEPSPEED
from memcheck.frameworks.litgpt.timing import TIMING as LITGPT
from memcheck.frameworks.megatron.timing import TIMING as MEGATRON
from memcheck.frameworks.timing import Timing
from memcheck.frameworks.torch.timing import TIMING as PYTORCH
from memcheck.frameworks.torchtitan.timing import TIMING as TORCHTITAN
from memcheck.frameworks.torchtune.timing import TIMING as TORCHTUNE
from memcheck.frameworks.transformers.timing import TIMING as HUGGINGFACE

TIMINGS: dict[str, Timing] = {
    "huggingface": HUGGINGFACE,
    "pytorch": PYTORCH,
    "torchtitan": TORCHTITAN,
    "megatron": MEGATRON,
    "deepspeed": DEEPSPEED,
    "litgpt": LITGPT,
    "torchtune": TORCHTUNE,
}
