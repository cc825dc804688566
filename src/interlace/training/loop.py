"""The training run: steps, log, evaluations, checkpoints, and what ends it.

out/log.jsonl        one JSON object a line: "start", "step", "eval", "checkpoint", "end"
out/recipe.json      the recipe as it ran
out/checkpoints/     see `state`
out/model/           the trained model in the published layout, bf16
"""

import dataclasses
import errno
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from interlace.errors import CheckpointError, InputError, NonFiniteError
from interlace.training.corpus import read_manifest
from interlace.training.data import BOS, PackedRows, StagedRows, read_documents
from interlace.training.evaluate import EvalSubset
from interlace.training.monitor import mixer_report
from interlace.training.processes import Peers, SingleProcess, cpu_seconds, start_peers
from interlace.training.recipe import Recipe, load_recipe
from interlace.training.schedule import cooldown_start, rate
from interlace.training.state import RunState, latest_checkpoint, load_state, save_state
from interlace.training.trainer import StepResult, Trainer, model_config, now

__all__ = ["TrainResult", "run"]

logger = logging.getLogger("interlace")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """How a run ended.

    `cpu_hours` is CPU time of all processes over two cores, across resumes; `bits_per_byte` is on
    the run's held-out openings; `model` is None when the run was stopped before its last step.
    `loss` and both figures are None when this call took no step or made no evaluation.
    """

    steps: int
    finished: bool
    loss: float | None
    bits_per_byte: float | None
    bits_per_byte_averaged: float | None
    tokens: int
    cpu_hours: float
    wall_hours: float
    out: Path
    model: Path | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = dataclasses.asdict(self)
        values["out"] = str(self.out)
        values["model"] = None if self.model is None else str(self.model)
        return values


