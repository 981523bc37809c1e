"""The GitHub source against a server on loopback: every event is reported once, also after downtime, and rate limits are observed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from fake_github import REPO, FakeGitHub

from backburner.core.errors import BadInput
from backburner.core.ports import TriggerEvent
from backburner.integrations.sources import SourceBroken
from backburner.integrations.sources.github import KINDS, MAX_RESPONSE_BYTES, GitHubSource, open_source

NOW = 1_772_323_200  # 2026-03-01T00:00:00Z, in seconds
Entry = dict[str, object]


@pytest.fixture
async def github() -> AsyncIterator[FakeGitHub]:
    async with FakeGitHub() as server:
        yield server


class Poller:
    """Polls a source step by step and stores its state as JSON, as the integrations process does. Its sleep returns immediately."""

    def __init__(self, github: FakeGitHub, stored: str = "{}", environ: dict[str, str] | None = None, **config: str) -> None:
        self.stored = stored
        self.slept: list[float] = []
        self.events: list[TriggerEvent] = []
        self.states = 0
        self._polls = 0
        self.source = open_source({"repo": REPO, **config}, environ or {}, lambda: 1000 * NOW, base_url=github.url, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._polls -= 1
        if self._polls <= 0:
            raise asyncio.CancelledError

    async def poll(self, times: int = 1) -> list[Entry]:
        """Run that many polls (or waits before a poll), then stop as if killed. Return the reported entries."""
        self._polls = times
        entries: list[Entry] = []
        try:
            async with asyncio.timeout(20), aclosing(self.source.watch(json.loads(self.stored))) as changes:
                async for state, event in changes:
                    self.stored = json.dumps(state, ensure_ascii=False).encode().decode()
                    self.states += 1
                    if event:
                        self.events.append(event)
                        json.dumps(event.payload, ensure_ascii=False).encode()
                        entries += event.payload["events"]  # type: ignore[operator]
        except asyncio.CancelledError:
            pass
        return entries


def kinds(entries: list[Entry]) -> list[object]:
    return [entry["event"] for entry in entries]


def titles(entries: list[Entry]) -> list[object]:
    return [entry["title"] for entry in entries]


async def test_the_first_poll_stores_a_state_and_reports_nothing(github: FakeGitHub) -> None:
    github.push()
    github.run(1, "2026-03-01T00:00:01Z")
    poller = Poller(github)
    assert await poller.poll() == []
    assert poller.states == 1


async def test_a_repository_without_events_is_watched(github: FakeGitHub) -> None:
    poller = Poller(github)
    assert await poller.poll() == []
    github.push()
    github.run(1, "2026-03-01T00:00:01Z")
    assert sorted(map(str, kinds(await poller.poll()))) == ["ci_complete", "push"]


async def test_events_during_downtime_are_reported_once(github: FakeGitHub) -> None:
    github.push("old")
    first = Poller(github)
    await first.poll()
    github.push("one")
    github.run(7, "2026-03-01T00:00:03Z", "failure")
    github.push("two")
    second = Poller(github, first.stored)
    entries = await second.poll(3)
    assert [(entry["event"], entry.get("branch")) for entry in entries] == [("push", "one"), ("push", "two"), ("ci_failed", "main")]
    assert [event.summary for event in second.events] == [f"{REPO}: 2 push, 1 ci_failed"]
    assert await Poller(github, second.stored).poll(2) == []


async def test_an_event_whose_state_was_not_stored_is_reported_again(github: FakeGitHub) -> None:
    poller = Poller(github)
    await poller.poll()
    github.push()
    for _ in range(3):  # killed before the state was stored
        assert kinds(await Poller(github, poller.stored).poll()) == ["push"]
    assert kinds(await poller.poll()) == ["push"]
    assert await poller.poll() == []


async def test_all_nine_kinds_are_recognised(github: FakeGitHub) -> None:
    poller = Poller(github)
    await poller.poll()
    github.push("dev")
    pull = {
        "number": 5,
        "title": "Add it",
        "html_url": f"https://github.com/{REPO}/pull/5",
        "head": {"ref": "feature"},
        "base": {"ref": "main"},
    }
    github.event("PullRequestEvent", action="opened", number=5, pull_request=pull)
    review = {"state": "approved", "body": "Good.", "html_url": f"https://github.com/{REPO}/pull/5#review"}
    github.event("PullRequestReviewEvent", action="created", review=review, pull_request=pull)
    github.event("PullRequestEvent", action="closed", number=5, pull_request={**pull, "merged": True})
    issue = {"number": 6, "title": "Broken", "body": "Help!", "html_url": f"https://github.com/{REPO}/issues/6"}
    github.event("IssuesEvent", action="opened", issue=issue)
    comment = {"body": "Me too", "html_url": f"https://github.com/{REPO}/issues/6#1"}
    github.event("IssueCommentEvent", action="created", issue=issue, comment=comment, login="bob")
    release = {"name": "", "tag_name": "v1", "html_url": f"https://github.com/{REPO}/releases/v1", "body": "notes"}
    github.event("ReleaseEvent", action="published", release=release)
    github.run(1, "2026-03-01T01:00:00Z")
    github.run(2, "2026-03-01T01:00:01Z", "timed_out")
    entries = await poller.poll()
    order = ["push", "pr_opened", "pr_review", "pr_merged", "issue_opened", "issue_comment", "release", "ci_complete", "ci_failed"]
    assert kinds(entries) == order and set(order) == set(KINDS)
    by_kind = {str(entry["event"]): entry for entry in entries}
    assert by_kind["pr_opened"] == {
        "event": "pr_opened",
        "id": github.events[-2]["id"],
        "title": "Add it",
        "url": f"https://github.com/{REPO}/pull/5",
        "author": "ann",
        "number": 5,
        "branch": "feature",
        "base": "main",
        "at": "2026-03-01T00:00:02Z",
    }
    assert (by_kind["push"]["branch"], by_kind["push"]["commit"]) == ("dev", "abc123")
    assert (by_kind["pr_review"]["conclusion"], by_kind["pr_review"]["text"]) == ("approved", "Good.")
    assert (by_kind["issue_comment"]["author"], by_kind["issue_comment"]["text"], by_kind["issue_comment"]["number"]) == (
        "bob",
        "Me too",
        6,
    )
    assert (by_kind["release"]["title"], by_kind["release"]["tag"]) == ("v1", "v1")
    assert (by_kind["ci_failed"]["conclusion"], by_kind["ci_failed"]["workflow"], by_kind["ci_failed"]["title"]) == (
        "timed_out",
        "tests",
        "run 2",
    )
    assert [request.page for request in github.requests[2:]] == ["events1:200", "runs1:200"]  # no further requests were needed


async def test_events_that_are_not_requested_are_not_reported(github: FakeGitHub) -> None:
    poller = Poller(github, events="ci_failed, push", branch="main")
    await poller.poll()
    github.push("dev")
    github.event("IssuesEvent", action="opened", issue={"number": 1, "title": "x"})
    github.event("WatchEvent", action="started")
    github.run(1, "2026-03-01T01:00:00Z")
    github.run(2, "2026-03-01T01:00:01Z", "failure", branch="dev")
    assert await poller.poll() == []
    github.push("main")
    github.run(3, "2026-03-01T01:00:02Z", "cancelled")
    assert kinds(await poller.poll()) == ["push", "ci_failed"]


async def test_only_the_required_lists_are_read(github: FakeGitHub) -> None:
    await Poller(github, events="ci_complete").poll()
    await Poller(github, events="push").poll()
    assert [request.page for request in github.requests] == ["runs1:200", "events1:200"]


async def test_a_failed_run_is_ci_complete_if_ci_failed_is_not_requested(github: FakeGitHub) -> None:
    poller = Poller(github, events="ci_complete")
    await poller.poll()
    github.run(2, "2026-03-01T01:00:01Z", "failure")
    assert [(entry["event"], entry["conclusion"]) for entry in await poller.poll()] == [("ci_complete", "failure")]


async def test_a_304_changes_nothing(github: FakeGitHub) -> None:
    github.push()
    github.run(1, "2026-03-01T00:00:01Z")
    poller = Poller(github)
    await poller.poll()
    stored, states = poller.stored, poller.states
    assert await poller.poll(3) == []
    assert (poller.stored, poller.states) == (stored, states)
    assert [request.page for request in github.requests[2:]] == ["events1:304", "runs1:304"] * 3


async def test_a_run_that_ends_late_and_a_rerun_are_reported(github: FakeGitHub) -> None:
    github.per_page = 2
    for number in range(10, 15):
        github.run(number, f"2026-03-01T00:00:{number}Z")
    poller = Poller(github, events="ci_complete")
    await poller.poll()
    github.run(9, "2026-03-01T00:10:00Z")  # started before all others
    github.run(12, "2026-03-01T00:11:00Z", attempt=2)
    entries = await poller.poll(2)
    assert [(entry["id"], entry["attempt"]) for entry in entries] == [("9", 1), ("12", 2)]
    assert [request.page for request in github.requests[-3:]] == ["runs1:304", "runs2:304", "runs3:304"]


async def test_at_most_three_pages_are_read(github: FakeGitHub) -> None:
    github.per_page = 10
    for _ in range(100):
        github.push("old")
    poller = Poller(github, events="push")
    await poller.poll()
    assert [request.page for request in github.requests] == ["events1:200", "events2:200", "events3:200"]
    for number in range(15):
        github.push(f"new{number}")
    assert [entry["branch"] for entry in await poller.poll()] == [f"new{number}" for number in range(15)]
    assert [request.page for request in github.requests[3:]] == ["events1:200", "events2:200", "events3:200"]
    assert "incomplete" not in poller.events[-1].payload
    for number in range(50):
        github.push(f"newer{number}")
    assert [entry["branch"] for entry in await poller.poll()] == [f"newer{number}" for number in range(20, 50)]
    assert poller.events[-1].payload["incomplete"] is True
    assert len(github.requests) == 9
    assert await poller.poll(2) == []


async def test_an_event_contains_at_most_100_entries_and_counts_the_others(github: FakeGitHub) -> None:
    poller = Poller(github, events="push")
    await poller.poll()
    for number in range(130):
        github.push(f"b{number}")
    assert [entry["branch"] for entry in await poller.poll()] == [f"b{number}" for number in range(30, 130)]
    assert poller.events[0].payload["more"] == 30
    assert poller.events[0].summary == f"{REPO}: 130 push"


async def test_the_state_stays_small_and_no_event_is_reported_twice(github: FakeGitHub) -> None:
    poller = Poller(github, events="push")
    await poller.poll()
    for number in range(2_400):
        github.push(f"b{number}")
        if number % 240 == 239:
            assert len(poller.events) == number // 240
            await poller.poll()
    assert sum(len(event.payload["events"]) + event.payload["more"] for event in poller.events) == 2_400  # type: ignore[arg-type, operator]
    assert len(json.loads(poller.stored)["feeds"]["events"]["seen"]) <= 1_000
    assert len(poller.stored) < 100_000


async def test_retry_after_is_observed_also_after_a_restart(github: FakeGitHub) -> None:
    poller = Poller(github)
    await poller.poll()
    github.push()
    github.fail(403, Retry_After="77")
    assert kinds(await poller.poll(2)) == ["push"]
    assert poller.slept[1:] == [77.0, 60.0]
    github.push()
    github.fail(429, Retry_After="90")
    assert await poller.poll() == []
    later = Poller(github, poller.stored)
    assert kinds(await later.poll(2)) == ["push"]
    assert later.slept == [90.0, 60.0]


async def test_polling_waits_until_the_rate_limit_is_reset(github: FakeGitHub) -> None:
    poller = Poller(github, events="push")
    await poller.poll()
    github.push()
    github.fail(403, X_RateLimit_Remaining="0", X_RateLimit_Reset=str(NOW + 1200))
    github.fail(403, body=b'{"message": "You have exceeded a secondary rate limit"}')
    github.fail(429, Retry_After="Sun, 01 Mar 2026 00:02:00 GMT")
    assert kinds(await poller.poll(4)) == ["push"]
    assert poller.slept[1:4] == [1201.0, 60.0, 120.0]


async def test_remaining_requests_are_spread_until_the_rate_limit_is_reset(github: FakeGitHub) -> None:
    github.extra = {"X-RateLimit-Remaining": "20", "X-RateLimit-Reset": str(NOW + 3000)}
    poller = Poller(github)
    await poller.poll()
    assert poller.slept == [300.0]  # two requests per poll


async def test_the_poll_interval_of_github_is_observed(github: FakeGitHub) -> None:
    github.extra = {"X-Poll-Interval": "180"}
    poller = Poller(github, events="push")
    await poller.poll(2)
    assert poller.slept == [180.0, 180.0]


async def test_failures_are_retried_with_growing_delays_and_lose_no_event(github: FakeGitHub) -> None:
    poller = Poller(github, events="push")
    await poller.poll()
    github.push("missed")
    github.fail(502, times=3)
    github.fail(0)
    github.fail(200, body=b"<html>")
    github.fail(200, body=b'{"message": "not a list"}')
    github.fail(503, Retry_After="1000")
    github.fail(200, body=b" " * (MAX_RESPONSE_BYTES + 1))
    entries = await poller.poll(9)
    assert [entry["branch"] for entry in entries] == ["missed"]
    assert poller.slept[1:] == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 1000.0, 900.0, 60.0]
    assert poller.source.trouble is None
    assert await poller.poll() == []


async def test_a_failed_first_poll_stores_no_state(github: FakeGitHub) -> None:
    github.push("old")
    github.fail(500, times=2)
    poller = Poller(github, events="push")
    assert await poller.poll(2) == []
    assert (poller.states, poller.source.trouble) == (0, "GitHub answered 500.")
    assert await poller.poll() == []
    github.push("new")
    assert [entry["branch"] for entry in await poller.poll()] == ["new"]


async def test_a_list_that_fails_on_page_two_is_read_again_completely(github: FakeGitHub) -> None:
    github.per_page = 10
    poller = Poller(github, events="push")
    await poller.poll()
    for number in range(15):
        github.push(f"b{number}")

    pages = len(github.requests)
    github.fail(200, body=json.dumps(github.events[:10]).encode(), Link='<x>; rel="next"', ETag='"1"')
    github.fail(500)
    entries = await poller.poll(2)
    assert [request.page for request in github.requests[pages:]] == ["events1:200", "events2:500", "events1:200", "events2:200"]
    assert [entry["branch"] for entry in entries] == [f"b{number}" for number in range(15)]


async def test_a_failing_list_does_not_delay_the_other_list(github: FakeGitHub) -> None:
    poller = Poller(github)
    await poller.poll()
    github.push()
    github.run(1, "2026-03-01T01:00:00Z")
    github.fail(500, path="/events")
    assert kinds(await poller.poll()) == ["ci_complete"]
    assert kinds(await poller.poll()) == ["push"]


async def test_an_unreachable_server_is_retried(github: FakeGitHub) -> None:
    poller = Poller(github, events="push")
    await poller.poll()
    async with FakeGitHub() as other:
        stopped_url = other.url
    unreachable = open_source({"repo": REPO, "events": "push"}, {}, lambda: 1000 * NOW, base_url=stopped_url, sleep=poller._sleep)
    poller.source, original = unreachable, poller.source
    assert await poller.poll(2) == []
    assert poller.slept[1:] == [60.0, 120.0] and "cannot be reached" in str(unreachable.trouble)
    poller.source = original
    github.push()
    assert kinds(await poller.poll()) == ["push"]


async def test_missing_fields_of_pull_requests_are_read_from_the_list(github: FakeGitHub) -> None:
    poller = Poller(github, events="pr_opened,pr_merged,pr_review")
    await poller.poll()
    for number in (1, 2, 3, 4):
        github.event("PullRequestEvent", action="opened", number=number, pull_request={"number": number, "url": "x"})
    github.event("PullRequestEvent", action="closed", number=1, pull_request={"number": 1}, at="2026-03-01T02:00:00Z")
    github.event("PullRequestEvent", action="closed", number=2, pull_request={"number": 2}, at="2026-03-01T02:00:01Z")
    github.event("PullRequestEvent", action="closed", number=3, pull_request={"number": 3}, at="2026-03-01T02:00:02Z")
    github.event("PullRequestEvent", action="merged", number=4, pull_request={"number": 4}, at="2026-03-01T02:00:03Z")
    github.pull(1, "merged", "2026-03-01T02:00:00Z")
    github.pull(2, "only closed")
    github.pull(3, "merged hours later", "2026-03-01T05:00:00Z")  # 4 does not exist any more
    entries = await poller.poll()
    assert titles(entries) == ["merged", "only closed", "merged hours later", "pull request #4", "merged", "pull request #4"]
    assert [(entry["event"], entry["number"]) for entry in entries[4:]] == [("pr_merged", 1), ("pr_merged", 4)]
    assert entries[5]["url"] == f"https://github.com/{REPO}/pull/4"
    assert [request.path.rpartition("/")[2] for request in github.requests[1:]] == ["events", "pulls", "4"]


async def test_a_pull_request_that_cannot_be_read_now_is_reported_later(github: FakeGitHub) -> None:
    poller = Poller(github, events="pr_merged")
    await poller.poll()
    github.pull(1, "merged", "2026-03-01T00:00:01Z")
    github.event("PullRequestEvent", action="closed", number=1, pull_request={"number": 1})
    github.fail(502, path="/pulls")
    assert titles(await poller.poll(2)) == ["merged"]
    assert await poller.poll() == []


@pytest.mark.parametrize(
    ("status", "environ", "reason"),
    [
        (401, {"GITHUB_TOKEN": "t"}, "GitHub does not accept the token in GITHUB_TOKEN."),
        (404, {}, "GitHub has no repository owner/name, or it is private and GITHUB_TOKEN is not set."),
        (404, {"GITHUB_TOKEN": "t"}, "GitHub has no repository owner/name, or the token in GITHUB_TOKEN cannot read it."),
        (403, {"GITHUB_TOKEN": "t"}, "GitHub does not allow the token in GITHUB_TOKEN to read owner/name."),
        (422, {}, "GitHub answered 422 to a request about owner/name."),
        (200, {"GITHUB_TOKEN": "two\nlines"}, "The value of GITHUB_TOKEN is not a valid token: it contains invalid characters."),
    ],
)
async def test_an_error_that_a_person_must_fix_is_described(github: FakeGitHub, status: int, environ: dict[str, str], reason: str) -> None:
    poller = Poller(github, environ=environ)
    if status != 200:
        github.fail(status)
    with pytest.raises(SourceBroken) as raised:
        await poller.poll()
    assert str(raised.value) == reason


async def test_the_token_is_sent_only_to_the_configured_address(github: FakeGitHub) -> None:
    github.token = "secret-token"
    async with FakeGitHub() as other:
        poller = Poller(github, environ={"MINE": "secret-token\n"}, token_env="MINE", events="push")
        await poller.poll()
        github.push()
        github.fail(302, Location=f"{other.url}/repos/{REPO}/events?per_page=100&page=1")
        await poller.poll()
        assert other.requests and all("authorization" not in request.headers for request in other.requests)
    assert kinds(await poller.poll()) == ["push"]
    assert "secret" not in poller.stored


async def test_a_renamed_repository_is_still_watched(github: FakeGitHub) -> None:
    poller = Poller(github, events="push,ci_failed", branch="main")
    await poller.poll()
    github.moved = True
    github.push()
    assert kinds(await poller.poll()) == ["push"]


async def test_texts_are_shortened_and_invalid_links_are_removed(github: FakeGitHub) -> None:
    poller = Poller(github, events="issue_opened")
    await poller.poll()
    issue = {"number": 1, "title": "x" * 10_000, "body": "\ud800" + "y" * 10_000, "html_url": "javascript:alert(1)"}
    github.event("IssuesEvent", action="opened", issue=issue, login="z" * 600)
    (entry,) = await poller.poll()
    assert [len(str(entry[name])) for name in ("title", "text", "author")] == [500, 500, 500]
    assert entry["url"] == ""
    assert poller.events[0].summary == f"{REPO}: issue_opened #1"


async def test_malformed_items_are_ignored(github: FakeGitHub) -> None:
    poller = Poller(github)
    await poller.poll()
    github.events += [{}, {"id": "1"}, {"id": "2", "created_at": "yesterday"}, {"id": "3", "created_at": "2026-03-01T00:00:00Z"}]
    opened = {"id": "4", "created_at": "2026-03-01T00:00:00Z", "type": "IssuesEvent", "payload": {"action": "opened"}}
    github.events += [None, 7, [], opened]  # type: ignore[list-item]
    github.runs += [{}, {"id": 1, "updated_at": "2026-03-01T00:00:00Z", "head_branch": "main"}]
    assert kinds(await poller.poll()) == ["issue_opened", "ci_complete"]


async def test_a_state_of_another_branch_is_not_used(github: FakeGitHub) -> None:
    poller = Poller(github, events="ci_complete")
    await poller.poll()
    github.run(1, "2026-03-01T01:00:00Z")
    assert await Poller(github, poller.stored, events="ci_complete", branch="main").poll() == []


@pytest.mark.parametrize(
    "config",
    [{}, {"repo": "name"}, {"repo": "a/.."}, {"repo": "a/b/c"}, {"repo": "a/b?c"}, {"events": "push,stars"}, {"interval_seconds": "5"}],
)
def test_an_invalid_configuration_is_rejected(config: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        open_source({"repo": REPO, **config} if config else {}, {}, lambda: 0)


def test_only_a_loopback_server_allows_a_short_interval() -> None:
    source = open_source({"repo": REPO, "interval_seconds": "1"}, {}, lambda: 0, base_url="http://127.0.0.1:9")
    assert isinstance(source, GitHubSource) and source.interval == 1
