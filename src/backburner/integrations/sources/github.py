"""Watches a repository on GitHub by asking its REST API again and again, as politely as GitHub wants it.

What was seen is known by its id, so nothing is lost or told twice whatever fails between; a list counts only as a whole. The
token goes nowhere but into requests to the one address, and what GitHub says is data: only a few short fields of it go on.
"""

import asyncio
import copy
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx2

from backburner.core.errors import BadInput
from backburner.core.models import Clock
from backburner.core.ports import TriggerEvent
from backburner.integrations.sources import SourceBroken

GITHUB = "https://api.github.com"
KINDS = ("push", "pr_opened", "pr_review", "pr_merged", "ci_complete", "ci_failed", "issue_opened", "issue_comment", "release")
MOST_PAGES = 3  # of a hundred: of events, GitHub has no more
MOST_SEEN = 1_000  # ids that are remembered of a list; what is older than those is known by its time
MOST_EVENTS = 100  # in a happening
MOST_TEXT = 500  # characters
MOST_BYTES = 16 << 20  # of an answer
LEAST_INTERVAL = 30  # seconds
LONGEST_WAIT = 7_200.0  # seconds, whatever GitHub asks for
LONGEST_BACKOFF = 900.0  # seconds

_RUNS = frozenset({"ci_complete", "ci_failed"})
_FAILED = frozenset({"failure", "timed_out", "cancelled", "startup_failure"})
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
_OF_RUN = {"number": "run_number", "attempt": "run_attempt", "branch": "head_branch", "conclusion": "conclusion", "workflow": "name"}
_KIND_OF = {
    ("PullRequestEvent", "opened"): "pr_opened",
    ("PullRequestEvent", "closed"): "pr_merged",  # unless it was closed without
    ("PullRequestEvent", "merged"): "pr_merged",
    ("PullRequestReviewEvent", "created"): "pr_review",
    ("PullRequestReviewEvent", "submitted"): "pr_review",
    ("IssuesEvent", "opened"): "issue_opened",
    ("IssueCommentEvent", "created"): "issue_comment",
    ("ReleaseEvent", "published"): "release",
}

State = dict[str, object]
Entry = dict[str, object]
Sleep = Callable[[float], Awaitable[object]]


class _Trouble(Exception):
    """No answer this time. `retry_after` is in seconds; where it `limits`, GitHub wants to be left alone until then."""

    def __init__(self, reason: str, retry_after: float = 0.0, *, limits: bool = False) -> None:
        super().__init__(reason)
        self.retry_after, self.limits = retry_after, limits


class _Answer(NamedTuple):
    body: object
    etag: str | None
    more: bool  # whether there is a next page


class _Feed(NamedTuple):
    """A list that GitHub keeps of a repository. Where it is `by_time`, whatever is new is on its first pages."""

    name: str
    path: str
    query: dict[str, str]
    by_time: bool


class _News(NamedTuple):
    """What to remember of a feed, what is new in it (with its time), and whether there was more than the pages that were read."""

    state: State
    items: list[tuple[str, object]]
    incomplete: bool


