"""A client of tensorlaned's session protocol (common/protocol/session.h) without the library, so that it can ask for what no program would. Standard library
only."""

import array
import ctypes
import fcntl
import mmap
import os
import re
import socket
import struct

_F_SEAL_FUTURE_WRITE = 0x10  # of linux/fcntl.h
_HEADER_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common", "protocol", "session.h")
with open(_HEADER_FILE) as file:
    MAGIC, VERSION = 0x53534C54, int(re.search(r"kSessionVersion = (\d+);", file.read())[1])
HELLO, WELCOME, ERROR, ARENA, REGISTER, REGISTERED, STATUS, GOODBYE = range(1, 9)
FLOAT32, FLOAT64, FLOAT16 = range(3)
_HEADER = struct.Struct("<IHHII")
_ENTRY, _DONE = struct.Struct("<IIQ"), struct.Struct("<IiQ")
_TENSOR = struct.Struct("<256sQQQIIIBBBBfIB7x")
_PACKET = 64 * 1024
_TENSORS_PER_PACKET = 128
# Of RingPage.
_PAGE, _SUBMITTED, _COMPLETED, _CONSUMED, _SLEEPING, _BEATS, _FAILED, _ERROR = 4096, 0, 128, 192, 256, 320, 448, 524


class Refused(Exception):
    """What the daemon answered: its text is "WHAT: WHERE: WHAT TO DO"."""


class Gone(Exception):
    """The daemon has closed the session."""


def tensor(name, elements, dtype=FLOAT32, urgency=None, segment=0):
    """An allreduce."""
    return _TENSOR.pack(name.encode(), elements, 1, 0, segment, 0, 0, dtype, 0, 0, urgency is not None, urgency or 0.0, 1, 0)


def _error_text(body):
    _, what, where, fix = struct.unpack("<i1024s512s512s", body[:2052])
    return ": ".join(text.split(b"\0")[0].decode(errors="replace") for text in (what, where, fix))


class Session:
    def __init__(self, path, timeout=20):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(timeout)
        self._socket.connect(path)
        self._request = 1
        self._descriptors = []
        self.ring = None

    def close(self):
        self._socket.close()
        if self.ring is not None:
            self.ring.close()
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []

    def _send(self, kind, body=b"", request=None):
        if request is None:
            self._request += 1
            request = self._request
        try:
            self._socket.send(_HEADER.pack(MAGIC, VERSION, kind, request, len(body)) + body)
        except OSError as error:
            self._receive()  # why it closed, if it said so
            raise Gone(str(error)) from error
        return request

    def _receive(self):
        try:
            packet, ancillary, _, _ = self._socket.recvmsg(_PACKET, socket.CMSG_SPACE(8))
        except ConnectionResetError as error:
            raise Gone(str(error)) from error
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data[:len(data) // 4 * 4])
        if not packet:
            raise Gone("closed")
        kind = _HEADER.unpack_from(packet)[2]
        if kind == ERROR:
            raise Refused(_error_text(packet[_HEADER.size:]))
        return kind, packet[_HEADER.size:], list(fds)

    def hello(self, job, rank=0, world=1, local_rank=0, local_world=1, leader="127.0.0.1", port=0, secret="", wait=True, timeout_ms=60000):
        body = struct.pack("<6I256s256s256sII", rank, world, local_rank, local_world, len(secret), timeout_ms, job.encode(), leader.encode(),
                           secret.encode(), port, 0)
        self._send(HELLO, body, request=1)
        return self.welcome() if wait else self

    def welcome(self):
        kind, body, fds = self._receive()
        assert kind == WELCOME, kind
        self._entries = struct.unpack_from("<I", body)[0]
        self._descriptors += fds
        self._wake = fds[1]
        self.ring = mmap.mmap(fds[0], _PAGE + self._entries * 32)
        self._posted = self._consumed = 0
        return self

    def listen(self, seconds):
        """Whatever the daemon says within so long."""
        before = self._socket.gettimeout()
        self._socket.settimeout(seconds)
        try:
            return self._receive()
        except (TimeoutError, socket.timeout):
            return None
        finally:
            self._socket.settimeout(before)

    def arena(self, size):
        self._send(ARENA, struct.pack("<IIQ", 0, 0, size))
        _, body, fds = self._receive()
        self._descriptors += fds
        fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE)
        return struct.unpack_from("<I", body)[0]

    def ask_register(self, group, tensors):
        self._request += 1
        request = self._request
        for first in range(0, len(tensors), _TENSORS_PER_PACKET):
            part = tensors[first:first + _TENSORS_PER_PACKET]
            more = first + _TENSORS_PER_PACKET < len(tensors)
            self._send(REGISTER, struct.pack("<256sIIII", group.encode(), len(part), more, 0, 0) + b"".join(part), request)

    def registered(self):
        _, body, _ = self._receive()
        count = struct.unpack_from("<I", body)[0]
        return list(struct.unpack_from(f"<{count}I", body, 8))

    def register(self, group, tensors):
        self.ask_register(group, tensors)
        return self.registered()

    def status(self):
        """The text, joined from its pages."""
        text = b""
        while True:
            self._send(STATUS, struct.pack("<Q", len(text)))
            _, body, _ = self._receive()
            whole = struct.unpack_from("<Q", body)[0]
            text += body[16:]
            if len(text) >= whole:
                return text.decode()

    # ---- the rings ----

    def _number(self, offset, value=None):
        place = ctypes.c_uint32.from_buffer(self.ring, offset)
        if value is None:
            return place.value
        place.value = value & 0xFFFFFFFF
        return value

    def beat(self):
        """Says that this client lives; to be said once in a detection time."""
        if self.ring is not None:
            ctypes.c_uint64.from_buffer(self.ring, _BEATS).value += 1

    def post(self, entries):
        """Submits (tensor, sequence) pairs; there must be room in the ring."""
        packed = b"".join(_ENTRY.pack(tensor_id, 0, sequence) for tensor_id, sequence in entries)
        for place, part in self._pieces(self._posted, len(entries)):
            self.ring[_PAGE + place:_PAGE + place + len(part)] = packed[part.start:part.stop]
        self._posted += len(entries)
        self._number(_SUBMITTED, self._posted)
        if self._number(_SLEEPING):
            self._number(_SLEEPING, 0)
            os.write(self._wake, struct.pack("<Q", 1))

    def completions(self):
        """(tensor, status, sequence) of what is done since the last call."""
        count = (self._number(_COMPLETED) - self._consumed) & 0xFFFFFFFF
        first, result = _PAGE + self._entries * _ENTRY.size, []
        for place, part in self._pieces(self._consumed, count):
            result += _DONE.iter_unpack(self.ring[first + place:first + place + len(part)])
        self._consumed += count
        self._number(_CONSUMED, self._consumed)
        return result

    def _pieces(self, index, count):
        """Where `count` entries from `index` on lie in a ring, which ends and begins again: (offset in the ring, their bytes among all) once or twice."""
        begin = index % self._entries
        before_the_end = min(count, self._entries - begin)
        size = _ENTRY.size
        return [(begin * size, range(before_the_end * size)), (0, range(before_the_end * size, count * size))]

    def error(self):
        """Why the job has failed, if it has."""
        return _error_text(self.ring[_ERROR:_ERROR + 2052]) if self._number(_FAILED) else None
