"""Random ids differ, also between processes."""

import os

from backburner.core.random_ids import random_id


def test_no_id_is_used_twice() -> None:
    made = [random_id() for _ in range(1000)]
    assert len(set(made)) == 1000 and all(len(made) == 16 and int(made, 16) >= 0 for made in made)


def test_a_forked_process_has_other_ids() -> None:
    random_id()
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, " ".join(random_id() for _ in range(200)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="ascii") as theirs:
        found = theirs.read().split()
    os.waitpid(pid, 0)
    assert len(found) == 200 and not set(found) & {random_id() for _ in range(200)}
