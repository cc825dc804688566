"""One process's part of a run: float32 weights, a working model, one step at a time.

    masters (float32) --copy--> working model (bf16 or float32) --backward--> gradients
         ^                                                                      |
         '--- optimisers <--- clip <--- average over processes <--- flat float32

The working model has the precision of the products; the residual stream, the embedding, decays,
softmax, norms and state stay in float32. Weights are only ever updated in float32.
"""

import math
import time

import torch
from torch import nn
from torch.nn import functional

from interlace.config import HybridConfig, preset
from interlace.config.sizes import packs_experts
from interlace.errors import CheckpointError, InputError, NonFiniteError
from interlace.models import HybridLM, build
from interlace.shapes import Tensor
from interlace.training.balance import Balancer
from interlace.training.data import Batch
from interlace.training.initial import apply_init, take_start
from interlace.training.optim import make_optimizers
from interlace.training.processes import Peers, SingleProcess
from interlace.training.recipe import ModelRecipe, Recipe
from interlace.training.schedule import rate

__all__ = ["StepResult", "Trainer", "model_config"]

_SHARED = 3  # loss, CPU clock, wish to stop


def model_config(model: ModelRecipe) -> HybridConfig:
    """The config of a recipe's [model] section.

    Raises:
        InputError: a key that is none, or a preset with packed experts.
    """
    config = preset(model.preset)
    if packs_experts(config):
        # four bits hold no small step
        raise InputError(
            f"model.preset must be a model without packed experts, which are not trained, got "
            f"{model.preset!r}; take another, such as kimi-k3-tiny, and set its sizes in "
            "[model.config]."
        )
    changes = dict(model.config)
    ratio = changes.pop("ratio", 3)
    if "num_hidden_layers" in changes or "ratio" in model.config:
        count = changes.setdefault("num_hidden_layers", config.num_hidden_layers)
        changes["kda_layers"], changes["full_attn_layers"] = HybridConfig.layout(count, ratio)
    known = set(HybridConfig.__slots__)
    for key in changes:
        if key not in known:
            raise InputError(
                f"unknown key model.config.{key} in the recipe; it must be a field of HybridConfig."
            )
    return config.replace(**changes)


class StepResult:
    """Mean loss in nats, gradient norm before clipping, CPU seconds of all, wish to stop."""

    __slots__ = ("cpu", "loss", "norm", "stop")

    def __init__(self, loss: float, norm: float, cpu: float, stop: bool) -> None:
        self.loss, self.norm, self.cpu, self.stop = loss, norm, cpu, stop


