"""Rings between processes: heard by who listens, lost on who does not, and never in anybody's way."""

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
    ear = WakeupListener(folder, ENGINE_SOCKET)
    yield ear
    ear.close()


@pytest.fixture
def follower(folder: str) -> Iterator[WakeupListener]:
    ear = WakeupListener(folder)
    yield ear
    ear.close()


def has_rung(ear: WakeupListener) -> bool:
    return ear.wait(0)


def dead(folder: str, name: str) -> None:
    """A socket whose listener died without closing it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(os.path.join(folder, name))


def test_a_ring_is_heard_once(folder: str, engine: WakeupListener) -> None:
    assert not has_rung(engine)
    assert wake(folder, ENGINE_SOCKET)
    assert has_rung(engine)
    assert not has_rung(engine)


def test_many_rings_are_one(folder: str, engine: WakeupListener) -> None:
    for _ in range(5):
        wake(folder, ENGINE_SOCKET)
    assert has_rung(engine)
    assert not has_rung(engine)


def test_a_ring_from_another_process_wakes_who_waits(folder: str, engine: WakeupListener) -> None:
    subprocess.run(
        [sys.executable, "-c", f"from backburner.system.wakeups import wake; assert wake({folder!r}, {ENGINE_SOCKET!r})"], check=True
    )
    assert engine.wait(20)


def test_an_ear_can_be_waited_on_among_others(folder: str, engine: WakeupListener) -> None:
    wake(folder, ENGINE_SOCKET)
    assert select.select([engine], [], [], 5)[0] == [engine]


def test_nobody_hears_a_ring_where_nobody_listens(folder: str) -> None:
    assert not wake(folder, ENGINE_SOCKET)
    assert not wake(os.path.join(folder, "missing"), ENGINE_SOCKET)
    dead(folder, ENGINE_SOCKET)
    assert not wake(folder, ENGINE_SOCKET)


def test_who_does_not_read_its_rings_holds_nobody_up(folder: str, engine: WakeupListener) -> None:
    assert all(wake(folder, ENGINE_SOCKET) for _ in range(5000))
    assert has_rung(engine)


def test_everybody_is_rung_and_told_whether_the_engine_heard(folder: str, follower: WakeupListener) -> None:
    assert not wake_all(folder)
    assert has_rung(follower)
    engine = WakeupListener(folder, ENGINE_SOCKET)
    try:
        assert wake_all(folder)
        assert has_rung(follower) and has_rung(engine)
    finally:
        engine.close()


def test_followers_can_be_rung_without_the_engine(folder: str, engine: WakeupListener, follower: WakeupListener) -> None:
    wake_clients(folder)
    assert has_rung(follower)
    assert not has_rung(engine)


def test_ringing_everybody_in_a_folder_that_is_missing_is_fine(folder: str) -> None:
    assert not wake_all(os.path.join(folder, "missing"))


def test_sockets_of_the_dead_are_cleared_away(folder: str, follower: WakeupListener) -> None:
    dead(folder, "1-abc.sock")
    dead(folder, ENGINE_SOCKET)
    wake_all(folder)
    assert sorted(os.listdir(folder)) == sorted([ENGINE_SOCKET, os.path.basename(follower.path)])


def test_an_engine_takes_the_place_of_one_that_died(folder: str) -> None:
    dead(folder, ENGINE_SOCKET)
    ear = WakeupListener(folder, ENGINE_SOCKET)
    try:
        assert wake(folder, ENGINE_SOCKET)
        assert has_rung(ear)
    finally:
        ear.close()


def test_a_closed_ear_leaves_no_socket(folder: str) -> None:
    WakeupListener(folder).close()
    WakeupListener(folder, ENGINE_SOCKET).close()
    assert os.listdir(folder) == []


def test_closing_an_ear_whose_socket_was_removed_is_fine(folder: str) -> None:
    ear = WakeupListener(folder)
    os.unlink(ear.path)
    ear.close()


def test_two_ears_of_one_process_do_not_share_a_socket(folder: str) -> None:
    first, second = WakeupListener(folder), WakeupListener(folder)
    try:
        assert first.path != second.path
    finally:
        first.close()
        second.close()
