"""Random calls of the delta rule, and its gradients under a fixed loss."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from interlace.ops.delta_rule import kda_reference

NAMES = ("q", "k", "v", "g", "beta", "state")


def make_call(
    B: int = 2,
    T: int = 37,
    H: int = 3,
    K: int = 20,
    V: int = 12,
    *,
    decay: float | None = None,
    same_keys: bool = False,
    dtype: torch.dtype = torch.float64,
    lowest: float = -5.0,
) -> list[Tensor]:
    """q, k, v, g, beta and a first state; `decay` None draws g between `lowest` and 0."""
    q, k = (normalize(torch.randn(B, T, H, K, dtype=torch.float64), dim=-1) for _ in "qk")
    v = torch.randn(B, T, H, V, dtype=torch.float64)
    g = lowest * torch.rand(B, T, H, K, dtype=torch.float64)
    beta = torch.rand(B, T, H, dtype=torch.float64)
    if decay is not None:
        g = torch.full_like(g, decay)
    if same_keys:
        k, beta = k[:, :1].expand_as(k).clone(), torch.ones_like(beta)
    state = torch.randn(B, H, K, V, dtype=torch.float64)
    call = [q, k, v, g, beta]
    return [x.to(dtype) for x in call] + [state.to(torch.promote_types(dtype, torch.float32))]


def exact(call: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The float64 recurrence on the given numbers."""
    q, k, v, g, beta, state = (x.double() for x in call)
    return kda_reference(q, k, v, g, beta, state=state, compute_dtype=torch.float64)


def gradients(run: Any, call: list[Tensor], **options: Any) -> list[Tensor]:
    """Output, state and the gradients of a fixed weighted sum of both, for every argument."""
    leaves = [x.detach().requires_grad_() for x in call]
    out, last = run(*leaves[:5], state=leaves[5], **options)
    weights = [
        torch.linspace(-1, 1, x.numel(), dtype=torch.float64).cos().view(x.shape).to(x.dtype)
        for x in (out, last)
    ]
    loss = (out * weights[0]).sum() + (last * weights[1]).sum()
    return [out.detach(), last.detach(), *torch.autograd.grad(loss, leaves)]
