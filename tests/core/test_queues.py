"""Names of run queues."""

import pytest

from backburner.core import queues


@pytest.mark.parametrize("base", queues.BASES)
@pytest.mark.parametrize("place", ["", "@h1", "/gpu", "/gpu+repo:web"])
def test_a_queue_has_a_base_and_a_place(base: str, place: str) -> None:
    name = queues.at(base, place)
    assert (queues.base_of(name), queues.place_of(name), queues.is_queue(name)) == (base, place, True)
    assert queues.is_for_agents(name) == (base != "engine")
    assert (queues.host_of(name), queues.lane_of(name)) == (place[1:] if place[:1] == "@" else "", place[1:] if place[:1] == "/" else "")


@pytest.mark.parametrize("runner", ["11:111:boot", "11:111:boot:token", "record", "engines", "agents:other"])
def test_a_program_is_no_queue(runner: str) -> None:
    assert not queues.is_queue(runner) and not queues.is_for_agents(runner)
    assert queues.at(runner, "/gpu") == queues.at_host(runner, "h1") == runner


def test_a_place_is_added_once() -> None:
    assert queues.at_host("engine", "") == "engine" and queues.at_host("engine", "h1") == "engine@h1"
    assert queues.at_host("engine/gpu", "h1") == queues.at("engine/gpu", "@h2") == "engine/gpu"


def test_a_host_serves_every_combination_of_its_labels() -> None:
    assert queues.lane_name(["repo:web", "gpu", "gpu"]) == "gpu+repo:web" and queues.labels_of("gpu+repo:web") == ["gpu", "repo:web"]
    assert queues.lanes_served(["b", "a"]) == ["a", "b", "a+b"] and len(queues.lanes_served("abcdef")) == 63


@pytest.mark.parametrize("text", ["", "a b", "a/b", "a@b", "a+b", "é", "x" * 65])
def test_a_label_has_plain_characters(text: str) -> None:
    assert not queues.is_label(text) and queues.is_label("repo:web-2.0_x")
