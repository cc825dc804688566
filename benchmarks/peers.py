"""Logits of small random models, ours against llama.cpp, the one other K3 that runs on a CPU.

Each model is saved in the published layout, converted by llama.cpp's own converter (only its
tokenizer step is replaced) and read there from a float32 file with a float32 cache and no flash
attention: most tokens in one call, the last ones one by one. Differences are
max |a - b| / max(1, max |b|). The bounds: 2e-4; 5e-5 when our three norms that take another epsilon
are given theirs; the same largest logit at every token whose two largest are further apart than the
bound. With MXFP4 experts, whose inputs llama.cpp rounds to 8 bits: the median over tokens of the
largest difference at most 0.1, and at least twenty times that with the codes of a byte exchanged.
Models for which llama.cpp may have no room are tried too, and its answer is written down.

    python benchmarks/peers.py --llama-source DIR                         # minutes
    python benchmarks/peers.py --llama-source DIR --models kimi-k3-tiny   # writes nothing
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import interlace
from interlace.bench.peers import require_peers
from interlace.bench.peers.compared import (
    CASES,
    TRIED,
    agreement,
    fill,
    pack_experts,
    per_token,
    their_epsilons,
)
from interlace.bench.peers.llama_cpp import convert
from interlace.bench.peers.llama_logits import llama_logits
from interlace.config import HybridConfig
from interlace.errors import InterlaceError

RESULTS = Path(__file__).parent / "results"
TOKENS, PROMPT = 82, 70
BOUND, BOUND_SAME_EPSILONS = 2e-4, 5e-5
BOUND_MXFP4, CONTROL, BOUND_PACKED = 0.1, 20.0, 1e-6
MXFP4 = "kimi-k3-tiny"


def random_ids(config: HybridConfig) -> Tensor:
    """Tokens `[1, TOKENS]`."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)


def filled(config: HybridConfig) -> interlace.HybridLM:
    lm = interlace.build(config, seed=0)
    fill(lm)
    return lm.requires_grad_(False)


def theirs_of(source: Path, folder: Path, ids: Tensor) -> Tensor:
    """llama.cpp's logits `[tokens, vocab]` for the checkpoint in `folder`."""
    file = folder.with_suffix(".gguf")
    convert(source, folder, file, "f32")
    return llama_logits(file, ids[0].tolist(), PROMPT)


@torch.inference_mode()
def compare(config: HybridConfig, source: Path) -> dict[str, Any]:
    """One model, with our epsilons and with theirs."""
    lm, ids = filled(config), random_ids(config)
    with tempfile.TemporaryDirectory() as folder:
        interlace.save(lm, Path(folder, "model"))
        theirs = theirs_of(source, Path(folder, "model"), ids)
    ours = agreement(lm(ids)[0], theirs, BOUND)
    their_epsilons(lm)
    same = agreement(lm(ids)[0], theirs, BOUND_SAME_EPSILONS)
    passed = ours.difference <= BOUND and same.difference < BOUND_SAME_EPSILONS
    passed = passed and not ours.argmax and not same.argmax
    return {"passed": passed, "ours": asdict(ours), "their_epsilons": asdict(same)}


