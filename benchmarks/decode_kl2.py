"""Time and memory of one decoding step over a long cache, ours against transformers, same weights.

transformers keeps the latent too, but rebuilds the keys and values of the whole history at every
step; ours works on the latents. Both caches are filled with the same random normalised latents, and
the KDA states are those after the same few real tokens; in float32 the logits of both must then
agree to 1e-4, or nothing is timed. The time of a run is the mean of a few steps of ours and one
step of each of transformers' attention forms, taken in turn; transformers' figure is its faster
form. A run during which others took more than 6 % of the machine is repeated.

    python benchmarks/decode_kl2.py                                       # minutes
    python benchmarks/decode_kl2.py --tokens 1024 --runs 2 --model mid    # seconds, writes nothing
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import interlace
from interlace.bench import machine
from interlace.bench.filled import BLOCK, Filled
from interlace.bench.peers.transformers import FORMS as ATTENTION
from interlace.bench.peers.transformers import Loaded
from interlace.bench.timing import BUSY

RESULTS = Path(__file__).parent / "results"
BF16 = torch.bfloat16
MAX_REPEATS = 10


def our_model(folder: Path, tokens: int, reserve: int, dtype: torch.dtype = BF16) -> Filled:
    return Filled(interlace.load(folder, dtype=dtype).eval(), tokens, reserve)


def their_model(folder: Path, tokens: int, attention: str, dtype: torch.dtype = BF16) -> Loaded:
    theirs = Loaded(folder, dtype=dtype)
    theirs.use(attention)
    theirs.fill(tokens, 0)
    return theirs


def logit_gap(ours: Filled, theirs: Loaded) -> float:
    """max |a - b| / max(1, max |b|) of one step's logits."""
    mine, other = ours.step(9), theirs.step(9)
    return float((mine - other).abs().max() / other.abs().max().clamp(min=1.0))


@torch.inference_mode()
def check_equal(folder: Path, tokens: int) -> float:
    """In float32, and over no more latents than that affords, both must compute the same."""
    tokens = min(tokens, BLOCK)
    ours = our_model(folder, tokens, 1, torch.float32)
    gap = logit_gap(ours, their_model(folder, tokens, "eager", torch.float32))
    if gap > 1e-4:
        raise SystemExit(f"in float32 both must give the same logits to 1e-4, got {gap:.3g}")
    return gap


def timed(call: Callable[[], object], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        call()
    return (time.perf_counter() - start) / steps


def one_run(ours: Filled, theirs: Loaded, steps: int) -> dict[str, float]:
    with machine.OthersShare() as others:
        run = {"ours": timed(lambda: ours.step(5), steps)}
        for attention in ATTENTION:
            theirs.use(attention)
            run[attention] = timed(lambda: theirs.step(5), 1)
    return run | {"others_share": others.share}


@torch.inference_mode()
def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    steps = options.steps
    reserve = (options.runs + MAX_REPEATS + 1) * steps + 1
    ours = our_model(folder, options.tokens, reserve)
    theirs = their_model(folder, options.tokens, "eager")
    gap = logit_gap(ours, theirs)
    one_run(ours, theirs, 1)  # warm both attention forms
    runs: list[dict[str, float]] = []
    repeated = 0
    while len(runs) < options.runs:
        run = one_run(ours, theirs, steps)
        if run["others_share"] > BUSY and repeated < MAX_REPEATS:
            repeated += 1
            continue
        runs.append(run)
        print(" ".join(f"{name}={value:.4g}" for name, value in run.items()), flush=True)
    median = {name: statistics.median(run[name] for run in runs) for name in ("ours", *ATTENTION)}
    faster = min(ATTENTION, key=lambda name: median[name])
    return {
        "runs": runs,
        "repeated_runs": repeated,
        "median_seconds": median,
        "faster_attention": faster,
        "ratio": statistics.median(run[faster] / run["ours"] for run in runs),
        "logit_gap_bf16": gap,
        "latent_bytes": ours.cache.latent_bytes,
        "state_bytes": ours.cache.state_bytes,
    }


@torch.inference_mode()
def memory_of(system: str, folder: Path, tokens: int) -> int:
    """Peak memory of loading, filling the cache and three steps, in a process of its own."""
    if system != "ours":
        import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    else:
        import_module("interlace.checkpoints.reader")
    base = machine.resident_bytes()

    def work() -> None:
        run: Filled | Loaded
        if system == "ours":
            run = our_model(folder, tokens, 3)
        else:
            run = their_model(folder, tokens, system)
        for token in (9, 5, 5):
            run.step(token)

    return machine.peak_over(base, work)


def measure_memory(system: str, folder: Path, tokens: int) -> int:
    command = [sys.executable, __file__, "--memory-of", system, "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--tokens", str(tokens)], check=True, capture_output=True, text=True
    )
    return int(done.stdout.strip().splitlines()[-1])


