"""`interlace bench`: measure the machine, the operators, whole models and their peers."""

import argparse
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interlace.errors import InputError

__all__ = ["add"]

WHAT = ("limits", "ops", "model")
DEPTHS = {"ops": "4096,131072", "model": "0,4096,32768"}
PROMPTS = {"ops": "2048", "model": "512"}
_OF_MODEL = ("models", "depths", "prompts", "against", "peer_prompts", "llama_source")
MODELS = "mid,mid-mla,kl2,kl2-mla"


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "bench",
        parents=[common],
        help="measure this machine, the operators, and whole models",
        description=(
            "Measure. limits: what the machine gives, and which share of it each kind of layer "
            "gets; kept for 'interlace plan --hardware measured'. ops: each operator against the "
            "loop that bounds it and against float64. model: decoding and prefill by depth. "
            "Everything is the median of paired, interleaved runs. docs/bench.md explains."
        ),
        epilog="example: interlace bench model --models mid,mid-mla --depths 0,4096 --threads 2",
    )
    parser.add_argument("what", metavar="WHAT", nargs="?", choices=WHAT, help=", ".join(WHAT))
    parser.add_argument(
        "--models", metavar="NAMES", help=f"presets of 'model' and of --explain ({MODELS})"
    )
    parser.add_argument(
        "--sizes",
        metavar="NAMES",
        help="presets whose sizes 'ops' takes (kimi-k3,kimi-linear-48b,default)",
    )
    parser.add_argument("--only", metavar="TEXT", help="operators of 'ops' whose name has TEXT")
    parser.add_argument(
        "--depths", metavar="N,N", help=f"cached tokens ({DEPTHS['model']}; ops {DEPTHS['ops']})"
    )
    parser.add_argument(
        "--prompts", metavar="N,N", help=f"tokens of a prefill ({PROMPTS['model']}; ops one: 2048)"
    )
    parser.add_argument(
        "--against", metavar="PEERS", help="time transformers and llama.cpp beside 'model'"
    )
    parser.add_argument(
        "--peer-prompts", metavar="N,N", help="prompts that peers read too (all of --prompts)"
    )
    parser.add_argument(
        "--llama-source",
        metavar="FOLDER",
        type=Path,
        help="llama.cpp's sources (vendor/llama.cpp of llama-cpp-python), for its converter",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say which way of computing is chosen, and why the others are not",
    )
    parser.add_argument("--runs", metavar="N", type=int, default=7, help="runs of each (7)")
    parser.add_argument("--threads", metavar="N", type=int, help="CPU threads of the products")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, every run in it"
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw 'ops' or 'model'")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        help="also write files named by date and machine",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command: every check first, then the measurement."""
    options = _Options(args)
    if args.explain:
        print(_explained(options))
        return 0
    from interlace.bench import plot, report
    from interlace.bench.timing import busy

    if args.plot is not None:
        plot.require_plot(args.plot)
    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)
    measure = {"limits": _limits, "ops": _ops, "model": _model}[args.what]
    measured = report.result(args.what, measure(options), options.of)
    print(json.dumps(measured) if args.json else report.page(measured), end="")
    if args.json:
        print()
    if args.out is not None:
        for path in report.write(measured, args.out):
            logging.getLogger("interlace").info("wrote %s", path)
    if args.plot is not None:
        plot.save(measured, args.plot)
    warning = busy(report.all_runs(args.what, measured["results"]))
    if warning is not None:
        logging.getLogger("interlace").warning(warning)
    return 0


