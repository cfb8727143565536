"""Every framework memcheck knows. Adding one: write its record, name it here."""

from __future__ import annotations

from memcheck.frameworks.deepspeed.profile import DEEPSPEED
from memcheck.frameworks.litgpt.profile import LITGPT
from memcheck.frameworks.megatron.profile import MEGATRON
from memcheck.frameworks.torch.profile import PYTORCH
from memcheck.frameworks.torchtitan.profile import TORCHTITAN
from memcheck.frameworks.torchtune.profile import TORCHTUNE
from memcheck.frameworks.transformers.profile import HUGGINGFACE
from memcheck.job.profile import Profile

FRAMEWORKS: dict[str, Profile] = {
    f.name: f for f in (HUGGINGFACE, PYTORCH, TORCHTITAN, MEGATRON, DEEPSPEED, LITGPT, TORCHTUNE)
}
