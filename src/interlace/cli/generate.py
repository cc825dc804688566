"""`interlace generate [MODEL]`: text on standard output, numbers on standard error."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlace.cli import INTERRUPTED
from interlace.cli.models import add_experts
from interlace.cli.sampling import add_sampling, sampling_of
from interlace.errors import InputError

if TYPE_CHECKING:
    from interlace.cli.models import Model
    from interlace.generation import GenerationResult, SamplingOptions, TextStream
    from interlace.models import HybridLM

__all__ = ["add"]

MODEL_HELP = (
    "a checkpoint folder, 'default' (the bundled model), a preset (random weights), or "
    "owner/name[@revision] of the Hub"
)
DTYPES = ("float32", "bfloat16", "float16", "float64")

# what a terminal would obey, shown as its picture instead; tab, newline and return pass
_SHOWN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "generate",
        parents=[common],
        help="continue a text",
        description=(
            "Continue a text. The new text streams to standard output; speed and memory are told "
            "on standard error at the end."
        ),
        epilog="example: interlace generate --prompt-file a.py --max-tokens 200 --temperature 0.8",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default="default",
        help=MODEL_HELP,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT", help="the text to continue")
    source.add_argument(
        "--prompt-file", metavar="FILE", type=Path, help="a file to continue; else standard input"
    )
    parser.add_argument(
        "--prompt-bytes", metavar="N", type=int, help="only the first N bytes of the prompt"
    )
    parser.add_argument("--echo", action="store_true", help="print the prompt before the new text")
    add_sampling(parser)
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights; as stored by default")
    add_experts(parser)
    parser.add_argument("--threads", metavar="N", type=int, help="CPU threads of the products")
    parser.add_argument(
        "--prefill-chunk", metavar="N", type=int, help="prompt tokens per call (512, or what fits)"
    )
    parser.add_argument(
        "--cache",
        metavar="FILE",
        type=Path,
        help="reuse what this saved prompt cache shares with the prompt, then extend and save it",
    )
    parser.add_argument(
        "--score", action="store_true", help="how likely the prompt is, and no new text"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, at the end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command: every check first, then the weights, then the text."""
    from interlace.cli.models import experts_of, find
    from interlace.cli.prompt import read_prompt
    from interlace.generation import PromptCache, context, engine, memory, streams

    if args.threads is not None and args.threads < 1:
        raise InputError(f"--threads must be at least 1, got {args.threads}.")
    _check_cache(args)
    model = find(args.model)
    options = sampling_of(args)
    options.check_for(model.config)
    experts = experts_of(args, model)
    streams.check_sizes(prefill_chunk=args.prefill_chunk)
    dtype = args.dtype or model.config.dtype

    def check_memory(prompt_tokens: int) -> None:
        capacity = prompt_tokens + (0 if args.score else args.max_tokens)
        limit = memory.available()
        every = args.score
        chunk = args.prefill_chunk or context.choose_chunk(
            model.config, capacity, dtype, limit, every_logit=every
        )
        weights = model.weight_bytes(dtype, experts)
        context.require_context(
            model.config, capacity, chunk, dtype, limit, weights, every_logit=every
        )

    prompt = read_prompt(args.prompt, args.prompt_file, args.prompt_bytes, check_memory)
    check_memory(len(prompt))
    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)
    lm = model.load(dtype, args.seed, experts)
    if args.score:
        return _score(args, model, dtype, lm, prompt)
    cache = None
    if args.cache is not None:
        # a new file is there when it is whole, so one that is there must be read
        known = args.cache.exists()
        cache = PromptCache.load(args.cache, lm) if known else PromptCache.new(lm)
    with _Progress(args.quiet) as progress:
        stream = engine.stream(
            lm,
            prompt,
            options=options,
            cache=cache,
            prefill_chunk=args.prefill_chunk,
            progress=progress,
        )
        status = _run_through(stream, None if args.json else prompt if args.echo else b"")
    result = stream.result
    if cache is not None:
        cache.save(args.cache)
    if args.json:
        print(json.dumps(_as_json(model, dtype, options, result)))
    elif not args.quiet:
        print(summary(model, dtype, args.seed, result, args.cache), file=sys.stderr)
    return status


def _check_cache(args: argparse.Namespace) -> None:
    if args.cache is None:
        return
    if args.score:
        raise InputError("--cache must be left out with --score, which needs every logit.")
    if not args.cache.absolute().parent.is_dir():
        raise InputError(
            f"--cache must name a file in a folder that exists, got {args.cache}; make the folder."
        )


