"""A program in a pseudo-terminal, and what its screen shows: as much of an xterm as ncurses uses. Standard library only."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

SEQUENCE = re.compile(r"\x1b(?:\[([?>=!]*)([0-9;]*)([@-~])|\]([^\x07\x1b]*)(?:\x07|\x1b\\)|[()]([0-9A-Za-z])|([=>78MDEHc]))")
PARTIAL = re.compile(r"\x1b(?:\[[?>=!]*[0-9;]*|\][^\x07\x1b]*|[()])?$")


class Terminal:
    """with Terminal(command, columns, lines) as terminal: terminal.wait_for("text"); terminal.press("q")"""

    def __init__(self, command, columns, lines, env=None):
        self.columns, self.lines = columns, lines
        self.clear()
        self.master, self.slave = pty.openpty()
        self.resize_device(columns, lines)
        self.modes = termios.tcgetattr(self.slave)
        self.other_screen = self.cursor_hidden = False
        self.colours = False
        self.overflowed = []  # what was written beyond the right end
        self.unknown = set()
        self.decoder, self.rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        self.child = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True, preexec_fn=self.control,
                                      env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})})

    def control(self):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.slave)
        os.close(self.master)

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.lines)]
        self.x = self.y = 0

    def resize_device(self, columns, lines):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        """As a window that is dragged: what is shown is cut, and the program is told. It stands still meanwhile, so that what it has drawn for the old width is read first."""
        os.killpg(self.child.pid, signal.SIGSTOP)
        self.read(0.05)
        self.columns, self.lines = columns, lines
        self.clear()
        self.resize_device(columns, lines)
        os.killpg(self.child.pid, signal.SIGWINCH)
        os.killpg(self.child.pid, signal.SIGCONT)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.cells)

    def wait_for(self, wanted, seconds=10):
        """Until the screen shows a text, or a condition on it holds."""
        holds = wanted if callable(wanted) else lambda text: wanted in text
        deadline = time.monotonic() + seconds
        while not holds(self.text()):
            if time.monotonic() > deadline or (self.child.poll() is not None and not self.read(0)):
                raise AssertionError(f"the screen does not show {wanted!r} but:\n{self.text()}")
            self.read(0.1)
        return self.text()

    def end(self, seconds=5):
        """Its exit status; it must end by itself."""
        deadline = time.monotonic() + seconds
        while self.child.poll() is None and time.monotonic() < deadline:
            self.read(0.1)
        self.read(0)
        assert self.child.poll() is not None, "it has not ended"
        return self.child.returncode

    def read(self, seconds):
        """Whether something came."""
        came = False
        while select.select([self.master], [], [], 0 if came else seconds)[0]:
            came = True
            self.show(self.rest + self.decoder.decode(os.read(self.master, 65536)))
        return came

    def show(self, text):
        at = 0
        self.rest = ""
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
                continue
            match = SEQUENCE.match(text, at)
            if match is None:
                if PARTIAL.match(text, at):
                    self.rest = text[at:]
                    return
                self.unknown.add(text[at : at + 8])
                at += 1
                continue
            at = match.end()
            if match[3] is not None:
                self.control_sequence(match[1], [int(n) if n else 0 for n in match[2].split(";")], match[3])

    def put(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.y = min(self.y + 1, self.lines - 1)
        elif character == "\b":
            self.x = max(self.x - 1, 0)
        elif character >= " ":
            width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
            if self.x + width > self.columns:
                self.overflowed.append(character)
                return
            self.cells[self.y][self.x] = character
            if width == 2:
                self.cells[self.y][self.x + 1] = ""
            self.last = character
            self.x += width

    def control_sequence(self, private, numbers, final):
        n = max(numbers[0], 1)
        line = self.cells[min(self.y, self.lines - 1)]
        if private:
            for mode in numbers:
                self.other_screen = final == "h" if mode == 1049 else self.other_screen
                self.cursor_hidden = final == "l" if mode == 25 else self.cursor_hidden
        elif final in "Hf":
            self.y = min(n, self.lines) - 1
            self.x = min(max(numbers[1] if len(numbers) > 1 else 1, 1), self.columns) - 1
        elif final == "d":
            self.y = min(n, self.lines) - 1
        elif final == "G":
            self.x = min(n, self.columns) - 1
        elif final in "ABCD":
            self.y = min(max(self.y + {"A": -n, "B": n}.get(final, 0), 0), self.lines - 1)
            self.x = min(max(self.x + {"C": n, "D": -n}.get(final, 0), 0), self.columns - 1)
        elif final == "J" and numbers[0] == 2:
            self.cells = [[" "] * self.columns for _ in range(self.lines)]
        elif final == "J":
            line[self.x :] = [" "] * (self.columns - self.x)
            self.cells[self.y + 1 :] = [[" "] * self.columns for _ in self.cells[self.y + 1 :]]
        elif final == "K":
            begin, end = {0: (self.x, self.columns), 1: (0, self.x + 1), 2: (0, self.columns)}[numbers[0]]
            line[begin:end] = [" "] * (end - begin)
        elif final == "X":
            end = min(self.x + n, self.columns)
            line[self.x : end] = [" "] * (end - self.x)
        elif final == "P":
            line[self.x :] = (line[self.x + n :] + [" "] * n)[: self.columns - self.x]
        elif final == "@":
            line[self.x :] = ([" "] * n + line[self.x :])[: self.columns - self.x]
        elif final == "b":
            for _ in range(n):
                self.put(self.last)
        elif final in "LMST":
            self.scroll(final, n)
        elif final == "m":
            self.colours = self.colours or any(30 <= number <= 38 for number in numbers)
        elif final not in "rhltc":
            self.unknown.add(final)

    def scroll(self, final, n):
        top = self.y if final in "LM" else 0
        body, blank = self.cells[top:], [[" "] * self.columns for _ in range(n)]
        self.cells[top:] = (body[n:] + blank if final in "MS" else blank + body)[: len(body)]
