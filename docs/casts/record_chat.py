"""Record docs/casts/chat.cast: `interlace chat` in a terminal of its own, two turns typed.

    python docs/casts/record_chat.py            (Linux and macOS; half a minute)

The file is an asciicast, version 2 (asciinema plays it): a header, then [seconds, "o", text] for
what the terminal was shown. docs/guide.md shows the same text, which a test compares.
"""

import json
import os
import pty
import select
import struct
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

FILE = Path(__file__).with_name("chat.cast")
COLUMNS, LINES = 100, 30
COMMAND = ["interlace", "chat", "--format", "plain", "--max-tokens", "60", "--stop", "\n\n"]
TYPED = ["def add(a, b):", "And now the same for a list?", "/quit"]
PROMPT = "> "


def record() -> list[list[object]]:
    """What the terminal was shown, each piece with its time."""
    child, screen = pty.fork()
    if child == 0:
        run = "from interlace.cli import main; raise SystemExit(main())"
        os.execvp(sys.executable, [sys.executable, "-c", run, *COMMAND[1:]])
    ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    start, events, fresh = time.monotonic(), [], ""
    lines = iter(TYPED)
    while True:
        if select.select([screen], [], [], 0.2)[0]:
            try:
                data = os.read(screen, 4096)
            except OSError:  # the other end has closed
                break
            if not data:
                break
            text = data.decode(errors="replace")
            events.append([round(time.monotonic() - start, 3), "o", text])
            fresh += text
        elif fresh.endswith(PROMPT):
            fresh = ""
            os.write(screen, next(lines).encode() + b"\n")
    os.waitpid(child, 0)
    return events


if __name__ == "__main__":
    events = record()
    header = {"version": 2, "width": COLUMNS, "height": LINES, "command": " ".join(COMMAND)}
    rows = [json.dumps(row) for row in (header, *events)]
    FILE.write_text("\n".join(rows) + "\n")
    sys.stdout.write("".join(str(event[2]) for event in events))