class Trainer:
    """Model, optimisers and averaged weights of a run.

    Args:
        recipe: the run.
        peers: the processes that share each step.
    """

    def __init__(self, recipe: Recipe, peers: SingleProcess | Peers) -> None:
        self.recipe, self.peers = recipe, peers
        lm = build(model_config(recipe.model), seed=recipe.run.seed, dtype="float32")
        if recipe.model.start is None:
            apply_init(lm, recipe.model, recipe.init, recipe.run.seed + 1)
        else:
            take_start(lm, recipe.model.start, recipe.folder)
        self.masters = {
            name: nn.Parameter(parameter.detach().clone())
            for name, parameter in lm.named_parameters()
        }
        self.lm = self._working(lm)
        self._pairs = [(self.masters[name], p) for name, p in self.lm.named_parameters()]
        count = sum(master.numel() for master, _ in self._pairs)
        self._flat = torch.zeros(count + _SHARED)
        offset = 0
        for master, _ in self._pairs:
            master.grad = self._flat[offset : offset + master.numel()].view_as(master)
            offset += master.numel()
        self.balancer = Balancer(self.lm)
        self.optimizers = make_optimizers(self.masters, recipe.optimizer, recipe.run.precision)
        self.averaged: dict[str, Tensor] | None = None
        if recipe.run.ema is not None:
            self.averaged = {name: m.detach().clone() for name, m in self.masters.items()}
        self.updates = 0
        self.publish()

    def _working(self, lm: HybridLM) -> HybridLM:
        if self.recipe.run.precision == "bf16":
            lm.to(torch.bfloat16)
            # a row of the embedding gathers the gradient of thousands of tokens: not in bf16
            lm.model.embed_tokens.float()
            lm.residual_dtype = torch.float32
        if self.recipe.run.compile:
            for layer in lm.model.layers:
                layer.compile()
        return lm.train()

    @torch.no_grad()
    def publish(self, weights: dict[str, Tensor] | None = None) -> None:
        """Copy the float32 weights (or `weights`) into the working model."""
        sources = [m if weights is None else weights[n] for n, m in self.masters.items()]
        torch._foreach_copy_([p for _, p in self._pairs], sources)

    def step(self, batch: Batch, step: int, cpu: float, stop: bool) -> StepResult:
        """Train on one batch.

        Args:
            batch: this process's rows.
            step: 0-based, for the learning rate.
            cpu: CPU seconds of this process so far.
            stop: whether this process was asked to stop.

        Raises:
            NonFiniteError: naming the first tensor that is not finite; no weight was changed.
        """
        logits = self.lm(batch.tokens, cu_seqlens=batch.cu_seqlens)
        loss = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        self._collect(loss.detach(), cpu, stop)
        self.peers.average(self._flat)
        mean_loss, mean_cpu, stops = self._flat[-_SHARED:].tolist()
        gradient = self._flat[:-_SHARED]
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm) or not math.isfinite(mean_loss):
            raise NonFiniteError(
                f"every tensor of a training step must be finite; in step {step} the first that "
                f"is not is {self._first_bad(batch)}. The last checkpoint is good; resume from it "
                "with a lower rate."
            )
        if norm > self.recipe.optimizer.clip:
            gradient.mul_(self.recipe.optimizer.clip / norm)
        factor = rate(self.recipe.schedule, step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            optimizer.step()
        self._average_weights()
        self.publish()
        self.balancer.update(self.peers)
        return StepResult(mean_loss, norm, mean_cpu * self.peers.world, stops > 0)

    def _collect(self, loss: Tensor, cpu: float, stop: bool) -> None:
        with torch.no_grad():
            grads = [p.grad if p.grad is not None else torch.zeros_like(p) for _, p in self._pairs]
            torch._foreach_copy_([m.grad for m, _ in self._pairs if m.grad is not None], grads)
            self._flat[-_SHARED:] = torch.tensor([float(loss), cpu, float(stop)])
        for _, parameter in self._pairs:
            parameter.grad = None

    @torch.no_grad()
    def _average_weights(self) -> None:
        self.updates += 1
        if self.averaged is None or self.recipe.run.ema is None:
            return
        # young averages must not remember the start values
        keep = min(self.recipe.run.ema, self.updates / (self.updates + 10))
        torch._foreach_lerp_(list(self.averaged.values()), list(self.masters.values()), 1 - keep)

    def _first_bad(self, batch: Batch) -> str:
        for name, master in self.masters.items():
            if not bool(torch.isfinite(master).all()):
                return f"the weight {name}"
        found: list[str] = []
        handles = [
            module.register_forward_hook(_recorder(name, found))
            for name, module in self.lm.named_modules()
            if not any(True for _ in module.children()) or name.endswith(("self_attn", "mlp"))
        ]
        try:
            with torch.no_grad():
                self.lm(batch.tokens, cu_seqlens=batch.cu_seqlens)
        finally:
            for handle in handles:
                handle.remove()
        if found:
            return f"the output of {found[0]}"
        # backward runs from the head down: the last parameter in the order of the model is the
        # first one hit
        for name, master in reversed(list(self.masters.items())):
            if master.grad is not None and not bool(torch.isfinite(master.grad).all()):
                return f"the gradient of {name}"
        return "the loss"

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Optimiser states, averaged weights, routers' biases: "<kind>.<name>.<state>"."""
        out = self.balancer.tensors()
        for optimizer in self.optimizers:
            kind = type(optimizer).__name__.lower()
            for group in optimizer.param_groups:
                for name, parameter in zip(group["names"], group["params"], strict=True):
                    for key, value in optimizer.state[parameter].items():
                        out[f"{kind}.{name}.{key}"] = torch.as_tensor(value)
        for name, value in (self.averaged or {}).items():
            out[f"averaged.{name}.weight"] = value
        return out

    @torch.no_grad()
    def restore(self, weights: dict[str, Tensor], tensors: dict[str, Tensor], updates: int) -> None:
        """Take over the weights and states of a checkpoint; nothing is initialised again.

        Raises:
            CheckpointError: tensors of another model or optimiser.
        """
        if set(weights) != set(self.masters):
            odd = sorted(set(weights) ^ set(self.masters))[0]
            raise CheckpointError(
                f"the checkpoint must hold the recipe's model; {odd} is in one of them only."
            )
        for name, master in self.masters.items():
            if master.shape != weights[name].shape:
                raise CheckpointError(
                    f"{name} must have shape {tuple(master.shape)}, got "
                    f"{tuple(weights[name].shape)}; "
                    "the recipe's model is another one."
                )
            master.copy_(weights[name])
        biases = self.balancer.tensors()
        wanted = {}
        for optimizer in self.optimizers:
            kind = type(optimizer).__name__.lower()
            for group in optimizer.param_groups:
                for name, parameter in zip(group["names"], group["params"], strict=True):
                    wanted[f"{kind}.{name}"] = optimizer.state[parameter]
        for key, value in tensors.items():
            if key == "random":
                continue
            owner, _, state = key.rpartition(".")
            if owner.startswith("averaged."):
                if self.averaged is not None:
                    self.averaged[owner.removeprefix("averaged.")].copy_(value)
            elif key in biases:
                biases.pop(key).copy_(value)
            elif owner in wanted:
                wanted[owner][state] = value
            else:
                raise CheckpointError(
                    f"the checkpoint's {key} belongs to no optimiser of the recipe."
                )
        if updates and not all(wanted.values()):
            bare = next(key for key, state in wanted.items() if not state)
            raise CheckpointError(f"the checkpoint lacks the optimiser state of {bare}.")
        if biases:
            raise CheckpointError(f"the checkpoint lacks {next(iter(biases))}.")
        self.updates = updates
        self.publish()


def _recorder(name: str, found: list[str]):  # type: ignore[no-untyped-def]
    def record(module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
            found.append(name)

    return record


def now() -> float:
    """Wall clock for intervals, in seconds."""
    return time.monotonic()
