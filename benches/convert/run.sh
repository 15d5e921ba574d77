#!/bin/sh
# Makes the Python environment and the checkpoints if they are missing, then runs convert.py.
set -eu
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
venv=$root/target/venv-coremltools
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet coremltools==9.0 numpy==2.2.6 protobuf==6.33.0
(cd "$root" && cargo build --quiet --release --locked -p anemone)
exec "$venv/bin/python" "$here/convert.py" --anemone "$root/target/release/anemone" --work "$root/target/convert" "$@"
