"""The GitHub source, against a server on loopback: every event is told once, whoever was away, and GitHub's wishes are kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from fake_github import REPO, FakeGitHub

from backburner.core.errors import BadInput
from backburner.core.ports import TriggerEvent
from backburner.integrations.sources import SourceBroken
from backburner.integrations.sources.github import KINDS, MOST_BYTES, GitHubSource, open_source

NOW = 1_772_323_200  # 2026-03-01T00:00:00Z, in seconds
Entry = dict[str, object]


@pytest.fixture
async def github() -> AsyncIterator[FakeGitHub]:
    async with FakeGitHub() as server:
        yield server


class Host:
    """Polls as the host does, one by one: its sleep returns at once, and what is told is kept as JSON."""

    def __init__(self, github: FakeGitHub, kept: str = "{}", environ: dict[str, str] | None = None, **config: str) -> None:
        self.kept = kept
        self.slept: list[float] = []
        self.happenings: list[TriggerEvent] = []
        self.states = 0
        self._polls = 0
        self.source = open_source({"repo": REPO, **config}, environ or {}, lambda: 1000 * NOW, base_url=github.url, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._polls -= 1
        if self._polls <= 0:
            raise asyncio.CancelledError

    async def poll(self, times: int = 1) -> list[Entry]:
        """That many polls (or waits before one) of a host that then is killed; the events that it was told."""
        self._polls = times
        told: list[Entry] = []
        try:
            async with asyncio.timeout(20), aclosing(self.source.watch(json.loads(self.kept))) as seen:
                async for state, happening in seen:
                    self.kept = json.dumps(state, ensure_ascii=False).encode().decode()
                    self.states += 1
                    if happening:
                        self.happenings.append(happening)
                        json.dumps(happening.payload, ensure_ascii=False).encode()
                        told += happening.payload["events"]  # type: ignore[operator]
        except asyncio.CancelledError:
            pass
        return told


def kinds(entries: list[Entry]) -> list[object]:
    return [entry["event"] for entry in entries]


def titles(entries: list[Entry]) -> list[object]:
    return [entry["title"] for entry in entries]


async def test_the_very_first_time_the_present_is_only_taken_down(github: FakeGitHub) -> None:
    github.push()
    github.run(1, "2026-03-01T00:00:01Z")
    host = Host(github)
    assert await host.poll() == []
    assert host.states == 1


async def test_a_repository_in_which_nothing_ever_happened_is_watched_as_well(github: FakeGitHub) -> None:
    host = Host(github)
    assert await host.poll() == []
    github.push()
    github.run(1, "2026-03-01T00:00:01Z")
    assert sorted(map(str, kinds(await host.poll()))) == ["ci_complete", "push"]


async def test_events_missed_while_everything_was_down_are_seen_once(github: FakeGitHub) -> None:
    github.push("old")
    first = Host(github)
    await first.poll()
    github.push("one")
    github.run(7, "2026-03-01T00:00:03Z", "failure")
    github.push("two")
    second = Host(github, first.kept)
    told = await second.poll(3)
    assert [(entry["event"], entry.get("branch")) for entry in told] == [("push", "one"), ("push", "two"), ("ci_failed", "main")]
    assert [one.summary for one in second.happenings] == [f"{REPO}: 2 push, 1 ci_failed"]
    assert await Host(github, second.kept).poll(2) == []


async def test_what_was_told_but_not_kept_is_told_again_and_never_lost(github: FakeGitHub) -> None:
    host = Host(github)
    await host.poll()
    github.push()
    for _ in range(3):  # killed between being told and keeping it
        assert kinds(await Host(github, host.kept).poll()) == ["push"]
    assert kinds(await host.poll()) == ["push"]
    assert await host.poll() == []


async def test_all_nine_kinds_are_recognised(github: FakeGitHub) -> None:
    host = Host(github)
    await host.poll()
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
    told = await host.poll()
    order = ["push", "pr_opened", "pr_review", "pr_merged", "issue_opened", "issue_comment", "release", "ci_complete", "ci_failed"]
    assert kinds(told) == order and set(order) == set(KINDS)
    by = {str(entry["event"]): entry for entry in told}
    assert by["pr_opened"] == {
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
    assert (by["push"]["branch"], by["push"]["commit"]) == ("dev", "abc123")
    assert (by["pr_review"]["conclusion"], by["pr_review"]["text"]) == ("approved", "Good.")
    assert (by["issue_comment"]["author"], by["issue_comment"]["text"], by["issue_comment"]["number"]) == ("bob", "Me too", 6)
    assert (by["release"]["title"], by["release"]["tag"]) == ("v1", "v1")
    assert (by["ci_failed"]["conclusion"], by["ci_failed"]["workflow"], by["ci_failed"]["title"]) == ("timed_out", "tests", "run 2")
    assert [asked.page for asked in github.asked[2:]] == ["events1:200", "runs1:200"]  # all that is needed was there


async def test_what_is_not_asked_for_is_not_told(github: FakeGitHub) -> None:
    host = Host(github, events="ci_failed, push", branch="main")
    await host.poll()
    github.push("dev")
    github.event("IssuesEvent", action="opened", issue={"number": 1, "title": "x"})
    github.event("WatchEvent", action="started")
    github.run(1, "2026-03-01T01:00:00Z")
    github.run(2, "2026-03-01T01:00:01Z", "failure", branch="dev")
    assert await host.poll() == []
    github.push("main")
    github.run(3, "2026-03-01T01:00:02Z", "cancelled")
    assert kinds(await host.poll()) == ["push", "ci_failed"]


async def test_only_the_lists_that_are_needed_are_asked_for(github: FakeGitHub) -> None:
    await Host(github, events="ci_complete").poll()
    await Host(github, events="push").poll()
    assert [asked.page for asked in github.asked] == ["runs1:200", "events1:200"]


async def test_a_failed_run_is_complete_where_only_that_is_asked_for(github: FakeGitHub) -> None:
    host = Host(github, events="ci_complete")
    await host.poll()
    github.run(2, "2026-03-01T01:00:01Z", "failure")
    assert [(entry["event"], entry["conclusion"]) for entry in await host.poll()] == [("ci_complete", "failure")]


async def test_a_304_changes_nothing(github: FakeGitHub) -> None:
    github.push()
    github.run(1, "2026-03-01T00:00:01Z")
    host = Host(github)
    await host.poll()
    kept, states = host.kept, host.states
    assert await host.poll(3) == []
    assert (host.kept, host.states) == (kept, states)
    assert [asked.page for asked in github.asked[2:]] == ["events1:304", "runs1:304"] * 3


async def test_a_run_that_ends_late_and_one_that_is_run_again_are_told(github: FakeGitHub) -> None:
    github.per_page = 2
    for number in range(10, 15):
        github.run(number, f"2026-03-01T00:00:{number}Z")
    host = Host(github, events="ci_complete")
    await host.poll()
    github.run(9, "2026-03-01T00:10:00Z")  # began before all others
    github.run(12, "2026-03-01T00:11:00Z", attempt=2)
    told = await host.poll(2)
    assert [(entry["id"], entry["attempt"]) for entry in told] == [("9", 1), ("12", 2)]
    assert [asked.page for asked in github.asked[-3:]] == ["runs1:304", "runs2:304", "runs3:304"]


async def test_pages_are_followed_up_to_a_bound(github: FakeGitHub) -> None:
    github.per_page = 10
    for _ in range(100):
        github.push("old")
    host = Host(github, events="push")
    await host.poll()
    assert [asked.page for asked in github.asked] == ["events1:200", "events2:200", "events3:200"]
    for number in range(15):
        github.push(f"new{number}")
    assert [entry["branch"] for entry in await host.poll()] == [f"new{number}" for number in range(15)]
    assert [asked.page for asked in github.asked[3:]] == ["events1:200", "events2:200", "events3:200"]
    assert "incomplete" not in host.happenings[-1].payload
    for number in range(50):
        github.push(f"newer{number}")
    assert [entry["branch"] for entry in await host.poll()] == [f"newer{number}" for number in range(20, 50)]
    assert host.happenings[-1].payload["incomplete"] is True
    assert len(github.asked) == 9
    assert await host.poll(2) == []


async def test_a_happening_has_at_most_100_events_and_says_how_many_there_were_before(github: FakeGitHub) -> None:
    host = Host(github, events="push")
    await host.poll()
    for number in range(130):
        github.push(f"b{number}")
    assert [entry["branch"] for entry in await host.poll()] == [f"b{number}" for number in range(30, 130)]
    assert host.happenings[0].payload["more"] == 30
    assert host.happenings[0].summary == f"{REPO}: 130 push"


async def test_what_is_remembered_stays_bounded_and_still_nothing_is_told_twice(github: FakeGitHub) -> None:
    host = Host(github, events="push")
    await host.poll()
    for number in range(2_400):
        github.push(f"b{number}")
        if number % 240 == 239:
            assert len(host.happenings) == number // 240
            await host.poll()
    assert sum(len(one.payload["events"]) + one.payload["more"] for one in host.happenings) == 2_400  # type: ignore[arg-type, operator]
    assert len(json.loads(host.kept)["feeds"]["events"]["seen"]) <= 1_000
    assert len(host.kept) < 100_000


async def test_retry_after_is_kept_even_by_the_next_host(github: FakeGitHub) -> None:
    host = Host(github)
    await host.poll()
    github.push()
    github.fail(403, Retry_After="77")
    assert kinds(await host.poll(2)) == ["push"]
    assert host.slept[1:] == [77.0, 60.0]
    github.push()
    github.fail(429, Retry_After="90")
    assert await host.poll() == []
    later = Host(github, host.kept)
    assert kinds(await later.poll(2)) == ["push"]
    assert later.slept == [90.0, 60.0]


async def test_a_limit_that_is_used_up_is_waited_for(github: FakeGitHub) -> None:
    host = Host(github, events="push")
    await host.poll()
    github.push()
    github.fail(403, X_RateLimit_Remaining="0", X_RateLimit_Reset=str(NOW + 1200))
    github.fail(403, body=b'{"message": "You have exceeded a secondary rate limit"}')
    github.fail(429, Retry_After="Sun, 01 Mar 2026 00:02:00 GMT")
    assert kinds(await host.poll(4)) == ["push"]
    assert host.slept[1:4] == [1201.0, 60.0, 120.0]


async def test_what_is_left_of_a_limit_lasts_until_there_is_more(github: FakeGitHub) -> None:
    github.extra = {"X-RateLimit-Remaining": "20", "X-RateLimit-Reset": str(NOW + 3000)}
    host = Host(github)
    await host.poll()
    assert host.slept == [300.0]  # two requests each time


async def test_it_asks_no_more_often_than_github_wants(github: FakeGitHub) -> None:
    github.extra = {"X-Poll-Interval": "180"}
    host = Host(github, events="push")
    await host.poll(2)
    assert host.slept == [180.0, 180.0]


async def test_failures_are_tried_again_more_and_more_slowly_and_lose_nothing(github: FakeGitHub) -> None:
    host = Host(github, events="push")
    await host.poll()
    github.push("missed")
    github.fail(502, times=3)
    github.fail(0)
    github.fail(200, body=b"<html>")
    github.fail(200, body=b'{"message": "not a list"}')
    github.fail(503, Retry_After="1000")
    github.fail(200, body=b" " * (MOST_BYTES + 1))
    told = await host.poll(9)
    assert [entry["branch"] for entry in told] == ["missed"]
    assert host.slept[1:] == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 1000.0, 900.0, 60.0]
    assert host.source.trouble is None
    assert await host.poll() == []


async def test_a_first_poll_that_fails_takes_nothing_down(github: FakeGitHub) -> None:
    github.push("old")
    github.fail(500, times=2)
    host = Host(github, events="push")
    assert await host.poll(2) == []
    assert (host.states, host.source.trouble) == (0, "GitHub answers 500.")
    assert await host.poll() == []
    github.push("new")
    assert [entry["branch"] for entry in await host.poll()] == ["new"]


async def test_a_list_that_fails_half_way_is_read_again_as_a_whole(github: FakeGitHub) -> None:
    github.per_page = 10
    host = Host(github, events="push")
    await host.poll()
    for number in range(15):
        github.push(f"b{number}")

    pages = len(github.asked)
    github.fail(200, body=json.dumps(github.events[:10]).encode(), Link='<x>; rel="next"', ETag='"1"')
    github.fail(500)
    told = await host.poll(2)
    assert [asked.page for asked in github.asked[pages:]] == ["events1:200", "events2:500", "events1:200", "events2:200"]
    assert [entry["branch"] for entry in told] == [f"b{number}" for number in range(15)]


async def test_one_list_that_fails_does_not_hold_up_the_other(github: FakeGitHub) -> None:
    host = Host(github)
    await host.poll()
    github.push()
    github.run(1, "2026-03-01T01:00:00Z")
    github.fail(500, path="/events")
    assert kinds(await host.poll()) == ["ci_complete"]
    assert kinds(await host.poll()) == ["push"]


async def test_a_server_that_is_away_is_waited_for(github: FakeGitHub) -> None:
    host = Host(github, events="push")
    await host.poll()
    async with FakeGitHub() as other:
        away = other.url
    lost = open_source({"repo": REPO, "events": "push"}, {}, lambda: 1000 * NOW, base_url=away, sleep=host._sleep)
    host.source, back = lost, host.source
    assert await host.poll(2) == []
    assert host.slept[1:] == [60.0, 120.0] and "cannot be reached" in str(lost.trouble)
    host.source = back
    github.push()
    assert kinds(await host.poll()) == ["push"]


async def test_short_pull_requests_are_completed_by_their_list(github: FakeGitHub) -> None:
    host = Host(github, events="pr_opened,pr_merged,pr_review")
    await host.poll()
    for number in (1, 2, 3, 4):
        github.event("PullRequestEvent", action="opened", number=number, pull_request={"number": number, "url": "x"})
    github.event("PullRequestEvent", action="closed", number=1, pull_request={"number": 1}, at="2026-03-01T02:00:00Z")
    github.event("PullRequestEvent", action="closed", number=2, pull_request={"number": 2}, at="2026-03-01T02:00:01Z")
    github.event("PullRequestEvent", action="closed", number=3, pull_request={"number": 3}, at="2026-03-01T02:00:02Z")
    github.event("PullRequestEvent", action="merged", number=4, pull_request={"number": 4}, at="2026-03-01T02:00:03Z")
    github.pull(1, "merged", "2026-03-01T02:00:00Z")
    github.pull(2, "only closed")
    github.pull(3, "merged hours later", "2026-03-01T05:00:00Z")  # 4 cannot be found any more
    told = await host.poll()
    assert titles(told) == ["merged", "only closed", "merged hours later", "pull request #4", "merged", "pull request #4"]
    assert [(entry["event"], entry["number"]) for entry in told[4:]] == [("pr_merged", 1), ("pr_merged", 4)]
    assert told[5]["url"] == f"https://github.com/{REPO}/pull/4"
    assert [asked.path.rpartition("/")[2] for asked in github.asked[1:]] == ["events", "pulls", "4"]


async def test_a_pull_request_that_cannot_be_looked_up_now_is_told_later(github: FakeGitHub) -> None:
    host = Host(github, events="pr_merged")
    await host.poll()
    github.pull(1, "merged", "2026-03-01T00:00:01Z")
    github.event("PullRequestEvent", action="closed", number=1, pull_request={"number": 1})
    github.fail(502, path="/pulls")
    assert titles(await host.poll(2)) == ["merged"]
    assert await host.poll() == []


@pytest.mark.parametrize(
    ("status", "environ", "reason"),
    [
        (401, {"GITHUB_TOKEN": "t"}, "GitHub does not accept the token in GITHUB_TOKEN."),
        (404, {}, "GitHub has no repository owner/name, or it is private and GITHUB_TOKEN is not set."),
        (404, {"GITHUB_TOKEN": "t"}, "GitHub has no repository owner/name, or the token in GITHUB_TOKEN may not see it."),
        (403, {"GITHUB_TOKEN": "t"}, "GitHub does not let the token in GITHUB_TOKEN read that of owner/name."),
        (422, {}, "GitHub answers 422 to what is asked about owner/name."),
        (200, {"GITHUB_TOKEN": "two\nlines"}, "What is in GITHUB_TOKEN is no token: it has characters that no token has."),
    ],
)
async def test_what_a_person_has_to_mend_is_said_plainly(github: FakeGitHub, status: int, environ: dict[str, str], reason: str) -> None:
    host = Host(github, environ=environ)
    if status != 200:
        github.fail(status)
    with pytest.raises(SourceBroken) as raised:
        await host.poll()
    assert str(raised.value) == reason


async def test_the_token_goes_to_github_and_nowhere_else(github: FakeGitHub) -> None:
    github.token = "secret-token"
    async with FakeGitHub() as other:
        host = Host(github, environ={"MINE": "secret-token\n"}, token_env="MINE", events="push")
        await host.poll()
        github.push()
        github.fail(302, Location=f"{other.url}/repos/{REPO}/events?per_page=100&page=1")
        await host.poll()
        assert other.asked and all("authorization" not in asked.headers for asked in other.asked)
    assert kinds(await host.poll()) == ["push"]
    assert "secret" not in host.kept


async def test_a_repository_that_was_renamed_is_still_watched(github: FakeGitHub) -> None:
    host = Host(github, events="push,ci_failed", branch="main")
    await host.poll()
    github.moved = True
    github.push()
    assert kinds(await host.poll()) == ["push"]


async def test_texts_are_short_and_links_are_links(github: FakeGitHub) -> None:
    host = Host(github, events="issue_opened")
    await host.poll()
    issue = {"number": 1, "title": "x" * 10_000, "body": "\ud800" + "y" * 10_000, "html_url": "javascript:alert(1)"}
    github.event("IssuesEvent", action="opened", issue=issue, login="z" * 600)
    (entry,) = await host.poll()
    assert [len(str(entry[name])) for name in ("title", "text", "author")] == [500, 500, 500]
    assert entry["url"] == ""
    assert host.happenings[0].summary == f"{REPO}: issue_opened #1"


async def test_odd_items_are_passed_over(github: FakeGitHub) -> None:
    host = Host(github)
    await host.poll()
    github.events += [{}, {"id": "1"}, {"id": "2", "created_at": "yesterday"}, {"id": "3", "created_at": "2026-03-01T00:00:00Z"}]
    opened = {"id": "4", "created_at": "2026-03-01T00:00:00Z", "type": "IssuesEvent", "payload": {"action": "opened"}}
    github.events += [None, 7, [], opened]  # type: ignore[list-item]
    github.runs += [{}, {"id": 1, "updated_at": "2026-03-01T00:00:00Z", "head_branch": "main"}]
    assert kinds(await host.poll()) == ["issue_opened", "ci_complete"]


async def test_another_repository_or_branch_starts_from_its_own_present(github: FakeGitHub) -> None:
    host = Host(github, events="ci_complete")
    await host.poll()
    github.run(1, "2026-03-01T01:00:00Z")
    assert await Host(github, host.kept, events="ci_complete", branch="main").poll() == []


@pytest.mark.parametrize(
    "config",
    [{}, {"repo": "name"}, {"repo": "a/.."}, {"repo": "a/b/c"}, {"repo": "a/b?c"}, {"events": "push,stars"}, {"interval_seconds": "5"}],
)
def test_a_source_that_cannot_be_meant_is_refused(config: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        open_source({"repo": REPO, **config} if config else {}, {}, lambda: 0)


def test_only_a_server_on_loopback_may_be_asked_often() -> None:
    source = open_source({"repo": REPO, "interval_seconds": "1"}, {}, lambda: 0, base_url="http://127.0.0.1:9")
    assert isinstance(source, GitHubSource) and source.interval == 1
