#!/usr/bin/env bash
# Installs memcheck from the action's own folder, so that the ref of the action is the version of the tool.
set -euo pipefail

python=${BASE_PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "::error title=memcheck::memcheck needs Python 3.10 or newer, and $("$python" --version 2>&1) is older: set the input 'python', for example to 3.12"
  exit 2
fi

venv="$RUNNER_TEMP/memcheck-venv"
"$python" -m venv "$venv"
bin="$venv/bin"
[ -d "$bin" ] || bin="$venv/Scripts" # Windows
"$bin/python" -m pip install --quiet --disable-pip-version-check "$GITHUB_ACTION_PATH"
echo "python=$bin/python" >>"$GITHUB_OUTPUT"
