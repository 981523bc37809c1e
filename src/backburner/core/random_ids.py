"""Random ids. Many are read from the system at once, because each call takes longer than everything else that an id needs."""

import os

_BATCH = 64
_ID_BYTES = 8
_unused: list[str] = []
os.register_at_fork(after_in_child=_unused.clear)  # two processes must not use the same ones


def random_id() -> str:
    """16 random hexadecimal digits."""
    try:
        return _unused.pop()
    except IndexError:
        digits = os.urandom(_BATCH * _ID_BYTES).hex()
        _unused.extend(digits[start : start + 2 * _ID_BYTES] for start in range(0, len(digits), 2 * _ID_BYTES))
        return random_id()
