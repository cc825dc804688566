"""The native core, when this installation has one.

`core()` is the compiled module, or None where it was not built, where the environment says
INTERLACE_NATIVE=0 (read once, at import), or where the processor can run none of it; `absence()`
says which. Torch is imported first: the module then shares its thread pool.
"""

import os
from importlib import import_module
from typing import Any

import torch  # before the module, whose loader then finds torch's libgomp

__all__ = ["absence", "core", "reason"]


def _load() -> tuple[Any, str | None]:
    if os.environ.get("INTERLACE_NATIVE") == "0":
        return None, "INTERLACE_NATIVE=0 turns the native core off"
    try:
        return import_module("interlace._native"), None
    except ImportError as error:
        return None, f"the native core was not built here ({type(error).__name__})"


_MODULE, _ABSENCE = _load()


def core() -> Any:
    """The compiled module (its functions: `interlace/_native.pyi`), or None."""
    return _MODULE


def absence() -> str | None:
    """Why there is no native core, or None where there is one."""
    return _ABSENCE


def reason(*tensors: torch.Tensor | None) -> str | None:
    """Why no native kernel takes these tensors (absent, another device, a gradient), or None."""
    if _ABSENCE is not None:
        return _ABSENCE
    grad = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.device.type != "cpu":
            return f"native kernels run on the CPU, got a tensor on {tensor.device}"
        if grad and tensor.requires_grad:
            return "native kernels have no backward, and a gradient is asked for"
    return None
