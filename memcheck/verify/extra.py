"""The extra that `memcheck verify` needs: PyTorch, transformers and PEFT."""

from __future__ import annotations

from memcheck.errors import UsageError

NEEDED = ("torch", "transformers", "peft")
INSTALL = "pip install 'memcheck[verify]'"


class MissingVerifyExtraError(UsageError):
    """A library of the extra is not installed, or cannot be imported."""


def require_extra() -> None:
    """Make sure that every library of the extra can be found.

    Raises:
        MissingExtraError: with the command that installs them.
    """
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingVerifyExtraError(f"memcheck verify needs {', '.join(missing)}: {INSTALL}")
    try:
        import torch  # noqa: F401  # found is not yet usable: a wheel for another platform fails here
    except Exception as error:
        raise MissingVerifyExtraError(f"torch cannot be imported ({error}): {INSTALL}") from error


def versions() -> dict[str, str]:
    """What the observation was made with."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from memcheck import __version__

    found = {"memcheck": __version__, "python": platform.python_version()}
    for name in (*NEEDED, "accelerate", "torchtitan"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203 - five names
            continue
    return found
