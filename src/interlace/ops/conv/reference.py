"""The short convolution token by token (spec section 5, step 2), usable in float64."""

import torch

from interlace.shapes import Float, Tensor

__all__ = ["short_conv_reference"]


def short_conv_reference(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    *,
    state: Float[Tensor, "B W-1 D"] | None = None,
    activation: bool = True,
    compute_dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B W-1 D"]]:
    """y_t = silu( sum_i weight[:, W-1-i] * x_{t-i} ): plain rows, no padding, no packing.

    Arguments and result as for `short_conv`.
    """
    width = weight.shape[1]
    window = x.new_zeros(x.shape[0], width - 1, x.shape[2]) if state is None else state
    window, taps = window.to(compute_dtype), weight.to(compute_dtype)
    out = []
    for t in range(x.shape[1]):
        seen = torch.cat([window, x[:, t : t + 1].to(compute_dtype)], 1)  # [B, W, D]
        y = (seen * taps.t()).sum(1)
        out.append(y * torch.sigmoid(y) if activation else y)
        window = seen[:, 1:]
    y = torch.stack(out, 1) if out else x.to(compute_dtype)
    return y.to(x.dtype), window.to(x.dtype)