@torch.inference_mode()
def compare_mxfp4(config: HybridConfig, source: Path) -> dict[str, Any]:
    """The same with packed experts, and with the codes of each byte exchanged."""
    lm, ids = filled(config), random_ids(config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        interlace.save(lm, folder / "model")
        theirs = {}
        for kind in ("right", "swapped"):
            (folder / kind).mkdir()
            values = pack_experts(folder / "model", folder / kind, swapped=kind == "swapped")
            theirs[kind] = theirs_of(source, folder / kind, ids)
        ours = expanded(lm, values, folder)(ids)[0]
        gap, refusal = packed_gap(folder / "right", ids, ours)
    right, wrong = (per_token(ours, theirs[kind]) for kind in ("right", "swapped"))
    passed = right <= BOUND_MXFP4 and wrong >= CONTROL * right
    passed = passed and gap is not None and gap <= BOUND_PACKED
    found = {"passed": passed, "median": right, "control": wrong}
    return found | {"packed_against_expanded": gap, "packed_refused": refusal}


def packed_gap(folder: Path, ids: Tensor, ours: Tensor) -> tuple[float | None, str | None]:
    """Packed experts against the same values expanded: the difference, or why there is none."""
    try:
        packed = interlace.load(folder)
    except InterlaceError as error:
        return None, str(error)
    return agreement(packed(ids)[0], ours, BOUND).difference, None


def expanded(lm: interlace.HybridLM, values: dict[str, Tensor], folder: Path) -> interlace.HybridLM:
    """`lm` with the values that its packed experts stand for, by way of a checkpoint."""
    file = folder / "model" / "model.safetensors"
    save_file(load_file(file) | values, file, {"format": "pt"})
    return interlace.load(folder / "model")


def attempt(config: HybridConfig, source: Path) -> str:
    """What becomes of a model that llama.cpp may not run."""
    try:
        result = compare(config, source)
    except InterlaceError as error:
        return " ".join(str(error).split())
    if result["passed"]:
        return f"runs, {result['ours']['difference']:.1e}"
    return f"runs, and computes something else: {result['ours']['difference']:.1e}"


def report(result: dict[str, Any]) -> str:
    """The result as a page of Markdown."""
    rows = [
        f"| {name} | {found['ours']['difference']:.1e} | "
        f"{found['their_epsilons']['difference']:.1e} | {found['ours']['scale']:.2f} | "
        f"{found['ours']['argmax']} of {TOKENS - found['ours']['close']} | "
        f"{'yes' if found['passed'] else 'NO'} |"
        for name, found in result["models"].items()
    ]
    tried = [f"| {name} | {said} |" for name, said in result["tried"].items()]
    return "\n".join(
        [
            "# Logits against llama.cpp",
            "",
            f"llama-cpp-python {result['llama_cpp']}, native build; torch {result['torch']}, "
            f"Python {result['python']}; {result['date']}. Random weights, the linear ones "
            f"N(0, 1/fan-in); float32 file, float32 cache, no flash attention; {PROMPT} tokens in "
            f"one call, {TOKENS - PROMPT} one by one. Difference: max abs(a - b) / max(1, max "
            f"abs(b)) over all tokens. The bound is {BOUND:g}, and "
            f"{BOUND_SAME_EPSILONS:g} when the epsilons of three norms (low rank of the query, "
            "latent, unit length of KDA's queries and keys) are theirs.",
            "",
            "| model | difference | with their epsilons | largest logit | other argmax | passed |",
            "|---|---:|---:|---:|---:|---|",
            *rows,
            "",
            "Sizes of each model: `CASES` in `src/interlace/bench/peers/compared.py`.",
            "",
            f"## MXFP4 experts, `{MXFP4}`",
            "",
            said_of_mxfp4(result["mxfp4"]),
            "",
            "## Where it may have no room",
            "",
            "Each differs from `linear-a` or `k3-a` in one thing, and ours runs every one. Those "
            "that llama.cpp runs too must keep to the same bounds.",
            "",
            "| model | llama.cpp |",
            "|---|---|",
            *tried,
            "",
            "Made by `benchmarks/peers.py` (`make peers`).",
            "",
        ]
    )


def said_of_mxfp4(packed: dict[str, Any] | None) -> str:
    if packed is None:
        return "**Not measured yet.**"
    times = packed["control"] / packed["median"]
    return (
        f"Median over the tokens of the largest difference: {packed['median']:.3f} (bound "
        f"{BOUND_MXFP4:g}; llama.cpp rounds the inputs of these products to 8 bits); with the two "
        f"codes of every byte exchanged {packed['control']:.2f}, {times:.0f} times that (at least "
        f"{CONTROL:.0f}). Our packed against our expanded experts: {said_of_packed(packed)}. "
        f"Passed: {'yes' if packed['passed'] else 'NO'}."
    )


def said_of_packed(packed: dict[str, Any]) -> str:
    if packed["packed_against_expanded"] is None:
        return f"not measured, ours refuses packed ones so far ({packed['packed_refused']})"
    return f"{packed['packed_against_expanded']:.1e} (bound {BOUND_PACKED:g})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--llama-source", type=Path, help="folder of llama.cpp's sources")
    parser.add_argument("--models", help="names between commas; writes nothing then")
    parser.add_argument("--jobs", type=int, default=2, help="models at a time; nothing is timed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.names = options.models.split(",") if options.models else list(CASES)
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"--models must be among {', '.join(CASES)}, got {', '.join(unknown)}")
    return options


def main() -> int:
    options = parse()
    require_peers(["llama.cpp"], options.llama_source)
    torch.set_num_threads(1)
    source = options.llama_source
    with ThreadPoolExecutor(options.jobs) as pool:
        compared = pool.map(lambda name: compare(CASES[name], source), options.names)
        models = dict(told(options.names, compared))
        passed = all(found["passed"] for found in models.values())
        if options.models:
            return 0 if passed else 1
        result = about() | {"models": models, "mxfp4": None, "tried": {}}
        write(result, options.out)
        packed = result["mxfp4"] = compare_mxfp4(CASES[MXFP4], source)
        print("MXFP4", json.dumps(packed), flush=True)
        write(result, options.out)
        tried = pool.map(lambda config: attempt(config, source), TRIED.values())
        result["tried"] = dict(told(TRIED, tried))
    write(result, options.out)
    return 0 if passed and packed["passed"] else 1


def about() -> dict[str, Any]:
    """Versions and the day."""
    return {
        "llama_cpp": import_module("llama_cpp").__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def write(result: dict[str, Any], folder: Path) -> None:
    """Numbers and page; what has not been measured yet is named as such."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "peers.md").write_text(report(result))


def told(names: Iterable[str], found: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Each result with its name, printed as it comes."""
    for name, one in zip(names, found, strict=True):
        print(name, json.dumps(one), flush=True)
        yield name, one


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InterlaceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
