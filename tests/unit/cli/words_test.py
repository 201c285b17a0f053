"""What the commands say of mistakes, each in its own words. usage: words_test.py TENSORLANE TENSORLANE_SWITCH TENSORLANE_EXAMPLE_ALLREDUCE"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile

from fake_daemon import FakeDaemon

TENSORLANE, SWITCH, EXAMPLE = map(os.path.abspath, sys.argv[1:4])


def words_of_the_commands():
    """Each says what there is to say in its own words."""
    for command, status, words in (([TENSORLANE, "statos"], 2, "unknown command 'statos': tensorlane: did you mean 'status'? see `tensorlane --help`"),
                                   ([TENSORLANE, "lab", "upp", "x"], 2, "unknown command 'upp': tensorlane lab: did you mean 'up'? see `tensorlane lab --help`"),
                                   ([TENSORLANE, "xyzzy"], 2, "unknown command 'xyzzy': tensorlane: see `tensorlane --help`"),
                                   ([TENSORLANE, "--badflag"], 2, "unknown option '--badflag': tensorlane: see `tensorlane --help`"),
                                   ([TENSORLANE], 2, "A subcommand is required: tensorlane: see `tensorlane --help`"),
                                   ([SWITCH, "rendr"], 2, "unknown command 'rendr': tensorlane-switch: did you mean 'render'? see `tensorlane-switch --help`"),
                                   ([SWITCH, "example", "clos", "--spines", "1", "--leaves", "2"], 0, "# 32 hosts on 2 leaves and 1 spine. "),
                                   ([SWITCH, "lint", __file__], 2, "say which it is with --kind, expected one of sonic, "),
                                   ([TENSORLANE, "explain"], 2, "no job is named"), ([TENSORLANE, "report", "-o", "/tmp/x.html"], 2, "no job is named"),
                                   ([TENSORLANE, "explain", "x", "--load", "f"], 2, "both a job and a file are named"),
                                   ([TENSORLANE, "report", "x", "-o", "/tmp/x.html", "--load", "f"], 2, "both a job and a file are named"),
                                   ([TENSORLANE, "explain", "x", "--seconds", "nan"], 2, "'nan' is not within 0.5 to 3600"),
                                   ([TENSORLANE, "top", "--interval", "61"], 2, "'61' is not within 0.2 to 60"),
                                   ([TENSORLANE, "lab", "policy", "loud"], 2, "policy 'loud': tensorlane lab policy: expected fifo, strict or service"),
                                   ([TENSORLANE, "lab", "down", "--name", "nosuchlab"], 0, "there was no lab 'nosuchlab'"),
                                   ([EXAMPLE, "--help"], 0, "tensorlane run -n 4"), ([EXAMPLE, "4"], 2, "Without arguments")):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == status and words in done.stdout + done.stderr, f"{command}: {done}"


def hosts_that_are_none(folder):
    """A host that is none is named, by `trace` with the one that is like it."""
    fabric = os.path.join(folder, "clos.yaml")
    with open(fabric, "w") as file:
        subprocess.run([SWITCH, "example", "clos"], stdout=file, timeout=60, check=True)
    done = subprocess.run([SWITCH, "trace", "--fabric", fabric, "--configs", folder, "--dscp", "43", "--from", "hh1", "--to", "h2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no host 'hh1'" in done.stderr and "did you mean 'h1'" in done.stderr, done
    done = subprocess.run([TENSORLANE, "verify", "--fabric", fabric, "--hosts", "hh1,h1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no host 'hh1'" in done.stderr, done


def fabric_file_of_the_daemon(folder):
    """`verify` without a file takes the one that the daemon has, and says which; where nobody says, it says what to do."""
    path, socket = os.path.join(folder, "daemons.yaml"), os.path.join(folder, "fabric.sock")
    with open(path, "w") as file:
        file.write("hosts: [{name: h0, addresses: {tcp: 127.0.0.1}}, {name: h1, addresses: {tcp: 127.0.0.2}}]\n")
    for status, words in ((None, "cannot be asked for its own"), ("[]", "does not say which fabric file it has"), (json.dumps({"fabric": {"path": path}}), "no host 'h9'")):
        command = [TENSORLANE, "verify", "--socket", socket, "--hosts", "h0,h9"]
        with FakeDaemon(socket, lambda text=status: text, lambda question: None) if status else contextlib.nullcontext():
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and words in done.stderr, done
        assert "--fabric" in done.stderr if words != "no host 'h9'" else f"tensorlane: fabric file {path}, which this host's daemon has read\n" in done.stderr, done


def output_that_goes_nowhere():
    """What could not be written is an error, not half of it a success."""
    for command, status in (([SWITCH, "example", "clos"], 2), ([SWITCH, "example", "clos", "--leaves", "64"], 2), ([TENSORLANE, "make-key"], 1), ([TENSORLANE, "--help"], 1)):
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == status and "No space left on device: the output of tensorlane" in done.stderr, (command, done)


def output_files_that_cannot_be(folder):
    """Said before the work whose result would be lost: no daemon is asked, and none is there."""
    victim, link, fifo = (os.path.join(folder, name) for name in ("victim", "link", "fifo"))
    with open(victim, "w") as file:
        file.write("precious")
    os.symlink(victim, link)
    os.mkfifo(fifo)
    for words in (["explain", "x", "--save"], ["report", "x", "-o"], ["verify", "--agent", "a,b", "--junit"]):
        for path in (folder, os.path.join(folder, "none", "file"), link, fifo):
            done = subprocess.run([TENSORLANE, *words, path], capture_output=True, text=True, timeout=60)
            assert done.returncode == 1 and "cannot write the file: " in done.stderr and path in done.stderr, done


def files_that_are_none(folder):
    deep = os.path.join(folder, "deep.json")
    with open(deep, "w") as file:
        file.write("[" * 200000 + "]" * 200000)
    for words in (["explain", "--load", deep], ["report", "-o", os.path.join(folder, "r.html"), "--load", deep]):
        done = subprocess.run([TENSORLANE, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "this is no JSON, or too deep" in done.stderr, done
    for words in (["explain", "--load"], ["report", "-o", os.path.join(folder, "r.html"), "--load"]):
        for path, why in ((folder, "this is a folder"), (os.path.join(folder, "none"), "No such file or directory"), (__file__, "this is no JSON")):
            done = subprocess.run([TENSORLANE, *words, path], capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and why in done.stderr, done
    lies = os.path.join(folder, "lies.json")
    with open(lies, "w") as file:
        file.write('[{"before": 1, "after": 2}, {"before": {}, "after": {"host": 5}}]')
    done = subprocess.run([TENSORLANE, "explain", "--load", lies], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "make no sense" in done.stderr, done


def main():
    words_of_the_commands()
    with tempfile.TemporaryDirectory() as folder:
        hosts_that_are_none(os.path.realpath(folder))
        fabric_file_of_the_daemon(os.path.realpath(folder))
        output_that_goes_nowhere()
        output_files_that_cannot_be(folder)
        files_that_are_none(folder)


main()
