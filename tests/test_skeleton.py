"""The package as a thing one installs: its version, its command, its archives, its public names."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import adfs
from adfs.cli import app, main
from adfs.errors import InputError

ROOT = Path(__file__).parents[1]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_version_is_the_same_everywhere() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", adfs.__version__)
    assert f"\nversion: {adfs.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    run = run_python("-m", "adfs", "--version")
    assert (run.returncode, run.stdout, run.stderr) == (0, f"adfs {adfs.__version__}\n", "")


def test_command_is_installed_as_adfs() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"adfs": "adfs.cli:main"}


def test_version_option_costs_no_heavy_import() -> None:
    code = (
        "import sys; from adfs.cli import main; main(['--version']);"
        "heavy = {'matplotlib', 'networkx', 'numba', 'numpy', 'pandas', 'scipy', 'sklearn'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = run_python("-c", code)
    assert run.stdout == f"adfs {adfs.__version__}\n[]\n", run.stderr


def test_simulate_imports_only_what_it_uses() -> None:
    """What is slow to import and wanted by few is left until somebody asks for it."""
    code = (
        "import sys, numpy as np, adfs;"
        "problem = adfs.Problem(np.eye(4), np.array([1.0, -1.0, 1.0, -1.0]), n_nodes=2);"
        "run = adfs.simulate('adfs', problem, 'path:2', max_passes=2.0);"
        "slow = {'matplotlib', 'networkx', 'pandas', 'rich', 'scipy.optimize', 'scipy.spatial', 'sklearn'};"
        "print(sorted(slow & set(sys.modules)), len(run.frame) > 0)"
    )
    run = run_python("-c", code)
    assert run.stdout == "[] True\n", run.stderr


@pytest.mark.parametrize("arguments", [["optimise"], ["--no-such-option"]])
def test_main_refuses_a_bad_command_line_in_one_line_with_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"adfs: [^\n]*" + re.escape(arguments[0]) + r"[^\n]*\n", captured.err)


def test_main_sets_the_exit_status_of_the_process() -> None:
    run = run_python("-m", "adfs", "optimise")
    assert run.returncode == 2
    assert "Traceback" not in run.stderr


def test_main_shows_the_help_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "--version" in capsys.readouterr().out


@pytest.fixture
def add_command(monkeypatch: pytest.MonkeyPatch):
    """Give the command line one more command, whose body raises or returns what is given."""

    def add(outcome: BaseException | None) -> None:
        def run() -> None:
            """Do it."""
            if outcome is not None:
                raise outcome

        monkeypatch.setitem(sys.modules, "adfs_test_command", SimpleNamespace(attempt=run))
        monkeypatch.setitem(app.COMMANDS, "attempt", "adfs_test_command")

    return add


def test_main_shows_our_errors_in_one_line_unless_debugging(
    add_command, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(InputError("sigma must be positive,\n  got -1"))
    assert main(["attempt"]) == 2
    assert capsys.readouterr().err == "adfs: sigma must be positive, got -1\n"
    assert main(["--debug", "attempt"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("\nadfs: sigma must be positive, got -1\n")


def test_main_lets_other_errors_through(add_command) -> None:
    add_command(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        main(["attempt"])


def test_main_returns_the_codes_of_success_and_interruption(
    add_command, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(None)
    assert main(["attempt"]) == 0
    add_command(KeyboardInterrupt())
    assert main(["attempt"]) == 130
    assert capsys.readouterr().err.strip() == "adfs: interrupted"


def test_package_has_every_public_name() -> None:
    assert len(adfs.__all__) == len(set(adfs.__all__))
    assert set(adfs.__all__) <= set(dir(adfs))
    missing = [name for name in adfs.__all__ if getattr(adfs, name, None) is None]
    assert missing == []


def test_package_has_the_same_names_for_the_type_checker_and_lazily() -> None:
    tree = ast.parse(Path(adfs.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    declared = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    folders = set(adfs.__all__) - set(adfs._OBJECTS) - {"AdfsError", "InputError", "__version__"}
    assert declared == adfs._OBJECTS | dict.fromkeys(folders, "adfs")


def test_package_raises_attribute_error_for_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Netwrok'"):
        _ = adfs.Netwrok


def test_wheel_and_sdist_hold_what_they_should(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    # Without isolation, hence without a network; from a copy, so that nothing is left in the tree.
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "dist", "_build")
    shutil.copytree(ROOT, tree, ignore=ignored)
    run = run_python("-W", "ignore", "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(tree))
    assert run.returncode == 0, run.stdout + run.stderr

    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"adfs-{adfs.__version__}-py3-none-any.whl"
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert sources | {"adfs/py.typed"} <= in_wheel
    assert {name.partition("/")[0] for name in in_wheel} == {"adfs", f"adfs-{adfs.__version__}.dist-info"}

    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        "LICENSE",
        "Makefile",
        "README.md",
        "pyproject.toml",
        "src/adfs/py.typed",
        "tests/test_skeleton.py",
    }
    assert expected <= in_sdist
    assert not any(".venv" in name or "__pycache__" in name for name in in_sdist)


def files_of_the_project() -> list[Path]:
    """Return the files that git tracks or would track; outside a repository, those of the sdist's folders."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if listing.returncode == 0:
            return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    folders = ("src", "tests", "docs", "examples", "benchmarks")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    made = {"__pycache__", "_build", "api", ".coverage"}
    return [path for path in [*ROOT.iterdir(), *inside] if path.is_file() and not made & set(path.parts)]


def test_files_never_mention_the_machine_they_were_written_on() -> None:
    places = {ROOT, Path.home()}
    if ROOT.parent != Path(tempfile.gettempdir()):  # examples may write there
        places.add(ROOT.parent)
    names = [re.escape(str(place)) for place in places if len(place.parts) > 1]
    # A path starts after something that is not part of a longer one, and goes on.
    pattern = re.compile(
        r"(?<![\w./-])(?:" + "|".join([*names, r"/home/\w+", r"/Users/\w+"]) + r")(?=[/\"'`\s])"
    )
    assert pattern.search(f"see {ROOT}/x")  # it can fail
    files = files_of_the_project()
    assert len(files) > 10
    found = []
    for path in files:
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []
