from __future__ import annotations

import pytest

from memcheck.plan.sniff import looks_like_plan
from tests.plan.samples import VALID


@pytest.mark.parametrize(
    "text",
    [
        *VALID,
        "\ufeffmemcheck: 1\n",
        "memcheck: 1\r\nmodel: a\r\n",
        "# comment\n\n---\nmemcheck: 1\n",
        "%YAML 1.2\n---\nmemcheck: 1\n",
        '"memcheck": 1\n',
        "'memcheck' : 1\n",
        "name: x\nmodel: y\nmemcheck: 1",
        "other: document\n---\nmemcheck: 1\n",
        "memcheck: 2\n",
        'memcheck: "1"\n',
        "memcheck: v1\n",
        "memcheck:\nmodel: a\n",
        "memcheck: # to do\nmodel: a\n",
        "model: a\nmemcheck:",
        "memcheck:\t1\n",
        '{"memcheck": 1, "model": "a"}',
        '{"name": "{", "model": {"name": "a"}, "memcheck": 1}',
        "# flow\n{memcheck: 1}\n",
    ],
)
def test_plans_are_recognised(text):
    """A top-level `memcheck` key makes a plan, wherever it stands and however it is written."""
    assert looks_like_plan(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name: x\n",
        "  memcheck: 1\n",
        "jobs:\n  memcheck: 1\n",
        "# memcheck: 1\n",
        "memcheck-options: 1\n",
        "my memcheck: 1\n",
        "memcheck:1\n",
        "repos:\n- repo: x\n  hooks: [{id: memcheck}]\n",
        "memcheck:\n  stage: test\n  script: valgrind ./a.out\n",
        "memcheck:\n\n  script: valgrind ./a.out\n",
        "memcheck:  # valgrind\n  # indented\n  script: x\n",
        "memcheck: &job\n  script: x\n",
        "memcheck: *job\n",
        "memcheck: {script: x}\n",
        '{"jobs": {"memcheck": 1}}',
        '{"a": "memcheck: 1"}',
        '{"my-memcheck": 1}',
    ],
)
def test_other_yaml_is_left_alone(text):
    """A nested or commented key, or a section of that name in some other tool's file, makes no plan."""
    assert not looks_like_plan(text.encode())


@pytest.mark.parametrize(
    "data", [b"\0\xff memcheck", b"{" * 100_000 + b"memcheck", b"memcheck:" + b"\n" * 100_000 + b" "]
)
def test_anything_can_be_sniffed(data):
    """Binary and hostile input is answered, quickly."""
    assert not looks_like_plan(data)
