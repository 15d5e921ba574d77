"""Plants the faults of a mutation suite in a package of ours and requires the validator to find every one.

plant_faults.py SUITE PACKAGE; SUITE is mutation_suite.py, with mlpackage_check.py beside it. The suite starts the validator as a
process for each fault; here it runs in this one.
"""
import contextlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The suite spoils the root by this name; packages of ours are named by their content.
ROOT = "6F1B8C0E-0000-4000-8000-000000000001"


def here(command, **_):
    """Stands in for `subprocess.run` of the validator."""
    said, arguments = io.StringIO(), sys.argv
    sys.argv = command[1:]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_path(command[1], run_name="__main__")
        code = 1
    except SystemExit as end:
        code = int(end.code)
    finally:
        sys.argv = arguments
    return subprocess.CompletedProcess(command, code, said.getvalue(), "")


def fail(problem):
    print(problem)
    sys.exit(1)


def main(suite, package):
    suite = os.path.abspath(suite)
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "copy.mlpackage"
        shutil.copytree(package, copy)
        manifest = copy / "Manifest.json"
        text = manifest.read_text()
        manifest.write_text(text.replace(json.loads(text)["rootModelIdentifier"], ROOT))
        os.chdir(work)
        subprocess.run, sys.argv = here, [suite, str(copy)]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runpy.run_path(suite, run_name="__main__")
    print(said.getvalue(), end="")
    verdicts = {line.split()[0]: line.split()[1] for line in said.getvalue().splitlines()}
    if verdicts.pop("none", "") != "clean":
        fail("the package has findings before any fault is planted")
    missed = [name for name, verdict in verdicts.items() if verdict != "CAUGHT"]
    if missed or len(verdicts) < 30:
        fail(f"of {len(verdicts)} faults planted these were not found: {missed}")
    print(f"{len(verdicts)} faults planted, all found")


if __name__ == "__main__":
    main(*sys.argv[1:])
