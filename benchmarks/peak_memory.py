"""Peak memory of a run against what the formulas of `interlace.config` say before it starts.

Peak is anonymous memory plus mapped model files, counted once, minus the same right after
importing.
It may exceed weights + cache + state + activations by 10 % and 64 MB (thread pools, workspaces of
libraries), and of a run that is planned at over 500 MB it may be at most 15 % below them. Each case
runs in a process of its own: load, prefill in chunks, decode. The four parts are those of
`interlace.plan`.

    python benchmarks/peak_memory.py        # about a minute; writes
    benchmarks/results/peak_memory.md
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch

import interlace
from interlace.bench import machine

RESULTS = Path(__file__).parent / "results"
CASES = (
    # model, prompt tokens, prefill chunk, tokens decoded
    ("mid", 2048, 512, 4),
    ("mid", 2048, 64, 4),
    ("kl2", 1024, 512, 4),
    ("kl2", 1024, 64, 4),
    ("kimi-linear-tiny", 2048, 512, 4),
)
DTYPE = "bfloat16"


@torch.inference_mode()
def run(folder: Path, prompt: int, chunk: int, new: int) -> int:
    import_module("interlace.checkpoints.reader")
    base = machine.resident_bytes()

    def work() -> None:
        lm = interlace.load(folder, dtype=DTYPE).eval()
        cache = lm.new_cache(1, capacity=prompt + new)
        tokens = torch.randint(0, 256, (1, prompt), generator=torch.Generator().manual_seed(0))
        for part in tokens.split(chunk, 1):
            lm(part, cache=cache, last_only=True)
        for token in range(new):
            lm(torch.tensor([[token]]), cache=cache, last_only=True)

    return machine.peak_over(base, work, every=0.002)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        folder, *numbers = options.case
        print(run(Path(folder), *map(int, numbers)))
        return
    rows = []
    for name, prompt, chunk, new in CASES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            interlace.save(interlace.build(name, dtype=DTYPE), folder)
            numbers = [str(n) for n in (prompt, chunk, new)]
            done = subprocess.run(
                [sys.executable, __file__, "--case", str(folder), *numbers],
                check=True,
                capture_output=True,
                text=True,
            )
        planned = interlace.plan(name, context=prompt + new, prefill_chunk=chunk, weights="bf16")
        parts = {
            "weights": planned.nbytes("weights"),
            "latents": planned.nbytes("cache"),
            "state": planned.nbytes("state"),
            "activations": max(planned.activations.values()),
        }
        bound = sum(parts.values()) * 1.1 + 64e6
        peak = int(done.stdout.strip().splitlines()[-1])
        rows.append(
            {
                "model": name,
                "prompt": prompt,
                "chunk": chunk,
                **parts,
                "planned": planned.total_bytes,
                "bound": bound,
                "peak": peak,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "peak_memory.md").write_text(report(rows))
    if any(row["peak"] > row["bound"] for row in rows):
        raise SystemExit("a peak is above its bound")
    if any(row["peak"] < 0.85 * row["planned"] for row in rows if row["planned"] > 500e6):
        raise SystemExit("a peak is more than 15 % below what was planned")


def report(rows: list[dict]) -> str:
    about = machine.describe()
    lines = [
        f"| {r['model']} | {r['prompt']:,} | {r['chunk']} | "
        + " | ".join(f"{r[k] / 1e6:.1f}" for k in ("weights", "latents", "state", "activations"))
        + f" | {r['planned'] / 1e6:.0f} | {r['bound'] / 1e6:.0f} | {r['peak'] / 1e6:.0f}"
        + f" | {100 * r['peak'] / r['planned'] - 100:+.0f} % |"
        for r in rows
    ]
    return "\n".join(
        [
            "# Peak memory against the formulas",
            "",
            f"MB (10^6 bytes), bf16, batch 1; {about['cpu']}, torch {about['torch']}. The bound is "
            "what was planned, 10 % more, and 64 MB; a run that is planned at over 500 MB may be "
            "at most 15 % below its plan.",
            "",
            "| model | prompt | chunk | weights | latents | state | activations | planned | bound "
            "| peak | peak over plan |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *lines,
            "",
            "Made by `benchmarks/peak_memory.py`.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
