"""The planner's time per token on the machine at hand against runs of whole models.

`interlace bench limits` measured the machine, with no model; `interlace bench model` ran models.
Nothing is fitted to the latter, so each row is a prediction and what came.

    interlace bench limits
    interlace bench model --models mid,kl2 --depths 4096,32768,131072 --json > runs.json
    python benchmarks/plan_against_runs.py runs.json

The last writes benchmarks/results/plan_against_runs.md.
"""

import argparse
import json
import sys
from pathlib import Path

from interlace.planner import plan
from interlace.planner.hardware import measured

RESULT = Path(__file__).parent / "results" / "plan_against_runs.md"
ALLOWED = 0.30


def rows(files: list[Path]) -> list[dict]:
    found = []
    for file in files:
        run = json.loads(file.read_text())
        for record in run["results"]:
            if record["kind"] != "decode" or not record["tokens"]:
                continue
            for name, seconds in record["median_seconds"].items():
                if " " in name:  # a peer
                    continue
                planned = plan(name, context=record["tokens"], hardware="measured")
                parts = {part.name: part.seconds for part in planned.decode()}
                found.append(
                    {
                        "model": name,
                        "tokens": record["tokens"],
                        "planned": planned.seconds_per_token,
                        "parts": parts,
                        "measured": seconds,
                        "others": record.get("others_share", 0.0),
                    }
                )
    return found


def report(found: list[dict]) -> str:
    machine = measured()
    names = list(dict.fromkeys(name for row in found for name in row["parts"]))
    head = ["model", "cached tokens", *names, "planned", "measured", "off by"]
    lines = []
    for row in found:
        cells = [row["model"], f"{row['tokens']:,}"]
        cells += [f"{1e3 * row['parts'].get(name, 0.0):.2f}" for name in names]
        cells += [f"{1e3 * row['planned']:.1f}", f"{1e3 * row['measured']:.1f}"]
        cells.append(f"{100 * (row['planned'] / row['measured'] - 1):+.0f} %")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(
        [
            "# Planned and measured time per token",
            "",
            f"Milliseconds, bf16, batch 1; {machine.title}; {machine.source}. No run of a model "
            "was used to make the plan.",
            "",
            "| " + " | ".join(head) + " |",
            "|---|" + "---:|" * (len(head) - 1),
            *lines,
            "",
            "Made by `benchmarks/plan_against_runs.py`.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="JSON files of 'interlace bench model'")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    found = rows(options.runs)
    if not found:
        sys.exit("the files must hold runs of decoding at a depth above 0.")
    text = report(found)
    options.out.write_text(text)
    print(text)
    off = [row for row in found if abs(row["planned"] / row["measured"] - 1) > ALLOWED]
    if off:
        sys.exit(f"{len(off)} of {len(found)} plans are off by more than {ALLOWED:.0%}.")


if __name__ == "__main__":
    main()
