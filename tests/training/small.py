"""A recipe whose run takes a second."""

import json
from pathlib import Path
from typing import Any

TINY = {
    "num_hidden_layers": 2,
    "ratio": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 6,
    "kv_lora_rank": 8,
    "kda_num_heads": 3,
    "kda_head_dim": 5,
    "intermediate_size": 24,
}
TEXT = (b"def f(x):\n    return x + 1\n", b"import os\n" * 9, b"", b"class A:\n    pass\n" * 5)


def write_recipe(folder: Path, **sections: dict[str, Any]) -> Path:
    """A recipe of 20 float32 steps over TEXT in `folder`; `sections` change it."""
    for i, text in enumerate(TEXT):
        (folder / f"doc{i}.txt").write_bytes(text)
    (folder / "held.txt").write_bytes(b"def g(y):\n    return y\n" * 3)
    values: dict[str, dict[str, Any]] = {
        "model": {"preset": "default"},
        "model.config": dict(TINY),
        "data": {
            "files": ["doc*.txt"],
            "held_out": ["held.txt"],
            "sequence_length": 19,
            "batch": 4,
            "eval_bytes": 64,
        },
        "optimizer": {"name": "muon"},
        "schedule": {"steps": 20, "warmup": 3},
        "run": {
            "out": str(folder / "out"),
            "precision": "float32",
            "log_every": 1,
            "eval_every": 10,
            "monitor_every": 20,
            "checkpoint_every": 10,
        },
    }
    for name, changes in sections.items():
        values.setdefault(name, {}).update(changes)
    lines = []
    for name, table in values.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path = folder / "recipe.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_log(out: Path, event: str) -> list[dict[str, Any]]:
    lines = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]
