"""What one user does to bring a daemon to its limits: each attack drives one of them over its edge, and goes on asking. Standard library only."""

import json
import socket
import threading
import time

from session_client import FLOAT16, Gone, Refused, Session, tensor

ADDRESS = "127.0.1.10"  # of h0
"".encode("idna")  # loaded now: an attacker may not be able to read it later


class Attack:
    """One way to want too much. step() asks once more and may raise Refused."""

    pause = 0.002  # seconds between two steps; a user whose requests are refused asks again, but is no machine gun

    def __init__(self, sockets, metrics):
        self.sockets, self.metrics = sockets, metrics
        self.sessions = []
        self.made = 0

    def session(self, job, host=0, **hello):
        session = Session(self.sockets[host])
        try:
            session.hello(job, **hello)
        except (Refused, Gone):
            session.close()
            raise
        self.sessions.append(session)
        return session

    def refused_within(self, session, seconds):
        """Raises what the daemon has to say against a session that it does not answer otherwise."""
        try:
            session.listen(seconds)
        except (Refused, Gone):
            self.sessions.remove(session)
            session.close()
            raise

    def pair(self, job, **hello):
        """Both ranks of a job of two hosts."""
        both = []
        for rank in (0, 1):
            session = Session(self.sockets[rank])
            session.hello(job, rank=rank, world=2, leader=ADDRESS, secret="of the attacker", wait=False, **hello)
            both.append(session)
        for session in both:
            session.welcome()
        self.sessions += both
        return both


class Sessions(Attack):
    """Jobs of one rank, with the longest names."""

    def step(self):
        self.session(f"{self.made:04}" + "N" * 251)


class Joining(Attack):
    """Jobs whose other rank never comes."""

    def step(self):
        session = self.session(f"half.{self.made}", world=2, leader=ADDRESS, secret="s", wait=False)
        self.refused_within(session, 0.02)


class Pending(Attack):
    """Connections that say nothing."""

    pause = 0.01

    def step(self):
        session = Session(self.sockets[0])
        self.sessions.append(session)
        self.refused_within(session, 0.02)


class Descriptors(Attack):
    """Segments of one page: descriptors rather than memory."""

    def step(self):
        if not self.sessions:
            self.session("descriptors")
        try:
            self.sessions[-1].arena(4096)
        except Refused as refusal:
            if "256" not in str(refusal) or "segment" not in str(refusal):
                raise
            self.session(f"descriptors.{len(self.sessions)}")  # a session has only so many


class Memory(Attack):
    def step(self):
        if not self.sessions:
            self.session("memory")
        self.sessions[0].arena(8 << 20)


class Tensors(Attack):
    """Tensors of one element, until there are no more regions."""

    pause = 0.05
    per_group = 4000

    def step(self):
        if not self.sessions:
            self.session("tensors.0").arena(4096)
        first = self.made * self.per_group
        try:
            self.sessions[-1].register(f"g{self.made}", [tensor(f"t{first + i}", 1) for i in range(self.per_group)])
        except Refused as refusal:
            if "in one session" not in str(refusal):
                raise
            self.session(f"tensors.{len(self.sessions)}").arena(4096)


class Scratch(Attack):
    """Float16 tensors with two ranks on a host: their sums are made in float32, in memory of the daemon's own."""

    pause = 0.05
    mebibytes = 64

    def step(self):
        if not self.sessions:
            ranks = []
            for rank, host, local_rank, local_world in ((0, 0, 0, 2), (1, 0, 1, 2), (2, 1, 0, 1)):
                session = Session(self.sockets[host])
                session.hello("scratch", rank=rank, world=3, local_rank=local_rank, local_world=local_world, leader=ADDRESS, secret="s", wait=False)
                ranks.append(session)
            for session in ranks:
                session.welcome()
                session.arena(self.mebibytes << 20)
            self.sessions = ranks
        for session in self.sessions:
            session.ask_register(f"g{self.made}", [tensor(f"w{self.made}", self.mebibytes << 19, FLOAT16)])
        refusals = []
        for session in self.sessions:
            try:
                session.registered()
            except Refused as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]


class Flood(Attack):
    """Operations that nobody awaits, on all tensors at once."""

    pause = 0
    tensors, elements, urgency = 4000, 16, 1.0

    def step(self):
        if not self.sessions:
            self.state = {}
            for session in self.pair("flood"):
                session.arena(max(4096, self.elements * 4))
            for first in range(0, self.tensors, 4000):
                group = [tensor(f"o{i}", self.elements, urgency=self.urgency) for i in range(first, min(self.tensors, first + 4000))]
                for session in self.sessions:
                    session.ask_register(f"g{first}", group)
                for session in self.sessions:
                    session.registered()
            for session in self.sessions:
                session.post([(i, 1) for i in range(self.tensors)])
        idle = True
        for session in self.sessions:
            session.beat()
            done = session.completions()
            if done:
                idle = False
                session.post([(tensor_id, sequence + 1) for tensor_id, _, sequence in done])
            if session.error():
                raise Gone(session.error())
        if idle:
            time.sleep(0.0005)


class Bulk(Flood):
    """Eight large operations at once, as urgent as can be."""

    tensors, elements = 8, 1 << 20


class Status(Attack):
    """Asks for the status again and again, on every connection that it gets."""

    def step(self):
        if len(self.sessions) < 8:
            self.sessions.append(Session(self.sockets[0]))
        asked = self.sessions[self.made % len(self.sessions)]
        try:
            asked.status()
        except (Gone, Refused) as end:
            self.sessions.remove(asked)
            asked.close()
            if "no hello" not in str(end):  # who never joins may look for some seconds
                raise


class Scrapes(Attack):
    """HTTP connections that ask for nothing, or for half a line."""

    pause = 0.01

    def step(self):
        host, port = self.metrics.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=5)
        self.sessions.append(_Kept(connection))
        if self.made % 2:
            connection.send(b"GET /met")


class _Kept:
    def __init__(self, connection):
        self.connection = connection

    def beat(self):
        pass


class Names(Attack):
    """Takes the name of the other user's next job, on the host that does not lead it."""

    def step(self):
        if not self.sessions:
            self.session("none", host=1, rank=1, world=2, leader=ADDRESS, port=29511, secret="guessed", wait=False)


def run(name, sockets, metrics, orders, answers):
    """Does what it is told: "go SECONDS" attacks, "rest SECONDS" keeps what it has. Answers each with a line of JSON: {"refused": text of the first refusal,
    "made": how often it got what it wanted, "cpu": processor seconds that it used}."""
    attack = {cls.__name__.lower(): cls for cls in Attack.__subclasses__() + Flood.__subclasses__()}[name](sockets, metrics)
    lock = threading.Lock()

    def live():
        while True:
            with lock:
                for session in attack.sessions:
                    session.beat()
            time.sleep(0.2)

    threading.Thread(target=live, daemon=True).start()
    refused = None
    for line in orders:
        what, seconds = line.split()
        end, began = time.monotonic() + float(seconds), time.process_time()
        while what == "go" and time.monotonic() < end:
            try:
                with lock:
                    attack.step()
                attack.made += 1
            except (Refused, OSError) as refusal:
                refused = refused or str(refusal)
                time.sleep(0.02)
            except Gone as gone:
                refused = refused or f"the session ended: {gone}"
                time.sleep(0.02)
            time.sleep(attack.pause)
        time.sleep(max(0.0, end - time.monotonic()))
        print(json.dumps({"refused": refused, "made": attack.made, "cpu": time.process_time() - began}), file=answers, flush=True)
