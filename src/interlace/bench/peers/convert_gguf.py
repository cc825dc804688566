"""Convert a checkpoint with llama.cpp's own converter; only its tokenizer step is replaced.

    python -m interlace.bench.peers.convert_gguf SOURCE FOLDER FILE TYPE

SOURCE is a folder of llama.cpp's sources. It runs in a process of its own, because the converter is
a script with packages beside it. The models that are measured have no tokenizer, and need none.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main(source: str, folder: str, file: str, kind: str) -> None:
    """Write `file`, with matrices of type `kind` (f32, bf16, q8_0)."""
    sys.path.insert(0, source)
    sys.argv = [str(Path(source, "convert_hf_to_gguf.py")), folder]
    sys.argv += ["--outfile", file, "--outtype", kind]
    converter: Any = import_module("convert_hf_to_gguf")
    model: Any = import_module("conversion.kimi_linear").KimiLinearModel
    model.set_vocab = lambda self: self._set_vocab_none()
    converter.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
