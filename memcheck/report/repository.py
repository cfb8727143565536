"""Paths as a forge knows them: relative to the root of the repository, wherever the command ran."""

from __future__ import annotations

import os

WORKSPACES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Where GitHub's and GitLab's runners say that the repository lies."""


def repository_path(path: str) -> str:
    """The path from the repository's root; as given if it lies outside."""
    return relative_to(path, root())


def root() -> str:
    """The runner's workspace, else the nearest folder with ``.git``, else the working directory."""
    for name in WORKSPACES:
        if stated := os.environ.get(name):
            return os.path.abspath(stated)
    here = os.getcwd()
    folder = here
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return here
        folder = parent
    return folder


def relative_to(path: str, folder: str) -> str:
    """The path from a folder, with forward slashes; as given if it lies outside."""
    absolute = os.path.abspath(path)
    folder = os.path.abspath(folder)
    try:
        inside = os.path.commonpath([absolute, folder]) == folder
    except ValueError:  # another drive
        inside = False
    return os.path.relpath(absolute, folder).replace(os.sep, "/") if inside else path