def report(result: dict[str, Any]) -> str:
    """The result as a page of Markdown."""
    median, peak, about = result["median_seconds"], result["peak_bytes"], result["machine"]
    rows = [
        f"| {name} | {median[key] * 1e3:.1f} | {peak[key] / 1e9:.2f} |"
        for key, name in (("ours", "Interlace"), *((a, f"transformers, {a}") for a in ATTENTION))
    ]
    runs = [
        "| "
        + " | ".join(f"{run[k] * 1e3:.1f}" for k in ("ours", *ATTENTION))
        + f" | {run[result['faster_attention']] / run['ours']:.1f} | {run['others_share']:.1%} |"
        for run in result["runs"]
    ]
    return "\n".join(
        [
            f"# One decoding step, `{result['model']}` in bf16, {result['tokens']:,} cached tokens",
            "",
            f"{about['cpu']}, {about['cores']} cores, {about['torch_threads']} threads; torch "
            f"{about['torch']}, transformers {result['transformers']}, Python {about['python']}; "
            f"{result['date']}. Random weights, random normalised latents, the same in both; "
            f"their logits differ by {result['logit_gap_bf16']:.2g} of the largest, and in float32 "
            f"over at most {BLOCK:,} of the latents by {result['logit_gap_float32']:.2g}.",
            "",
            "| | ms per token, median | peak memory, GB |",
            "|---|---:|---:|",
            *rows,
            "",
            f"A token costs transformers' faster form ({result['faster_attention']}) "
            f"**{result['ratio']:.1f} times** our time (median of the paired ratios). Memory is "
            "anonymous memory plus mapped model files, minus the same right after importing, each "
            "system in a process of its own.",
            "",
            f"Every run, in ms per token ({result['steps_of_ours']} steps of ours, one of theirs; "
            f"{result['repeated_runs']} runs repeated because others took over {BUSY:.0%} "
            "of the CPU):",
            "",
            "| ours | eager | sdpa | ratio | others' CPU |",
            "|---:|---:|---:|---:|---:|",
            *runs,
            "",
            "Made by `benchmarks/decode_kl2.py`.",
            "",
        ]
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="kl2")
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps of ours in one run")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.memory_of:
        print(memory_of(options.memory_of, options.folder, options.tokens))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / options.model
        interlace.save(interlace.build(options.model, seed=0, dtype="bfloat16"), folder)
        peak = {s: measure_memory(s, folder, options.tokens) for s in ("ours", *ATTENTION)}
        gap = check_equal(folder, options.tokens)
        result = compare(folder, options)
    from transformers import __version__ as transformers_version

    result = {
        "model": options.model,
        "tokens": options.tokens,
        "dtype": "bfloat16",
        "steps_of_ours": options.steps,
        "date": datetime.now(UTC).date().isoformat(),
        "transformers": transformers_version,
        "machine": machine.describe(),
        "peak_bytes": peak,
        "logit_gap_float32": gap,
        **result,
    }
    print(report(result))
    if (options.model, options.tokens) == ("kl2", 65_536) and options.runs >= 7:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "decode_kl2.json").write_text(json.dumps(result, indent=2) + "\n")
        (RESULTS / "decode_kl2.md").write_text(report(result))


if __name__ == "__main__":
    main()
