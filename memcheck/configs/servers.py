"""Lines that start a server of models (vLLM, SGLang and others): named, with a plan of inference that can be judged."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from memcheck.configs.go_on import Machine, of_serving
from memcheck.configs.launch_lines import Command
from memcheck.configs.rl_launches import LOOKED_AT
from memcheck.finding import Location
from memcheck.record import Record

_BEFORE = r"(?:^|[\s;&|\"'(=/])"
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (title, re.compile(_BEFORE + pattern))
    for title, pattern in (
        (
            "a vLLM server",
            r"(?:vllm\s+serve\b|-m\s+vllm\.entrypoints\.[\w.]*(?:api_server|serve)\b|vllm/vllm-openai\b)",
        ),
        ("an SGLang server", r"(?:sglang\s+serve\b|-m\s+sglang(?:_router)?\.launch_server\b|lmsysorg/sglang\b)"),
        ("a TGI server", r"(?:text-generation-launcher\b|huggingface/text-generation-inference\b)"),
        ("a TensorRT-LLM server", r"(?:trtllm-serve\b|-m\s+tensorrt_llm\.serve\b)"),
        ("an LMDeploy server", r"lmdeploy\s+serve\b"),
        ("a llama.cpp server", r"llama-server\b"),
        ("an Ollama server", r"ollama\s+(?:serve|run)\b"),
    )
)
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "model": ("--model", "--model-path", "--model-id", "--model_path", "--model_id"),
    "length": ("--max-model-len", "--context-length", "--max-total-tokens", "--max_model_len"),
    "dtype": ("--dtype",),
    "quantization": ("--quantization", "-q", "--quantize"),
    "kv": ("--kv-cache-dtype", "--kv_cache_dtype"),
    "tensor": ("--tensor-parallel-size", "-tp", "--tp", "--tp-size", "--num-shard", "--tensor_parallel_size"),
}
_WEIGHTS = {
    **dict.fromkeys(("half", "float16", "fp16"), "fp16"),
    **dict.fromkeys(("float", "float32"), "fp32"),
    **dict.fromkeys(("awq", "gptq", "awq_marlin", "gptq_marlin", "bitsandbytes"), "int4"),
    "fp8": "fp8",
}
_KV = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bf16": "bf16", "bfloat16": "bf16"}


class Server(Record):
    """A line that starts one."""

    title: str
    location: Location
    words: tuple[str, ...]

    @property
    def message(self) -> str:
        """A sentence that says which inference engine the command starts, and that memcheck does not check that."""
        return f"this is {self.title}: memcheck does not judge an engine's start"

    def way_on(self, machine: Machine) -> str:
        """A plan of inference with what the line says, in a command."""
        said = _said(self.words)
        tensor = _whole(said.get("tensor"))
        weights = _WEIGHTS.get(said.get("quantization", "").lower()) or _WEIGHTS.get(said.get("dtype", "").lower(), "")
        intro = "judge weights, one whole sequence of KV cache and the working set"
        return of_serving(
            intro,
            said.get("model"),
            machine,
            weights=weights,
            length=_whole(said.get("length")),
            kv=_KV.get(said.get("kv", "").lower(), ""),
            tensor=tensor or 1,
        )


def server(path: str, commands: Iterable[Command]) -> Server | None:
    """The first command of a script that starts a server."""
    for command in commands:
        found = started(command.text)
        if found is not None:
            title, start, end = found
            return Server(title, command.at(path, start, end), split(command.text[start:]))
    return None


def started(text: str) -> tuple[str, int, int] | None:
    """What server a command starts, and where that is said."""
    for title, pattern in KINDS:
        found = pattern.search(text[:LOOKED_AT])
        if found is not None:
            start = found.start() + len(found[0]) - len(found[0].lstrip(" \t\"'=/;&|("))
            return title, start, found.end()
    return None


def split(text: str) -> tuple[str, ...]:
    """The words of a command, as the shell splits them; as blanks do where it would not."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def _said(words: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    names = {flag: name for name, flags in _ARGUMENTS.items() for flag in flags}
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        name = names.get(flag)
        if name is not None:
            found.setdefault(name, value if equals else "".join(words[number + 1 : number + 2]))
    if "model" not in found and "serve" in words[:3]:
        place = words.index("serve") + 1
        found["model"] = next((each for each in words[place : place + 1] if not each.startswith("-")), "")
    return found


def _whole(text: object) -> int:
    written = str(text)
    return int(written) if written.isdecimal() and written.isascii() and len(written) < 8 else 0
