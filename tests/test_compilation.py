"""The kernels' disk cache: what it keeps, when it forgets, and that it never stands in the way.

Most tests run in fresh processes on a miniature ``adfs`` package whose sources they may edit.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from adfs import compilation

SCALAR = """
from typing import NamedTuple
from adfs.compilation import compiled, overloads

class Ours(NamedTuple):
    scale: float

def value(loss, x):
    raise NotImplementedError

@overloads(value)
def _(loss, x):
    if getattr(loss, "instance_class", None) is Ours:
        return lambda loss, x: loss.scale * x

@compiled
def add_one(x):
    return x + 1.0
"""

KERNEL = """
import numpy as np
from adfs.compilation import compiled
from adfs.scalar import add_one, value

@compiled
def simple(x):
    return add_one(2.0 * x)

@compiled
def with_loss(loss, x):
    return value(loss, x)

@compiled
def quotient(x, y):
    return x / y

@compiled
def norm_of_ramp(n):
    ramp = np.arange(n) + 1.0
    return np.sqrt((ramp * ramp).sum())
"""

CLOSURE = """
def times(factor):
    @compiled
    def product(x):
        return factor * x
    return product
"""

USER = """
from typing import NamedTuple
from numba.core.datamodel import models
from numba.extending import register_model, types
from adfs.compilation import compiled, overloads
from adfs.scalar import value

class Ours(NamedTuple):  # the name of one of the package's own
    scale: float

class Opaque(types.Opaque):  # a type of the user's own, in numba's terms
    pass

register_model(Opaque)(models.OpaqueModel)

@overloads(value)
def _(loss, x):
    if getattr(loss, "instance_class", None) is Ours:
        return lambda loss, x: loss.scale * x + 100.0
    if isinstance(loss, Opaque):
        return lambda loss, x: x

@compiled
def outside(x):
    return x
"""

REPORT = """
import json
def report(function, *arguments):
    result = function(*arguments)
    hits = sum(function._cache_hits.values())
    print(json.dumps([result, hits, function.stats.cache_path]))
