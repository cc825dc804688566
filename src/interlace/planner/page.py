"""One HTML page that holds a plan and works without a network: controls, curves, bars, a table.

`coefficients` are written into the page as JSON; its script evaluates them and draws, and nothing
else. What it shows is therefore what `interlace.plan` says, and a test reads the JSON back.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from interlace.planner.coefficients import coefficients
from interlace.planner.plan import Plan

__all__ = ["page"]

_TEMPLATE = Path(__file__).with_name("page.html")
_DATA = "{{data}}"


def page(plans: Sequence[Plan]) -> str:
    """The page of several plans of one question.

    Args:
        plans: the model that was asked about, then those beside it.
    """
    data = json.dumps(coefficients(plans), separators=(",", ":"))
    # a name may not end the script that holds it
    return _TEMPLATE.read_text().replace(_DATA, data.replace("<", "\\u003c"))
