#!/bin/sh
# Makes the Python environment if it is missing or old, then runs peers.py in it.
set -eu
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
venv=$here/../../target/peers/venv
stamp=$venv/requirements.txt
if ! cmp -s "$here/requirements.txt" "$stamp"; then
    python3 -m venv "$venv"
    CMAKE_ARGS=${CMAKE_ARGS:-"-DGGML_NATIVE=ON"} "$venv/bin/python" -m pip install --quiet -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$stamp"
fi
case ${1-} in
--setup) echo "environment ready: $venv" ;;
--test) cd "$here" && exec "$venv/bin/python" -m unittest -q test_peers ;;
*) exec "$venv/bin/python" "$here/peers.py" "$@" ;;
esac