class GitHubSource:
    """A source of events of one repository. `trouble` says why it has to ask again, where it has to."""

    def __init__(
        self, repo: str, events: frozenset[str], branch: str | None, interval: float, api: "Callable[[], _Api]", clock: Clock, sleep: Sleep
    ) -> None:
        self.repo, self.events, self.branch, self.interval = repo, events, branch, interval
        self.trouble: str | None = None
        self._open_api, self._clock, self._sleep = api, clock, sleep
        runs = {"status": "completed"} | ({"branch": branch} if branch else {})
        self._feeds = [_Feed("events", f"/repos/{repo}/events", {}, True)] if events - _RUNS else []
        self._feeds += [_Feed("runs", f"/repos/{repo}/actions/runs", runs, False)] if events & _RUNS else []

    async def watch(self, state: dict[str, object]) -> AsyncGenerator[tuple[dict[str, object], TriggerEvent | None], None]:
        """Every event since `state`, those of one poll together. Raises SourceBroken where a person has to do something."""
        kept: State = state if state.get("repo") == self.repo else {"repo": self.repo, "feeds": {}}
        failures = 0
        api = self._open_api()
        async with api.client:
            if isinstance(until := kept.get("not_before"), int) and (early := (until - self._clock()) / 1000) > 0:
                await self._sleep(min(early, LONGEST_WAIT))
            while True:
                feeds, entries, incomplete, trouble = await self._poll(api, _mapping(kept.get("feeds")))
                self.trouble, failures = (str(trouble), failures + 1) if trouble else (None, 0)
                delay = self._delay(api, trouble, failures)
                fresh: State = {"repo": self.repo, "feeds": feeds}
                if trouble and trouble.limits:
                    fresh["not_before"] = self._clock() + round(delay * 1000)
                if fresh != kept:
                    kept = fresh
                    yield copy.deepcopy(kept), self._happening(entries, incomplete) if entries else None
                await self._sleep(min(delay, LONGEST_WAIT))

    def _delay(self, api: "_Api", trouble: _Trouble | None, failures: int) -> float:
        """Seconds until the next poll."""
        if trouble is None:
            return max(self.interval, api.poll_interval, api.spread())
        backoff = min(self.interval * 2.0 ** min(failures - 1, 10), LONGEST_BACKOFF)
        return trouble.retry_after if trouble.limits else max(trouble.retry_after, backoff)

    async def _poll(self, api: "_Api", known: Mapping[str, object]) -> tuple[State, list[Entry], bool, _Trouble | None]:
        """Ask once for each feed; one that fails stays as it was. What to remember, what is new, and what went wrong."""
        api.requests = 0
        feeds: State = {feed.name: known[feed.name] for feed in self._feeds if feed.name in known}
        entries: list[tuple[str, Entry]] = []
        incomplete, trouble = False, None
        for feed in self._feeds:
            try:
                news = await _read(api, feed, _mapping(known.get(feed.name)))
                found = await self._told(api, news) if feed.name == "events" else self._ran(news)
            except _Trouble as error:
                trouble = error
                if error.limits:
                    break
                continue
            feeds[feed.name], incomplete = news.state, incomplete or news.incomplete
            entries += found
        entries.sort(key=lambda one: one[0])
        return feeds, [{**entry, "at": at} for at, entry in entries], incomplete, trouble

    def _happening(self, entries: list[Entry], incomplete: bool) -> TriggerEvent:
        """The newest of them, the oldest first. No word of the summary is somebody else's."""
        payload: dict[str, object] = {"repo": self.repo, "events": entries[-MOST_EVENTS:], "more": max(0, len(entries) - MOST_EVENTS)}
        counted = Counter(str(entry["event"]) for entry in entries)
        many = ", ".join(f"{counted[kind]} {kind}" for kind in KINDS if counted[kind])
        one = f"{entries[0]['event']} #{entries[0].get('number', '')}".removesuffix(" #")
        return TriggerEvent(f"{self.repo}: {one if len(entries) == 1 else many}", payload | ({"incomplete": True} if incomplete else {}))

    def _ran(self, news: _News) -> list[tuple[str, Entry]]:
        """The runs of Actions that ended. A failed one is told as such, or as complete where only that is asked for."""
        found = []
        for at, run in news.items:
            kind = "ci_failed" if "ci_failed" in self.events and _at(run, "conclusion") in _FAILED else "ci_complete"
            if kind in self.events and self.branch in (None, _at(run, "head_branch")):
                entry = _entry(kind, run, _at(run, "display_title") or _at(run, "name"), _at(run, "html_url"), _at(run, "actor", "login"))
                found.append((at, entry | _some({name: _at(run, field) for name, field in _OF_RUN.items()})))
        return found

    async def _told(self, api: "_Api", news: _News) -> list[tuple[str, Entry]]:
        """The events that are asked for."""
        events = [(at, event, kind) for at, event in news.items if (kind := self._kind(event)) in self.events]
        # GitHub leaves most of a pull request out of its events, even whether it was merged.
        short = {_number(one) for _, one, kind in events if kind.startswith("pr_") and not _at(one, "payload", "pull_request", "title")}
        pulls = await self._pulls(api, short - {0})
        found = []
        for at, event, kind in events:
            pull = _mapping(_at(event, "payload", "pull_request")) | _mapping(pulls.get(_number(event)))
            if kind != "pr_merged" or _merged(event, pull, at):
                found.append((at, self._described(event, kind, pull)))
        return found

    def _kind(self, event: object) -> str:
        ref, name = _at(event, "payload", "ref"), str(_at(event, "type"))
        if name == "PushEvent":
            return "push" if self.branch is None or ref == f"refs/heads/{self.branch}" else ""
        return _KIND_OF.get((name, str(_at(event, "payload", "action"))), "")

    def _described(self, event: object, kind: str, pull: Mapping[str, object]) -> Entry:
        payload, page = _at(event, "payload"), f"https://github.com/{self.repo}"
        author, number = _at(event, "actor", "login"), _number(event)
        if kind == "push":
            branch, head = str(_at(payload, "ref") or "").removeprefix("refs/heads/"), _at(payload, "head")
            title, url, more = f"push to {branch}", f"{page}/commit/{head}", {"branch": branch, "commit": head}
        elif kind in ("issue_opened", "issue_comment"):
            title, text = _at(payload, "issue", "title"), _at(payload, "comment" if kind == "issue_comment" else "issue", "body")
            url = _at(payload, "comment", "html_url") or _at(payload, "issue", "html_url") or f"{page}/issues/{number}"
            more = {"number": number, "text": text}
        elif kind == "release":
            title, url = _at(payload, "release", "name") or _at(payload, "release", "tag_name"), _at(payload, "release", "html_url")
            more = {"tag": _at(payload, "release", "tag_name"), "text": _at(payload, "release", "body")}
        else:
            title = pull.get("title") or f"pull request #{number}"
            url = _at(payload, "review", "html_url") or pull.get("html_url") or f"{page}/pull/{number}"
            more = {"number": number, "branch": _at(pull, "head", "ref"), "base": _at(pull, "base", "ref")}
            more |= {"conclusion": _at(payload, "review", "state"), "text": _at(payload, "review", "body")}
        return _entry(kind, event, title, url, author) | _some(more)

    async def _pulls(self, api: "_Api", numbers: Collection[int]) -> dict[int, object]:
        """Pull requests by their numbers: those that moved last at once, others one by one. One that is gone is left out."""
        found: dict[int, object] = {}
        query = {"state": "all", "sort": "updated", "direction": "desc"}
        for page in range(1, MOST_PAGES + 1 if numbers else 0):
            answer = await api.get(f"/repos/{self.repo}/pulls", query, page)
            listed = answer.body if answer and isinstance(answer.body, list) else []
            found |= {number: pull for pull in listed if isinstance(number := _at(pull, "number"), int) and number in numbers}
            if answer is None or not answer.more or len(found) == len(numbers):
                break
        for number in set(numbers) - found.keys():
            with suppress(SourceBroken):
                answer = await api.get(f"/repos/{self.repo}/pulls/{number}")
                found[number] = answer.body if answer else None
        return found


