"""Runs a command as systemd would under a unit's restrictions, where no systemd runs: restricted.py UNIT UID WRITABLE-FOLDER COMMAND...

What it does itself, from what the unit says: user, no groups, no capability and none to come (CapabilityBoundingSet=, NoNewPrivileges=), a file system that is read-only but
for one folder (ProtectSystem=strict), empty /home and /root (ProtectHome=), a /dev with nothing in it (PrivateDevices=), LimitNOFILE= and LimitCORE=, and by a seccomp filter of
its own SystemCallFilter= (the sets are those of `systemd-analyze syscall-filter`), RestrictAddressFamilies= and MemoryDenyWriteExecute=. It refuses a unit that does not ask
for these. Not emulated: the cgroup's part (DevicePolicy=, TasksMax=), /proc and /sys (ProtectKernelTunables= and its like), /tmp of its own, restricted namespaces, real time and
set-user-id files. As root, on x86-64. Standard library only."""

import configparser
import ctypes
import os
import re
import resource
import struct
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
ALLOW, EPERM, EAFNOSUPPORT = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 97
LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
X86_64 = 0xC000003E
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
WRITE_AND_EXECUTE, EXECUTE = 6, 4


def call(function, *arguments):
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{function.__name__}{arguments}: {os.strerror(ctypes.get_errno())}")


class Several(dict):
    """A key that stands more than once has several values, one a line."""

    def __setitem__(self, key, value):
        if isinstance(value, list) and key in self:
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def read_unit(path):
    parser = configparser.RawConfigParser(strict=False, dict_type=Several, empty_lines_in_values=False)
    parser.optionxform = str
    parser.read(path)
    return {key: value.split("\n") for key, value in parser.items("Service")}


def numbers():
    with open("/usr/include/x86_64-linux-gnu/asm/unistd_64.h") as file:
        return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", file.read())}


def sets():
    """{name of a set: the names in it, of calls and of other sets}"""
    text = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout
    known, name = {}, None
    for line in text.splitlines():
        if line.startswith("@"):
            name = line.strip()
            known[name] = set()
        elif line.startswith("    ") and not line.strip().startswith("#") and name:
            known[name].add(line.strip())
        elif not line.startswith(" "):
            name = None
    return known


def calls_of(word, known):
    return {word} if not word.startswith("@") else {call for inner in known[word] for call in calls_of(inner, known)}


def allowed_calls(lines):
    known, allowed = sets(), set()
    for line in lines:
        calls = {call for word in line.lstrip("~").split() for call in calls_of(word, known)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    number = numbers()
    return {name: number[name] for name in allowed if name in number}


def step(code, value, yes=0, no=0):
    return struct.pack("=HBBI", code, yes, no, value)


def seccomp_program(unit):
    calls = allowed_calls(unit["SystemCallFilter"])
    families = [FAMILIES[name] for name in unit["RestrictAddressFamilies"][0].split()]
    program = step(LOAD, ARCHITECTURE) + step(EQUAL, X86_64, 1, 0) + step(RETURN, EPERM) + step(LOAD, NUMBER)
    program += step(EQUAL, calls.pop("socket"), 0, 2 + 2 * len(families)) + step(LOAD, ARGUMENTS)
    for family in families:
        program += step(EQUAL, family, 0, 1) + step(RETURN, ALLOW)
    program += step(RETURN, EAFNOSUPPORT)
    for name, bits in (("mmap", WRITE_AND_EXECUTE), ("mprotect", EXECUTE)):
        program += step(EQUAL, calls.pop(name), 0, 5) + step(LOAD, ARGUMENTS + 2 * 8) + step(AND, bits) + step(EQUAL, bits, 0, 1)
        program += step(RETURN, EPERM) + step(RETURN, ALLOW)
    for number in calls.values():
        program += step(EQUAL, number, 0, 1) + step(RETURN, ALLOW)
    return program + step(RETURN, EPERM)


def hide_files(writable):
    """ProtectSystem=strict, ProtectHome=, PrivateDevices=."""
    call(LIBC.unshare, CLONE_NEWNS)
    call(LIBC.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
    call(LIBC.mount, writable.encode(), writable.encode(), None, MS_BIND, None)
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split()[4].encode().decode("unicode_escape") for line in file]
    for place in mounts:
        if place != writable and not re.match(r"/(dev|proc|sys)\b", place):
            LIBC.mount(None, place.encode(), None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)  # some cannot be: they are hidden by others
    for place in ("/home", "/root"):
        if os.path.isdir(place) and not writable.startswith(place):
            call(LIBC.mount, b"tmpfs", place.encode(), b"tmpfs", MS_RDONLY, None)
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in ("null", "zero", "full", "random", "urandom")}
    call(LIBC.mount, b"tmpfs", b"/dev", b"tmpfs", 0, b"mode=755")
    for name, device in devices.items():
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
        call(LIBC.mount, f"/proc/self/fd/{device}".encode(), f"/dev/{name}".encode(), None, MS_BIND, None)
    call(LIBC.mount, None, b"/dev", None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)


def main():
    path, uid, writable, *command = sys.argv[1:]
    unit, uid = read_unit(path), int(uid)
    for key, value in {"ProtectSystem": "strict", "ProtectHome": "yes", "PrivateDevices": "yes", "CapabilityBoundingSet": "", "NoNewPrivileges": "yes",
                       "MemoryDenyWriteExecute": "yes", "SystemCallErrorNumber": "EPERM", "LimitCORE": "0"}.items():
        if unit.get(key) != [value]:
            sys.exit(f"{path}: {key}={unit.get(key)}, this emulates {value}")
    program = seccomp_program(unit)
    buffer = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    hide_files(writable)
    limit = min(int(unit["LimitNOFILE"][0]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for those that the kernel does not have
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(int(unit["UMask"][0], 8))
    call(LIBC.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(LIBC.prctl, PR_SET_SECCOMP, 2, filter_, 0, 0)
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
