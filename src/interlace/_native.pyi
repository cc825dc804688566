"""
Kernels of Interlace for one processor: tensors in, tensors filled; csrc/README.md says what each computes.
"""



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

def kda_step(q: object, k: object, v: object, g: object | None, beta: object, state: object | None, out: object, last: object, lengths: object | None, offsets: object | None, scale: float, unit_eps: float | None) -> None:
    """
    Gated delta rule in float32 of q, k [B, T, H, K] and v [B, T, H, V] (float32 or bfloat16, alike), with log decays g like q
    (float32; None: no decay) and beta [B, T, H] (float32). Fills out, like v, and last [S, H, K, V] (float32), from state like
    last (None: zeros), which may be last itself. S is B, or with offsets [S + 1] (int64) of packed sequences their number;
    lengths [B] (int64): real tokens of each row, the outputs behind are 0. scale is on q; with unit_eps q and k are brought to
    unit length first, unit_eps inside the root.
    """

def rms_norm(x: object, weight: object, out: object, eps: float) -> None:
    """
    RMSNorm of each row of x [rows, D] into out; weight [D]; float32 or bfloat16, all three alike.
    """
