"""
Kernels of Interlace for one processor: tensors in, tensors filled; csrc/README.md says what each computes.
"""

from collections.abc import Sequence


def levels() -> list[str]:
    """
    Instruction sets that this build holds and this machine runs, in rising order.
    """

def level() -> str:
    """The instruction set in use."""

def use_level(name: str) -> None:
    """Use another instruction set, for tests. Not while a kernel runs."""

def mla_decode(q: object, latent: object, w_uk: object, w_uv: object, out: object, lse: object | None, lengths: object | None, scale: float) -> None:
    """
    Causal attention of q [B, T, H, N + P] against latent [B, M, R + P], with w_uk [H, N, R] folded into the query and
    w_uv [H, V, R] into the output: all bfloat16. Fills out [B, T, H, V] and, when given, lse [B, T, H], float32. lengths
    [B] (int64): valid latents of each row; what lies behind is not read.
    """

def mla_prefill(q: object, latent: object, w_uk: object, w_uv: object, out: object, lse: object | None, lengths: object | None, scale: float) -> None:
    """
    As mla_decode, with the keys and values of 256 latents rebuilt at a time for all queries of a head.
    """

def limit(loop: str, data: object | None, rounds: int) -> float:
    """
    One run of a loop that does one thing only: 'dot' (bf16 products) or 'multiply' (float32 multiply-adds) in registers, `rounds` times
    per thread; 'read' or 'read_write' of data [N], float32, once. Returns operations (two per multiply-add) or bytes moved.
    """

def convolve(x: Sequence[object], taps: Sequence[object], windows: Sequence[object], outs: Sequence[object], lasts: Sequence[object], silu: bool) -> None:
    """
    Short causal convolutions of one to four inputs x [B, T, D] (bfloat16) with taps [D, W] (bfloat16 or float32); windows [B, W - 1, D] hold
    the inputs before. Fills outs [B, T, D] and lasts, the windows after the call.
    """

def decay(z: object, b: object, rate: object, bias: object, g: object, beta: object, bound: float) -> None:
    """
    g [rows, H*K] = -exp(rate) softplus(z + bias), or bound * sigmoid(exp(rate) (z + bias)) where bound is negative; beta [rows, H] =
    sigmoid(b). z and b are bfloat16, everything else float32.
    """

def gated_norm(x: object, gate: object, weight: object, out: object, eps: float) -> None:
    """
    RMSNorm of each row of x [rows, V] times weight [V] times sigmoid(gate), into out; x and weight float32 or bfloat16.
    """

def linear(x: object, weights: Sequence[object], outs: Sequence[object], glu: str = '', beta: float = 0.0, linear_beta: float = 0.0) -> None:
    """
    y = x W^T of bfloat16 x [M, D] for each of one to eight weights, into outs [M, F], bfloat16 or float32. A weight is bfloat16 [F, D],
    or a pair: int8 codes [F, D], or bytes of two codes [F, D/2], with scales [F, D/32] in bfloat16, or in uint8 for MXFP4. With glu
    'swish' or 'situ' (caps beta, linear_beta; 0: none) the two weights are gate and up, and there is one output.
    """

def kda_step(q: object, k: object, v: object, g: object | None, beta: object, state: object | None, out: object, last: object, lengths: object | None, offsets: object | None, scale: float, unit_eps: float | None) -> None:
    """
    Gated delta rule in float32 of q, k [B, T, H, K] and v [B, T, H, V] (float32 or bfloat16, alike), with log decays g like q
    (float32; None: no decay) and beta [B, T, H] (float32). Fills out, like v, and last [S, H, K, V] (float32), from state like
    last (None: zeros), which may be last itself. S is B, or with offsets [S + 1] (int64) of packed sequences their number;
    lengths [B] (int64): real tokens of each row, the outputs behind are 0. scale is on q; with unit_eps q and k are brought to
    unit length first, unit_eps inside the root.
    """

def kda_chunk(q: object, k: object, v: object, g: object | None, beta: object, state: object | None, out: object, last: object, lengths: object | None, offsets: object | None, scale: float, unit_eps: float | None) -> None:
    """
    As kda_step, for bfloat16 q, k, v and out, eight tokens at a time: products with the state, and what is written to it, of
    operands rounded to bfloat16, with float32 sums.
    """

def rms_norm(x: object, weight: object, out: object, eps: float) -> None:
    """
    RMSNorm over the last axis of x [..., D] into out, of the same size; weight [D]; float32 or bfloat16, all three alike.
    """

class KdaLayer:
    """
    The weights of a KDA layer, checked once and kept alive: q, k, v, f_a, b, gate (or its first factor), f_b, g_b or None, o;
    taps of q, k and v; rate (A_log) [H], bias [H*K] and norm [K]. hidden is the width of x.
    """

    def __init__(self, weights: Sequence[object], taps: Sequence[object], rate: object, bias: object, norm: object, hidden: int, bound: float, eps: float, unit_eps: float) -> None: ...

    def step(self, x: object, state: object, window_q: object, window_k: object, window_v: object, y: object) -> bool:
        """
        y [B, T, D] of x [B, T, D], bfloat16; state [B, H, K, K] (float32) and the windows [B, W - 1, H*K] are overwritten.
        False, and nothing done, when a tensor of the layer has other memory than it had.
        """

class MlpLayer:
    """
    The weights of a gated feed-forward, checked once and kept alive: gate, up and down; glu 'swish' or 'situ'.
    """

    def __init__(self, weights: Sequence[object], hidden: int, glu: str, beta: float = 0.0, linear_beta: float = 0.0) -> None: ...

    def step(self, x: object, y: object) -> bool:
        """
        y [rows, D] of x [rows, D], bfloat16. False, and nothing done, when a weight has other memory than it had.
        """
