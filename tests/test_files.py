"""Files that are written: links, devices, names that cannot be, and writes that do not come to their end."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
from pathlib import Path

import pytest

from support.processes import python
from winnow import files
from winnow.errors import FileError
from winnow.files import check_own, make_folder, prepare_target, read_text, reading, replacing, write_text

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX files")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("precious").write_text("precious")
    return tmp_path


def written(name, content=b"new", overwrite=True):
    with replacing(Path(name), overwrite) as file:
        file.write(content)


def first_bytes(path):
    with reading(path) as file:
        return file.read(4)


def names(folder="."):
    return sorted(os.listdir(folder))


# --- what a name leads to ---------------------------------------------------------------------------------------------


def test_a_new_file_and_its_folders():
    written("some/new/folder/file", overwrite=False)
    assert Path("some/new/folder/file").read_bytes() == b"new"
    assert names("some/new/folder") == ["file"]
    before = os.umask(0o077)
    os.umask(before)
    assert stat.S_IMODE(os.stat("some/new/folder/file").st_mode) == 0o666 & ~before


def test_a_file_is_replaced_only_if_wanted():
    for refuse in (lambda: written("precious", overwrite=False), lambda: prepare_target(Path("precious"), False)):
        with pytest.raises(FileError, match="precious exists; give another name"):
            refuse()
    assert Path("precious").read_text() == "precious"
    os.chmod("precious", 0o600)
    written("precious")
    assert Path("precious").read_bytes() == b"new"
    assert stat.S_IMODE(os.stat("precious").st_mode) == 0o600
    assert names() == ["precious"]


def test_links_stay_and_what_they_lead_to_is_replaced():
    Path("away").mkdir()
    Path("away/target").write_text("old")
    os.symlink("away/target", "link")
    os.symlink("link", "second")
    prepare_target(Path("second"), overwrite=True)
    written("second")
    assert os.readlink("second") == "link"
    assert os.readlink("link") == "away/target"
    assert Path("away/target").read_bytes() == b"new"
    assert names("away") == ["target"]


def test_a_link_that_leads_nowhere_gets_its_file():
    os.symlink("away/target", "link")
    prepare_target(Path("link"), overwrite=False)
    written("link", overwrite=False)
    assert os.path.islink("link")
    assert Path("away/target").read_bytes() == b"new"


def test_a_folder_through_a_link():
    Path("real").mkdir()
    os.symlink("real", "folder")
    written("folder/file")
    assert os.path.islink("folder")
    assert names("real") == ["file"]


def special(kind):
    if kind == "fifo":
        os.mkfifo("name")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("name")
    elif kind == "directory":
        Path("name").mkdir()
    elif kind == "link to a directory":
        Path("real").mkdir()
        os.symlink("real", "name")
    elif kind == "link to a device":
        os.symlink("/dev/full", "name")
    elif kind == "device":
        try:
            os.mknod("name", 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        except PermissionError:
            pytest.skip("only root makes devices")
    elif kind == "loop":
        os.symlink("other", "name")
        os.symlink("name", "other")


KINDS = {
    "fifo": "is a pipe",
    "socket": "is a socket",
    "directory": "is a directory",
    "link to a directory": "is a directory",
    "link to a device": "is a device",
    "device": "is a device",
    "loop": "Too many levels of symbolic links",
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused(kind, overwrite):
    special(kind)
    before, all_names = os.lstat("name"), names()
    checks = [prepare_target, written_with] + ([lambda path, _: check_own(path)] if overwrite else [])
    for refuse in checks:
        with pytest.raises(FileError, match=KINDS[kind]) as caught:
            refuse(Path("name"), overwrite)
        assert "\n" not in str(caught.value)
    after = os.lstat("name")
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    assert names() == all_names


def written_with(path, overwrite):
    written(path, overwrite=overwrite)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("n" * 256, "File name too long"),
        ("d/" * 5000 + "n", "File name too long"),
        ("nul\0byte", "no file can have this name"),
        ("half\ud800pair", "no file can have this name"),
        ("precious/file", "precious is a file; give a folder"),
        ("precious/sub/file", "precious is a file; give a folder"),
        (".", "is a directory"),
    ],
)
def test_names_that_cannot_be(name, said):
    for refuse in (lambda: prepare_target(Path(name), True), lambda: written(name)):
        with pytest.raises(FileError, match=said) as caught:
            refuse()
        assert "\n" not in str(caught.value)
    assert names() == ["precious"]


def test_the_longest_names_and_bytes_that_are_no_text():
    for name in ("n" * 255, os.fsdecode(b"\xff\xfe")):
        written(name, overwrite=False)
        assert Path(name).read_bytes() == b"new"


def test_a_working_directory_that_is_gone(folder):
    code = (
        "import os, sys; from pathlib import Path; from winnow.errors import FileError; from winnow import files\n"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd())\n"
        "for call in (lambda: files.prepare_target(Path('a'), True), lambda: files.write_text(Path('a'), '')):\n"
        "    try:\n        call()\n    except FileError as problem:\n        print(problem)\n"
    )
    found = python(code)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("\n") == 2


# --- folders ----------------------------------------------------------------------------------------------------------


def test_making_a_folder_touches_no_file_of_others():
    """A probe called ".writable" was made and removed, and with it one that somebody had."""
    Path(".writable").write_text("precious")
    make_folder(Path())
    assert names() == [".writable", "precious"]


def test_files_of_others_in_a_folder_of_results():
    write_text(Path("own.json"), '{\n "written_by": "winnow 0.1.0"}')
    for name in ("own.json", "new"):
        check_own(Path(name))
    with pytest.raises(FileError, match="precious was not written by winnow"):
        check_own(Path("precious"))


# --- writes that do not come to their end -----------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError(5, "Input/output error"), RuntimeError])
def test_nothing_is_left_behind(problem, there):
    name = "precious" if there else "new"
    with (
        pytest.raises((KeyboardInterrupt, FileError, RuntimeError)),
        replacing(Path(name)) as file,
    ):
        file.write(b"half")
        raise problem
    assert names() == ["precious"]
    assert Path("precious").read_text() == "precious"


def test_a_full_disk():
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(FileError, match=r"Cannot write precious: File too large\. Make room, or write elsewhere"):
            written("precious", bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert names() == ["precious"]
    assert Path("precious").read_text() == "precious"


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(monkeypatch, links):
    if not links:

        def refuse(*_):
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(FileError, match="late exists"), replacing(Path("late"), overwrite=False) as file:
        file.write(b"new")
        Path("late").write_text("of another")
    assert Path("late").read_text() == "of another"
    written("other", overwrite=False)
    assert Path("other").read_bytes() == b"new"
    assert names() == ["late", "other", "precious"]


def test_a_working_directory_that_changes_meanwhile(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    with replacing(Path("file")) as file:
        monkeypatch.chdir("elsewhere")
        file.write(b"new")
    assert (folder / "file").read_bytes() == b"new"
    assert names(folder / "elsewhere") == []


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "There is no file none"),
        (".", "is a directory"),
        ("n" * 256, "File name too long"),
        ("nul\0byte", "no file can have this name"),
        ("half\ud800pair", "no file can have this name"),
        ("precious/file", "Not a directory"),
    ],
)
def test_files_that_cannot_be_read(name, said):
    for read in (read_text, first_bytes):
        with pytest.raises(FileError, match=said) as caught:
            read(Path(name))
        assert "\n" not in str(caught.value)


def test_text_without_end_is_no_text(monkeypatch):
    monkeypatch.setattr(files, "LARGEST_TEXT", 1000)
    with pytest.raises(FileError, match="/dev/zero has more than"):
        read_text(Path("/dev/zero"))


def test_the_start_of_a_pipe_is_not_waited_for():
    os.mkfifo("pipe")
    with pytest.raises(FileError, match="not a regular file"):
        first_bytes(Path("pipe"))


def test_text_is_utf_8_with_or_without_a_mark():
    Path("text").write_bytes(b"\xef\xbb\xbfgar\xc3\xa7on")
    assert read_text(Path("text")) == "garçon"
    Path("text").write_bytes(b"gar\xe7on")
    with pytest.raises(FileError, match=r"text is not UTF-8 text \(byte 3\); convert it to UTF-8"):
        read_text(Path("text"))
    Path("text").write_bytes("garden".encode("utf-16-le"))
    with pytest.raises(FileError, match=r"text is UTF-16, or not text \(byte 1 is zero\); convert it to UTF-8"):
        read_text(Path("text"))


def test_bytes_of_names_that_are_no_text_are_spelled_out():
    assert files.spelled_out("caf\udce9 é") == "caf\\xe9 é"
    write_text(Path("page"), "caf\udce9")
    assert Path("page").read_text("utf-8") == "caf\\udce9"
