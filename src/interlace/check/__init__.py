"""Proves a checkpoint on the machine at hand: every way of computing it against one in float64."""

from interlace.check.findings import Finding as Finding
from interlace.check.findings import Report as Report
from interlace.check.needs import require_disk as require_disk
from interlace.check.needs import require_memory as require_memory
from interlace.check.proof import check_model as check_model
from interlace.check.recorded import Recording as Recording
from interlace.check.recorded import check_target as check_target
from interlace.check.recorded import read_recording as read_recording
from interlace.check.recorded import record as record
from interlace.check.recorded import write_recording as write_recording
from interlace.check.reference import Reference as Reference
from interlace.check.rows import DEFAULT_TOKENS as DEFAULT_TOKENS
from interlace.check.rows import draw_rows as draw_rows
from interlace.check.rows import rows_with as rows_with
from interlace.check.weights import enliven as enliven

__all__ = [
    "DEFAULT_TOKENS",
    "Finding",
    "Recording",
    "Reference",
    "Report",
    "check_model",
    "check_target",
    "draw_rows",
    "enliven",
    "read_recording",
    "record",
    "require_disk",
    "require_memory",
    "rows_with",
    "write_recording",
]
