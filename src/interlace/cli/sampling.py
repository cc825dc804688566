"""The options of `SamplingOptions` on a command line; every command that makes text has them."""

import argparse
from typing import TYPE_CHECKING, Any

from interlace.errors import InputError

if TYPE_CHECKING:
    from interlace.generation.options import SamplingOptions

__all__ = ["add_sampling", "sampling_of"]


def add_sampling(
    parser: argparse.ArgumentParser, max_tokens: int = 64, logprobs: bool = True
) -> None:
    """Declare the options.

    Args:
        parser: of the command.
        max_tokens: the default of that option.
        logprobs: declare that option too.
    """

    def option(name: str, meaning: str, kind: type = float, **more: Any) -> None:
        metavar = {int: "N", float: "X", str: "TEXT"}[kind]
        parser.add_argument(name, **{"metavar": metavar, "type": kind, "help": meaning, **more})

    option("--max-tokens", f"new tokens at most ({max_tokens})", int, default=max_tokens)
    option("--temperature", "0 is greedy, the default", default=0.0)
    option("--top-k", "draw from so many most likely tokens", int)
    option("--top-p", "share of likely tokens kept (1)", default=1.0)
    option("--min-p", "least probability kept, in parts of the largest (0)", default=0.0)
    option("--repetition-penalty", "above 1: tokens seen become less likely (1)", default=1.0)
    option("--presence-penalty", "taken off the logits of tokens made (0)", default=0.0)
    option(
        "--logit-bias", "add X to the logit of an id; may be repeated", str,
        metavar="ID=X", action="append", default=[],
    )  # fmt: skip
    option("--seed", "of draws, and of random weights (0)", int, default=0)
    option("--stop", "end before this text; may be repeated", str, action="append")
    option(
        "--stop-token", "end at this id; may be repeated", int,
        metavar="ID", action="append", default=[],
    )  # fmt: skip
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the end mark")
    if logprobs:
        option("--logprobs", "of each new token and the N likeliest there, with --json", int)


def sampling_of(args: argparse.Namespace) -> "SamplingOptions":
    """The checked options.

    Raises:
        InputError: one that means nothing.
    """
    from interlace.generation.options import SamplingOptions

    if args.logprobs is not None and not args.json:
        raise InputError("--logprobs must come with --json, which has a place for them.")
    return SamplingOptions(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        logit_bias=[_bias(text) for text in args.logit_bias],
        seed=args.seed,
        stop=args.stop,
        stop_tokens=args.stop_token,
        ignore_eos=args.ignore_eos,
        logprobs=args.logprobs,
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise InputError(f"--logit-bias must be ID=X such as 65=-2.5, got {text!r}.") from None
