"""Wake-ups between processes: received by listeners, lost without one, and never blocking."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backburner.system.wakeups import ENGINE_SOCKET, WakeupListener, wake, wake_all, wake_clients


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def engine(folder: str) -> Iterator[WakeupListener]:
    listener = WakeupListener(folder, ENGINE_SOCKET)
    yield listener
    listener.close()


@pytest.fixture
def follower(folder: str) -> Iterator[WakeupListener]:
    listener = WakeupListener(folder)
    yield listener
    listener.close()


def is_woken(listener: WakeupListener) -> bool:
    return listener.wait(0)


def create_dead_socket(folder: str, name: str) -> None:
    """Create a socket whose listener died without closing it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(os.path.join(folder, name))


def test_a_wakeup_is_received_once(folder: str, engine: WakeupListener) -> None:
    assert not is_woken(engine)
    assert wake(folder, ENGINE_SOCKET)
    assert is_woken(engine)
    assert not is_woken(engine)


def test_many_wakeups_are_merged(folder: str, engine: WakeupListener) -> None:
    for _ in range(5):
        wake(folder, ENGINE_SOCKET)
    assert is_woken(engine)
    assert not is_woken(engine)


def test_a_wakeup_from_another_process_ends_a_wait(folder: str, engine: WakeupListener) -> None:
    subprocess.run(
        [sys.executable, "-c", f"from backburner.system.wakeups import wake; assert wake({folder!r}, {ENGINE_SOCKET!r})"], check=True
    )
    assert engine.wait(20)


def test_a_listener_can_be_used_with_select(folder: str, engine: WakeupListener) -> None:
    wake(folder, ENGINE_SOCKET)
    assert select.select([engine], [], [], 5)[0] == [engine]


def test_waking_without_a_listener_returns_false(folder: str) -> None:
    assert not wake(folder, ENGINE_SOCKET)
    assert not wake(os.path.join(folder, "missing"), ENGINE_SOCKET)
    create_dead_socket(folder, ENGINE_SOCKET)
    assert not wake(folder, ENGINE_SOCKET)


def test_a_listener_that_does_not_read_blocks_nobody(folder: str, engine: WakeupListener) -> None:
    assert all(wake(folder, ENGINE_SOCKET) for _ in range(5000))
    assert is_woken(engine)


def test_wake_all_returns_whether_the_engine_listens(folder: str, follower: WakeupListener) -> None:
    assert not wake_all(folder)
    assert is_woken(follower)
    engine = WakeupListener(folder, ENGINE_SOCKET)
    try:
        assert wake_all(folder)
        assert is_woken(follower) and is_woken(engine)
    finally:
        engine.close()


def test_clients_can_be_woken_without_the_engine(folder: str, engine: WakeupListener, follower: WakeupListener) -> None:
    wake_clients(folder)
    assert is_woken(follower)
    assert not is_woken(engine)


def test_wake_all_in_a_missing_folder_does_nothing(folder: str) -> None:
    assert not wake_all(os.path.join(folder, "missing"))


def test_sockets_of_dead_listeners_are_removed(folder: str, follower: WakeupListener) -> None:
    create_dead_socket(folder, "1-abc.sock")
    create_dead_socket(folder, ENGINE_SOCKET)
    wake_all(folder)
    assert sorted(os.listdir(folder)) == sorted([ENGINE_SOCKET, os.path.basename(follower.path)])


def test_an_engine_replaces_the_socket_of_a_dead_one(folder: str) -> None:
    create_dead_socket(folder, ENGINE_SOCKET)
    listener = WakeupListener(folder, ENGINE_SOCKET)
    try:
        assert wake(folder, ENGINE_SOCKET)
        assert is_woken(listener)
    finally:
        listener.close()


def test_a_closed_listener_leaves_no_socket(folder: str) -> None:
    WakeupListener(folder).close()
    WakeupListener(folder, ENGINE_SOCKET).close()
    assert os.listdir(folder) == []


def test_closing_a_listener_whose_socket_was_removed_works(folder: str) -> None:
    listener = WakeupListener(folder)
    os.unlink(listener.path)
    listener.close()


def test_two_listeners_of_one_process_have_separate_sockets(folder: str) -> None:
    first, second = WakeupListener(folder), WakeupListener(folder)
    try:
        assert first.path != second.path
    finally:
        first.close()
        second.close()


def test_a_socket_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        WakeupListener(str(tmp_path / "missing"), "engine.sock")
    assert caught.value.filename == str(tmp_path / "missing" / "engine.sock")


def test_a_listener_that_pauses_is_not_reached_and_hears_again_afterwards(folder: str, follower: WakeupListener) -> None:
    follower.pause()
    assert os.listdir(folder) == []
    wake_all(folder)
    follower.resume()
    assert not is_woken(follower)
    wake_all(folder)
    assert is_woken(follower)


def test_whoever_missed_a_listener_does_not_remove_it_after_its_pause(folder: str, follower: WakeupListener) -> None:
    before = follower.path
    follower.pause()
    follower.resume()
    assert follower.path != before  # `before` is what a process that could not reach it removes


def test_a_listener_is_closed_while_it_pauses(folder: str) -> None:
    listener = WakeupListener(folder)
    listener.pause()
    listener.close()
    assert os.listdir(folder) == []