class _Api:
    """GitHub's REST API for one repository, and what it says about how often it may be asked."""

    def __init__(self, base_url: str, repo: str, token_env: str, environ: Mapping[str, str], clock: Clock) -> None:
        self.requests, self.poll_interval = 0, 0.0
        self._remaining, self._reset_at = None, 0.0
        self._repo, self._token_env, self._environ, self._clock = repo, token_env, environ, clock
        self.client = httpx2.AsyncClient(base_url=base_url, timeout=30, follow_redirects=True, trust_env=not _loopback(base_url))

    def spread(self) -> float:
        """Seconds between polls such that what may still be asked lasts until there is more."""
        left = self._reset_at - self._clock() / 1000
        if self._remaining is None or left <= 0:
            return 0.0
        polls = self._remaining // max(self.requests, 1)
        return left / polls if polls else left + 1

    async def get(self, path: str, query: Mapping[str, str] | None = None, page: int = 0, etag: str | None = None) -> _Answer | None:
        """One answer; None where it is still that of `etag`."""
        token = (self._environ.get(self._token_env) or "").strip()
        if not (token.isascii() and token.isprintable()):
            raise SourceBroken(f"What is in {self._token_env} is no token: it has characters that no token has.")
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28", "User-Agent": "backburner"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {"If-None-Match": etag} if etag else {}
        pages = {"per_page": "100", "page": str(page)} if page else {}
        self.requests += 1
        try:
            async with self.client.stream("GET", path, params={**(query or {}), **pages}, headers=headers) as response:
                body = bytearray()
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise _Trouble(f"GitHub's answer about {self._repo} is larger than {MOST_BYTES} bytes.")
        except httpx2.HTTPError as error:
            raise _Trouble(f"GitHub cannot be reached: {error or type(error).__name__}") from error
        self.poll_interval = _seconds(response.headers.get("X-Poll-Interval")) or self.poll_interval
        if (remaining := _seconds(response.headers.get("X-RateLimit-Remaining"))) is not None:
            self._remaining, self._reset_at = int(remaining), _seconds(response.headers.get("X-RateLimit-Reset")) or 0.0
        if response.status_code == 304:
            return None
        if response.status_code != 200:
            raise self._refusal(response, bytes(body), bool(token), "actions/runs" in path)
        try:
            return _Answer(json.loads(body), response.headers.get("ETag"), 'rel="next"' in response.headers.get("Link", ""))
        except (ValueError, RecursionError) as error:
            raise _Trouble(f"GitHub's answer about {self._repo} is no JSON.") from error

    def _refusal(self, response: httpx2.Response, body: bytes, authorized: bool, of_runs: bool) -> Exception:
        status, headers, token = response.status_code, response.headers, self._token_env
        after = _seconds(headers.get("Retry-After"), self._clock() / 1000)
        spent = headers.get("X-RateLimit-Remaining") == "0"
        if status == 429 or (status == 403 and (after is not None or spent or b"rate limit" in body.lower())):
            if after is None:
                after = self._reset_at - self._clock() / 1000 + 1 if spent and self._reset_at else 60.0
            return _Trouble("GitHub wants to be asked less often.", min(max(after, 1.0), LONGEST_WAIT), limits=True)
        if status >= 500 or status in (408, 425) or status < 400:
            return _Trouble(f"GitHub answers {status}.", min(after or 0.0, LONGEST_WAIT))
        if status == 401:
            return SourceBroken(f"GitHub does not accept the token in {token}." if authorized else f"GitHub wants a token in {token}.")
        if status in (404, 410, 451):
            hidden = f"the token in {token} may not see it" if authorized else f"it is private and {token} is not set"
            return SourceBroken(f"GitHub has no repository {self._repo}, or {hidden}.")
        if status == 403:
            instead = " Leave ci_complete and ci_failed out of its events, or allow it." if of_runs else ""
            return SourceBroken(f"GitHub does not let the token in {token} read that of {self._repo}.{instead}")
        return SourceBroken(f"GitHub answers {status} to what is asked about {self._repo}.")


