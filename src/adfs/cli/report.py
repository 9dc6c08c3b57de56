"""``adfs report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """\b
Examples:
  adfs report comparison
  adfs report reproduce/large
"""


def run(
    folder: Annotated[Path, typer.Argument(help="A folder that adfs compare or adfs reproduce wrote.")],
) -> None:
    """Make the page, the figures and the table of a comparison again, from the runs in its folder."""
    from adfs.experiments import remake_folder

    remake_folder(folder)
    print(folder / "report.html")
