"""The tutorials, done as a reader does them: files saved under their captions, commands run in order."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_launch import environment, mpiexec

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(?:\{code-block\} )?(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CAPTION = re.compile(r":caption: (\S+)\n\n?")
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def steps(page: str) -> list[tuple[str, str]]:
    """Return what a page has its reader do: (file, content) or ("$", command and what it prints)."""
    found = []
    for language, text in BLOCK.findall(page):
        caption = CAPTION.match(text)
        if caption:
            found.append((caption[1], text[caption.end() :]))
        elif language == "console":
            found += [("$", part) for part in re.split(r"^\$ ", text, flags=re.MULTILINE) if part]
    return found


def run(command: str, folder: Path) -> str:
    beside = Path(sys.executable).parent
    settings = environment(PATH=f"{beside}{os.pathsep}{os.environ['PATH']}", COLUMNS="100")
    result = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    return result.stdout


def follow(page: Path, folder: Path) -> None:
    """Do what a page says, and compare what is printed with what it shows."""
    done = steps(page.read_text(encoding="utf-8"))
    assert sum(kind == "$" for kind, _ in done) >= 3
    for kind, text in done:
        if kind != "$":
            (folder / kind).write_text(text, encoding="utf-8")
            continue
        lines = text.splitlines(keepends=True)
        many = 1
        while lines[many - 1].endswith("\\\n"):  # goes on on the next line
            many += 1
        command, shown = "".join(lines[:many]), "".join(lines[many:])
        printed = run(command, folder)
        same = doctest.OutputChecker().check_output(shown, printed, SAME)
        assert same, f"$ {command}{printed}\nnot\n{shown}"


@pytest.mark.mpi
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_commands_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    if "mpiexec" in page.read_text(encoding="utf-8"):
        mpiexec()  # or it is skipped
    follow(page, tmp_path)


def test_follow_notices_a_tutorial_that_shows_something_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo 1\n1\n$ echo 2 \\\n  3\n2 ...\n$ echo 4\n5\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="echo 4"):
        follow(page, tmp_path)