def open_source(
    config: Mapping[str, str], environ: Mapping[str, str], clock: Clock, *, base_url: str = GITHUB, sleep: Sleep = asyncio.sleep
) -> GitHubSource:
    """The source that `config` describes: `repo`, `events`, `branch` (of pushes and CI), `interval_seconds`, `token_env`.

    The token is read from `environ` at each request; there may be none for a public repository.
    """
    repo, interval, token_env = config.get("repo", ""), config.get("interval_seconds", "60"), config.get("token_env") or "GITHUB_TOKEN"
    if not _REPO.fullmatch(repo):
        raise BadInput(f"'{repo}' is no repository; write owner/name.")
    events = frozenset(name.strip() for name in config.get("events", "").split(",") if name.strip()) or frozenset(KINDS)
    if unknown := sorted(events - set(KINDS)):
        raise BadInput(f"'{unknown[0]}' is no event of GitHub; those are {', '.join(KINDS)}.")
    least = 1 if _loopback(base_url) else LEAST_INTERVAL
    if not (interval.isascii() and interval.isdecimal() and least <= int(interval[:9]) <= 86_400):
        raise BadInput(f"'{interval}' is no `interval_seconds`; it is a number from {least} to 86400.")
    api = partial(_Api, base_url, repo, token_env, environ, clock)
    return GitHubSource(repo, events, config.get("branch") or None, float(interval), api, clock, sleep)


