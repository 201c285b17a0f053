"""Scripts in processes that have PyTorch already: importing it takes longer than most of them run. Launchers import little, and each function what it needs.

    warm.py --serve SOCKET             imports PyTorch, then copies itself for every launcher, until its standard input ends
    warm.py SOCKET SCRIPT ARGUMENTS    a launcher: runs the script in a copy, with its own files, folder and environment; ends as the copy ends;
                                       or the module, with `-m MODULE`

A copy is the server's child: who looks at the launcher's pid does not see it, and who kills the launcher kills it. Its hash seed is the server's.
What must act when a process or PyTorch starts (LD_PRELOAD, PYTHONHASHSEED) needs a process of its own.
"""

import array
import os
import signal
import socket
import struct
import sys

_OUTCOME = struct.Struct("<i")
_FILES = 3  # standard input, output and error
_PR_SET_PDEATHSIG = 1


def launch(path, command):
    """Returns what os.waitstatus_to_exitcode says of the copy."""
    import json

    request = json.dumps([command, os.getcwd(), dict(os.environ), sorted(os.sched_getaffinity(0))]).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.sendmsg([struct.pack("<I", len(request))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", range(_FILES)))])
    connection.sendall(request)
    answer = connection.recv(_OUTCOME.size, socket.MSG_WAITALL)
    if len(answer) < _OUTCOME.size:
        sys.exit(f"the process that has PyTorch is gone: {path}: see its messages")
    return _OUTCOME.unpack(answer)[0]


def _read_request(connection):
    import json

    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(_FILES * 4))
    files = array.array("i", ancillary[0][2])
    return json.loads(connection.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)), files


def serve(path):
    """Returns in copies only: the command that is to be run there."""
    import selectors

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    server, waiting = os.getpid(), selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    waiting.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                os._exit(0)
            if key.fileobj is not listener:
                _follow(waiting, key)
                continue
            connection, _ = listener.accept()
            request, files = _read_request(connection)
            child = os.fork()
            if child == 0:
                connection.close()
                _close_all(waiting)
                return _become(server, request, files)
            for file in files:
                os.close(file)
            running = (child, os.pidfd_open(child), connection)
            waiting.register(connection, selectors.EVENT_READ, running)
            waiting.register(running[1], selectors.EVENT_READ, running)


def _close_all(waiting):
    """What the server waits for is none of a copy's. Standard input becomes the launcher's."""
    for key in list(waiting.get_map().values()):
        if isinstance(key.fileobj, int):
            os.close(key.fileobj)
        elif key.fileobj is not sys.stdin:
            key.fileobj.close()
    waiting.close()


def _follow(waiting, key):
    """A launcher is gone, and so must be its copy; or a copy has ended, which its launcher is told."""
    child, ended, connection = key.data
    if key.fileobj is connection:
        os.kill(child, signal.SIGKILL)
        waiting.unregister(connection)
        return
    outcome = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if connection in waiting.get_map():
        waiting.unregister(connection)
        connection.sendall(_OUTCOME.pack(outcome))
    waiting.unregister(ended)
    os.close(ended)
    connection.close()


def _become(server, request, files):
    """Makes this copy what the launcher would have been as a new interpreter."""
    import ctypes
    import random

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    command, folder, variables, cores = request
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    os.sched_setaffinity(0, cores)
    random.seed()
    ours, usual = sys.path[0], sys.path[1:]
    assert ours == os.path.dirname(os.path.abspath(__file__)), ours
    sys.path[:] = [os.path.dirname(command[0]), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)), *usual]
    sys.argv = command
    return command


def _run(command):
    import builtins
    import runpy
    import types

    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    script = command[0]
    main = types.ModuleType("__main__")
    main.__file__, main.__builtins__ = script, builtins
    sys.modules["__main__"] = main
    with open(script) as text:
        code = compile(text.read(), script, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] != "--serve":
        outcome = launch(sys.argv[1], sys.argv[2:])
        if outcome < 0:  # by a signal: Python handles two of them itself
            if -outcome in (signal.SIGINT, signal.SIGPIPE):
                signal.signal(-outcome, signal.SIG_DFL)
            os.kill(os.getpid(), -outcome)
        os._exit(outcome)
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # copies do that, if their environment wants it
    import torch
    import torch.distributed.checkpoint
    import torch.nn.parallel
    import torch.utils.data

    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1)  # imports more at first use
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        sys.exit(f"a copy would lack {threads - 1} threads of this process")
    command = serve(sys.argv[2])
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        torch._import_device_backends()
    _run(command)
