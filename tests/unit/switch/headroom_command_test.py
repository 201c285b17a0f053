#!/usr/bin/env python3
"""`tensorlane-switch headroom` as people and programs call it. usage: headroom_command_test.py TENSORLANE_SWITCH"""

import json
import pathlib
import subprocess
import sys
import tempfile

SWITCH = sys.argv[1]
VENDOR = "--asic spectrum5 --speed 400G --cable 40m --mtu 9216 --lossless-mtu 4096 --small-packets 50 --shared-headroom"


def run(*arguments):
    return subprocess.run([SWITCH, "headroom", *arguments], capture_output=True, text=True, timeout=60)


def expect(arguments, result):
    done = run(*arguments.split(), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == result, (arguments, done.stdout)


def refused(arguments, *words):
    done = run(*arguments.split())
    assert done.returncode == 2 and not done.stdout, (arguments, done)
    assert done.stderr.startswith("tensorlane-switch: error: ") and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def check_formulas():
    expect(VENDOR, {"xoff": 104448, "xon": 19456, "size": 19456})
    expect("--asic spectrum1 --formula older --speed 100G --cable 40m --mtu 9216 --lossless-mtu 1024 --small-packets 100",
           {"xoff": 38912, "xon": 19456, "size": 58368})
    expect("--asic spectrum4 --speed 800G --cable 300m", {"xoff": 413696, "xon": 38912, "size": 413696 + 38912 + 9216})
    expect("--asic generic --speed 100G --cable 40m --lossless-mtu 9216", {"estimate": True, "xoff_lower": 48699, "xoff_upper": 317968, "warning": "no vendor's number: ask the vendor for a table"})
    assert "no vendor's number" in run(*"--asic generic --speed 800G --cable 40m".split()).stdout
    shown = run(*VENDOR.split())
    assert shown.stdout == "xoff 104448 bytes  xon 19456 bytes  size 19456 bytes\n", shown.stdout


def check_table(folder):
    table = folder / "pg_profile_lookup.ini"
    table.write_text("100000 40m 1248 1248 59696 0 2496\n100000 300m 1248 1248 101088 0 2496\n")
    expect(f"--lookup {table} --speed 100G --cable 41m", {"xoff": 101088, "xon": 1248, "size": 1248})
    refused(f"--lookup {table} --speed 100G --cable 301m", str(table), "300m")
    refused(f"--lookup {table} --asic spectrum1 --speed 100G --cable 5m", "excludes")
    refused(f"--lookup {folder}/none --speed 100G --cable 5m", f"{folder}/none")


def check_refusals():
    refused("--asic spectrum4 --speed 400G --cable 40", "'40' is not a length", "--cable")
    refused("--asic spectrum4 --speed 400 --cable 40m", "'400' is not a rate", "--speed")
    refused("--asic spectrum6 --speed 400G --cable 40m", "'spectrum6'", "spectrum5")
    refused("--asic spectrum4 --formula new --speed 400G --cable 40m", "'new'", "current or older")
    refused("--asic spectrum4 --speed 400G --cable 40m --small-packets 101", "--small-packets")
    refused("--asic spectrum4 --speed 400G --cable 40m --lossless-mtu 9217", "--lossless-mtu")
    refused("--asic spectrum4 --speed 400G --cable 40m --lanes 9", "--lanes")
    refused("--speed 400G --cable 40m", "--asic")
    refused("--asic spectrum4 --cable 40m", "--speed")


def main():
    check_formulas()
    check_refusals()
    with tempfile.TemporaryDirectory() as folder:
        check_table(pathlib.Path(folder))


main()