async def _read(api: _Api, feed: _Feed, known: Mapping[str, object]) -> _News:
    """What is new in a feed; nothing of one that is read for the first time."""
    first = known.get("query") != feed.query
    state = {} if first else known
    seen, floor = {str(key): str(at) for key, at in _mapping(state.get("seen")).items()}, str(state.get("floor") or "")
    etags = [tag if isinstance(tag, str) else None for tag in listed] if isinstance(listed := state.get("etags"), list) else []
    items: list[tuple[str, object]] = []
    newest, more, page, changed = "", True, 0, False
    while more and page < MOST_PAGES:
        answer = await api.get(feed.path, feed.query, page + 1, etags[page] if page < len(etags) else None)
        page, new, size = page + 1, 0, 0
        if answer is None:
            more = page < len(etags)
        else:
            etags[page - 1 : page], more, changed, newest = [answer.etag], answer.more, True, ""
            for key, at, item in _listed(feed, answer.body):
                newest, size = max(newest, at), size + 1
                if at > floor and key not in seen:
                    seen[key], new = at, new + 1
                    items.append((at, item))
        if feed.by_time and not new:
            break
    else:
        if first and more:  # what is on later pages is older
            floor = newest
    if not changed and not first:
        return _News(dict(known), [], False)
    if len(seen) > MOST_SEEN:
        floor = sorted(seen.values())[-MOST_SEEN - 1]
        seen = {key: at for key, at in seen.items() if at > floor}
    fresh: State = {"query": feed.query, "etags": etags, "seen": seen, "floor": floor}
    return _News(fresh, [] if first else items, more and 0 < size == new and not first)


def _listed(feed: _Feed, body: object) -> list[tuple[str, str, object]]:
    """The items of an answer with their ids and times; without those that have none."""
    items = body if feed.by_time else _at(body, "workflow_runs")
    if not isinstance(items, list):
        raise _Trouble("GitHub's answer is not what was asked for.")
    found = []
    for item in items:
        at = _time(_at(item, "created_at" if feed.by_time else "updated_at"))
        if (key := _at(item, "id")) and at:
            key = f"{key}" if feed.by_time else f"{key}.{_at(item, 'run_attempt') or 1}"
            found.append((_text(key), at.strftime("%Y-%m-%dT%H:%M:%SZ"), item))
    return found


def _merged(event: object, pull: Mapping[str, object], at: str) -> bool:
    """Whether an event that tells of an end tells of a merge."""
    if _at(event, "payload", "action") == "merged" or _at(event, "payload", "pull_request", "merged") is True:
        return True
    merged, told = _time(pull.get("merged_at")), _time(at)
    # It may have been closed before, and merged later.
    return bool(merged and told and merged.timestamp() <= told.timestamp() + 60)


def _entry(kind: str, item: object, title: object, url: object, author: object) -> Entry:
    link = _text(url) if isinstance(url, str) and url.startswith(("https://", "http://")) else ""
    return {"event": kind, "id": _text(_at(item, "id")), "title": _text(title), "url": link, "author": _text(author)}


def _some(fields: Mapping[str, object]) -> Entry:
    return {name: value if isinstance(value, int) else _text(value) for name, value in fields.items() if value not in (None, "")}


def _number(event: object) -> int:
    """Of a pull request or an issue; 0 where it is of none."""
    payload = _at(event, "payload")
    numbers = (_at(payload, "pull_request", "number"), _at(payload, "issue", "number"), _at(payload, "number"))
    return next((number for number in numbers if isinstance(number, int)), 0)


def _at(item: object, *names: str) -> object:
    for name in names:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _mapping(item: object) -> dict[str, object]:
    return item if isinstance(item, dict) else {}


def _text(value: object) -> str:
    """Short, and fit to be written as UTF-8."""
    text = "" if value is None else str(value).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str | None, now: float | None = None) -> float | None:
    """A header's number; with `now`, it may also be a date, and the answer is how far off that is."""
    if text and text.strip().isdecimal():
        return float(text.strip()[:12])
    try:
        return parsedate_to_datetime(text).timestamp() - now if text and now is not None else None
    except (ValueError, OverflowError):
        return None


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
