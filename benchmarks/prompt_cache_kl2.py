"""A long prompt that is read once, saved, and continued by another process from the file.

The first process reads the prompt through a prompt cache, saves it, and continues with one more
token. The second one has the same weights, loads the file and continues with the same token. Timed
there is what a user waits for: reading the file, finding the prefix, and the first new token; not
imports and not the weights. Both hash every number of their caches before they continue.

    python benchmarks/prompt_cache_kl2.py                               # minutes
    python benchmarks/prompt_cache_kl2.py --model mid --tokens 1024     # seconds, writes nothing

The file has just been written, so the second process reads it from memory and not from the disk.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import interlace
from interlace.bench import machine
from interlace.generation import PromptCache, stream

RESULTS = Path(__file__).parent / "results"
MODEL, TOKENS, SHARE = "kl2", 32_768, 0.02
NEXT = 7  # the id with which both go on


def prompt_of(lm: interlace.HybridLM, tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, lm.config.vocab_size, (tokens,), generator=generator)
    return [int(token) for token in ids]


def hashes(kept: PromptCache) -> dict[str, str]:
    """SHA-256 of everything that the cache holds, layer by layer, snapshots too."""
    named = {"ids": torch.tensor(kept.tokens), "lengths": kept.cache.lengths}
    for number, layer in enumerate(kept.cache.layers):
        for name, value in layer.tensors.items():
            written = value[:, : kept.cache.length] if name == "latent" else value
            named[f"{number}.{name}"] = written
    for at in kept.cache.snapshots:
        old = kept.cache.clone()
        old.restore(at)
        for number, layer in enumerate(old.layers):
            for name, value in layer.tensors.items():
                if name != "latent":
                    named[f"{at}.{number}.{name}"] = value
    return {
        name: sha256(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, value in named.items()
    }


def model(options: argparse.Namespace) -> interlace.HybridLM:
    torch.set_num_threads(options.threads)
    return interlace.build(options.model, seed=0, dtype=options.dtype).requires_grad_(False).eval()


@torch.inference_mode()
def go_on(lm: interlace.HybridLM, kept: PromptCache, prompt: list[int]) -> torch.Tensor:
    """Logits of the first new token; reads no more of the prompt than has to be read."""
    held = kept.reuse(prompt, len(prompt) + 1)
    logits: torch.Tensor = lm(torch.tensor([prompt[held:]]), cache=kept.cache, last_only=True)
    kept.fed(prompt[held:])
    return logits[0, -1]


def read_and_save(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    lm = model(options)
    prompt = prompt_of(lm, options.tokens)
    kept = PromptCache.new(lm)
    with machine.OthersShare() as others:
        start = time.perf_counter()
        for _ in stream(lm, prompt, max_tokens=0, cache=kept):
            pass
        seconds = time.perf_counter() - start
    start = time.perf_counter()
    kept.save(folder / "prompt.cache")
    saving = time.perf_counter() - start
    told = hashes(kept)
    save_file({"logits": go_on(lm, kept, [*prompt, NEXT])}, folder / "logits.safetensors")
    return {
        "read_seconds": seconds,
        "save_seconds": saving,
        "file_bytes": (folder / "prompt.cache").stat().st_size,
        "others_share_reading": others.share,
        "hashes": told,
    }


def load_and_continue(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    lm = model(options)
    prompt = prompt_of(lm, options.tokens)
    with machine.OthersShare() as others:
        start = time.perf_counter()
        kept = PromptCache.load(folder / "prompt.cache", lm)
        loaded = time.perf_counter() - start
        logits = go_on(lm, kept, [*prompt, NEXT])
        token = int(logits.argmax())
        seconds = time.perf_counter() - start
    told = hashes(PromptCache.load(folder / "prompt.cache", lm))
    expected = load_file(folder / "logits.safetensors")["logits"]
    gap = float((logits - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    return {
        "load_seconds": loaded,
        "load_and_first_token_seconds": seconds,
        "others_share_loading": others.share,
        "token": token,
        "same_token": token == int(expected.argmax()),
        "logits_gap": gap,
        "hashes": told,
    }


def in_a_process(part: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    argv = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    for name in ("model", "tokens", "threads", "dtype"):
        argv += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        first = in_a_process("read", Path(name), options)
        second = in_a_process("load", Path(name), options)
    hashes_a, hashes_b = first.pop("hashes"), second.pop("hashes")
    share = second["load_and_first_token_seconds"] / first["read_seconds"]
    return {
        "model": options.model,
        "dtype": options.dtype,
        "tokens": options.tokens,
        "threads": options.threads,
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "interlace": interlace.__version__,
        **first,
        **second,
        "share": share,
        "tensors_compared": len(hashes_a),
        "met": {
            f"loading and the first token take at most {SHARE:.0%} of reading": share <= SHARE,
            "logits equal to rounding (1e-2 in bf16, 1e-4 in float32)": second["logits_gap"]
            <= (1e-4 if options.dtype == "float32" else 1e-2),
            "cache equal to the bit, snapshots too": hashes_a == hashes_b,
        },
    }


def report(result: dict[str, Any]) -> str:
    bars = "\n".join(
        f"- {'met' if met else 'MISSED'}: {name}" for name, met in result["met"].items()
    )
    others = max(result["others_share_reading"] or 0, result["others_share_loading"] or 0)
    return f"""# A prompt that was read once, continued by another process

`{result["model"]}`, {result["dtype"]}, {result["tokens"]:,} tokens, {result["threads"]} threads,
{result["date"]}, torch {result["torch"]}. Other programs took at most {others:.0%} of the machine.

| | seconds |
|---|---:|
| reading the prompt | {result["read_seconds"]:.1f} |
| saving it ({result["file_bytes"] / 1e6:.1f} MB) | {result["save_seconds"]:.2f} |
| in a new process: reading the file | {result["load_seconds"]:.3f} |
| reading the file and the first new token | {result["load_and_first_token_seconds"]:.3f} |

{result["share"]:.2%} of the time that reading took. Logits differ by {result["logits_gap"]:.1e} of
the largest; {result["tensors_compared"]} tensors of the cache were compared.

{bars}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--part", choices=("read", "load"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part = read_and_save if options.part == "read" else load_and_continue
        print(json.dumps(part(options.folder, options)))
        return
    result = compare(options)
    if (options.model, options.tokens) == (MODEL, TOKENS):
        (RESULTS / "prompt_cache_kl2.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "prompt_cache_kl2.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
