"""Open the planner's page in headless Chromium, move every control, and compare what it shows.

After each move the totals and times in the page's table must be those of `interlace.plan`; at the
end a picture of the page is kept for the documentation. Chromium is spoken to over two pipes.

    python benchmarks/plan_page.py        # seconds; writes docs/planner_page.png
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from interlace.planner import page, plan
from interlace.planner.compare import compared
from interlace.planner.plan import plan_for

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PICTURE = Path(__file__).parents[1] / "docs" / "planner_page.png"
OPTIONS = {"context": "1M", "hardware": "h200", "tp": 16}
BESIDE = ("all-mla", "mha", "kimi-k2")
# in turn; each changes one control and leaves the others
MOVES = (
    ("context", 131072),
    ("batch", 8),
    ("cache", "fp8"),
    ("weights", "int4"),
    ("devices", "8"),
    ("context", 5_000_000),
    ("weights", "as-stored"),
    ("cache", "bfloat16"),
    ("devices", "16"),
    ("batch", 1),
    ("context", 1_000_000),
)
ROWS = (
    "[...document.querySelectorAll('#numbers tr')].slice(1)"
    ".map(row => [row.dataset.total, row.dataset.seconds])"
)


class Browser:
    """One page of a headless Chromium, over its debugging pipe."""

    def __init__(self, binary: str, address: str) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

        def as_three_and_four() -> None:
            # away from 3 and 4 first, which either of them may be
            low, high = os.dup2(commands, 13), os.dup2(answers, 14)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(
            [
                binary,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--window-size=1160,1040",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            preexec_fn=as_three_and_four,
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url=address)["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]

    def call(self, method: str, **params: object) -> dict:
        self._number += 1
        message: dict = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise SystemExit("the browser closed its pipe")
            self._buffer += part
        first, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(first)

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise SystemExit(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, NAMES)), None))
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    if options.browser is None:
        sys.exit(f"a Chromium must be installed under one of the names {', '.join(NAMES)}.")
    first = plan("kimi-k3", **OPTIONS)
    plans = [first, *(plan_for(compared(first.description, name), **OPTIONS) for name in BESIDE)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.html"
        path.write_text(page.page(plans))
        browser = Browser(options.browser, path.as_uri())
        try:
            while not browser.value("document.querySelector('#numbers tr') !== null"):
                pass
            checked = compare(browser, plans)
            picture = browser.call("Page.captureScreenshot", format="png")["data"]
        finally:
            browser.close()
    options.out.write_bytes(base64.b64decode(picture))
    print(f"{checked} totals and times in the page are those of interlace.plan; {options.out}")


def move(browser: Browser, control: str, value: object) -> None:
    browser.value(
        f"{{ const c = document.getElementById({control!r}); c.value = {json.dumps(value)};"
        "c.dispatchEvent(new Event('input', { bubbles: true })); }"
    )


def compare(browser: Browser, plans: list) -> int:
    asked = {"context": 1_000_000, "batch": 1, "weights": "as-stored", "cache": "bfloat16"}
    asked["devices"] = "16"
    checked = 0
    for control, value in (("context", 1_000_000), *MOVES):
        asked[control] = value
        move(browser, control, value)
        shown = browser.value(ROWS)
        for one, (total, seconds) in zip(plans, shown, strict=True):
            wanted = one.with_request(
                context=asked["context"],
                batch=asked["batch"],
                weights=asked["weights"],
                cache_dtype=asked["cache"],
                tp=int(asked["devices"]),
            )
            if int(total) != wanted.total_bytes:
                sys.exit(f"{control} = {value}: page {total}, plan {wanted.total_bytes}")
            if abs(float(seconds) / wanted.seconds_per_token - 1) > 1e-9:
                sys.exit(f"{control} = {value}: page {seconds}, plan {wanted.seconds_per_token}")
            checked += 2
    # the slider moves the number beside it
    move(browser, "slider", 500)
    least, most = browser.value("plan.contexts")
    shown = float(browser.value("document.getElementById('context').value"))
    if abs(shown / (least * most) ** 0.5 - 1) > 0.01:
        sys.exit(f"the slider's middle shows {shown}")
    move(browser, "context", 1_000_000)
    return checked


if __name__ == "__main__":
    main()
