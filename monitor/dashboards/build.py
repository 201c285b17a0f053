#!/usr/bin/env python3
"""Builds the four Grafana dashboards as JSON beside this file, or checks that what is there is what it would build.

usage: build.py [--check]

It needs grafana-foundation-sdk, which deploy/requirements.txt puts into build/venv. Exit status of --check: 0 if all is current.
"""

import argparse
import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder

import fabric
import fleet
import host
import job

HERE = pathlib.Path(__file__).parent
BOARDS = {"fleet": fleet, "fabric": fabric, "job": job, "host": host}


def text_of(name):
    """The JSON of a dashboard, the same at every call."""
    return json.dumps(BOARDS[name].build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Builds the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; say which files are not current")
    arguments = parser.parse_args()
    stale = 0
    for name in BOARDS:
        path = HERE / f"{name}.json"
        text = text_of(name)
        if path.exists() and path.read_text() == text:
            continue
        if arguments.check:
            stale += 1
            print(f"{path}: it is not what build.py makes: change {name}.py or panels.py, and run build.py", file=sys.stderr)
        else:
            path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
