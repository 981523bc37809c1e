"""The Discord channel against a fake Discord server on loopback: messages arrive once and complete, and replies are received."""

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest
from fake_discord import BOT, CHANNEL, PERSON, STRANGER, TOKEN, FakeDiscord

from backburner.core.errors import ConfigError
from backburner.core.ports import ChannelReply, DeliveryFailed, OutgoingMessage
from backburner.integrations.channels.discord import APPROVE_EMOJI, REJECT_EMOJI, Discord, open_channel

MESSAGES = f"POST /channels/{CHANNEL}/messages"


@pytest.fixture
def fake() -> Iterator[FakeDiscord]:
    before = set(threading.enumerate())
    with FakeDiscord() as server:
        yield server
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(3)
    assert not [thread for thread in left if thread.is_alive()]


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delays that the real Discord requires."""

    async def no_wait(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr("discord.Client.before_identify_hook", no_wait)
    for name in ("_MIN_RECONNECT_DELAY", "_RECHECK_DELAY"):
        monkeypatch.setattr(f"backburner.integrations.channels.discord.{name}", 0.05)


def make_channel(fake: FakeDiscord, **settings: str) -> Discord:
    config = {"type": "discord", "target": CHANNEL, "people": PERSON, "base_url": fake.base_url, **settings}
    return open_channel("chat", config, {"DISCORD_TOKEN": TOKEN})


@contextlib.asynccontextmanager
async def open_discord(fake: FakeDiscord, **settings: str) -> AsyncGenerator[Discord]:
    """Open a channel, and check that it leaves no asyncio task behind."""
    before = asyncio.all_tasks()
    channel = make_channel(fake, **settings)
    try:
        yield channel
    finally:
        await channel.close()
    await until(lambda: not asyncio.all_tasks() - before, "the tasks of the channel to end")


@contextlib.asynccontextmanager
async def listening(fake: FakeDiscord, channel: Discord) -> AsyncGenerator[list[ChannelReply]]:
    """Collect the replies of a channel after the gateway is open."""
    replies: list[ChannelReply] = []

    async def listen() -> None:
        async for reply in channel.replies():
            replies.append(reply)

    seen = fake.connections
    task = asyncio.create_task(listen())
    try:
        await until(lambda: fake.connections > seen or task.done(), "the gateway")
        yield replies
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(predicate: Callable[[], object], what: str, seconds: float = 4.5) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not predicate():
        assert asyncio.get_running_loop().time() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.01)


def without_duplicates(replies: list[ChannelReply]) -> list[ChannelReply]:
    """A reply soon after its question, or around a new connection, may come twice."""
    return list(dict.fromkeys(replies))


def message(text: str = "All 47 tests pass.", *, key: str = "n1", title: str = "check-ci", question: bool = False) -> OutgoingMessage:
    return OutgoingMessage(key, "t-1", title, text, 0, 0, question)


async def send_question(channel: Discord, key: str = "q1") -> str:
    message_id = await channel.send(message("Watch the deploy?", key=key, question=True))
    assert message_id
    return message_id


async def send_and_fail(channel: Discord) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as caught:
        await channel.send(message())
    return caught.value


async def test_a_message_arrives_with_its_title_and_opens_no_gateway(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel:
        message_id = await channel.send(message(title="check *ci*"))
    assert fake.contents() == ["**check \\*ci\\***\nAll 47 tests pass."]
    assert list(fake.messages) == [message_id]
    assert fake.connections == 0
    assert message_id and fake.reactions(message_id) == {}


async def test_a_message_to_a_user_is_a_direct_message(fake: FakeDiscord) -> None:
    async with open_discord(fake, target=f"user:{PERSON}", people="") as channel:
        message_id = await send_question(channel)
        async with listening(fake, channel) as replies:
            fake.react(message_id, STRANGER, APPROVE_EMOJI)
            fake.react(message_id, PERSON, APPROVE_EMOJI)
            await until(lambda: replies, "the reply")
    assert without_duplicates(replies) == [ChannelReply(message_id, PERSON, True)]
    assert len(fake.contents(fake.direct[PERSON])) == 1


async def test_mentions_and_embeds_are_disabled(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel:
        message_id = await channel.send(message("@everyone look at https://example.com/?secret=1"))
    assert message_id and "@everyone" in fake.messages[message_id]["content"]
    assert not fake.messages[message_id]["mention_everyone"]
    assert fake.messages[message_id]["flags"] == 4  # embeds suppressed


async def test_only_a_listed_user_can_answer_a_question(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel, listening(fake, channel) as replies:
        first, second = await send_question(channel), await send_question(channel, "q2")
        assert fake.reactions(first) == {APPROVE_EMOJI: [BOT], REJECT_EMOJI: [BOT]}
        fake.react(first, STRANGER, APPROVE_EMOJI)
        fake.react(first, PERSON, "🙂")
        fake.react(second, PERSON, REJECT_EMOJI)
        fake.react(first, PERSON, APPROVE_EMOJI)
        await until(lambda: len(without_duplicates(replies)) == 2, "two replies")
    assert without_duplicates(replies) == [ChannelReply(second, PERSON, False), ChannelReply(first, PERSON, True)]
    assert fake.heartbeats


async def test_a_reaction_to_a_message_of_another_author_is_ignored(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel, listening(fake, channel) as replies:
        theirs, ours = fake.post_message(STRANGER, "Shall we?"), await send_question(channel)
        fake.react(theirs, PERSON, APPROVE_EMOJI)
        fake.react(ours, PERSON, APPROVE_EMOJI)
        await until(lambda: replies, "the reply")
        assert await channel.catch_up([theirs]) == []
    assert without_duplicates(replies) == [ChannelReply(ours, PERSON, True)]


async def test_a_reaction_in_another_channel_of_the_same_bot_is_ignored(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel, open_discord(fake, target=f"user:{PERSON}") as direct, listening(fake, channel) as replies:
        there, here = await send_question(direct), await send_question(channel)
        fake.react(there, PERSON, APPROVE_EMOJI)
        fake.react(here, PERSON, REJECT_EMOJI)
        await until(lambda: replies, "the reply")
    assert without_duplicates(replies) == [ChannelReply(here, PERSON, False)]


async def test_without_listed_users_there_are_no_replies_and_no_gateway(fake: FakeDiscord) -> None:
    async with open_discord(fake, people="") as channel:
        message_id = await send_question(channel)
        fake.react(message_id, PERSON, APPROVE_EMOJI)
        assert [reply async for reply in channel.replies()] == []
        assert await channel.catch_up([message_id]) == []
    assert fake.connections == 0
    assert fake.reactions(message_id) == {APPROVE_EMOJI: [PERSON]}
    assert "React" not in fake.contents()[0]


async def test_replies_sent_while_stopped_are_found_after_a_restart(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel:
        first, second, third = await send_question(channel), await send_question(channel, "q2"), await send_question(channel, "q3")
    fake.react(first, STRANGER, REJECT_EMOJI)
    fake.react(first, PERSON, APPROVE_EMOJI)
    fake.react(second, PERSON, REJECT_EMOJI, burst=True)
    gone = await _send_and_delete(fake)
    async with open_discord(fake) as channel:
        found = await channel.catch_up([first, second, third, gone, "not an id"])
        assert found == [ChannelReply(first, PERSON, True), ChannelReply(second, PERSON, False)]
        async with listening(fake, channel) as replies:
            fake.react(third, PERSON, APPROVE_EMOJI)
            await until(lambda: replies, "the reply")
    assert without_duplicates(replies) == [ChannelReply(third, PERSON, True)]


async def _send_and_delete(fake: FakeDiscord) -> str:
    async with open_discord(fake) as channel:
        message_id = await send_question(channel, "gone")
    fake.delete(message_id)
    return message_id


async def test_a_rejection_comes_before_an_approval(fake: FakeDiscord) -> None:
    async with open_discord(fake, people=f"{PERSON}, {STRANGER}") as channel:
        message_id = await send_question(channel)
        fake.react(message_id, PERSON, APPROVE_EMOJI)
        fake.react(message_id, STRANGER, REJECT_EMOJI)
        assert await channel.catch_up([message_id]) == [ChannelReply(message_id, STRANGER, False), ChannelReply(message_id, PERSON, True)]


async def test_one_reaction_among_hundreds_is_found(fake: FakeDiscord) -> None:
    last = str(int(PERSON) + 1000)
    async with open_discord(fake, people=last) as channel:
        message_id = await send_question(channel)
        for number in range(250):
            fake.react(message_id, str(int(PERSON) + number), APPROVE_EMOJI)
        fake.react(message_id, last, APPROVE_EMOJI)
        assert await channel.catch_up([message_id]) == [ChannelReply(message_id, last, True)]


async def test_a_reply_before_send_returns_is_repeated_when_the_question_id_is_known(
    fake: FakeDiscord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backburner.integrations.channels.discord._ID_STORED_AFTER", 0.2)
    fake.fail("PUT", 429, retry_after=0.3)
    async with open_discord(fake) as channel, listening(fake, channel) as replies:
        sending = asyncio.create_task(send_question(channel))
        await until(lambda: fake.messages, "the message")
        fake.react(next(iter(fake.messages)), PERSON, APPROVE_EMOJI)
        await until(lambda: replies, "the reply")
        assert not sending.done()
        reply = ChannelReply(await sending, PERSON, True)
        replies.clear()
        await until(lambda: replies, "the reply again")
        assert replies == [reply]
        fake.drop_gateway(resumable=False)
        await until(lambda: fake.connections == 2, "the gateway to be back")
        other = await send_question(channel, "q2")
        fake.react(other, PERSON, REJECT_EMOJI)
        await until(lambda: len(without_duplicates(replies)) > 1, "the other reply")
    assert without_duplicates(replies) == [reply, ChannelReply(other, PERSON, False)]
    assert replies.count(reply) == 1  # a reply that came after the question id was known is not repeated


@pytest.mark.parametrize("abort", [False, True])
async def test_no_reply_is_lost_when_the_gateway_drops(fake: FakeDiscord, abort: bool) -> None:
    async with open_discord(fake) as channel, listening(fake, channel) as replies:
        message_id = await send_question(channel)
        fake.hold_gateway()
        fake.drop_gateway(abort=abort)
        fake.react(message_id, PERSON, APPROVE_EMOJI)
        fake.admit()
        await until(lambda: replies, "the reply")
        await until(lambda: fake.connected, "the gateway to be back")
        other = await send_question(channel, "q2")
        fake.react(other, PERSON, REJECT_EMOJI)
        await until(lambda: replies[-1] == ChannelReply(other, PERSON, False), "the second reply")
    assert set(replies) == {ChannelReply(message_id, PERSON, True), ChannelReply(other, PERSON, False)}
    assert fake.resumed == 1


async def test_no_reply_is_lost_when_the_gateway_session_cannot_be_resumed(fake: FakeDiscord) -> None:
    async with open_discord(fake) as before:
        earlier = await send_question(before)
    async with open_discord(fake) as channel:
        assert await channel.catch_up([earlier]) == []
        async with listening(fake, channel) as replies:
            message_id = await send_question(channel, "q2")
            fake.hold_gateway()
            fake.drop_gateway(resumable=False)
            fake.react(message_id, PERSON, APPROVE_EMOJI)
            fake.react(earlier, PERSON, REJECT_EMOJI)
            fake.admit()
            await until(lambda: len(without_duplicates(replies)) == 2, "the replies")
    assert set(replies) == {ChannelReply(message_id, PERSON, True), ChannelReply(earlier, PERSON, False)}
    assert fake.resumed == 0


async def test_listening_continues_after_a_malformed_event(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel, listening(fake, channel) as replies:
        message_id = await send_question(channel)
        fake.hold_gateway()
        fake.dispatch("MESSAGE_REACTION_ADD", {"emoji": 7})
        await until(lambda: not fake.connected, "the connection to break")
        fake.react(message_id, PERSON, APPROVE_EMOJI)
        fake.admit()
        await until(lambda: replies, "the reply")
    assert without_duplicates(replies) == [ChannelReply(message_id, PERSON, True)]


async def test_checking_for_missed_replies_is_retried_after_a_server_error(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel, listening(fake, channel) as replies:
        message_id = await send_question(channel)
        fake.fail(f"GET /channels/{CHANNEL}/messages", 503, times=3)
        fake.hold_gateway()
        fake.drop_gateway(resumable=False)
        fake.react(message_id, PERSON, APPROVE_EMOJI)
        fake.admit()
        await until(lambda: replies, "the reply")
    assert without_duplicates(replies) == [ChannelReply(message_id, PERSON, True)]


async def test_a_short_rate_limit_is_waited_for(fake: FakeDiscord) -> None:
    fake.fail(MESSAGES, 429, times=2, retry_after=0.1)
    fake.fail("PUT", 429, retry_after=0.1)
    async with open_discord(fake) as channel:
        message_id = await send_question(channel)
    assert fake.requests.count(MESSAGES) == 3
    assert len(fake.contents()) == 1
    assert fake.reactions(message_id) == {APPROVE_EMOJI: [BOT], REJECT_EMOJI: [BOT]}


async def test_a_long_rate_limit_is_reported_with_its_duration(fake: FakeDiscord) -> None:
    fake.fail(MESSAGES, 429, retry_after=120.0)
    async with open_discord(fake) as channel:
        error = await send_and_fail(channel)
        assert (error.retry_after, error.permanent) == (120.0, False)
        assert "rate limited" in str(error)
        await channel.send(message())
    assert len(fake.contents()) == 1


async def test_a_server_error_is_temporary(fake: FakeDiscord) -> None:
    fake.fail(MESSAGES, 503)
    async with open_discord(fake) as channel:
        error = await send_and_fail(channel)
        assert (error.retry_after, error.permanent) == (None, False)
        assert "503" in str(error)
        await channel.send(message())
    assert len(fake.contents()) == 1


async def test_a_retry_after_a_lost_response_creates_one_message(fake: FakeDiscord) -> None:
    fake.lose_response(MESSAGES)
    async with open_discord(fake) as channel:
        error = await send_and_fail(channel)
        assert not error.permanent
        message_id = await channel.send(message())
    assert list(fake.messages) == [message_id]


async def test_a_message_sent_again_after_a_crash_appears_once(fake: FakeDiscord) -> None:
    text = "line\n" * 1000
    sent = []
    for _ in range(2):
        async with open_discord(fake) as channel:
            sent.append(await channel.send(message(text)))
    assert len(fake.messages) == 3
    assert sent[0] == sent[1] == list(fake.messages)[-1]
    async with open_discord(fake) as channel:
        await channel.send(message(text, key="n2"))
    assert len(fake.messages) == 6


async def test_the_same_message_to_two_channels_appears_in_both(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel, open_discord(fake, target=f"user:{PERSON}") as direct:
        await channel.send(message())
        await direct.send(message())
    assert len(fake.contents()) == len(fake.contents(fake.direct[PERSON])) == 1


async def test_a_late_retry_sends_only_the_missing_part_of_a_message(fake: FakeDiscord) -> None:
    text = "line\n" * 1000
    fake.fail(MESSAGES, 503, after=1)
    async with open_discord(fake) as channel:
        with pytest.raises(DeliveryFailed):
            await channel.send(message(text))
        assert len(fake.messages) == 1
        fake.forget_nonces()
        await channel.send(message(text))
    assert len(fake.messages) == 3


async def test_5000_characters_with_a_code_fence_arrive_as_valid_messages(fake: FakeDiscord) -> None:
    code = "".join(f"line {number}: x = {number}\n" for number in range(220))
    text = f"The build failed.\n\n```python\n{code}```\n" + "It was fine yesterday. " * 80
    assert len(text) > 5000
    async with open_discord(fake) as channel:
        message_id = await channel.send(message(text))
    contents = fake.contents()
    assert 3 <= len(contents) <= 5
    assert list(fake.messages)[-1] == message_id
    assert all(len(content) <= 2000 and content.count("```") % 2 == 0 for content in contents)
    blocks = [block for content in contents for block in re.findall(r"```python\n(.*?)```", content, re.DOTALL)]
    assert "".join(blocks) == code
    assert "".join(contents).count("yesterday") == 80


async def test_a_long_question_is_one_message_with_the_full_text_in_a_file(fake: FakeDiscord) -> None:
    text = "```sh\n" + "rm -r build\n" * 400 + "```\nThe end. \udc80"
    async with open_discord(fake) as channel:
        message_id = await channel.send(message(text, question=True))
        assert await channel.send(message(text, question=True)) == message_id
    assert message_id and list(fake.messages) == [message_id]
    content = fake.contents()[0]
    assert len(content) <= 2000 and content.count("```") == 2
    assert "attached" in content and content.endswith(f"React with {APPROVE_EMOJI} to approve or {REJECT_EMOJI} to reject.")
    assert fake.file(message_id).endswith("The end. ?") and fake.file(message_id).count("rm -r build") == 400
    assert fake.reactions(message_id) == {APPROVE_EMOJI: [BOT], REJECT_EMOJI: [BOT]}


async def test_a_message_of_a_megabyte_is_one_message_with_a_file(fake: FakeDiscord) -> None:
    text = "many expected " * 100_000
    async with open_discord(fake) as channel:
        message_id = await channel.send(message(text))
    assert message_id and list(fake.messages) == [message_id]
    assert fake.file(message_id).count("many expected") == 100_000


async def test_an_empty_message_shows_the_task_id(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel:
        await channel.send(message("\n", title=""))
    assert fake.contents() == ["t-1"]


async def test_a_wrong_token_is_a_permanent_error_and_is_not_used_again(fake: FakeDiscord) -> None:
    channel = open_channel("chat", {"target": CHANNEL, "people": PERSON, "base_url": fake.base_url}, {"DISCORD_TOKEN": "wrong"})
    error = await send_and_fail(channel)
    assert error.permanent
    assert str(error) == "Discord does not accept the bot's token: put a valid one into DISCORD_TOKEN"
    with pytest.raises(DeliveryFailed, match="DISCORD_TOKEN"):
        async for _ in channel.replies():
            pass
    assert len(fake.requests) == 1
    await channel.close()


async def test_the_error_for_a_wrong_token_in_config_toml_names_the_setting(fake: FakeDiscord) -> None:
    async with open_discord(fake, token="wrong") as channel:
        assert str(await send_and_fail(channel)).endswith("put a valid one into 'token' of [channels.chat]")


async def test_a_check_finds_a_wrong_token_and_sends_nothing(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel:
        await channel.check()
    async with open_discord(fake, token="wrong") as channel:
        with pytest.raises(DeliveryFailed, match="does not accept the bot's token"):
            await channel.check()
    assert not fake.messages


async def test_a_revoked_token_is_a_permanent_error(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel:
        await channel.send(message())
        fake.fail(MESSAGES, 401)
        with pytest.raises(DeliveryFailed, match="token") as caught:
            await channel.send(message(key="n2"))
        assert caught.value.permanent


async def test_a_token_rejected_by_the_gateway_ends_the_replies_with_an_error(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel:
        reply_stream = channel.replies()
        waiting = asyncio.ensure_future(anext(reply_stream))
        await until(lambda: fake.connected, "the gateway")
        fake.drop_gateway(code=4004)
        with pytest.raises(DeliveryFailed, match="DISCORD_TOKEN") as caught:
            await asyncio.wait_for(waiting, 4)
        assert caught.value.permanent


@pytest.mark.parametrize(
    ("settings", "failure", "expected"),
    [
        ({}, 403, "Send Messages"),
        ({}, 404, "correct 'target' of [channels.chat]"),
        ({"target": f"user:{PERSON}"}, 403, "allow direct messages"),
        ({"target": "user:999"}, 0, "does not know the user 999"),
    ],
)
async def test_a_permanent_error_says_what_to_fix(fake: FakeDiscord, settings: dict[str, str], failure: int, expected: str) -> None:
    if failure:
        fake.fail("messages", failure, code=50007)
    async with open_discord(fake, **settings) as channel:
        error = await send_and_fail(channel)
    assert error.permanent
    assert expected in str(error)


async def test_a_question_is_sent_even_if_the_bot_may_not_add_reactions(fake: FakeDiscord) -> None:
    fake.fail("PUT", 403, code=50013)
    async with open_discord(fake) as channel:
        message_id = await send_question(channel)
        fake.react(message_id, PERSON, APPROVE_EMOJI)
        assert await channel.catch_up([message_id]) == [ChannelReply(message_id, PERSON, True)]


async def test_an_unreachable_server_is_a_temporary_error() -> None:
    channel = open_channel("chat", {"target": CHANNEL, "base_url": "http://127.0.0.1:9/api/v10"}, {"DISCORD_TOKEN": TOKEN})
    error = await send_and_fail(channel)
    assert not error.permanent
    assert "could not be reached" in str(error)
    await channel.close()


async def test_close_ends_the_replies_and_every_connection(fake: FakeDiscord) -> None:
    channel = make_channel(fake)
    reply_stream = channel.replies()
    waiting = asyncio.ensure_future(anext(reply_stream, None))
    await until(lambda: fake.connected, "the gateway")
    await channel.close()
    assert await asyncio.wait_for(waiting, 4) is None
    await until(lambda: not fake.connected, "the gateway connection to close")
    assert [reply async for reply in channel.replies()] == []
    with pytest.raises(DeliveryFailed, match="closed"):
        await channel.send(message())
    await channel.close()


async def test_the_gateway_intents_are_reactions_only(fake: FakeDiscord) -> None:
    async with open_discord(fake) as channel, listening(fake, channel):
        assert fake.identified[0]["intents"] == (1 << 10) | (1 << 13)


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        ({"target": CHANNEL}, {}, "DISCORD_TOKEN"),
        ({"target": CHANNEL, "token_env": "MY_BOT"}, {"DISCORD_TOKEN": TOKEN}, "MY_BOT"),
        ({}, {"DISCORD_TOKEN": TOKEN}, "'target'"),
        ({"target": "#general"}, {"DISCORD_TOKEN": TOKEN}, "'#general'"),
        ({"target": CHANNEL, "people": f"{PERSON}, me"}, {"DISCORD_TOKEN": TOKEN}, "'me'"),
        ({"target": CHANNEL, "base_url": "http://example.com/api"}, {"DISCORD_TOKEN": TOKEN}, "'base_url'"),
        ({"target": CHANNEL, "base_url": "http://127.0.0.1.example.com/api"}, {"DISCORD_TOKEN": TOKEN}, "'base_url'"),
        ({"target": CHANNEL, "base_url": "http://127.0.0.1@example.com/api"}, {"DISCORD_TOKEN": TOKEN}, "'base_url'"),
    ],
)
def test_an_invalid_setting_is_named(settings: dict[str, str], environ: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_channel("chat", settings, environ)
    assert expected in str(caught.value) and "channels.chat" in str(caught.value)
    assert TOKEN not in str(caught.value)