def _score(
    args: argparse.Namespace, model: "Model", dtype: str, lm: "HybridLM", prompt: bytes
) -> int:
    """Print how likely the prompt is."""
    from interlace.generation import loglikelihood

    with _Progress(args.quiet) as progress:
        score = loglikelihood(lm, prompt, prefill_chunk=args.prefill_chunk, progress=progress)
    numbers = {
        "tokens": len(score.token_ids),
        "bytes": score.num_bytes,
        "logprob": score.logprob,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
    }
    if args.json:
        about = {"model": model.name, "random_weights": model.folder is None, "dtype": dtype}
        print(json.dumps({**about, **numbers}))
        return 0
    for name, value in numbers.items():
        shown = value if isinstance(value, int) else "-" if value is None else f"{value:.6g}"
        print(f"{name.replace('_', ' '):<13}  {shown}")
    return 0


def _run_through(stream: "TextStream", echo: bytes | None) -> int:
    """Take the whole text and print it as it comes, unless `echo` is None; the exit status.

    Ctrl-C ends the stream between two calls of the model: what was made is kept and printed.
    """
    out = Terminal() if echo is not None else None
    if out and echo:
        out.echo(echo.decode())
    status = 0
    try:
        for piece in stream:
            if out:
                out.write(piece)
    except KeyboardInterrupt:
        stream.close()
        status = INTERRUPTED
    if out:
        out.write(stream.text[out.taken :])
        out.end_line()
    return status


class _Progress:
    """A bar for a prefill that lasts over two seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                desc="prompt",
                unit=" tokens",
                delay=2,
                leave=False,
                disable=self._quiet,
            )
        self._bar.update(done - self._bar.n)
        if done == total:
            self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Terminal:
    """Prints text as it comes; a terminal is shown what it would obey.

    Args:
        out: a text stream; standard output by default.
    """

    def __init__(self, out: Any = None) -> None:
        self._out = out = sys.stdout if out is None else out
        self._table = _SHOWN if out.isatty() else {}
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="replace")
        self._last = ""
        self.taken = 0
        """Characters of new text that were printed."""

    def echo(self, text: str) -> None:
        """Print text that is not new."""
        self._last = text or self._last
        self._out.write(text.translate(self._table))
        self._out.flush()

    def write(self, piece: str) -> None:
        """Print new text."""
        self.taken += len(piece)
        self.echo(piece)

    def end_line(self, always: bool = False) -> None:
        """Leave a terminal at the start of a line; anything else too where `always`."""
        if (always or (self._last and self._out.isatty())) and not self._last.endswith("\n"):
            self.echo("\n")


def _as_json(
    model: "Model", dtype: str, options: "SamplingOptions", result: "GenerationResult"
) -> dict[str, Any]:
    return {
        "model": model.name,
        "random_weights": model.folder is None,
        "dtype": dtype,
        **options.to_dict(),
        **result.to_dict(),
    }


def summary(
    model: "Model",
    dtype: str,
    seed: int,
    result: "GenerationResult",
    cache: Path | None = None,
) -> str:
    """The numbers as a small table, sizes in decimal units."""
    from interlace.config.sizes import describe_bytes

    origin = f"random weights of seed {seed}, " if model.folder is None else ""
    end = _end(result)
    latent, expanded = result.latent_bytes, result.expanded_bytes
    ratio = f", {expanded / latent:.1f} times the latents" if latent else ""
    rows = [
        ("model", model.name, f"{origin}{dtype}"),
        ("prompt", _count(result.prompt_tokens), _speed(result.prefill_tokens_per_second)),
        (
            "new text",
            _count(result.new_tokens),
            f"{_speed(result.decode_tokens_per_second)}, {end}",
        ),
        (
            "latent cache",
            describe_bytes(latent),
            f"{result.cached_tokens:,} tokens in room for {result.capacity:,}",
        ),
        ("delta state", describe_bytes(result.state_bytes), "the same for any number of tokens"),
        ("if expanded", describe_bytes(expanded), f"as keys and values per head{ratio}"),
    ]
    if result.expert_bytes_per_token:
        read = describe_bytes(round(result.expert_bytes_per_token))
        every = describe_bytes(result.expert_bytes_read)
        rows.append(("experts", read, f"read from disk per token, {every} in all"))
    if cache is not None:
        rows.insert(2, ("reused", _count(result.reused_tokens), f"of the prompt, from {cache}"))
    left = max(len(row[0]) for row in rows)
    middle = max(len(row[1]) for row in rows)
    lines = [f"  {name:<{left}}  {value:>{middle}}  {note}".rstrip() for name, value, note in rows]
    return "\n" + "\n".join(lines)


def _end(result: "GenerationResult") -> str:
    """Why the text ended, in words."""
    if result.finish_reason == "length":
        return "stopped at --max-tokens"
    if result.finish_reason != "stop":
        return "interrupted"
    by = result.stopped_by
    return f"stopped before {by!r}" if isinstance(by, str) else f"stopped at the end mark {by}"


def _count(tokens: int) -> str:
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


def _speed(rate: float | None) -> str:
    if rate is None:
        return "too few for a speed"
    return f"{rate:,.0f} tokens/s" if rate >= 10 else f"{rate:.2f} tokens/s"
