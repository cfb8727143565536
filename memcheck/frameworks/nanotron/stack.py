"""What the engine asks of nanotron: its code on Megatron's schedules."""

from __future__ import annotations

from memcheck.frameworks.megatron.stack import STACK as MEGATRON

STACK = MEGATRON
