#!/bin/sh
# Makes the Python environment if it is missing, builds, then runs palettize.py.
set -eu
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
venv=$root/target/venv-coremltools
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet coremltools==9.0 numpy==2.2.6 protobuf==6.33.0
target=${CARGO_TARGET_DIR:-$root/target}
(cd "$root" && cargo build --quiet --release --locked -p anemone && cargo build --quiet --release --locked -p anemone-palettize --example raw_weights)
exec "$venv/bin/python" "$here/palettize.py" --anemone "$target/release/anemone" --raw "$target/release/examples/raw_weights" \
    --work "$root/target/palettize" "$@"
