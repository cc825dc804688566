"""Ctrl-C between calls of the model, not inside one: a cache is whole whenever it can be seen."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["whole_call"]


@contextmanager
def whole_call() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done, then raise KeyboardInterrupt.

    A second Ctrl-C breaks off at once, and the cache of a call that was broken off cannot be used
    any more. In other threads, and where a program handles the signal itself, nothing is changed.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        signal.signal(signal.SIGINT, note)
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
