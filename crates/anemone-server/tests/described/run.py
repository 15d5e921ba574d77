#!/usr/bin/env python3
"""Holds the running server to its own description: python3 run.py PYTHON ANEMONE [--examples N] [--seed N] [--key KEY]

schemathesis makes requests of every route from `/openapi.json`: some as described, some wrong in one thing. No answer may be a
failure of the server, have a status, a kind or a shape that is not described, take what is wrong or refuse what is right.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

# Both built-in models. A small context bounds how long answers get, and with 128 sequences `n` has its whole range.
SERVE = ["serve", "--port", "0", "--ctx", "256", "--max-sequences", "128", "--max-tokens", "8192", "--max-concurrent", "64"]

# Each of these checks is made. Not made: `positive_data_acceptance`, in whose place `rules.py` has one that knows the rules no schema
# can state, and those about records that are created and deleted, of which the server has none.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "takes_what_it_describes",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=pathlib.Path, help="a Python that has schemathesis")
    parser.add_argument("anemone", type=pathlib.Path)
    parser.add_argument("--examples", type=int, default=20, help="requests of a route in its last phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--key", help="a key the server asks for")
    parser.add_argument("--route", help="this route only")
    parser.add_argument("--phases", default="examples,coverage,fuzzing")
    args = parser.parse_args()
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as work:
        asked = ["--api-key", args.key] if args.key else []
        child = subprocess.Popen([args.anemone, *SERVE, *asked], stderr=subprocess.PIPE, text=True)
        try:
            line = ""
            while " at http://" not in line:
                line = child.stderr.readline()
                assert line, "the server ended"
            url = "http://" + line.strip().split("http://")[1]
            command = [
                args.python.parent.absolute() / "schemathesis", "--config-file", here / "schemathesis.toml", "run", f"{url}/openapi.json",
                "--phases", args.phases, "--mode", "all", "--checks", ",".join(CHECKS),
                "--max-examples", str(args.examples), "--seed", str(args.seed), "--workers", "1",
                "--request-timeout", "60", "--continue-on-failure", "--suppress-health-check", "all",
                "--warnings", "off", "--no-color",
            ]
            if args.key:
                command += ["--header", f"Authorization: Bearer {args.key}"]
            if args.route:
                command += ["--include-path", args.route]
            env = os.environ | {"SCHEMATHESIS_HOOKS": "rules", "PYTHONPATH": str(here)}
            told = subprocess.run(command, cwd=work, env=env).returncode
            alive = child.poll() is None
        finally:
            child.send_signal(signal.SIGTERM)
            code = child.wait(60)
    if told or not alive or code:
        sys.exit(f"schemathesis ended with {told}, the server with {code}")


if __name__ == "__main__":
    main()
