"""A integrations process at work while config.toml is edited: what the edit does not concern goes on, what it concerns moves, a broken file changes nothing."""

import socket
from collections.abc import Iterator

import pytest
from conftest import CONFIG, Place, wait_until
from fake_discord import CHANNEL, PERSON, TOKEN, FakeDiscord
from test_end_to_end import post, question, signed
from test_integrations_process import Receiver, receiver

__all__ = ["receiver"]
BODY = b'{"text": "deployed"}'


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Settings:
    """The config.toml of a home, written again with every change."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.port, self.extra, self.channels = free_port(), "", ""
        self.write()

    def write(self) -> None:
        self._place.configure(f"{CONFIG}[webhooks]\nport = {self.port}\n{self.channels}{self.extra}")

    def channel(self, name: str, url: str) -> None:
        self.channels += f'[channels.{name}]\ntype = "webhook"\nurl = "{url}"\n'
        self.write()

    def answer(self, port: int | None = None) -> int:
        """How an unsigned request is answered; 0 where nobody does."""
        return post(f"http://127.0.0.1:{port or self.port}/hooks/deploy", BODY, {})


@pytest.fixture
def settings(place: Place) -> Iterator[Settings]:
    yield Settings(place)
    place.stop_all()


def watch_webhook(place: Place, settings: Settings) -> None:
    words = ("add", "deploy", "--on", "webhook:deploy", "--with", "secret_env=HOOK_SECRET", "--", "echo", "deployed")
    place.ok(*words, env={"HOOK_SECRET": "quiet"})
    wait_until(lambda: settings.answer() == 401, "the receiver", 40)


def take_over(place: Place, settings: Settings, receiver: Receiver) -> set[int]:
    """Have the integrations process read its settings: a letter comes through a channel that the edit adds. How requests were answered meanwhile."""
    answers: set[int] = set()
    name = f"c{settings.channels.count('[channels.')}"
    settings.channel(name, receiver.url)
    before = len(receiver.letters)
    place.ok("propose", f"ask-{name}", "--every", "1h", "--to", name, "--description", "Shall I?", "--", "true")

    def arrived() -> bool:
        answers.add(settings.answer())
        return len(receiver.letters) > before

    wait_until(arrived, "the letter through the new channel", 60)
    return answers


def test_webhooks_are_answered_before_during_and_after_an_edit_that_does_not_concern_them(
    place: Place, settings: Settings, receiver: Receiver
) -> None:
    watch_webhook(place, settings)
    settings.extra = "[tasks]\nmax_active = 30\n"
    assert take_over(place, settings, receiver) == {401}
    settings.extra = "[tasks]\nmax_active = 40\n"
    assert take_over(place, settings, receiver) == {401}
    assert post(f"http://127.0.0.1:{settings.port}/hooks/deploy", BODY, signed("quiet", BODY)) == 202
    place.ok("cancel", "deploy")
    wait_until(lambda: settings.answer() == 0, "the port to be closed", 40)


def test_webhooks_move_to_a_changed_port_and_are_answered_again_where_their_hosts_change(place: Place, settings: Settings) -> None:
    watch_webhook(place, settings)
    before, settings.port = settings.port, free_port()
    settings.write()
    wait_until(lambda: settings.answer() == 401, "the new port", 40)
    assert settings.answer(before) == 0
    settings.channels = 'hosts = "hooks.example"\n'
    settings.write()
    url = f"http://127.0.0.1:{settings.port}/hooks/deploy"
    wait_until(lambda: post(url, BODY, {"Host": "hooks.example"}) == 401, "the new name", 40)
    place.ok("cancel", "deploy")


def test_a_broken_file_keeps_the_settings_of_before_and_is_named_in_the_log_and_by_doctor(place: Place, settings: Settings) -> None:
    watch_webhook(place, settings)
    good = (place.root / "config.toml").read_text()
    place.configure(good + "[tasks\n")
    log = place.root / "engine.log"
    wait_until(lambda: "keeping the previous settings" in log.read_text(), "the log to say so", 40)
    assert settings.answer() == 401
    shown = place.cli("doctor").stdout
    assert "not valid TOML" in shown and "running processes keep the previous settings" in shown
    place.configure(good)
    assert post(f"http://127.0.0.1:{settings.port}/hooks/deploy", BODY, signed("quiet", BODY)) == 202
    place.ok("cancel", "deploy")


def test_a_gateway_stays_connected_through_an_edit_that_does_not_concern_its_channel(
    place: Place, settings: Settings, receiver: Receiver
) -> None:
    with FakeDiscord() as discord:
        words = f'type = "discord"\ntoken = "{TOKEN}"\ntarget = "{CHANNEL}"\npeople = "{PERSON}"\nbase_url = "{discord.base_url}"\n'
        settings.channels = f"[channels.chat]\n{words}"
        settings.write()
        place.ok("propose", "watch", "--every", "1h", "--to", "chat", "--description", "Shall I?", "--", "true")
        wait_until(lambda: question(discord, "watch"), "the question", 40)
        wait_until(lambda: discord.connected, "somebody who listens", 20)
        wait_until(lambda: len(discord.reactions(question(discord, "watch"))) == 2, "the two ways to answer", 20)
        connections = discord.connections
        take_over(place, settings, receiver)
        assert discord.connected and discord.connections == connections
        discord.react(question(discord, "watch"), PERSON, "✅")
        wait_until(lambda: place.status("watch")["status"] == "active", "the yes", 40)
        place.ok("cancel", "watch")
        place.stop_all()
