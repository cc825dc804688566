"""`python -m interlace` is the command `interlace`."""

import sys

from interlace.cli import main

sys.exit(main())
