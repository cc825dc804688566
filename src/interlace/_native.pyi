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

def mla_prefill(q: object, latent: object, w_uk: object, w_uv: object, out: object, lse: object | None, lengths: object | None, scale: float) -> None:
    """
    As mla_decode, with the keys and values of 256 latents rebuilt at a time for all queries of a head.
    """

def rms_norm(x: object, weight: object, out: object, eps: float) -> None:
    """
    RMSNorm of each row of x [rows, D] into out; weight [D]; float32 or bfloat16, all three alike.
    """
