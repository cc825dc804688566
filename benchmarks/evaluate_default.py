"""Judge the bundled model on files it has not seen.

Run by `make evaluate`; writes benchmarks/results/evaluate_default.{json,md}. What is measured was
written down before the model was trained:

1. Bits per byte over the held-out files, each started with an empty context (total bits over total
   bytes), beside `xz -9e` of the same files in manifest order, and beside xz that has read the
   training text first.
2. Samples: ten held-out files, 512 bytes continued after the first 1,024 of each, temperature 0.8,
   top-p 0.95, seeds 0 to 2. Complete non-empty lines that `tokenize` accepts; loops of a period
   under 40 bytes that run for 160; 64-byte spans that stand in the training text. The same for the
   files' own continuation, and for the greedy one (reported only).

It needs the standard library of the Python version in the manifest; on another it says which files
differ.
"""

import argparse
import io
import json
import lzma
import sys
import time
import tokenize
from pathlib import Path

import torch
from tqdm import tqdm

import interlace
from interlace.errors import InterlaceError
from interlace.training.corpus import read_manifest
from interlace.training.evaluate import bits_per_byte

HERE = Path(__file__).parent
PROMPT, CONTINUATION, SPAN, LOOP, PERIOD = 1024, 512, 64, 160, 40
SEEDS = range(3)
OPENING = 16384  # bytes of the longest held-out file that the test suite scores again


def xz(data: bytes) -> int:
    return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def line_passes(line: str) -> bool:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline))
    except (tokenize.TokenError, SyntaxError):
        return False
    return all(token.type != tokenize.ERRORTOKEN for token in tokens)


def complete_lines(text: bytes) -> list[str]:
    """Non-empty lines with both ends inside `text`; what is cut at either end does not count."""
    lines = text.decode(errors="replace").split("\n")[1:-1]
    return [line for line in lines if line.strip()]


def loops(text: bytes) -> bool:
    for period in range(1, PERIOD):
        run = 0
        for i in range(period, len(text)):
            run = run + 1 if text[i] == text[i - period] else 0
            if run + period >= LOOP:
                return True
    return False


def judge(texts: list[bytes], train: bytes) -> dict[str, float]:
    lines = [line for text in texts for line in complete_lines(text)]
    spans = [text[i : i + SPAN] for text in texts for i in range(max(0, len(text) - SPAN + 1))]
    return {
        "lines": len(lines),
        "lines_pass": sum(map(line_passes, lines)) / max(1, len(lines)),
        "looping": sum(map(loops, texts)),
        "spans_in_training_text": sum(
            span in train for span in tqdm(spans, desc="spans", leave=False)
        )
        / max(1, len(spans)),
    }


def continue_files(lm: interlace.HybridLM, starts: list[bytes], **how: object) -> list[bytes]:
    """All in one batch, each row with a seed of its own; in bf16 the batch changes rounding."""
    texts = interlace.generate(
        lm, starts, max_tokens=CONTINUATION, ignore_eos=True, batch_size=len(starts), **how
    )
    return [text.encode() for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument(
        "--manifest", type=Path, default=HERE.parent / "recipes/default/manifest.json"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results/evaluate_default")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    start = time.time()
    corpus = read_manifest(args.manifest)
    train, held_out = b"".join(corpus.train), b"".join(corpus.held_out)
    lm = interlace.load(args.model)

    bits = [
        bits_per_byte(lm, [data]) * len(data)
        for data in tqdm(corpus.held_out, desc="held-out files")
    ]
    score = sum(bits) / len(held_out)
    opening = bits_per_byte(lm, [max(corpus.held_out, key=len)[:OPENING]])
    compressed = xz(held_out) * 8 / len(held_out)
    primed = (xz(train + held_out) - xz(train)) * 8 / len(held_out)

    named = zip(corpus.held_out_paths, corpus.held_out, strict=True)
    long_enough = [(n, d) for n, d in named if len(d) >= PROMPT + CONTINUATION][:10]
    own = judge([d[PROMPT : PROMPT + CONTINUATION] for _, d in long_enough], train)
    starts = [data[:PROMPT] for _, data in long_enough]
    sampled = continue_files(
        lm,
        [start for start in starts for _ in SEEDS],
        temperature=0.8,
        top_p=0.95,
        seed=[*SEEDS] * len(starts),
    )
    greedy = continue_files(lm, starts, temperature=0.0)

    result = {
        "held_out_files": len(corpus.held_out),
        "held_out_bytes": len(held_out),
        "bits_per_byte": score,
        "xz_bits_per_byte": compressed,
        "primed_xz_bits_per_byte": primed,
        "opening_bits_per_byte": opening,
        "ratio_to_xz": score / compressed,
        "files_own": own,
        "sampled": judge(sampled, train),
        "greedy": judge(greedy, train),
        "seconds": round(time.time() - start),
        "first_three_samples": [
            {"file": long_enough[0][0], "seed": seed, "text": sampled[seed].decode()}
            for seed in SEEDS
        ],
    }
    bars = {
        "bits per byte at most 0.8 of xz -9e": score <= 0.8 * compressed,
        "bits per byte below primed xz": score < primed,
        "lines that tokenize: at least 70 % of the files' own share": result["sampled"][
            "lines_pass"
        ]
        >= 0.7 * own["lines_pass"],
        "no loops in the samples": result["sampled"]["looping"] == 0,
        "64-byte spans from the training text: at most twice the files' own share": result[
            "sampled"
        ]["spans_in_training_text"]
        <= 2 * own["spans_in_training_text"],
    }
    result["met"] = bars
    args.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(report(result))
    print(report(result))


def report(result: dict) -> str:
    rows = "\n".join(
        f"| {name} | {r['lines']} | {r['lines_pass']:.3f} | {r['looping']} "
        f"| {r['spans_in_training_text']:.4f} |"
        for name, r in (
            ("the files' own", result["files_own"]),
            ("sampled", result["sampled"]),
            ("greedy", result["greedy"]),
        )
    )
    bars = "\n".join(
        f"- {'met' if met else 'MISSED'}: {name}" for name, met in result["met"].items()
    )
    return f"""# The bundled model on files it has not seen

{result["held_out_files"]} files, {result["held_out_bytes"]:,} bytes, each from an empty context.

| | bits per byte |
|---|---:|
| the model | {result["bits_per_byte"]:.4f} |
| xz -9e of the same files, one after the other | {result["xz_bits_per_byte"]:.4f} |
| xz -9e that has read the training text first | {result["primed_xz_bits_per_byte"]:.4f} |

Ratio to xz -9e: {result["ratio_to_xz"]:.4f}.

| continuation of ten files | complete lines | share that tokenize | looping | spans from training |
|---|---:|---:|---:|---:|
{rows}

{bars}
"""


if __name__ == "__main__":
    try:
        main()
    except InterlaceError as error:
        sys.exit(f"error: {error}")
