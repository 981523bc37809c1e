"""Names people can read: task ids, run ids, and what a secret looks like. Pure but for the clock that is handed in."""

import os
import re
import time

_handed_out: dict[str, object] = {}


def slug(text: str, longest: int = 32) -> str:
    """`text` as a part of an id and of a folder's name: letters, digits, dot, dash and underscore only."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:longest] or "task"


def stem(command: list[str] | tuple[str, ...], shell: bool = False) -> str:
    """The word of a command that people would call it by."""
    first = command[0] if command else ""
    if shell:
        first = next((word for word in first.split() if not re.match(r"[A-Za-z_]\w*=", word)), "")  # a variable's value may be a secret
    name = os.path.basename(first.rstrip("/"))
    return slug(os.path.splitext(name)[0])


def base_id(word: str, now: float | None = None) -> str:
    """`task_YYYYMMDD_HHMMSS_<word>` in local time; the ledger adds `_2`, `_3`… where it is taken."""
    return f"task_{time.strftime('%Y%m%d_%H%M%S', time.localtime(now))}_{word}"


def generate_task_id(command: list[str]) -> str:
    """An id that this process has not handed out yet; the ledger makes it unique between processes."""
    wanted = base_id(stem(command))
    if len(_handed_out) > 10_000:
        _handed_out.clear()
    candidate, count, ours = wanted, 1, object()
    while _handed_out.setdefault(candidate, ours) is not ours:
        count += 1
        candidate = f"{wanted}_{count}"
    return candidate


def run_id(task_id: str, n: int) -> str:
    """The first run carries the task's own id, the n-th one `.n`."""
    return task_id if n == 1 else f"{task_id}.{n}"


def is_later_run(reference: str, task_id: str) -> bool:
    """Whether a reference is the id of a run of this task after its first, whose id is the task's own."""
    return reference.startswith(f"{task_id}.")


_SECRET = re.compile(r"(?i)(secret|token|passw|pwd$|api_?key|access_?key|private|credential|auth|cookie|session)")


def masked(env: dict[str, str]) -> dict[str, str]:
    """The variables as they may be shown: the values of secret-looking names are hidden."""
    return {name: "***" if _SECRET.search(name) else value for name, value in env.items()}
