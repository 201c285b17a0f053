"""Somebody who can reach the ports of a host, and even knows number and epoch of a job, tries to guess its weak secret and to take a flow over. He finds nothing to test
guesses against: what comes back is the same for every guess, and with no job at all. The job goes on, and the log says who it was."""

import hashlib
import hmac
import os
import re
import socket
import struct
import time

from daemons import BUILD, Daemons, expect, outputs

MESSAGE = f"{BUILD}/tests/message"
MAGIC = 0x48534c54
WEAK = "weak-77412"
WORDS = ["secret", "password", "tensorlane", "changeme", WEAK]


def hello(job, epoch, source, target, cls, key, version=3):
    words = struct.pack("<IHBBQIHHBBHI", MAGIC, version, 0, 0, job, epoch, source, target, cls, 0, 0, 0) + bytes(32)
    return words if version == 1 else words + hmac.new(key, b"tensorlane data 3 hello    " + words, hashlib.sha256).digest()


def ask(address, port, said):
    """All that comes back until the host closes, and that it does."""
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.sendall(said)
        answer = b""
        while True:
            try:
                part = connection.recv(4096)
            except ConnectionResetError:
                return answer
            if not part:
                return answer
            answer += part


def greeting(address, port):
    """What the control port says to anybody: ZeroMQ's greeting of 64 bytes. It wants more of ours before it says another word."""
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00")
        said = b""
        while len(said) < 64:
            part = connection.recv(64 - len(said))
            expect(part, f"the control port closes after {said}")
            said += part
        return said


def keys():
    """What a key could be made of, if it were made of the secret."""
    for word in WORDS:
        yield word.encode().ljust(32, b"\0")
        yield hashlib.sha256(word.encode()).digest()


def all_answers(daemons, job, epoch):
    """To every question that helped once: the true job, epoch, host and class, others, and every guess of the key. As a set: one that can be told from another is a hint."""
    address, port = daemons.address("h1"), daemons.port + 11
    answers = set()
    for key in keys():
        for asked in ((job, epoch, 0, 1, 0), (job + 1, epoch, 0, 1, 0), (job, epoch - 1, 0, 1, 0), (job, epoch + 1, 0, 1, 0), (job, epoch, 0, 7, 0), (job, epoch, 1, 1, 0),
                      (job, epoch, 0, 1, 1)):
            answers.add(ask(address, port, hello(*asked, key)))
    versions = {ask(address, port, hello(asked, epoch, 0, 1, 0, b"", version=1)) for asked in (job, job + 1)}
    return answers, versions, greeting(address, daemons.port)


def main():
    with Daemons(2, settings={"transport": "tcp"}) as daemons:
        daemons.secret = WEAK
        idle = all_answers(daemons, 12345, 678)
        ranks = daemons.job("job", [MESSAGE, "loop", str(1 << 18), "120", "0.1"])
        for rank in ranks:
            expect(rank.stdout.readline() == "running\n", "the job did not start")
        job = daemons.status("h1")["jobs"][0]
        answers, versions, control = all_answers(daemons, job["id"], job["epoch"])
        expect(answers == {b""}, f"a stranger is answered: {answers}")
        expect(len(versions) == 1 and b"handshake version 1, this host speaks 3" in next(iter(versions)), str(versions))
        expect((answers, versions, control) == idle, f"a stranger can tell whether there is a job: {(answers, versions, control)} and {idle}")
        time.sleep(1.1)  # past the limit of one line a second for each address
        expect(ask(daemons.address("h1"), daemons.port + 11, hello(job["id"], job["epoch"], 0, 1, 0, bytes(32))) == b"", "a stranger is answered")
        log = daemons.log("h1")
        claim = rf"connection from 127\.\S+ \(class 0\), which says that it is host 0 of job {job['id']:#018x}, was refused by this host: "
        expect(re.search(claim, log), f"the log does not name the stranger: {log[-3000:]}")
        expect("was replaced" not in log, log[-3000:])
        ranks[0].terminate()  # the loop's way to end well
        for index, (text, code) in enumerate(outputs(ranks, 30)):
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
    print(f"{len(list(keys())) * 7} questions of a stranger, no answer; the job went on", os.path.basename(__file__))


main()
