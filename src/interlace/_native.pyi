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

def rms_norm(x: object, weight: object, out: object, eps: float) -> None:
    """
    RMSNorm of each row of x [rows, D] into out; weight [D]; float32 or bfloat16, all three alike.
    """
