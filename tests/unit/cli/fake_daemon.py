"""A daemon that answers what a test wants: pages of text on the session socket. Standard library only."""

import os
import socket
import struct
import threading

MAGIC, VERSION = 0x53534C54, 11
ERROR, STATUS, ASK = 3, 7, 12
PACKET = 64 * 1024


class FakeDaemon:
    """with FakeDaemon(path, status=lambda: text, ask=lambda question: text): ... An answer that is None is never sent; one that is an (code, what) pair is an error."""

    def __init__(self, path, status, ask):
        self.path, self.status, self.ask = path, status, ask

    def __enter__(self):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *failure):
        self.listener.close()
        os.unlink(self.path)

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        text = None
        while packet := client.recv(PACKET):
            _, _, kind, request, _ = struct.unpack_from("<IHHII", packet)
            offset = 0
            if kind == ASK:
                text = self.ask(packet[16:])
            else:
                (offset,) = struct.unpack_from("<Q", packet, 16)
                text = self.status() if text is None else text
            if text is None:
                continue  # keeps whoever asks waiting
            if isinstance(text, tuple):
                body, kind = struct.pack("<i1024s512s512s", text[0], text[1].encode(), b"", b""), ERROR
            else:
                data = text if isinstance(text, bytes) else text.encode()
                body, kind = struct.pack("<QQ", len(data), offset) + data[offset : offset + PACKET - 32], STATUS
            try:
                client.send(struct.pack("<IHHII", MAGIC, VERSION, kind, request, len(body)) + body)
            except OSError:
                return
