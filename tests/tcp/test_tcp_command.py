"""``adfs fit --peers``, and the page about it: its files are used as a reader uses them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

from adfs.cli import main
from mpi_launch import environment
from tcp_launch import free_addresses, launch_all

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "hosts.md"
ADFS = [sys.executable, "-m", "adfs"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two files of samples."""
    rng = np.random.default_rng(0)
    for rank in range(2):
        X = rng.standard_normal((40, 5))
        y = np.sign(X[:, 0] + 0.5 * rng.standard_normal(40))
        dump_svmlight_file(X, y, str(tmp_path / f"shard-{rank}.svm"), zero_based=False)
    return tmp_path


def coefficients(path: Path) -> list[float]:
    found: list[float] = json.loads(path.read_text())["coef"]
    return found


def alone(folder: Path) -> list[float]:
    """Return the model of one process that reads both files."""
    files = [str(folder / f"shard-{rank}.svm") for rank in range(2)]
    assert main(["fit", *files, "--network", "path", "--out", str(folder / "alone.json")]) == 0
    return coefficients(folder / "alone.json")


def block(caption: str) -> str:
    """Return a file of the page."""
    (found,) = re.findall(
        rf"^```{{code-block}} \w+\n:caption: {re.escape(caption)}\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    text: str = found
    return text


def with_free_ports(text: str) -> str:
    """Put addresses of this machine that are free in the place of those of the page."""
    old = re.findall(r"\"([\w.-]+:\d+)\"", text)
    for before, now in zip(old, free_addresses(len(old)), strict=True):
        text = text.replace(before, now)
    return text


def run_script(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, where ``adfs`` is this one."""
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / "adfs"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m adfs "$@"\n')
    command.chmod(0o755)
    there = environment(**variables)
    there["PATH"] = f"{folder / 'bin'}:{there['PATH']}"
    return subprocess.run(
        ["sh", "-c", script], cwd=folder, env=there, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("tls", [False, True])
def test_page_about_hosts_fits_with_its_files(tls: bool, folder: Path) -> None:
    if tls:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl")
        made = run_script(block("certificates.sh"), folder)
        assert made.returncode == 0, made.stderr
    name = "hosts-tls.toml" if tls else "hosts.toml"
    (folder / name).write_text(with_free_ports(block(name)))
    ended = run_script(block("start.sh").replace("hosts.toml", name), folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("converged to a certified relative gap") == 1
    assert coefficients(folder / "model.json") == alone(folder)


SRUN = """#!/bin/sh
SLURM_PROCID=0 "$@" & first=$!
SLURM_PROCID=1 "$@" & second=$!
wait $first && wait $second
"""


def test_slurm_script_runs_with_a_stand_in_for_srun(folder: Path) -> None:
    (folder / "bin").mkdir()
    hostname = "#!/bin/sh\necho 127.0.0.1\n"
    for name, text in {"srun": SRUN, "hostname": hostname}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    port = free_addresses(2)[0].rpartition(":")[2]
    ended = run_script(block("job.sh").replace("47000", port), folder)
    assert ended.returncode == 0, ended.stderr
    assert coefficients(folder / "model.json") == alone(folder)


def test_kubernetes_file_names_its_pods_and_runs_its_command(folder: Path) -> None:
    yaml = pytest.importorskip("yaml")
    service, files, job = yaml.safe_load_all(block("job.yaml"))
    name, count = job["metadata"]["name"], job["spec"]["completions"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    port = container["ports"][0]["containerPort"]
    # Kubernetes calls the pods so: the job and the index, in the domain of the service.
    expected = ", ".join(f'"{name}-{k}.{service["metadata"]["name"]}:{port}"' for k in range(count))
    hosts = files["data"]["hosts.toml"]
    assert hosts.strip() == f"addresses = [{expected}]"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert job["spec"]["parallelism"] == count
    assert pod["volumes"][0]["configMap"]["name"] == files["metadata"]["name"]
    (folder / "hosts.toml").write_text(with_free_ports(hosts))
    shell, flag, command = container["command"]
    assert (shell, flag) == ("sh", "-c")
    command = command.replace("/etc/adfs", str(folder)).replace("/data", str(folder))
    both = "\n".join(f"(export JOB_COMPLETION_INDEX={k}; {command}) & p{k}=$!" for k in range(count))
    ended = run_script(f"{both}\nwait $p0 && wait $p1", folder)
    assert ended.returncode == 0, ended.stderr
    assert (folder / "run" / "finished.json").exists()
    assert coefficients(folder / "model.json") == alone(folder)


def test_fit_of_peers_with_other_options_is_refused_everywhere(folder: Path) -> None:
    hosts = folder / "hosts.toml"
    hosts.write_text(f"addresses = {json.dumps(free_addresses(2))}\n")
    command = [*ADFS, "fit", str(folder / "shard-{rank}.svm"), "--peers", str(hosts), "--out"]
    commands = [
        [*command, str(folder / "m.json"), "--rank", str(rank), "-C", str(1 + rank)] for rank in range(2)
    ]
    for one in launch_all(commands, timeout=60.0):
        assert one.code == 2
        assert one.sentence.startswith("adfs: the ranks were not started alike: -C is 1.0 on rank 0 and 2.0")


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("addresses = ['a:1']", ["--rank", "1"], "rank must be from 0 to 0, got 1"),
        (
            "addresses = ['a:1', 'b']",
            ["--rank", "1"],
            "an address is a host and a port, such as node-1:47001",
        ),
        ("addresses = 3", ["--rank", "0"], 'hosts.toml holds addresses = ["host:port", …], one per process'),
        ("address = []", ["--rank", "0"], "and maybe a table [tls], not address"),
        ("addresses = [", ["--rank", "0"], "hosts.toml is no TOML"),
        ("addresses = ['a:1', 'b:1']", [], "--peers and --rank go together"),
        (None, ["--rank", "0"], "hosts.toml: No such file or directory"),
    ],
)
def test_fit_refuses_lists_of_peers_that_cannot_be_used(
    text: str | None, words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = folder / "hosts.toml"
    if text is not None:
        hosts.write_text(text)
    files = str(folder / "shard-0.svm")
    assert main(["fit", files, "--peers", str(hosts), *words, "--out", str(folder / "m.json")]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