"""


@dataclass
class Mini:
    """A copy of the package's bottom layer with kernels of its own, and a cache folder."""

    folder: Path
    environment: dict[str, str]

    @property
    def package(self) -> Path:
        return self.folder / "adfs"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def entries(self) -> list[Path]:
        return sorted(self.folder.rglob("*.kernel"))

    def start(self, code: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", REPORT + code],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str) -> tuple[float, int, str | None]:
        return finish(self.start(code))


def finish(process: subprocess.Popen[str]) -> tuple[float, int, str | None]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    result, hits, path = json.loads(out)
    return result, hits, path


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    source = Path(compilation.__file__).parent
    package = tmp_path / "adfs"
    package.mkdir()
    for name in ("__init__.py", "_version.py", "compilation.py", "errors.py", "files.py"):
        shutil.copy(source / name, package / name)
    (package / "scalar.py").write_text(SCALAR)
    (package / "kernel.py").write_text(KERNEL)
    (tmp_path / "user.py").write_text(USER)
    dropped = ("NUMBA_", "XDG_", "COV_", "COVERAGE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environment |= {
        "PYTHONPATH": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Mini(tmp_path, environment)


SIMPLE = "from adfs.kernel import simple; report(simple, 3.0)"


def test_kernel_cache_lets_a_second_process_compile_nothing(mini: Mini) -> None:
    result, hits, path = mini.run(SIMPLE)
    assert (result, hits) == (7.0, 0)
    assert path is not None
    assert Path(path).parent == mini.cache / "adfs" / "kernels"
    kept = mini.entries()
    assert len(kept) == 2  # the kernel, and the function it calls

    assert mini.run(SIMPLE) == (7.0, 1, path)
    assert mini.entries() == kept
    again = SIMPLE.replace("report", "simple(3.0); simple.recompile(); report")
    assert mini.run(again) == (7.0, 1, path)  # loaded once, and then compiled as asked


def test_kernel_cache_loads_kernels_and_leaves_the_compiler_as_it_was(mini: Mini) -> None:
    """Loading asks less of numba than compiling does."""
    first = "from adfs.kernel import norm_of_ramp; report(norm_of_ramp, 2)"
    result, hits, path = mini.run(first)
    assert (result, hits) == (5.0**0.5, 0)
    assert mini.run(first) == (result, 1, path)
    then = "from adfs.kernel import norm_of_ramp, quotient, simple; norm_of_ramp(2)"
    assert mini.run(f"{then}; assert quotient(1.0, 4.0) == 0.25; report(simple, 3.0)") == (7.0, 0, path)
    assert mini.run(f"{then}; import user; report(user.outside, 3.0)")[0] == 3.0


def test_kernel_cache_notices_an_edit_in_another_file(mini: Mini) -> None:
    assert mini.run(SIMPLE)[:2] == (7.0, 0)
    (mini.package / "scalar.py").write_text(SCALAR.replace("x + 1.0", "x + 2.0"))
    assert mini.run(SIMPLE)[:2] == (8.0, 0)
    (mini.package / "scalar.py").write_text(SCALAR)
    assert mini.run(SIMPLE)[:2] == (7.0, 1)


def test_kernel_cache_ignores_sources_edited_after_the_start(mini: Mini) -> None:
    edit = "import pathlib, adfs.kernel; p = pathlib.Path('adfs/scalar.py');"
    edit += "p.write_text(p.read_text() + '#');"
    assert mini.run(edit + SIMPLE)[:2] == (7.0, 0)
    assert mini.entries() == []


def test_kernel_cache_keeps_losses_of_the_package_and_not_those_of_users(mini: Mini) -> None:
    ours = (
        "from adfs.kernel import with_loss; from adfs.scalar import Ours; report(with_loss, Ours(2.0), 3.0)"
    )
    users = "from adfs.kernel import with_loss; from user import Ours; report(with_loss, Ours(2.0), 3.0)"
    assert mini.run(ours)[:2] == (6.0, 0)
    assert mini.run(ours)[:2] == (6.0, 1)
    kept = mini.entries()

    assert mini.run(users)[:2] == (106.0, 0)
    (mini.folder / "user.py").write_text(USER.replace("100.0", "200.0"))
    assert mini.run(users)[:2] == (206.0, 0)
    assert mini.entries() == kept


def test_kernel_cache_leaves_out_a_loss_of_users_inside_a_tuple(mini: Mini) -> None:
    (mini.package / "kernel.py").write_text(
        KERNEL + "\n@compiled\ndef nested(pair):\n    return value(pair[1][0], pair[0])\n"
    )
    code = "from adfs.kernel import nested; from user import Ours; report(nested, (3.0, (Ours(2.0), 1)))"
    assert mini.run(code)[:2] == (106.0, 0)
    assert mini.entries() == []


def test_kernel_cache_leaves_out_signatures_with_types_of_users(mini: Mini) -> None:
    compiling = "with_loss.compile((user.Opaque('own'), user.types.float64))"
    mini.run(f"import user; from adfs.kernel import with_loss; {compiling}; report(user.outside, 3.0)")
    assert mini.entries() == []


def test_kernel_cache_leaves_out_functions_from_outside_the_package(mini: Mini) -> None:
    assert mini.run("from user import outside; report(outside, 3.0)") == (3.0, 0, None)
    assert mini.entries() == []


def test_kernel_cache_leaves_out_functions_that_close_over_something(mini: Mini) -> None:
    (mini.package / "kernel.py").write_text(KERNEL + CLOSURE)
    for factor in (2.0, 3.0):
        code = f"from adfs.kernel import times; report(times({factor}), 3.0)"
        assert mini.run(code) == (3.0 * factor, 0, None)
    assert mini.entries() == []


def test_kernel_cache_respects_numba_cache_dir(mini: Mini) -> None:
    mini.environment["NUMBA_CACHE_DIR"] = str(mini.folder / "chosen")
    path = mini.run(SIMPLE)[2]
    assert path is not None
    assert Path(path).parent == mini.folder / "chosen" / "adfs-kernels"
    assert mini.run(SIMPLE)[1] == 1


def test_kernel_cache_does_without_a_folder_that_refuses(mini: Mini) -> None:
    mini.cache.write_text("")  # a file where the folder should be refuses everyone, root included
    assert mini.run(SIMPLE)[:2] == (7.0, 0)
    assert mini.entries() == []


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="file permissions are POSIX")
def test_kernel_cache_does_not_trust_a_folder_that_others_can_write_to(mini: Mini) -> None:
    root = mini.cache / "adfs" / "kernels"
    root.mkdir(parents=True)
    root.chmod(0o777)
    assert mini.run(SIMPLE)[:2] == (7.0, 0)
    assert mini.entries() == []
    root.chmod(0o755)
    mini.run(SIMPLE)
    root.chmod(0o777)  # what is there now may be another's
    assert mini.run(SIMPLE)[:2] == (7.0, 0)


def test_kernel_cache_compiles_a_damaged_entry_again(mini: Mini) -> None:
    mini.run(SIMPLE)
    for damage in ("truncated", "changed"):
        for path in mini.entries():
            content = path.read_bytes()
            middle = len(content) // 2
            flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            path.write_bytes(content[:middle] if damage == "truncated" else flipped)
        assert mini.run(SIMPLE)[:2] == (7.0, 0), damage
    assert mini.run(SIMPLE)[:2] == (7.0, 1)


def test_kernel_cache_serves_processes_that_start_together(mini: Mini) -> None:
    integer = SIMPLE.replace("3.0", "3")
    processes = [mini.start(code) for code in (SIMPLE, integer, SIMPLE, integer)]
    assert [finish(process)[0] for process in processes] == [7.0] * 4
    assert mini.run(SIMPLE)[:2] == (7.0, 1)
    assert mini.run(integer)[:2] == (7.0, 1)
    files = [path for path in mini.cache.rglob("*") if path.is_file()]
    assert sorted(files) == mini.entries()  # and nothing half done


def test_compiled_divides_as_ieee_says_also_in_what_it_inlines() -> None:
    def reciprocal(x: float) -> float:
        return 1.0 / x

    @compilation.overloads(reciprocal)
    def _(x: object) -> object:
        return lambda x: 1.0 / x

    @compilation.compiled
    def both(x: float) -> tuple[float, float]:
        return reciprocal(x), -1.0 / x

    assert both(0.0) == (np.inf, -np.inf)


def test_inlined_functions_are_python_in_python() -> None:
    calls = []

    @compilation.inlined
    def double(x: float) -> float:
        return 2.0 * x

    @compilation.inlined
    def noted(x: float) -> float:
        calls.append(x)  # only Python can do that
        return x

    @compilation.compiled
    def fourfold(x: float) -> float:
        return double(double(x))

    assert (double(3.0), fourfold(3.0), double(3.0)) == (6.0, 12.0, 6.0)
    assert (noted(3.0), calls) == (3.0, [3.0])


def test_kernel_cache_removes_folders_of_other_sources_when_they_are_many(mini: Mini) -> None:
    root = mini.cache / "adfs" / "kernels"
    root.mkdir(mode=0o700, parents=True)

    def make(name: str, days: float) -> Path:
        path = root / name
        path.mkdir()
        (path / "x.kernel").write_bytes(b"x")
        os.utime(path, (time.time() - 86400 * days,) * 2)
        return path

    others = [make(f"{days:016x}-numba0.1", days) for days in range(20)]
    foreign = make("somebody-else", 400.0)
    path = mini.run(SIMPLE)[2]
    kept = compilation._FOLDERS_KEPT
    assert set(root.iterdir()) == {foreign, Path(str(path)), *others[: kept - 1]}

    os.utime(str(path), (0.0, 0.0))
    mini.run(SIMPLE)  # is a use
    (mini.package / "scalar.py").write_text(SCALAR.replace("x + 1.0", "x + 2.0"))
    assert mini.run(SIMPLE)[:2] == (8.0, 0)
    assert Path(str(path)).exists()
    assert not others[kept - 2].exists()


def names_from_other_files(path: Path) -> set[str]:
    """Return the names that a file imports from files of the package that the hash leaves out."""
    covered = {
        ".".join(source.relative_to(compilation._PACKAGE.parent).with_suffix("").parts)
        for source in compilation._SOURCES
    }
    return {
        name.asname or name.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("adfs")
        if node.module not in covered
        for name in node.names
        if f"{node.module}.{name.name}" not in covered
    }


def compiled_functions(path: Path) -> list[ast.FunctionDef]:
    """Return the functions of a file that one of our decorators compiles or registers."""
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(part, ast.Name) and part.id in ("compiled", "kernel", "inlined", "overloads")
            for decorator in node.decorator_list
            for part in ast.walk(decorator)
        )
    ]


def test_compiled_functions_use_no_files_that_the_hash_leaves_out() -> None:
    """Otherwise an edit there would leave old machine code in use."""
    functions = 0
    for path in compilation._SOURCES:
        outside = names_from_other_files(path)
        for function in compiled_functions(path):
            functions += 1
            used = {
                node.id for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)
            }
            assert not used & outside, (path, function.name)
    assert functions > 100
