#!/usr/bin/env bash
# Installs memcheck from the action's own folder, so that the ref of the action is the version of the tool.
#
# The working directory is the checked repository, and Python takes modules from there (`venv.py`, `pip/__main__.py`):
# every interpreter runs isolated (-I) and elsewhere. Everything from the index is held against hashes.
set -euo pipefail

python=${BASE_PYTHON:-$(type -P python3)} || { echo "::error title=memcheck::there is no python3: set the input 'python', for example to 3.12"; exit 2; }
index=${PIP_INDEX_URL:-}
certificates=${PIP_CERT:-}
# Settings of pip and Python could name files of the checkout.
unset "${!PIP_@}" "${!PYTHON@}"
cd "$RUNNER_TEMP"

if ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "::error title=memcheck::memcheck needs Python 3.10 or newer, and $("$python" --version 2>&1) is older: set the input 'python', for example to 3.12"
  exit 2
fi

venv="$RUNNER_TEMP/memcheck-venv"
"$python" -I -m venv "$venv"
bin="$venv/bin"
[ -d "$bin" ] || bin="$venv/Scripts" # Windows
pip=("$bin/python" -I -m pip --isolated --quiet --disable-pip-version-check)
# A runner may have an index of its own; the hashes say what it has to give.
"${pip[@]}" install --require-hashes --only-binary :all: ${index:+--index-url "$index"} ${certificates:+--cert "$certificates"} \
  --requirement "$GITHUB_ACTION_PATH/action/requirements.txt"
"${pip[@]}" install --no-deps --no-build-isolation --no-index "$GITHUB_ACTION_PATH"
echo "python=$bin/python" >>"$GITHUB_OUTPUT"
