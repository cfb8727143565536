"""One page per model and per GPU of the catalog, written when the site is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import yaml

from docs.site.needs import GPUS, METHODS, SEQUENCE_LENGTH, Need, Refused, cell, gib, smallest
from memcheck.catalog.names import find_gpu, find_model, gpu_names
from memcheck.live.link import SharedPlan, write_link

PAGE = "../../page/"
"""The interactive page, seen from a page of a model on the published site."""
POPULAR = ("llama-3.2-1b", "qwen3-4b", "llama-3.1-8b", "qwen2.5-14b", "qwen3-32b", "llama-3.3-70b")
"""Models of a GPU's page, small to large."""

Needs = Mapping[tuple[str, str, str], Need | Refused]
"""(model, GPU, method) to the smallest number of GPUs."""


def needs_of(model: str) -> dict[tuple[str, str, str], Need | Refused]:
    """Every cell of a model's table."""
    return {(model, gpu, method): smallest(model, gpu, method) for method in METHODS for gpu in GPUS}


def open_link(plan: dict[str, Any]) -> str:
    """The address that opens a plan in the interactive page."""
    return PAGE + write_link(SharedPlan(plan=yaml.safe_dump(plan, sort_keys=False)))


def model_page(name: str, needs: Needs) -> str:
    """The page of one model in Markdown: size, and what each method needs on each GPU."""
    model = find_model(name)
    lines = [f"# What does fine-tuning {name} need?", ""]
    lines += [f"[{model.id}](https://huggingface.co/{model.id}) has {model.parameters:,} parameters.", ""]
    lines += ["The smallest number of GPUs that passes `memcheck check`, and the share of each GPU's memory:", ""]
    lines += [f"| GPU | memory | {' | '.join(METHODS)} |", f"|---|--:|{'---|' * len(METHODS)}"]
    for gpu in GPUS:
        row = [needs[name, gpu, method] for method in METHODS]
        shown = [f"[{cell(need)}]({open_link(need.plan)})" if isinstance(need, Need) else cell(need) for need in row]
        lines.append(f"| [{gpu}](../gpus/{gpu}.md) | {gib(gpu):.2f} GiB | {' | '.join(shown)} |")
    refused: dict[str, list[str]] = {}
    for method, gpu in product(METHODS, GPUS):
        if isinstance(need := needs[name, gpu, method], Refused):
            refused.setdefault(f"{method}: {need.reason}", []).append(gpu)
    if refused:
        lines += ["", "No number of GPUs up to 256 passes for:", ""]
        lines += [f"- {plain(reason)} ({', '.join(gpus)})" for reason, gpus in refused.items()]
    lines += ["", *assumed(), "", "On the command line:", "", "```sh"]
    lines += [f"memcheck estimate --model {name} --gpu h100-80gb", "```", ""]
    return "\n".join(lines)


def assumed() -> list[str]:
    """What all plans of the tables have in common."""
    return [
        f"Rows of {SEQUENCE_LENGTH:,} tokens or as many as the model allows, one row per GPU, full activation",
        "checkpointing, bf16 mixed precision, AdamW, transformers' Trainer, fully sharded over several GPUs. Each cell",
        "opens its plan, where every setting can be changed.",
    ]


def gpu_page(name: str, needs: Needs) -> str:
    """The page of one GPU in Markdown: what the catalog knows, and what common models need on it."""
    gpu = find_gpu(name)
    rates = (("bf16", gpu.bf16_tflops), ("fp8", gpu.fp8_tflops))
    lines = [f"# {name}", "", "| | |", "|---|---|"]
    lines += [f"| memory that PyTorch can use | {gib(name):.2f} GiB |", f"| architecture | {gpu.arch} |"]
    lines += [f"| dense {kind} rate | {rate:,.0f} TFLOPS |" for kind, rate in rates if rate]
    lines += [f"| memory bandwidth | {gpu.hbm_gbs:,.0f} GB/s |", f"| GPUs per node | {gpu.gpus_per_node} |", ""]
    lines += [f"Source: {plain(gpu.source)}", ""]
    shown = [model for model in POPULAR if (model, name, next(iter(METHODS))) in needs]
    if shown:
        lines += ["The smallest number of GPUs that passes `memcheck check`:", ""]
        lines += [f"| model | {' | '.join(METHODS)} |", f"|---|{'---|' * len(METHODS)}"]
        for model in shown:
            cells = " | ".join(cell(needs[model, name, method]) for method in METHODS)
            lines.append(f"| [{model}](../models/{model}.md) | {cells} |")
        lines += ["", *assumed(), ""]
    return "\n".join(lines)


def plain(text: str) -> str:
    """A sentence of a source or a message with what Markdown would read as its own escaped."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|" else letter for letter in text)


def index(title: str, names: Iterable[str], rows: Mapping[str, str]) -> str:
    """A list of pages in Markdown, each with one line about it."""
    return "\n".join([f"# {title}", "", *(f"- [{name}]({name}.md): {rows[name]}" for name in names), ""])


def model_index(names: Iterable[str]) -> str:
    """The list of all models, by name."""
    chosen = list(names)
    return index("Models", chosen, {name: f"{find_model(name).parameters:,} parameters" for name in chosen})


def gpu_index() -> str:
    """The list of all GPUs, by name."""
    return index("GPUs", gpu_names(), {name: f"{gib(name):.2f} GiB" for name in gpu_names()})
