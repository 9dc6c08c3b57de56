"""Where results go: full disks, closed pipes, and files that are read as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adfs.cli import main
from adfs.data import LinearModel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, few samples and many."""
    LinearModel("classification", "logistic", np.ones((1, 2)), np.zeros(1), [-1, 1], index_base=1).save(
        tmp_path / "m.json"
    )
    (tmp_path / "few.svm").write_text("1 1:1\n-1 2:-1\n")
    (tmp_path / "many.svm").write_text("1 1:1\n-1 2:-1\n" * 20_000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(command: str) -> tuple[int, str]:
    """Run a line of bash, in which `adfs` is the command; return its exit code and standard error."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "ADFS": f"{sys.executable} -m adfs"}
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("adfs ", "$ADFS ")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    "command",
    [
        "adfs predict m.json few.svm",
        "adfs predict m.json many.svm",
        "adfs score m.json few.svm",
        "adfs predict m.json few.svm --out /dev/stdout",
        "adfs --help",
    ],
)
def test_commands_report_a_full_disk_in_one_sentence_and_exit_with_code_3(folder: Path, command: str) -> None:
    code, error = shell(f"{command} > /dev/full")
    assert code == 3
    assert error.startswith("adfs: ")
    assert error.endswith(": No space left on device\n")
    assert error.count("\n") == 1
    assert shell(f"{command} > /dev/full 2> /dev/full") == (3, "")


@pytest.mark.parametrize("file", ["few.svm", "many.svm"])
@pytest.mark.parametrize("place", [[], ["--out", "/dev/stdout"]], ids=["printed", "--out"])
def test_predict_command_takes_a_closed_pipe_as_its_end(folder: Path, file: str, place: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "adfs", "predict", "m.json", file, *place],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()  # before anything is written, as `head -n 1` does before the second line
        error, code = run.stderr.read(), run.wait(timeout=60)
    assert (code, error) == (0, "")


def test_commands_name_the_file_they_cannot_write_or_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "m.json", "few.svm", "--out", "/dev/full"]) == 3
    assert capsys.readouterr().err == "adfs: cannot write /dev/full: No space left on device\n"
    assert main(["predict", "m.json", "few.svm", "--out", "few.svm/x"]) == 2
    assert capsys.readouterr().err == "adfs: cannot write few.svm/x: Not a directory\n"
    assert main(["score", "m.json", "/proc/self/mem"]) == 3
    assert capsys.readouterr().err == "adfs: cannot read /proc/self/mem: Input/output error\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "m.json", "few.svm", "--out", "few.svm"], "--out and FILE are the same file (few.svm)"),
        (["predict", "m.json", "few.svm", "--out", "m.json"], "--out and MODEL are the same file (m.json)"),
        (
            ["predict", "m.json", "few.svm", "--out", "link"],
            "--out and FILE are the same file (link and few.svm)",
        ),
        (["simulate", "few.svm", "--out", "few.svm"], "--out and DATA are the same file (few.svm)"),
        (["simulate", "few.svm", "--checkpoint", "few.svm"], "--checkpoint and DATA are the same file"),
        (["simulate", "few.svm", "--out", "r", "--history", "./r"], "--history and --out are the same file"),
    ],
)
def test_commands_refuse_an_output_over_an_input_or_another_output(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("link").symlink_to("few.svm")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --------------------------------------------------------------------------- numbers that make no sense


@pytest.mark.parametrize("command", [["fit"], ["simulate"], ["rates"]])
def test_commands_refuse_more_features_than_memory_at_once(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adfs.data.table.machine_memory", lambda: 16 * 10**9)
    assert main([*command, "few.svm", "--n-features", "2000000000"]) == 2
    assert "--n-features 2000000000 needs about 128 GB per node, this machine has 16 GB" in (
        capsys.readouterr().err
    )


def test_commands_tell_too_few_features_with_options_that_they_have(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "few.svm has 2 features, 1 are wanted; "
    for command in ("fit", "simulate", "rates"):
        assert main([command, "few.svm", "--n-features", "1"]) == 2
        assert capsys.readouterr().err == f"adfs: {message}raise --n-features or leave it out\n"
    LinearModel("regression", "squared", np.ones((1, 1)), np.zeros(1), index_base=1).save(folder / "r.json")
    for command in ("predict", "score"):
        assert main([command, "r.json", "few.svm"]) == 2
        assert "with --ignore-extra-features" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["net-bench"], "--deadline"),
        (["simulate", "few.svm"], "--tol"),
        (["simulate", "few.svm"], "--max-passes"),
        (["simulate", "few.svm"], "--max-seconds"),
        (["simulate", "few.svm"], "--sigma"),
        (["rates", "few.svm"], "--sigma"),
    ],
)
def test_commands_refuse_numbers_below_zero_by_their_option(
    folder: Path, command: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, option, "-1"]) == 2
    assert capsys.readouterr().err == f"adfs: {option} must be above 0, got -1\n"


@pytest.mark.parametrize("option", ["--entries", "--numbers"])
def test_net_bench_command_refuses_sizes_below_one_by_their_option(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net-bench", option, "0"]) == 2
    assert capsys.readouterr().err.startswith(f"adfs: Invalid value for '{option}'")
