"""Writes a file at once: whoever reads it meanwhile sees the old or the new text, never a part of one."""

from __future__ import annotations

import os


def replace(target: str, data: bytes) -> None:
    """Put a file in the place of ``target``, which keeps its permissions; a link is followed. Raises OSError."""
    target = os.path.realpath(target)
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            os.chmod(temporary, os.stat(target).st_mode & 0o7777)
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
