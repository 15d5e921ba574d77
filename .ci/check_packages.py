"""Runs a package validator over every package below a directory, in few processes and once for equal content.

check_packages.py CHECKER DIR; CHECKER is mlpackage_check.py, which checks the package its first argument names. Exits 1 on a finding.
"""
import contextlib
import hashlib
import io
import multiprocessing
import runpy
import sys
from pathlib import Path


def content(package):
    digest = hashlib.sha256()
    for file in sorted(f for f in package.rglob("*") if f.is_file()):
        digest.update(f"{file.relative_to(package)} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def check(job):
    checker, package = job
    sys.argv = [checker, str(package)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_path(checker, run_name="__main__")
        code = 1  # The checker always ends with its verdict.
    except SystemExit as end:
        code = end.code
    return package, code, said.getvalue()


def main(checker, directory):
    packages = sorted(Path(directory).rglob("*.mlpackage"))
    distinct = {content(p): p for p in reversed(packages)}
    if not packages:
        print(f"no packages below {directory}")
        sys.exit(1)
    failed = 0
    with multiprocessing.Pool() as pool:
        for package, code, said in pool.imap_unordered(check, [(checker, p) for p in sorted(distinct.values())]):
            if code != 0:
                failed += 1
                print(f"{package}:\n{said}", end="")
    print(f"{len(packages)} packages, {len(distinct)} of them distinct: {failed} with findings")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
