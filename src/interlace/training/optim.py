"""Optimisers: AdamW, and Muon for hidden matrices with AdamW for the rest.

Muon replaces the momentum of a matrix by (nearly) its closest orthogonal matrix, found with
Newton-Schulz iterations. Matrices of one shape are iterated together: a small model has a hundred
of them, and one batched product costs far less than a hundred calls. Both optimisers hold float32
weights and states.
"""

import re
from collections.abc import Iterable

import torch
from torch import nn

from interlace.shapes import Float, Tensor
from interlace.training.recipe import GroupRule, OptimizerRecipe

__all__ = ["Muon", "has_decay", "is_hidden_matrix", "make_optimizers", "orthogonalize"]

# quintic whose slope at zero is steep; singular values end in about 0.7 .. 1.2 (Jordan et al.,
# 2024)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def has_decay(name: str, parameter: Tensor) -> bool:
    """Whether AdamW decays a parameter: matrices but no norms, A_log, dt_bias, vectors."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("A_log", "dt_bias") or leaf.endswith("bias") or "norm" in name:
        return False
    return parameter.ndim >= 2


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon takes a parameter: a matrix of a layer; no embedding, head, taps or vector."""
    # a matrix of one row is a vector, such as the query of a residual mix
    is_matrix = parameter.ndim == 2 and min(parameter.shape) > 1
    return is_matrix and ".layers." in f".{name}" and "conv1d" not in name


@torch.no_grad()
def orthogonalize(
    matrices: Float[Tensor, "count rows cols"], steps: int = 5, dtype: torch.dtype = torch.bfloat16
) -> Float[Tensor, "count rows cols"]:
    """The nearest (semi-)orthogonal matrices, roughly: singular values between 0.7 and 1.2.

    Args:
        matrices: same-shape matrices.
        steps: Newton-Schulz iterations.
        dtype: of the products.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)).to(dtype).contiguous()
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; decoupled decay; rate times sqrt(max(1, rows / cols)).

    Args:
        groups: parameter groups with "params" and optionally "lr", "weight_decay".
        lr: step size.
        momentum: of the gradient average (Nesterov form).
        weight_decay: decoupled, times the rate.
        steps: Newton-Schulz iterations.
        dtype: of their products.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, object]],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        self.momentum, self.steps, self.dtype = momentum, steps, dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        by_shape: dict[torch.Size, list[tuple[nn.Parameter, float, float]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
                entry = (parameter, group["lr"], group["weight_decay"])
                by_shape.setdefault(parameter.shape, []).append(entry)
        for shape, entries in by_shape.items():
            grads = [p.grad for p, _, _ in entries if p.grad is not None]
            buffers = [self.state[parameter]["momentum"] for parameter, _, _ in entries]
            torch._foreach_mul_(buffers, self.momentum)
            torch._foreach_add_(buffers, grads)
            looked_ahead = torch._foreach_add(grads, buffers, alpha=self.momentum)
            updates = orthogonalize(torch.stack(list(looked_ahead)), self.steps, self.dtype)
            stretch = max(1.0, shape[0] / shape[1]) ** 0.5
            for (parameter, lr, decay), update in zip(entries, updates, strict=True):
                parameter.mul_(1 - lr * decay).add_(update, alpha=-lr * stretch)


def make_optimizers(
    parameters: dict[str, nn.Parameter], recipe: OptimizerRecipe, precision: str = "bf16"
) -> list[torch.optim.Optimizer]:
    """The optimisers of a recipe; a group keeps its full rate as "base_lr", its "names" too.

    Args:
        parameters: float32 weights by name.
        recipe: `name` chooses; the first group rule that matches a name applies.
        precision: of Muon's products.
    """
    muon: dict[tuple[float, float], list[str]] = {}
    adamw: dict[tuple[float, float], list[str]] = {}
    for name, parameter in parameters.items():
        rule = next((r for r in recipe.group if re.search(r.match, name)), GroupRule(match=""))
        to_muon = recipe.name == "muon" and is_hidden_matrix(name, parameter)
        lr = (recipe.muon_lr if to_muon else recipe.lr) * rule.lr_scale
        decay = recipe.muon_weight_decay if to_muon else recipe.weight_decay
        if rule.weight_decay is not None:
            decay = rule.weight_decay
        if not has_decay(name, parameter):
            decay = 0.0
        (muon if to_muon else adamw).setdefault((lr, decay), []).append(name)

    def groups(wanted: dict[tuple[float, float], list[str]]) -> list[dict[str, object]]:
        return [
            {
                "params": [parameters[n] for n in names],
                "names": names,
                "lr": lr,
                "base_lr": lr,
                "weight_decay": decay,
            }
            for (lr, decay), names in wanted.items()
        ]

    out: list[torch.optim.Optimizer] = []
    if muon:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        out.append(
            Muon(
                groups(muon),
                recipe.muon_lr,
                recipe.muon_momentum,
                steps=recipe.muon_steps,
                dtype=dtype,
            )
        )
    if adamw:
        out.append(
            torch.optim.AdamW(
                groups(adamw), lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, foreach=True
            )
        )
    return out
