"""What the worker calls of Python: one request in, its steps out one after the other, all as JSON text."""

import json
import os
from collections.abc import Iterator

os.makedirs("/work", exist_ok=True)
os.chdir("/work")


def steps(request: str) -> Iterator[str]:
    """The answers to one request of the page, each as soon as it is known."""
    from memcheck.live.protocol import handle

    for step in handle(json.loads(request)):
        yield json.dumps(step, ensure_ascii=False)
