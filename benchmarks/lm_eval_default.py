"""The bundled model under lm-evaluation-harness, on a small task of ours in each of its three ways.

`make lm-eval` runs it and writes benchmarks/results/lm_eval_default.{json,md}. The questions are
about the form of Python and were written for this page; they say that the adapter works from end to
end, and little about the model.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
import torch

import interlace
from interlace.generation.harness import HarnessLM

RESULTS = Path(__file__).parent / "results"

CHOICES = [
    ("for i in range(10", ["):\n", "]:\n", "}:\n"], 0),
    ("values = [1, 2, 3", [")\n", "]\n", "}\n"], 1),
    ("import os\nimport ", ["sys\n", "return\n", "while\n"], 0),
    ("def area(self):\n    return ", ["import\n", "self.width\n", "def\n"], 1),
    ("    if value is None:\n        ", ["elif value\n", ") or\n", "return None\n"], 2),
    ("try:\n    x = f()\n", ["finally)\n", "except ValueError:\n", "import x\n"], 1),
    ("class Point:\n    def __init__(", ["self, x):\n", "[x]):\n", "=x):\n"], 0),
    ('name = "abc', ["'\n", '"\n', ")\n"], 1),
]
TEXTS = ["import os\nimport sys\n\n\ndef main():\n    return 0\n", "x = [1, 2, 3]\nprint(x)\n"]
LINES = [("import os\nimport sy", "s"), ("def f(self):\n    return sel", "f")]


def tasks(folder: Path) -> list[dict[str, Any]]:
    """One task for each way in which the harness asks a model."""

    def data(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(file)},
                "cache_dir": str(folder / "datasets"),
            },
            "test_split": "test",
        }

    choices = [{"start": a, "ends": b, "right": c} for a, b, c in CHOICES]
    lines = [{"start": start, "end": end} for start, end in LINES]
    return [
        {
            "task": "python_choice",
            **data("choice", choices),
            "output_type": "multiple_choice",
            "doc_to_text": "{{start}}",
            "doc_to_choice": "{{ends}}",
            "doc_to_target": "{{right}}",
            "target_delimiter": "",
            "metric_list": [{"metric": "acc"}],
        },
        {
            "task": "python_perplexity",
            **data("perplexity", [{"text": text} for text in TEXTS]),
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        },
        {
            "task": "python_completion",
            **data("completion", lines),
            "output_type": "generate_until",
            "doc_to_text": "{{start}}",
            "doc_to_target": "{{end}}",
            "generation_kwargs": {"until": ["\n", ".", " "], "max_gen_toks": 8},
            "metric_list": [{"metric": "exact_match"}],
        },
    ]


def evaluate(lm: interlace.HybridLM) -> dict[str, dict[str, Any]]:
    """Numbers by task, as the harness gives them."""
    with tempfile.TemporaryDirectory() as name:
        found = lm_eval.simple_evaluate(
            model=HarnessLM(lm), tasks=tasks(Path(name)), bootstrap_iters=0
        )
    assert found is not None
    return {
        task: {key: value for key, value in numbers.items() if isinstance(value, float | int)}
        for task, numbers in found["results"].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    results = evaluate(interlace.load("default"))
    found = {"lm_eval": lm_eval.__version__, "interlace": interlace.__version__, **results}
    (RESULTS / "lm_eval_default.json").write_text(json.dumps(found, indent=1) + "\n")
    rows = "\n".join(
        f"| {task} | {name.partition(',')[0]} | {value:.4f} |"
        for task, numbers in results.items()
        for name, value in numbers.items()
        if "stderr" not in name and "," in name
    )
    page = f"""# The bundled model under lm-evaluation-harness {lm_eval.__version__}

{len(CHOICES)} choices, {len(TEXTS)} texts and {len(LINES)} completions, written for this page.

| task | metric | value |
|---|---|---:|
{rows}
"""
    (RESULTS / "lm_eval_default.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
