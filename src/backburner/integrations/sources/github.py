"""The GitHub source: polls the REST API for events of one repository and observes GitHub's rate limits.

Events are remembered by id, so none is lost or reported twice after an error; the state of a list changes only when all of it was read.
The token is sent only to the configured address. Responses are treated as data: only a few short fields become part of an event.
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
MAX_PAGES = 3  # of 100 items; GitHub keeps no more events
MAX_SEEN_IDS = 1_000  # remembered per list; older items are recognised by their time
MAX_EVENTS = 100  # GitHub events in one trigger event
MAX_TEXT_LENGTH = 500  # characters
MAX_RESPONSE_BYTES = 16 << 20
MIN_INTERVAL = 30  # seconds
MAX_WAIT = 7_200.0  # seconds, even if GitHub asks for more
MAX_BACKOFF = 900.0  # seconds

_RUNS = frozenset({"ci_complete", "ci_failed"})
_FAILED = frozenset({"failure", "timed_out", "cancelled", "startup_failure"})
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
_RUN_FIELDS = {"number": "run_number", "attempt": "run_attempt", "branch": "head_branch", "conclusion": "conclusion", "workflow": "name"}
_KIND_OF = {
    ("PullRequestEvent", "opened"): "pr_opened",
    ("PullRequestEvent", "closed"): "pr_merged",  # unless it was closed without a merge; see `_is_merged`
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


class _TemporaryError(Exception):
    """A temporary error. `retry_after` is in seconds; if `rate_limited`, no request may be sent before that."""

    def __init__(self, reason: str, retry_after: float = 0.0, *, rate_limited: bool = False) -> None:
        super().__init__(reason)
        self.retry_after, self.rate_limited = retry_after, rate_limited


class _Answer(NamedTuple):
    body: object
    etag: str | None
    has_more: bool  # there is a next page


class _Feed(NamedTuple):
    """A list that the API has for a repository. If `by_time`, it is sorted and new items are on its first pages."""

    name: str
    path: str
    query: dict[str, str]
    by_time: bool


class _NewItems(NamedTuple):
    """The new state of a feed, its new items with their times, and whether new items may be on pages that were not read."""

    state: State
    items: list[tuple[str, object]]
    incomplete: bool


class GitHubSource:
    """A source of events of one repository. `trouble` is the temporary error of the last poll, or None."""

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
        """Yield every event since `state`, with the events of one poll combined. Raises SourceBroken if a person has to act."""
        last: State = state if state.get("repo") == self.repo else {"repo": self.repo, "feeds": {}}
        failures = 0
        api = self._open_api()
        async with api.client:
            if isinstance(not_before := last.get("not_before"), int) and (wait := (not_before - self._clock()) / 1000) > 0:
                await self._sleep(min(wait, MAX_WAIT))
            while True:
                feeds, entries, incomplete, trouble = await self._poll(api, _mapping(last.get("feeds")))
                self.trouble, failures = (str(trouble), failures + 1) if trouble else (None, 0)
                delay = self._delay(api, trouble, failures)
                current: State = {"repo": self.repo, "feeds": feeds}
                if trouble and trouble.rate_limited:
                    current["not_before"] = self._clock() + round(delay * 1000)
                if current != last:
                    last = current
                    yield copy.deepcopy(last), self._trigger_event(entries, incomplete) if entries else None
                await self._sleep(min(delay, MAX_WAIT))

    def _delay(self, api: "_Api", trouble: _TemporaryError | None, failures: int) -> float:
        """Return the seconds until the next poll."""
        if trouble is None:
            return max(self.interval, api.poll_interval, api.rate_limit_interval())
        backoff = min(self.interval * 2.0 ** min(failures - 1, 10), MAX_BACKOFF)
        return trouble.retry_after if trouble.rate_limited else max(trouble.retry_after, backoff)

    async def _poll(self, api: "_Api", known: Mapping[str, object]) -> tuple[State, list[Entry], bool, _TemporaryError | None]:
        """Read each feed once. Return the states, the new entries, whether they are incomplete, and a temporary error.

        A feed that fails keeps its state.
        """
        api.requests = 0
        feeds: State = {feed.name: known[feed.name] for feed in self._feeds if feed.name in known}
        entries: list[tuple[str, Entry]] = []
        incomplete, trouble = False, None
        for feed in self._feeds:
            try:
                news = await _read_feed(api, feed, _mapping(known.get(feed.name)))
                found = await self._event_entries(api, news) if feed.name == "events" else self._run_entries(news)
            except _TemporaryError as error:
                trouble = error
                if error.rate_limited:
                    break
                continue
            feeds[feed.name], incomplete = news.state, incomplete or news.incomplete
            entries += found
        entries.sort(key=lambda timed: timed[0])
        return feeds, [{**entry, "at": at} for at, entry in entries], incomplete, trouble

    def _trigger_event(self, entries: list[Entry], incomplete: bool) -> TriggerEvent:
        """Combine the newest entries, in order of time, into one event. The summary contains no text from GitHub users."""
        payload: dict[str, object] = {"repo": self.repo, "events": entries[-MAX_EVENTS:], "more": max(0, len(entries) - MAX_EVENTS)}
        if incomplete:
            payload["incomplete"] = True
        if len(entries) == 1:
            summary = f"{entries[0]['event']} #{entries[0].get('number', '')}".removesuffix(" #")
        else:
            counts = Counter(str(entry["event"]) for entry in entries)
            summary = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
        return TriggerEvent(f"{self.repo}: {summary}", payload)

    def _run_entries(self, news: _NewItems) -> list[tuple[str, Entry]]:
        """Return entries for completed Actions runs. A failed run is a `ci_failed`, or a `ci_complete` if only that is requested."""
        found = []
        for at, run in news.items:
            kind = "ci_failed" if "ci_failed" in self.events and _at(run, "conclusion") in _FAILED else "ci_complete"
            if kind in self.events and self.branch in (None, _at(run, "head_branch")):
                entry = _entry(kind, run, _at(run, "display_title") or _at(run, "name"), _at(run, "html_url"), _at(run, "actor", "login"))
                found.append((at, entry | _non_empty({name: _at(run, field) for name, field in _RUN_FIELDS.items()})))
        return found

    async def _event_entries(self, api: "_Api", news: _NewItems) -> list[tuple[str, Entry]]:
        """Return entries for the requested events."""
        events = [(at, event, kind) for at, event in news.items if (kind := self._kind(event)) in self.events]
        # GitHub omits most fields of a pull request from its events, even whether it was merged.
        pull_events = [event for _, event, kind in events if kind.startswith("pr_")]
        without_title = {_number(event) for event in pull_events if not _at(event, "payload", "pull_request", "title")}
        pulls = await self._fetch_pulls(api, without_title - {0})
        found = []
        for at, event, kind in events:
            pull = _mapping(_at(event, "payload", "pull_request")) | _mapping(pulls.get(_number(event)))
            if kind != "pr_merged" or _is_merged(event, pull, at):
                found.append((at, self._event_entry(event, kind, pull)))
        return found

    def _kind(self, event: object) -> str:
        ref, name = _at(event, "payload", "ref"), str(_at(event, "type"))
        if name == "PushEvent":
            return "push" if self.branch is None or ref == f"refs/heads/{self.branch}" else ""
        return _KIND_OF.get((name, str(_at(event, "payload", "action"))), "")

    def _event_entry(self, event: object, kind: str, pull: Mapping[str, object]) -> Entry:
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
        return _entry(kind, event, title, url, author) | _non_empty(more)

    async def _fetch_pulls(self, api: "_Api", numbers: Collection[int]) -> dict[int, object]:
        """Return pull requests by number: recently updated ones from a list, others one by one. Deleted ones are omitted."""
        found: dict[int, object] = {}
        query = {"state": "all", "sort": "updated", "direction": "desc"}
        for page in range(1, MAX_PAGES + 1 if numbers else 0):
            answer = await api.get(f"/repos/{self.repo}/pulls", query, page)
            listed = answer.body if answer and isinstance(answer.body, list) else []
            found |= {number: pull for pull in listed if isinstance(number := _at(pull, "number"), int) and number in numbers}
            if answer is None or not answer.has_more or len(found) == len(numbers):
                break
        for number in set(numbers) - found.keys():
            with suppress(SourceBroken):
                answer = await api.get(f"/repos/{self.repo}/pulls/{number}")
                found[number] = answer.body if answer else None
        return found


class _Api:
    """The GitHub REST API for one repository. Keeps the rate limits that GitHub returns."""

    def __init__(self, base_url: str, repo: str, token_env: str, environ: Mapping[str, str], clock: Clock) -> None:
        self.requests, self.poll_interval = 0, 0.0
        self._remaining, self._reset_at = None, 0.0
        self._repo, self._token_env, self._environ, self._clock = repo, token_env, environ, clock
        self.client = httpx2.AsyncClient(base_url=base_url, timeout=30, follow_redirects=True, trust_env=not _is_loopback(base_url))

    def rate_limit_interval(self) -> float:
        """Return the seconds between polls with which the remaining requests last until the rate limit is reset."""
        until_reset = self._reset_at - self._clock() / 1000
        if self._remaining is None or until_reset <= 0:
            return 0.0
        polls = self._remaining // max(self.requests, 1)
        return until_reset / polls if polls else until_reset + 1

    async def get(self, path: str, query: Mapping[str, str] | None = None, page: int = 0, etag: str | None = None) -> _Answer | None:
        """Send one request. Return None if the response is unchanged since `etag`."""
        token = (self._environ.get(self._token_env) or "").strip()
        if not (token.isascii() and token.isprintable()):
            raise SourceBroken(f"The value of {self._token_env} is not a valid token: it contains invalid characters.")
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
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise _TemporaryError(f"GitHub's response for {self._repo} is larger than {MAX_RESPONSE_BYTES} bytes.")
        except httpx2.HTTPError as error:
            raise _TemporaryError(f"GitHub cannot be reached: {error or type(error).__name__}") from error
        self.poll_interval = _seconds(response.headers.get("X-Poll-Interval")) or self.poll_interval
        if (remaining := _seconds(response.headers.get("X-RateLimit-Remaining"))) is not None:
            self._remaining, self._reset_at = int(remaining), _seconds(response.headers.get("X-RateLimit-Reset")) or 0.0
        if response.status_code == 304:
            return None
        if response.status_code != 200:
            raise self._http_error(response, bytes(body), bool(token), "actions/runs" in path)
        try:
            return _Answer(json.loads(body), response.headers.get("ETag"), 'rel="next"' in response.headers.get("Link", ""))
        except (ValueError, RecursionError) as error:
            raise _TemporaryError(f"GitHub's response for {self._repo} is not valid JSON.") from error

    def _http_error(self, response: httpx2.Response, body: bytes, authorized: bool, reads_runs: bool) -> Exception:
        status, headers, token = response.status_code, response.headers, self._token_env
        retry_after = _seconds(headers.get("Retry-After"), self._clock() / 1000)
        limit_reached = headers.get("X-RateLimit-Remaining") == "0"
        if status == 429 or (status == 403 and (retry_after is not None or limit_reached or b"rate limit" in body.lower())):
            if retry_after is None:
                retry_after = self._reset_at - self._clock() / 1000 + 1 if limit_reached and self._reset_at else 60.0
            return _TemporaryError("GitHub's rate limit is reached.", min(max(retry_after, 1.0), MAX_WAIT), rate_limited=True)
        if status >= 500 or status in (408, 425) or status < 400:
            return _TemporaryError(f"GitHub answered {status}.", min(retry_after or 0.0, MAX_WAIT))
        if status == 401 and authorized:
            return SourceBroken(f"GitHub does not accept the token in {token}.")
        if status == 401:
            return SourceBroken(f"GitHub requires a token in {token}.")
        if status in (404, 410, 451):
            hidden = f"the token in {token} cannot read it" if authorized else f"it is private and {token} is not set"
            return SourceBroken(f"GitHub has no repository {self._repo}, or {hidden}.")
        if status == 403 and reads_runs:
            return SourceBroken(
                f"GitHub does not allow the token in {token} to read the Actions runs of {self._repo}."
                " Remove ci_complete and ci_failed from its events, or grant the permission."
            )
        if status == 403:
            return SourceBroken(f"GitHub does not allow the token in {token} to read {self._repo}.")
        return SourceBroken(f"GitHub answered {status} to a request about {self._repo}.")


def open_source(
    config: Mapping[str, str], environ: Mapping[str, str], clock: Clock, *, base_url: str = GITHUB, sleep: Sleep = asyncio.sleep
) -> GitHubSource:
    """Open the source for `config`: `repo`, `events`, `branch` (for pushes and CI), `interval_seconds`, `token_env`.

    The token is read from `environ` at each request. A public repository needs none.
    """
    repo, interval, token_env = config.get("repo", ""), config.get("interval_seconds", "60"), config.get("token_env") or "GITHUB_TOKEN"
    if not _REPO.fullmatch(repo):
        raise BadInput(f"'{repo}' is not a repository; write owner/name.")
    events = frozenset(name.strip() for name in config.get("events", "").split(",") if name.strip()) or frozenset(KINDS)
    if unknown := sorted(events - set(KINDS)):
        raise BadInput(f"'{unknown[0]}' is not a GitHub event; use {', '.join(KINDS)}.")
    minimum = 1 if _is_loopback(base_url) else MIN_INTERVAL
    if not (interval.isascii() and interval.isdecimal() and minimum <= int(interval[:9]) <= 86_400):
        raise BadInput(f"'{interval}' is not a valid `interval_seconds`; use a number from {minimum} to 86400.")
    api = partial(_Api, base_url, repo, token_env, environ, clock)
    return GitHubSource(repo, events, config.get("branch") or None, float(interval), api, clock, sleep)


async def _read_feed(api: _Api, feed: _Feed, known: Mapping[str, object]) -> _NewItems:
    """Read the new items of a feed. The first read only records the present items and returns none."""
    is_first = known.get("query") != feed.query
    state = {} if is_first else known
    seen = {str(key): str(at) for key, at in _mapping(state.get("seen")).items()}
    seen_until = str(state.get("floor") or "")  # items up to this time count as seen
    etags = [tag if isinstance(tag, str) else None for tag in stored] if isinstance(stored := state.get("etags"), list) else []
    items: list[tuple[str, object]] = []
    newest, more, page, changed = "", True, 0, False
    while more and page < MAX_PAGES:
        answer = await api.get(feed.path, feed.query, page + 1, etags[page] if page < len(etags) else None)
        page, new, size = page + 1, 0, 0
        if answer is None:
            more = page < len(etags)
        else:
            etags[page - 1 : page], more, changed, newest = [answer.etag], answer.has_more, True, ""
            for key, at, item in _items(feed, answer.body):
                newest, size = max(newest, at), size + 1
                if at > seen_until and key not in seen:
                    seen[key], new = at, new + 1
                    items.append((at, item))
        if feed.by_time and not new:
            break
    else:
        if is_first and more:  # items on later pages are older
            seen_until = newest
    if not changed and not is_first:
        return _NewItems(dict(known), [], False)
    if len(seen) > MAX_SEEN_IDS:
        seen_until = sorted(seen.values())[-MAX_SEEN_IDS - 1]
        seen = {key: at for key, at in seen.items() if at > seen_until}
    new_state: State = {"query": feed.query, "etags": etags, "seen": seen, "floor": seen_until}
    return _NewItems(new_state, [] if is_first else items, more and 0 < size == new and not is_first)


def _items(feed: _Feed, body: object) -> list[tuple[str, str, object]]:
    """Return the items of a response with their ids and times. Items without an id or a time are omitted."""
    items = body if feed.by_time else _at(body, "workflow_runs")
    if not isinstance(items, list):
        raise _TemporaryError("GitHub's response does not contain the requested list.")
    found = []
    for item in items:
        at = _time(_at(item, "created_at" if feed.by_time else "updated_at"))
        if (key := _at(item, "id")) and at:
            key = f"{key}" if feed.by_time else f"{key}.{_at(item, 'run_attempt') or 1}"
            found.append((_text(key), at.strftime("%Y-%m-%dT%H:%M:%SZ"), item))
    return found


def _is_merged(event: object, pull: Mapping[str, object], at: str) -> bool:
    """Return whether the event that closed a pull request is a merge."""
    if _at(event, "payload", "action") == "merged" or _at(event, "payload", "pull_request", "merged") is True:
        return True
    merged_at, closed_at = _time(pull.get("merged_at")), _time(at)
    # The pull request may have been closed by this event and merged later.
    return bool(merged_at and closed_at and merged_at.timestamp() <= closed_at.timestamp() + 60)


def _entry(kind: str, item: object, title: object, url: object, author: object) -> Entry:
    link = _text(url) if isinstance(url, str) and url.startswith(("https://", "http://")) else ""
    return {"event": kind, "id": _text(_at(item, "id")), "title": _text(title), "url": link, "author": _text(author)}


def _non_empty(fields: Mapping[str, object]) -> Entry:
    return {name: value if isinstance(value, int) else _text(value) for name, value in fields.items() if value not in (None, "")}


def _number(event: object) -> int:
    """Return the number of the pull request or issue of an event, or 0."""
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
    """Convert to a text of limited length that can be encoded as UTF-8."""
    text = "" if value is None else str(value).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str | None, now: float | None = None) -> float | None:
    """Parse a header that is a number of seconds. With `now`, it may also be a date, which is returned as seconds from now."""
    if text and text.strip().isdecimal():
        return float(text.strip()[:12])
    try:
        return parsedate_to_datetime(text).timestamp() - now if text and now is not None else None
    except (ValueError, OverflowError):
        return None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
