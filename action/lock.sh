#!/usr/bin/env bash
# Writes action/requirements.txt: what the Action installs, for every Python from 3.10 on and every system, with hashes.
# Needs uv, and a package index; run it after a change of the dependencies in pyproject.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

{
  echo "# What the Action installs besides memcheck. Written by action/lock.sh."
  # The build backend is a dependency like any other: nothing is fetched while memcheck is built.
  sed -n 's/^requires = \["\(.*\)"\]$/\1/p' pyproject.toml |
    uv pip compile pyproject.toml - --quiet --universal --python-version 3.10 --no-build --generate-hashes \
      --no-header --no-annotate
} >action/requirements.new
mv action/requirements.new action/requirements.txt
