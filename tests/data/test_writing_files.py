"""Writing files: whole, through links, into devices and pipes; and what may not be written over."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from adfs.errors import FileError, InputError
from adfs.files import check_outputs, check_writable, write_whole

ROOT = Path(__file__).parents[2]
NOT_AS_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("content", ["é\n", "é\n".encode(), lambda stream: stream.write("é\n".encode())])
def test_write_whole_takes_text_bytes_or_a_function(
    tmp_path: Path, content: str | bytes | Callable[..., object]
) -> None:
    write_whole(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == "é\n".encode()
    with pytest.raises(FileError, match=r"cannot write .*b/c: No such file or directory"):
        write_whole(tmp_path / "b" / "c", content)
    write_whole(tmp_path / "b" / "c", content, make_folder=True)
    assert (tmp_path / "b" / "c").read_bytes() == "é\n".encode()
    write_whole(tmp_path / ("n" * 255), content)  # the longest name there is


def test_write_whole_follows_the_umask_and_keeps_the_mode_of_an_old_file(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "")
        write_whole(tmp_path / "old", "")
        (tmp_path / "old").chmod(0o606)
        write_whole(tmp_path / "old", "more")
    finally:
        os.umask(mask)
    assert (mode(tmp_path / "new"), mode(tmp_path / "old")) == (0o640, 0o606)


def test_write_whole_leaves_what_was_there_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.txt"
    write_whole(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device; what stood there before is unchanged"):
        write_whole(path, "new")
    with pytest.raises(FileError, match=r"No space left on device$"):
        write_whole(tmp_path / "other", "new")
    with pytest.raises(ZeroDivisionError):
        write_whole(path, lambda stream: 1 // 0)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("there", [True, False], ids=["target there", "target new"])
def test_write_whole_keeps_a_link_and_writes_its_target(tmp_path: Path, there: bool) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if there:
        target.write_text("old")
    link.symlink_to(Path("folder") / "target")
    check_writable(link)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    (tmp_path / "nowhere").symlink_to(tmp_path / "none" / "target")
    with pytest.raises(InputError, match=r"there is no directory .*none"):
        check_writable(tmp_path / "nowhere")


def test_write_whole_writes_to_devices_and_pipes_and_keeps_them(tmp_path: Path) -> None:
    for device in ("/dev/null", "/dev/full"):
        check_writable(device)
    write_whole("/dev/null", "gone")
    with pytest.raises(FileError, match=r"^cannot write /dev/full: No space left on device$"):
        write_whole("/dev/full", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    writer = threading.Thread(target=write_whole, args=(pipe, "through"))
    writer.start()
    assert pipe.read_text() == "through"
    writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


WRITES = "from adfs.files import write_whole as w; print('1'); w('/dev/stdout', '2\\n'); print('3')"


@pytest.mark.parametrize("redirect", ["> out", ">> out", "| cat > out"])
def test_write_whole_writes_standard_output_after_what_was_printed(tmp_path: Path, redirect: str) -> None:
    (tmp_path / "out").write_text("0\n")
    subprocess.run(
        f'"{sys.executable}" -c "{WRITES}" {redirect}',
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        timeout=60,
        check=True,
    )
    assert (tmp_path / "out").read_text() == ("0\n" if ">>" in redirect else "") + "1\n2\n3\n"


@NOT_AS_ROOT
def test_check_writable_refuses_what_is_write_protected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "file").chmod(0o444)
    with pytest.raises(InputError, match="no permission to write to it"):
        check_writable(tmp_path / "file")
    (tmp_path / "folder").mkdir(mode=0o555)
    with pytest.raises(InputError, match=r"no permission to write into .*folder"):
        check_writable(tmp_path / "folder" / "file")


# --------------------------------------------------------------------------- outputs that are inputs


def symlink(path: Path) -> Path:
    (path.parent / "soft").symlink_to(path.name)
    return path.parent / "soft"


def hardlink(path: Path) -> Path:
    (path.parent / "hard").hardlink_to(path)
    return path.parent / "hard"


def relative(path: Path) -> Path:
    return path.parent / ".." / path.parent.name / path.name


@pytest.mark.parametrize("again", [Path, symlink, hardlink, relative])
def test_check_outputs_refuses_an_output_that_is_an_input(
    tmp_path: Path, again: Callable[[Path], Path]
) -> None:
    data = tmp_path / "ok.svm"
    data.write_text("1 1:1\n")
    same = again(data)
    with pytest.raises(InputError, match=r"^--out and FILE are the same file \(.*ok\.svm.*; give --out"):
        check_outputs({"FILE": [tmp_path / "other.svm", str(data)]}, {"--out": same})
    check_outputs({"FILE": data}, {"--out": tmp_path / "m.json", "--history": None})


def test_check_outputs_refuses_two_outputs_of_one_name(tmp_path: Path) -> None:
    new = tmp_path / "new"
    with pytest.raises(InputError, match=r"^--history and --out are the same file"):
        check_outputs({}, {"--out": new, "--history": relative(new)})
    with pytest.raises(InputError, match=r"^--checkpoint and --out are the same file"):
        check_outputs({}, {"--out": new}, folders={"--checkpoint": new})
    (tmp_path / "link").symlink_to(new)
    with pytest.raises(InputError, match=r"^--history and --out are the same file"):
        check_outputs({}, {"--out": new, "--history": tmp_path / "link"})
    check_outputs({"FILE": "/dev/null"}, {"--out": "/dev/null", "--history": "/dev/null"})
    with pytest.raises(InputError, match="there is no directory"):
        check_outputs({}, {"--out": new / "deeper" / "x"})