class _Options:
    """The options, checked: what each means, and that each goes with what is measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.explain == (args.what is not None):
            raise InputError(
                f"WHAT must be one of {', '.join(WHAT)}, or --explain stand alone; see "
                "'interlace bench --help'."
            )
        allowed = {
            None: ("models", "prompts"),
            "limits": ("out",),
            "ops": ("sizes", "only", "depths", "prompts", "out", "plot"),
            "model": (*_OF_MODEL, "out", "plot"),
        }[args.what]
        names = (*_OF_MODEL, "sizes", "only")
        for name in (*names, "plot", "out"):
            if getattr(args, name) is not None and name not in allowed:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} does not go with {args.what or '--explain'}.")
        for name in ("runs", "threads"):
            value = getattr(args, name)
            if value is not None and not 1 <= value <= 10_000:
                raise InputError(f"--{name} must lie in 1..10000, got {value}.")
        if args.plot is not None and not args.plot.absolute().parent.is_dir():
            raise InputError(f"--plot must lie in a folder that exists, got {args.plot}.")
        if args.out is not None and args.out.exists() and not args.out.is_dir():
            raise InputError(f"--out must be a folder, {args.out} is none.")
        what = args.what or "model"
        self.args = args
        self.models = _names(MODELS if args.models is None else args.models, "--models")
        self.only: str = args.only or ""
        depths = DEPTHS.get(what, "") if args.depths is None else args.depths
        prompts = PROMPTS.get(what, "") if args.prompts is None else args.prompts
        self.depths = _counts(depths, "--depths", 0)
        self.prompts = _counts(prompts, "--prompts", 1)
        self.against = _names(args.against or "", "--against")
        self.peer_prompts = (
            None if args.peer_prompts is None else _counts(args.peer_prompts, "--peer-prompts", 1)
        )
        self.sizes = None if args.sizes is None else _names(args.sizes, "--sizes")
        self.of = {"model": [*self.models, *self.against], "ops": self.sizes or []}.get(what, [])
        if what == "ops" and len(self.prompts) != 1:
            raise InputError(f"--prompts must be one number for ops, got {prompts!r}.")
        if what == "ops" and 0 in self.depths:
            raise InputError("--depths must be at least 1 for ops, got 0.")


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names or len(set(names)) < len(names):
        raise InputError(f"{option} must be different names with commas between, got {text!r}.")
    return names


def _counts(text: str, option: str, least: int) -> list[int]:
    from interlace.planner.units import parse_count

    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    counts = [0 if least == 0 and part == "0" else parse_count(part, option) for part in parts]
    return list(dict.fromkeys(counts))


def _explained(options: _Options) -> str:
    from interlace.bench.explain import explain_model, table
    from interlace.config import preset

    extra = options.prompts if options.args.prompts is not None else []
    found = {name: explain_model(preset(name), extra) for name in options.models}
    if options.args.json:
        return json.dumps({name: [row.to_dict() for row in rows] for name, rows in found.items()})
    return "\n\n".join(f"# {name}\n\n{table(rows)}" for name, rows in found.items())


class _Bar:
    """A bar over the runs of a measurement; it shows once they have taken two seconds."""

    def __init__(self, options: _Options, total: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=total, unit=" runs", delay=2, leave=False, disable=options.args.quiet
        )

    def __enter__(self) -> Callable[[], object]:
        return self._bar.update

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _limits(options: _Options) -> dict[str, Any]:
    from interlace.bench import limits

    runs = options.args.runs
    with _Bar(options, limits.turns(runs)) as tick:
        found = limits.measure(runs=runs, tick=tick)
    path = limits.write(found)
    logging.getLogger("interlace").info("wrote %s", path)
    return found


def _ops(options: _Options) -> list[dict[str, Any]]:
    from interlace.bench import operators
    from interlace.config import preset

    args, depths = options.args, tuple(options.depths)
    sizes = options.sizes or operators.SIZES
    for size in sizes:
        preset(size)
    total = sum(len(operators.names(size, depths, options.only)) for size in sizes)
    if not total:
        raise InputError(f"--only must be part of an operator's name, got {options.only!r}.")
    with _Bar(options, total * args.runs) as tick:
        return [
            record
            for size in sizes
            for record in operators.measure(
                size,
                depths=depths,
                prompt=options.prompts[0],
                only=options.only,
                runs=args.runs,
                tick=tick,
            )
        ]


def _model(options: _Options) -> list[dict[str, Any]]:
    from interlace.bench import models

    plan = models.Plan(
        models=options.models,
        depths=options.depths,
        prompts=options.prompts,
        against=options.against,
        peer_prompts=options.peer_prompts,
        runs=options.args.runs,
        llama_source=options.args.llama_source,
    )
    with _Bar(options, plan.comparisons() * plan.runs) as tick:
        return models.measure(plan, tick=tick)