def run(
    recipe: str | Path,
    *,
    resume: bool = False,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> TrainResult:
    """Train as a recipe says.

    SIGTERM and Ctrl-C end the run after the current step, with a checkpoint.

    Args:
        recipe: TOML file; see `interlace.training.recipe`.
        resume: go on from the last whole checkpoint in `run.out`. Without it, `run.out` must hold
            no checkpoint.
        overrides: "section.key=value" on top of the file.
        progress: show a bar on standard error.

    Raises:
        InputError: a recipe, corpus or output folder that cannot be used.
        CheckpointError: nothing to resume, or a checkpoint of another model.
        NonFiniteError: a tensor that is not finite; the last checkpoint is good.
    """
    parsed = load_recipe(recipe, overrides)
    train, held_out = _texts(parsed)
    data = _packed(parsed, train)
    checkpoint = _starting_point(parsed, resume)
    _make_folder(Path(parsed.run.out))
    with _Stop() as stop:
        peers = start_peers(parsed.run.processes, _follow, parsed, train, checkpoint)
        try:
            return _Lead(parsed, peers, data, held_out, checkpoint, stop, progress).run()
        finally:
            peers.close()


class _Stop:
    """Whether SIGTERM or Ctrl-C arrived; restores the handlers at the end."""

    def __init__(self) -> None:
        self.wanted = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> "_Stop":
        # only the main thread may set handlers
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True


def _texts(recipe: Recipe) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    data = recipe.data
    if data.manifest is not None:
        corpus = read_manifest(recipe.folder / data.manifest)
        return corpus.train, corpus.held_out
    held_out = read_documents(recipe.folder, data.held_out) if data.held_out else []
    train = read_documents(recipe.folder, data.files, without=data.held_out)
    return tuple(train), tuple(held_out)


def _packed(recipe: Recipe, train: Sequence[bytes]) -> StagedRows:
    config = model_config(recipe.model)
    bos, eos = _marks(recipe)
    if max(bos, eos, 255) >= config.vocab_size:
        raise InputError(
            f"a byte-level model must have at least {max(bos, eos, 255) + 1} ids (256 bytes and "
            f"the start of a document), got vocab_size = {config.vocab_size}; set model.config = "
            f"{{vocab_size = {max(bos, eos, 255) + 1}}}."
        )
    stages = []
    for number, stage in enumerate(_stages(dataclasses.asdict(recipe.data))):
        first, length, rows, overruns = stage
        # the seed of a stage is far from those that runs are given
        seed = recipe.run.seed + number * 2**32
        stages.append((first, PackedRows(train, length, rows, seed, bos, eos, overruns)))
    return StagedRows(stages)


def _stages(data: dict[str, Any]) -> list[tuple[int, int, int, float]]:
    """First step, row length, rows per step and share of overruns of each stage of [data]."""
    rules = [{**data, "first_step": 0}, *data.get("stage", ())]
    return [
        # a checkpoint of before there were overruns names none
        (rule["first_step"], rule["sequence_length"], rule["batch"], rule.get("overruns", 0.0))
        for rule in rules
    ]


def _marks(recipe: Recipe) -> tuple[int, int]:
    config = model_config(recipe.model)
    bos = BOS if config.bos_token_id is None else config.bos_token_id
    return bos, bos if config.eos_token_id is None else config.eos_token_id


def _starting_point(recipe: Recipe, resume: bool) -> Path | None:
    folder = Path(recipe.run.out) / "checkpoints"
    latest = latest_checkpoint(folder) if folder.is_dir() else None
    if resume and latest is None:
        raise InputError(
            f"there must be a whole checkpoint in {folder} to resume from; start without resume."
        )
    if not resume and latest is not None:
        raise InputError(
            f"{folder} already holds {latest.name}: resume the run, or name another run.out."
        )
    if latest is not None:
        facts = json.loads((latest / "state.json").read_text(encoding="utf-8"))
        _check_schedule(recipe, facts)
        _check_stages(recipe, facts)
    return latest


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InputError(
            f"run.out must be a folder that can be written to, got {out}: {error.strerror}; name "
            "another."
        ) from error


def _check_schedule(recipe: Recipe, facts: dict[str, Any]) -> None:
    """A schedule may change as long as the rates of the steps already taken stay true."""
    old = facts.get("recipe", {}).get("schedule")
    if old is None:
        raise CheckpointError("the checkpoint must name its recipe in state.json; it was changed.")
    new = dataclasses.asdict(recipe.schedule)
    if old == new or facts["step"] == 0:
        return
    before = dataclasses.replace(recipe.schedule, **old)
    constant = before.shape == "linear-cooldown" and facts["step"] <= cooldown_start(before)
    if not constant:
        raise InputError(
            "the schedule can be changed only in the constant phase of linear-cooldown; step "
            f"{facts['step']} of {before.steps} ({before.shape}) is past it. Resume with the "
            "schedule of the checkpoint."
        )


def _check_stages(recipe: Recipe, facts: dict[str, Any]) -> None:
    """Stages may change as long as the rows of the steps already taken stay true."""
    step = facts["step"]
    old, new = (
        [stage for stage in _stages(data) if stage[0] < step]
        for data in (facts["recipe"]["data"], dataclasses.asdict(recipe.data))
    )
    if old != new:
        raise InputError(
            "the rows of steps already taken cannot change: the checkpoint of step "
            f"{step} has (first step, sequence_length, batch, overruns) = {old}, the recipe "
            f"{new}; set data.stage for a first_step from {step} on."
        )


def _begin(
    recipe: Recipe, peers: SingleProcess | Peers, checkpoint: Path | None
) -> tuple[Trainer, dict[str, Any]]:
    torch.set_num_threads(recipe.run.threads)
    torch.manual_seed(recipe.run.seed)
    trainer = Trainer(recipe, peers)
    facts: dict[str, Any] = {"step": 0, "cpu_seconds": 0.0, "wall_seconds": 0.0}
    if checkpoint is not None:
        state = load_state(checkpoint)
        trainer.restore(state.weights, state.optimizer, state.facts["step"])
        torch.set_rng_state(state.optimizer["random"])
        facts = state.facts
    return trainer, facts


def _follow(
    peers: Peers, recipe: Recipe, train: tuple[bytes, ...], checkpoint: Path | None
) -> None:
    """The run of a process that neither logs nor saves."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        trainer, facts = _begin(recipe, peers, checkpoint)
        data = _packed(recipe, train)
        for step in range(facts["step"], recipe.schedule.steps):
            batch = data.batch(step, peers.rank, peers.world)
            if trainer.step(batch, step, cpu_seconds(), stop=False).stop:
                break
    except NonFiniteError:
        # rank 0 met the same averaged gradient and reports it
        pass
    peers.close()


class _Lead:
    """The run of the process that logs, evaluates and saves."""

    def __init__(
        self,
        recipe: Recipe,
        peers: SingleProcess | Peers,
        data: StagedRows,
        held_out: Sequence[bytes],
        checkpoint: Path | None,
        stop: _Stop,
        progress: bool,
    ) -> None:
        self.recipe, self.peers, self.data, self.stop, self.progress = (
            recipe,
            peers,
            data,
            stop,
            progress,
        )
        self.out = Path(recipe.run.out)
        self.trainer, facts = _begin(recipe, peers, checkpoint)
        self.step: int = facts["step"]
        self._cpu_before: float = facts["cpu_seconds"]
        self._wall_before: float = facts["wall_seconds"]
        self._cpu = 0.0
        self._started = now()
        bos, _ = _marks(recipe)
        self.subset = (
            EvalSubset(held_out, recipe.data.eval_bytes, recipe.data.eval_length, bos)
            if held_out
            else None
        )
        self.last_eval: dict[str, float] = {}
        self.loss: float | None = None
        self._saved = facts["step"] if checkpoint is not None else -1
        self._resumed = checkpoint is not None

    def run(self) -> TrainResult:
        recipe = self.recipe
        _write_json(self.out / "recipe.json", recipe.to_dict())
        self._log(
            "start",
            resumed=self._resumed,
            parameters=sum(m.numel() for m in self.trainer.masters.values()),
            train_bytes=self.data.bytes,
            eval_bytes=self.subset.bytes if self.subset else 0,
            torch=torch.__version__,
            recipe=recipe.to_dict(),
        )
        if not self._resumed:
            self._save()
        bar = tqdm(
            total=recipe.schedule.steps,
            initial=self.step,
            disable=not self.progress,
            unit="step",
            dynamic_ncols=True,
        )
        stopped = False
        since, mark = self.data.tokens(self.step), now()
        with bar:
            while self.step < recipe.schedule.steps and not stopped:
                batch = self.data.batch(self.step, self.peers.rank, self.peers.world)
                result = self.trainer.step(batch, self.step, cpu_seconds(), self._wants_stop())
                self.step += 1
                self.loss, self._cpu, stopped = result.loss, result.cpu, result.stop
                bar.update()
                if self._due(recipe.run.log_every):
                    tokens = self.data.tokens(self.step)
                    speed = (tokens - since) / max(1e-9, now() - mark)
                    self._log_step(result, speed)
                    self._show(bar, result.loss, speed)
                    since, mark = tokens, now()
                if self._due(recipe.run.eval_every) or self._due(recipe.run.monitor_every):
                    self._evaluate(self._due(recipe.run.monitor_every))
                    mark, since = now(), self.data.tokens(self.step)
                if self._due(recipe.run.checkpoint_every) or stopped:
                    self._save()
                    mark, since = now(), self.data.tokens(self.step)
        finished = self.step >= recipe.schedule.steps
        model = None
        if finished:
            if self._saved != self.step:
                self._save()
            model = self._export()
        result_ = TrainResult(
            steps=self.step,
            finished=finished,
            loss=self.loss,
            bits_per_byte=self.last_eval.get("bits_per_byte"),
            bits_per_byte_averaged=self.last_eval.get("bits_per_byte_averaged"),
            tokens=self.data.tokens(self.step),
            cpu_hours=self._cpu_total / 2 / 3600,
            wall_hours=self._wall_total / 3600,
            out=self.out,
            model=model,
        )
        self._log("end", **result_.to_dict())
        return result_

    @property
    def _cpu_total(self) -> float:
        return self._cpu_before + self._cpu

    @property
    def _wall_total(self) -> float:
        return self._wall_before + now() - self._started

    def _wants_stop(self) -> bool:
        limit = self.recipe.run.cpu_limit
        return self.stop.wanted or (limit is not None and self._cpu_total >= limit)

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.recipe.schedule.steps

    def _show(self, bar: Any, loss: float, speed: float) -> None:
        shown = {"loss": f"{loss:.3f}", "tok/s": f"{speed:,.0f}"}
        if "bits_per_byte" in self.last_eval:
            shown["bits/byte"] = f"{self.last_eval['bits_per_byte']:.3f}"
        bar.set_postfix(shown)

    def _log_step(self, result: StepResult, speed: float) -> None:
        self._log(
            "step",
            loss=round(result.loss, 5),
            lr=round(rate(self.recipe.schedule, self.step - 1), 6),
            grad_norm=round(result.norm, 5),
            tokens_per_second=round(speed, 1),
        )

    def _evaluate(self, with_monitor: bool) -> None:
        if self.subset is None:
            return
        trainer = self.trainer
        trainer.lm.eval()
        record: dict[str, Any] = {"bits_per_byte": self.subset.bits_per_byte(trainer.lm)}
        if with_monitor:
            record["global_layers"] = mixer_report(trainer.lm, self.subset, record["bits_per_byte"])
        if trainer.averaged is not None:
            trainer.publish(trainer.averaged)
            record["bits_per_byte_averaged"] = self.subset.bits_per_byte(trainer.lm)
            trainer.publish()
        trainer.lm.train()
        self.last_eval = {key: value for key, value in record.items() if key != "global_layers"}
        self._log("eval", **record)

    def _save(self) -> None:
        tensors = {**self.trainer.optimizer_tensors(), "random": torch.get_rng_state()}
        facts = {
            "step": self.step,
            "tokens_seen": self.data.tokens(self.step),
            "cpu_seconds": self._cpu_total,
            "wall_seconds": self._wall_total,
            "recipe": self.recipe.to_dict(),
        }
        weights = {name: master.detach() for name, master in self.trainer.masters.items()}
        path = save_state(self.out / "checkpoints", RunState(weights, tensors, facts))
        self._saved = self.step
        self._log("checkpoint", path=path.name)

    def _export(self) -> Path:
        from interlace.checkpoints.writer import save

        trainer = self.trainer
        trainer.publish(trainer.averaged if self.recipe.run.export == "averaged" else None)
        target, temporary = self.out / "model", self.out / ".model.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        trainer.lm.model.embed_tokens.to(torch.bfloat16)
        save(trainer.lm.to(torch.bfloat16), temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.replace(target)
        return target

    def _log(self, event: str, **values: Any) -> None:
        record = {
            "event": event,
            "step": self.step,
            **values,
            "cpu_seconds": round(self._cpu_total, 2),
            "wall_seconds": round(self._wall_total, 2),
        }
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")
