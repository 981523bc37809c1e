"""Editing config.toml while the integrations process runs: only the affected parts restart, and an invalid file changes nothing."""

import socket
from collections.abc import Iterator

import pytest
from conftest import CONFIG, HomeCli, wait_until
from fake_discord import CHANNEL, PERSON, TOKEN, FakeDiscord
from test_end_to_end import find_message, post, signed
from test_integrations_process import Receiver, receiver

__all__ = ["receiver"]
BODY = b'{"text": "deployed"}'


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Settings:
    """The config.toml of a home. `write` stores the current values."""

    def __init__(self, home_cli: HomeCli) -> None:
        self._place = home_cli
        self.port, self.extra, self.channels = free_port(), "", ""
        self.write()

    def write(self) -> None:
        self._place.configure(f"{CONFIG}[webhooks]\nport = {self.port}\n{self.channels}{self.extra}")

    def channel(self, name: str, url: str) -> None:
        self.channels += f'[channels.{name}]\ntype = "webhook"\nurl = "{url}"\n'
        self.write()

    def unsigned_status(self, port: int | None = None) -> int:
        """Return the status of an unsigned request, or 0 if the port is closed."""
        return post(f"http://127.0.0.1:{port or self.port}/hooks/deploy", BODY, {})


@pytest.fixture
def settings(home_cli: HomeCli) -> Iterator[Settings]:
    yield Settings(home_cli)
    home_cli.stop_all()


def add_webhook_task(home_cli: HomeCli, settings: Settings) -> None:
    arguments = ("add", "deploy", "--on", "webhook:deploy", "--with", "secret_env=HOOK_SECRET", "--", "echo", "deployed")
    home_cli.ok(*arguments, env={"HOOK_SECRET": "quiet"})
    wait_until(lambda: settings.unsigned_status() == 401, "the receiver")


def edit_and_wait(home_cli: HomeCli, settings: Settings, receiver: Receiver) -> set[int]:
    """Add a channel to config.toml and wait for a message through it, which proves that the settings were read.

    Return the statuses of the unsigned requests sent in the meantime.
    """
    statuses: set[int] = set()
    name = f"c{settings.channels.count('[channels.')}"
    settings.channel(name, receiver.url)
    before = len(receiver.messages)
    home_cli.ok("propose", f"ask-{name}", "--every", "1h", "--to", name, "--description", "Shall I?", "--", "true")

    def arrived() -> bool:
        statuses.add(settings.unsigned_status())
        return len(receiver.messages) > before

    wait_until(arrived, "the message through the new channel", 60)
    return statuses


def test_webhooks_are_answered_during_an_edit_that_does_not_affect_them(home_cli: HomeCli, settings: Settings, receiver: Receiver) -> None:
    add_webhook_task(home_cli, settings)
    settings.extra = "[tasks]\nmax_active = 30\n"
    assert edit_and_wait(home_cli, settings, receiver) == {401}
    settings.extra = "[tasks]\nmax_active = 40\n"
    assert edit_and_wait(home_cli, settings, receiver) == {401}
    assert post(f"http://127.0.0.1:{settings.port}/hooks/deploy", BODY, signed("quiet", BODY)) == 202
    home_cli.ok("cancel", "deploy")
    wait_until(lambda: settings.unsigned_status() == 0, "the port to be closed")


def test_the_webhook_receiver_restarts_when_its_port_or_hosts_change(home_cli: HomeCli, settings: Settings) -> None:
    add_webhook_task(home_cli, settings)
    before, settings.port = settings.port, free_port()
    settings.write()
    wait_until(lambda: settings.unsigned_status() == 401, "the new port")
    assert settings.unsigned_status(before) == 0
    settings.channels = 'hosts = "hooks.example"\n'
    settings.write()
    url = f"http://127.0.0.1:{settings.port}/hooks/deploy"
    wait_until(lambda: post(url, BODY, {"Host": "hooks.example"}) == 401, "the new host name")
    home_cli.ok("cancel", "deploy")


def test_an_invalid_file_keeps_the_previous_settings_and_is_reported(home_cli: HomeCli, settings: Settings) -> None:
    add_webhook_task(home_cli, settings)
    good = (home_cli.root / "config.toml").read_text()
    home_cli.configure(good + "[tasks\n")
    log = home_cli.root / "engine.log"
    wait_until(lambda: "keeping the previous settings" in log.read_text(), "the log entry")
    assert settings.unsigned_status() == 401
    output = home_cli.cli("doctor").stdout
    assert "not valid TOML" in output and "running processes keep the previous settings" in output
    home_cli.configure(good)
    assert post(f"http://127.0.0.1:{settings.port}/hooks/deploy", BODY, signed("quiet", BODY)) == 202
    home_cli.ok("cancel", "deploy")


def test_the_gateway_stays_connected_during_an_edit_of_another_channel(home_cli: HomeCli, settings: Settings, receiver: Receiver) -> None:
    with FakeDiscord() as discord:
        lines = f'type = "discord"\ntoken = "{TOKEN}"\ntarget = "{CHANNEL}"\npeople = "{PERSON}"\nbase_url = "{discord.base_url}"\n'
        settings.channels = f"[channels.chat]\n{lines}"
        settings.write()
        home_cli.ok("propose", "watch", "--every", "1h", "--to", "chat", "--description", "Shall I?", "--", "true")
        wait_until(lambda: find_message(discord, "watch"), "the question")
        wait_until(lambda: discord.connected, "the gateway connection")
        wait_until(lambda: len(discord.reactions(find_message(discord, "watch"))) == 2, "the two reactions")
        connections = discord.connections
        edit_and_wait(home_cli, settings, receiver)
        assert discord.connected and discord.connections == connections
        discord.react(find_message(discord, "watch"), PERSON, "✅")
        wait_until(lambda: home_cli.status("watch")["status"] == "active", "the approval")
        home_cli.ok("cancel", "watch")
        home_cli.stop_all()
