"""Splits a unified diff by file, for a page that shows them one by one."""

import re

_MAX_FILES = 2000
_MAX_CHANGED_LINES = 1000  # a file with more changes is folded at first
_MAX_FILE_CHARACTERS = 1 << 20


def split_diff(text: str) -> tuple[list[dict[str, object]], bool]:
    """The files of a diff with their changes, and whether something was left out."""
    parts = re.split(r"(?m)^(?=diff --git )", text)
    if len(parts) == 1:
        parts = re.split(r"(?m)^(?=--- )", text)  # a diff that git did not write
    files = [_file(part) for part in parts if part.strip()]
    is_cut = len(files) > _MAX_FILES or any(len(part) > _MAX_FILE_CHARACTERS for part in parts)
    return files[:_MAX_FILES], is_cut


def _file(text: str) -> dict[str, object]:
    head, _, body = text.partition("\n@@")
    old = _path(head, "--- ")
    new = _path(head, "+++ ")
    if renamed := re.search(r"(?m)^rename from (.*)\nrename to (.*)$", head):
        old, new = renamed.groups()
    elif old is None and new is None and (named := re.match(r"diff --git a/(.*) b/(.*)$", head.split("\n")[0])):
        old = new = named[2]
    lines = body.split("\n") if body else []
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    is_binary = "GIT binary patch" in head or "Binary files" in head
    status = "modified"
    if renamed:
        status = "renamed"
    elif "new file mode" in head or old is None:
        status = "added"
    elif "deleted file mode" in head or new is None:
        status = "deleted"
    path = new or old or ""
    return {
        "path": path,
        "old_path": old if renamed else None,
        "status": status,
        "added": added,
        "removed": removed,
        "binary": is_binary,
        "folded": added + removed > _MAX_CHANGED_LINES or "lock" in path.rsplit("/", 1)[-1],
        "text": text[:_MAX_FILE_CHARACTERS],
    }


def _path(head: str, start: str) -> str | None:
    found = re.search(rf"(?m)^{re.escape(start)}(.*)$", head)
    if found is None or found[1].split("\t")[0] == "/dev/null":
        return None
    return re.sub(r"^[ab]/", "", found[1].split("\t")[0])
