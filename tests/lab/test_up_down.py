"""lab up and down: what they make, what they refuse, and that nothing is left behind."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time

from lab_harness import TENSORLANE, Lab, namespaces, require_namespaces, tensorlane


def expect_error(done, exit_status, line):
    assert done.returncode == exit_status, done
    assert done.stderr == line + "\n", done.stderr
    assert done.stdout == "", done.stdout




def devices():
    return sorted(os.listdir("/sys/class/net"))


def test_everything_is_made_and_removed():
    before = devices()
    with Lab(hosts=2) as lab:
        prefix = f"tl-{lab.name}-"
        assert namespaces(prefix) == [prefix + "h0", prefix + "h1", prefix + "s0"]
        assert [h["address"] for h in lab.about["hosts"]] == ["10.77.0.1", "10.77.0.2"]
        runtime = lab.about["runtime"]
        for host in ("h0", "h1"):
            key = f"{runtime}/keys/{host}.secret"
            assert stat.S_IMODE(os.stat(key).st_mode) == 0o600, key
            with open(key) as file:
                assert len(file.read()) == 41, key
        with open(lab.about["fabric_file"]) as file:
            assert file.read().count("public_key:") == 2
        # One that obeys SIGTERM and one that does not.
        polite = lab.python("h0", "import time; time.sleep(600)")
        stubborn = lab.python("s0", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
                              stdout=subprocess.PIPE)
        assert stubborn.stdout.readline() == "deaf\n"
        tensorlane("lab", "down", "--name", lab.name)
        for child in (polite, stubborn):
            child.wait(timeout=5)
        assert namespaces(prefix) == []
        assert not os.path.exists(runtime)
        tensorlane("lab", "down", "--name", lab.name)  # idempotent
    assert devices() == before


def test_a_second_lab_of_that_name_is_refused():
    with Lab(hosts=1) as lab:
        before = namespaces(f"tl-{lab.name}-")
        done = tensorlane(*lab.arguments, check=False)
        expect_error(done, 1, f"tensorlane: error: lab '{lab.name}' is up already: {lab.about['runtime']}: take it down with "
                              f"`tensorlane lab down --name {lab.name}`, or give this one another --name")
        assert namespaces(f"tl-{lab.name}-") == before != []


def test_exec_passes_on_exit_status_and_refuses_what_is_not_there():
    with Lab(hosts=2) as lab:
        assert subprocess.run(lab.command("h1", "sh", "-c", "exit 7")).returncode == 7
        assert lab.run("h0", "hostname", "-I").split() == ["10.77.0.1"]
        done = subprocess.run(lab.command("h7", "true"), capture_output=True, text=True)
        expect_error(done, 1, f"tensorlane: error: no host or switch 'h7': lab '{lab.name}': expected one of h0, h1, s0")
        done = subprocess.run(lab.command("h0", "no-such-program"), capture_output=True, text=True)
        expect_error(done, 1, "tensorlane: error: cannot run 'no-such-program': No such file or directory: install it or correct PATH")
    done = subprocess.run(lab.command("h0", "true"), capture_output=True, text=True)
    expect_error(done, 1, f"tensorlane: error: no lab '{lab.name}': {lab.about['runtime']}: build it with "
                          f"`tensorlane lab up --name {lab.name}`")


def test_a_lab_whose_owner_went_while_it_was_built_is_removed_by_the_next():
    owner = subprocess.Popen(["true"])
    owner.wait()
    orphan = Lab(hosts=1, owner=owner.pid, tag="a")
    orphan.up()
    assert namespaces(f"tl-{orphan.name}-") != []
    with Lab(hosts=1, tag="b"):
        assert namespaces(f"tl-{orphan.name}-") == []


def test_a_lab_whose_owner_is_gone_is_removed_by_the_next():
    owner = subprocess.Popen(["sleep", "600"])
    owned = Lab(hosts=1, owner=owner.pid, tag="a")
    with owned:
        with Lab(hosts=1, tag="b"):
            assert namespaces(f"tl-{owned.name}-") != [], "the owner lives"
        left = owned.python("h0", "import time; time.sleep(600)")  # maybe still on its way in when the lab goes
        owner.kill()
        owner.wait()
        with Lab(hosts=1, tag="b"):
            assert namespaces(f"tl-{owned.name}-") == []
            assert not os.path.exists(owned.about["runtime"])
            left.wait(timeout=5)


def test_namespaces_without_a_runtime_folder_are_removed():
    with Lab(hosts=1) as lab:
        shutil.rmtree(lab.about["runtime"])
        tensorlane(*lab.arguments)  # in the way of the same name: rebuilt
        shutil.rmtree(lab.about["runtime"])
        tensorlane("lab", "down", "--name", lab.name)
        assert namespaces(f"tl-{lab.name}-") == []


def test_without_permission():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = shutil.copy(TENSORLANE, folder)
        os.chmod(command, 0o755)
        done = subprocess.run([command, "lab", "up", "--name", "nope"], capture_output=True, text=True, user=65534, group=65534,
                              extra_groups=[], env={**os.environ, "TMPDIR": folder})
        start, end = "tensorlane: error: cannot create a network namespace: ", ": run as root or use --hosts local\n"
        assert done.returncode == 1, done
        assert done.stderr.startswith(start) and done.stderr.endswith(end) and done.stderr.count("\n") == 1, done.stderr
        assert os.listdir(f"{folder}/tensorlane-65534") == []


def test_usage_errors():
    for arguments, line in (
        (["--policy", "lifo"], "policy 'lifo': --policy: expected fifo, strict or service"),
        (["--speed", "500 MB"], "'500 MB' is not a rate: --speed: expected a rate such as '500 Mbit/s', '10 Gbit/s' or '100G'"),
        (["--buffer", "64 kB"], "'64 kB' is not a size: --buffer: expected a size such as '1500', '256 KiB' or '4 MiB'"),
        (["--hosts", "0"], "0 hosts: --hosts: expected 1 to 200"),
        (["--name", "a-b"], "name 'a-b': --name: expected 1 to 20 letters, digits or '_'"),
        (["--config", "/no/such"], "cannot read the fabric file: /no/such: No such file or directory; give the path of a fabric.yaml"),
        (["--hosts", "2", "--config", "f"], "--config excludes --hosts: tensorlane lab up: see `tensorlane lab up --help`"),
    ):
        expect_error(tensorlane("lab", "up", *arguments, check=False), 2, "tensorlane: error: " + line)


def main():
    require_namespaces()
    begin = time.monotonic()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok {name}", flush=True)
    print(f"{time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
