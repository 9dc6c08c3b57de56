"""What people expect of a project: files that hosts read are valid, and the wheel runs by itself."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import adfs
from browser import Browser, narrow_pages

ROOT = Path(__file__).parents[1]
SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "citation-file-format": "CITATION.cff",
}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_hosts_are_valid(schema: str) -> None:
    if find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed: pip install '.[lint]'")
    files = [str(path) for path in ROOT.glob(SCHEMAS[schema])]
    if not files and not (ROOT / ".github").exists():
        pytest.skip("an archive of the sources has no files for hosts")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_architecture_page_names_folders_files_and_names_that_exist() -> None:
    """They stand in backquotes: ``folder/``, ``folder/file.py`` or ``folder/file.py: name``."""
    for page in ("docs/architecture.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for path, name in re.findall(r"`([\w/]+/|[\w/]+/\w+\.py)(?:: (\w+))?`", text):
            found = next((base / path for base in (ROOT, ROOT / "src/adfs") if (base / path).exists()), None)
            assert found is not None, f"{page} names {path}"
            assert not name or name in found.read_text(encoding="utf-8"), f"{page} names {name} in {path}"
    folders = {path.parent.name for path in (ROOT / "src" / "adfs").glob("*/__init__.py")}
    rows = re.findall(
        r"^\| `(\w+)/` \|", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert folders == set(rows)


def test_changelog_has_a_part_for_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(adfs.__version__)}\b", changes, flags=re.MULTILINE)


def test_make_test_engines_uses_an_environment_of_its_own() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    told = subprocess.run([make, "-n", "test-engines"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".venv-engines/bin/python -m pip install" in told.stdout
    assert ".venv/" not in told.stdout


def requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    lines = [
        *project["dependencies"],
        # Spark has an environment of its own, which `make test-engines` makes.
        *(
            line
            for name, group in project["optional-dependencies"].items()
            if name != "spark"
            for line in group
        ),
    ]
    return [each for each in map(Requirement, lines) if each.name != project["name"]]


def pinned(path: Path) -> dict[str, Version]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    # A name and a version, without paths, addresses and hashes: the same on every machine.
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line)] == []
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))
    return {name: Version(line.partition("==")[2]) for name, line in zip(names, lines, strict=True)}


@pytest.mark.parametrize("path", sorted(ROOT.glob("constraints/*.txt")), ids=lambda path: path.stem)
def test_pinned_versions_are_within_the_bounds(path: Path) -> None:
    """Where it fails, `make constraints` makes the files again."""
    versions = pinned(path)
    for requirement in requirements():
        version = versions[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement}, but {path.name} has {version}"
        if (
            path.stem == "oldest"
        ):  # the bound itself, or the first release of that series that can be installed
            (bound,) = requirement.specifier
            assert version.release[: bound.version.count(".") + 1] == Version(bound.version).release, (
                requirement
            )


def test_pinned_versions_exist_for_each_python_of_the_workflow() -> None:
    files = {path.stem for path in ROOT.glob("constraints/*.txt")}
    assert files == {"oldest", "py311", "py312", "py313", "py314"}
    workflow = ROOT / ".github" / "workflows" / "test.yml"
    if workflow.exists():
        text = workflow.read_text(encoding="utf-8")
        assert {f"py{major}{minor}" for major, minor in re.findall(r'"(3)\.(\d+)"', text)} == files - {
            "oldest"
        }
        assert {"test-latest", "test-oldest"} <= set(re.findall(r"target: ([a-z-]+)", text))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("venv", "constraints/py{}{}.txt".format(*sys.version_info)),
        ("test-latest", ""),
        ("test-oldest", "constraints/oldest.txt"),
    ],
)
def test_make_installs_the_pinned_versions(target: str, expected: str, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    if expected and not (ROOT / expected).exists():
        pytest.skip("versions are not pinned for this Python")
    command = ["make", "--dry-run", target, f"PYTHON={sys.executable}", f"VENV={tmp_path}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    told = subprocess.run(
        command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=60, check=True
    )
    (install,) = set(
        re.findall(r"PIP_CONSTRAINT=(\S*) PIP_BUILD_CONSTRAINT=(\S*) .*pip install", told.stdout)
    )
    assert install == (expected, expected)


def test_type_checks_are_for_the_python_that_runs() -> None:
    """NumPy's stubs are for the Pythons that NumPy runs on; read as an older one they give false errors."""
    assert "python_version" not in PYPROJECT["tool"]["mypy"]


def install_wheel(folder: Path) -> Path:
    """Build the wheel, install it in an environment that has nothing else, and return the Python of it."""
    pytest.importorskip("hatchling")
    build = [sys.executable, "-W", "ignore", "-m", "build", "--no-isolation", "--wheel", "--outdir"]
    subprocess.run([*build, str(folder), str(ROOT)], capture_output=True, timeout=120, check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, str(wheel)], timeout=120, check=True)
    return python


def run_demo(python: Path, folder: Path) -> str:
    """Run the demo's first steps from elsewhere, and check that it used the environment's own package."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    code = "import adfs; print(adfs.__file__, adfs.__version__)"
    where = subprocess.run(
        [str(python), "-c", code], cwd=folder, env=clean, capture_output=True, text=True, check=True
    )
    place, version = where.stdout.split()
    assert Path(place).is_relative_to(folder / "env"), place
    assert version == adfs.__version__
    command = [str(python), str(ROOT / "examples" / "demo.py"), "--steps", "3", "--out", "page"]
    told = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=300, check=False
    )
    assert told.returncode == 0, told.stderr
    page = (folder / "page" / "index.html").read_text(encoding="utf-8")
    assert page.count("<section>") == 3
    # The network, the curve and the models are drawn once each, and none is a white sheet in the dark.
    pictures = [base64.b64decode(one).decode() for one in re.findall(r'svg\+xml;base64,([^"]+)', page)]
    assert (page.count("<svg"), len(pictures), page.count("<pre>")) == (1, 2, 0)
    for drawn in pictures:
        assert not re.search(r"#fff(fff)?\b", drawn)
    # Together they are at least as good as the best alone, and as one machine.
    line = r"^(place \d|all together|one machine)\b.* ([\d.]+)%$"
    shares = dict(re.findall(line, told.stdout, re.MULTILINE))
    assert len(shares) == 11
    assert shares["all together"] == shares["one machine"]
    assert float(shares["all together"]) >= max(map(float, shares.values()))
    return told.stdout


def test_wheel_runs_the_demo_by_itself(tmp_path: Path) -> None:
    python = install_wheel(tmp_path)
    # What the package needs is borrowed from here, behind the environment's own: a .pth file within is not
    # read again, so that an editable install of ours is not found.
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    assert "gap below 1e-8" in run_demo(python, tmp_path)
    browser = Browser.find()
    if browser is not None:
        seen = narrow_pages(browser, tmp_path / "page", ["index.html"], width=390)
        page = seen.pages["index.html"]
        assert page.scroll_width == 390
        assert page.background < 80 < 170 < page.ink
        assert seen.elsewhere == []


@pytest.mark.soak
def test_wheel_and_what_it_needs_come_from_an_index(tmp_path: Path) -> None:
    python = install_wheel(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", str(wheel)]
    subprocess.run(command, timeout=900, check=True)
    assert "gap below 1e-8" in run_demo(python, tmp_path)
