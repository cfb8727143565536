"""torchtune's keys, and the plan keys for the same things. Read at torchtune bd2a0fc7c of April 2026 (``recipes/*.py``,
``torchtune/training/*.py``, ``torchtune/modules/loss/*.py``).
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.key_table import key_table

KEYS = key_table("torchtune")

COMPONENT = "_component_"
"""The key of a section that names the class or function of a component, such as ``torchtune.models.llama3.llama3_8b``.
"""


def recognise(config: ConfigFile) -> str:
    """A component of torchtune's; or a command line that runs one of its recipes."""
    for key, value in config.values.items():
        if key.rpartition(".")[2] == COMPONENT and str(value).startswith("torchtune."):
            return key
    return launched(config)


def launched(config: ConfigFile) -> str:
    """``config`` where the text is a launch line, ``tune run ... --config``; empty for a config, whose comments may
    also name the command.
    """
    runs = (line for line in config.lines if not line.lstrip().startswith("#"))
    return "config" if config.has("config") and any("tune run" in line for line in runs) else ""


MODEL = f"model.{COMPONENT}"
LENGTH = "tokenizer.max_seq_len"
CUT = "dataset.max_seq_len"
"""What cuts rows before 0.3, where the tokenizer has no length of its own."""


FAKED = "Int8DynActInt4WeightQATQuantizer"
"""The quantizer of quantization-aware training with a memory model."""

PREFERENCES = "DPOLoss"
"""The loss over preferences that has a memory model."""

CHUNKS = "num_output_chunks"
