"""Draw the curve of a training run from its log; needs matplotlib (`pip install matplotlib`).

python benchmarks/plot_training.py recipes/default/log.jsonl recipes/default/curve.svg
"""

import json
import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def main(log: Path, picture: Path) -> None:
    plt.switch_backend("Agg")
    plt.rcParams["svg.hashsalt"] = "interlace"  # the same log gives the same file
    records = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [r for r in records if r["event"] == "step"]
    evals = [r for r in records if r["event"] == "eval"]
    fig, (loss, worth) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(2, 1))
    bits = [r["loss"] / math.log(2) for r in steps]
    loss.plot([r["step"] for r in steps], bits, lw=0.8, color="#8aa", label="training batch")
    for key, name, colour in (
        ("bits_per_byte", "held-out openings", "#14526b"),
        ("bits_per_byte_averaged", "held-out openings, averaged weights", "#c76b29"),
    ):
        known = [(r["step"], r[key]) for r in evals if key in r]
        loss.plot(*zip(*known, strict=True), "o-", ms=3, lw=1.2, color=colour, label=name)
    loss.set(xlabel="step (8,192 tokens)", ylabel="bits per byte", ylim=(0.8, 4))
    loss.legend(frameon=False, fontsize=8)
    layers: dict[int, list[tuple[int, float]]] = {}
    for record in evals:
        for layer in record.get("global_layers", []):
            layers.setdefault(layer["layer"], []).append((record["step"], layer["worth"]))
    for layer, values in layers.items():
        worth.plot(*zip(*values, strict=True), "o-", ms=3, lw=1.2, label=f"layer {layer + 1}")
    worth.axhline(0.01, color="#999", lw=0.8, ls=":")
    worth.set(xlabel="step", ylabel="bits per byte lost without the mixer", yscale="log")
    worth.legend(frameon=False, fontsize=8, title="Gated MLA", title_fontsize=8)
    fig.tight_layout()
    fig.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
