"""``python -m adfs`` is the ``adfs`` command."""

from __future__ import annotations

import sys

from adfs.cli import main

if __name__ == "__main__":
    sys.exit(main())
