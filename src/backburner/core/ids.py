"""Generates readable ids for tasks and runs, and masks the values of variables that look like secrets."""

import functools
import os
import time

_used_ids: dict[str, object] = {}


def slug(text: str, max_length: int = 32) -> str:
    """Turn `text` into a part of an id or folder name: letters, digits, dots, dashes and underscores only."""
    if not (text.isascii() and text.isalnum()):
        import re  # slow to load, and most names of programs do not need it

        text = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    return text.strip("-._")[:max_length] or "task"


def stem(command: list[str] | tuple[str, ...], shell: bool = False) -> str:
    """Return the short name of a command for its task id: the base name of its program."""
    return _stem(command[0] if command else "", shell)


@functools.lru_cache(64)
def _stem(first: str, shell: bool) -> str:
    if shell:
        import re

        first = next((word for word in first.split() if not re.match(r"[A-Za-z_]\w*=", word)), "")  # a variable's value may be a secret
    name = os.path.basename(first.rstrip("/"))
    return slug(os.path.splitext(name)[0])


def base_id(word: str, now: float | None = None) -> str:
    """Return `task_YYYYMMDD_HHMMSS_<word>` in local time. The ledger adds `_2`, `_3`… if the id is taken."""
    return f"task_{time.strftime('%Y%m%d_%H%M%S', time.localtime(now))}_{word}"


def generate_task_id(command: list[str]) -> str:
    """Return an id that is new in this process; the ledger makes it unique across processes."""
    wanted = base_id(stem(command))
    if len(_used_ids) > 10_000:
        _used_ids.clear()
    candidate, count, marker = wanted, 1, object()
    while _used_ids.setdefault(candidate, marker) is not marker:
        count += 1
        candidate = f"{wanted}_{count}"
    return candidate


def run_id(task_id: str, n: int) -> str:
    """Return the id of the n-th run: the first run has the id of its task, later ones add `.n`."""
    return task_id if n == 1 else f"{task_id}.{n}"


def short_id(task_id: str) -> str:
    """Return the id of a task without its date: the part that is shown where there is little room, and accepted as a reference."""
    has_date = task_id.startswith("task_") and len(task_id) > 13 and task_id[5:13].isdecimal() and task_id[13] == "_"
    return task_id[14:] if has_date else task_id


def outside_id(task_id: str) -> str:
    """Return the id of the task that offers to run a command without the sandbox in which it failed."""
    return f"{task_id}_outside"


def is_later_run(reference: str, task_id: str) -> bool:
    """Return whether a reference is the id of a run of this task other than the first."""
    return reference.startswith(f"{task_id}.")


_SECRET = r"(?i)(secret|token|passw|pwd$|api_?key|access_?key|private|credential|auth|cookie|session)"


def masked(env: dict[str, str]) -> dict[str, str]:
    """Return the variables with the values of secret-looking names replaced by `***`."""
    if not env:
        return {}
    import re

    return {name: "***" if re.search(_SECRET, name) else value for name, value in env.items()}
