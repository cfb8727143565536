"""The machine that a platform's file asks for, by whatever words, and the launch in it."""

from __future__ import annotations

import pytest

from memcheck.configs.next_command import gpu_named, seen
from memcheck.configs.wrappers import wrapped

K8S = "apiVersion: batch/v1\nkind: Job\nspec: {{{spec}}}\ncommand: [torchrun, train.py]\n"


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        (K8S.format(spec="resources: {limits: {nvidia.com/gpu: '4'}}"), ("", 4, 1)),
        (K8S.format(spec="nodeSelector: {node.kubernetes.io/instance-type: p4de.24xlarge}"), ("a100-80gb", 8, 1)),
        (
            K8S.format(spec="limits: {nvidia.com/gpu: 2}, nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}"),
            ("l4", 2, 1),
        ),
        (
            K8S.format(spec="nprocPerNode: '8', pytorchReplicaSpecs: {Master: {replicas: 1}, Worker: {replicas: 3}}"),
            ("", 8, 4),
        ),
        (K8S.format(spec="mpiReplicaSpecs: {Launcher: {replicas: 1}, Worker: {replicas: 2}}"), ("", 0, 2)),
        (K8S.format(spec="replicatedJobs: [{replicas: 2, template: {spec: {parallelism: 3}}}]"), ("", 0, 6)),
        (K8S.format(spec="completionMode: Indexed, parallelism: 4"), ("", 0, 4)),
        (K8S.format(spec="parallelism: 4"), ("", 0, 1)),
        (K8S.format(spec="trainer: {numNodes: 2, numProcPerNode: 8}"), ("", 8, 2)),
        ("resources: {accelerators: 'H100:8'}\nnum_nodes: 2\nrun: torchrun a.py\n", ("h100-80gb", 8, 2)),
        ("resources: {accelerators: {A100-80GB: 4}}\nrun: torchrun a.py\n", ("a100-80gb", 4, 1)),
        ("resources: {accelerators: [L4, A10G]}\nrun: torchrun a.py\n", ("l4", 1, 1)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: 24GB}\n", ("", 1, 1)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: 'A100:80GB:4'}\nnodes: 2\n", ("a100-80gb", 4, 2)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: {name: H100, count: 8}}\n", ("h100-80gb", 8, 1)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: 2}\n", ("", 2, 1)),
        (
            "services:\n  a: {image: x, command: torchrun a.py, deploy: {devices: [{count: 2}]}}\n",
            ("", 2, 1),
        ),
        (K8S.format(spec="limits: {nvidia.com/gpu: 99999999}, numNodes: 999"), ("", 0, 64)),
        (K8S.format(spec="limits: {nvidia.com/gpu: -3}, numNodes: x"), ("", 0, 1)),
    ],
)
def test_the_machine_is_what_the_file_asks_for(text: str, machine: tuple[str, int, int]) -> None:
    """A GPU of the catalog, how many a node has (0: not said), and how many nodes."""
    found = wrapped("a.yaml", text)
    assert found is not None
    assert found.words[:1] == ("torchrun",)
    assert tuple(found.machine) == machine


@pytest.mark.parametrize(
    "text",
    ["model: a\ntraining: {x: 1}\n", "kind: a\n", "type: lora\nr: 8\n", "- torchrun a.py\n", "a: [\n", "run: {a: 1}\n"],
)
def test_other_files_start_nothing(text: str) -> None:
    """Keys that a platform's files have as well are no evidence."""
    found = wrapped("a.yaml", text)
    assert found is None or not found.titled


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("nvidia-h100-mega-80gb", "h100-80gb"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("nvidia-h200-141gb", "h200"),
        ("nvidia-tesla-t4", "t4"),
        ("a100", "a100-40gb"),
        ("p5.48xlarge", "h100-80gb"),
        ("apple-m3", ""),
        (8, ""),
    ],
)
def test_a_gpu_has_many_names(name: object, gpu: str) -> None:
    """The smaller card where a name stands for two."""
    assert gpu_named(name)[0] == gpu


def test_a_files_own_names_are_seen_at_any_depth() -> None:
    """Those of a plan as well as any tool's."""
    found = seen(
        {"a": {"b": [{"sequence_length": 512, "gpus": 4}]}, "qlora": {"r": 8}, "batch": 3, "llm": "x/qwen2.5-7b"}
    )
    assert (found.length, found.gpus, found.method, found.batch) == (512, 4, "qlora", 3)
