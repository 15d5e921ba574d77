#!/bin/sh
# Makes the Python environment if it is missing or old, then runs decisions.py in it.
set -eu
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
venv=$here/../../target/decisions/venv
stamp=$venv/requirements.txt
if ! cmp -s "$here/requirements.txt" "$stamp"; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$stamp"
fi
exec "$venv/bin/python" "$here/decisions.py" "$@"
