"""Operations that read the output of a run. They run outside of the thread of the services, because a log may be large."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from urllib.parse import quote

from backburner.core.errors import BadInput, TaskNotFound
from backburner.core.formatting import iso
from backburner.interfaces.web.calls import Call, Reply, limit_of
from backburner.interfaces.web.reading import find_run
from backburner.services.app import App
from backburner.services.async_app import AsyncApp
from backburner.services.log_pages import MAX_BYTES, MAX_LINES, Found, Hit, LogPage, LogPages
from backburner.system.home import write_pieces
from backburner.system.log_file import NAME, Log, LogSource, local_log, position_of
from backburner.system.run_inspection import artifact_files, find_artifact, open_artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backburner.core.host_records import RunFile
    from backburner.services.remote_run import RemoteRun
    from backburner.system.run_inspection import Artifact

_DEFAULT_BYTES = 64 << 10
_PIECE_BYTES = 256 << 10
_SEARCH_TIMEOUT_SECONDS = 10.0
_MAX_PATTERN_CHARACTERS = 1000
_SEARCH = "import sys; sys.path.insert(0, sys.argv[1]); from backburner.interfaces.web.logs import search_main; sys.exit(search_main())"


class LogQuery(TypedDict, total=False):
    cursor: str
    bytes: int
    tail: int
    line: int
    lines: int


class _SearchOptions(TypedDict, total=False):
    regex: bool
    case: bool
    after: int
    limit: int


class SearchQuery(_SearchOptions):
    q: str


class TextQuery(TypedDict, total=False):
    q: str


class FoundRun(NamedTuple):
    """Where the output of a run is."""

    run_id: str
    n: int
    folder: str
    is_live: bool
    task_id: str
    source: LogSource
    remote: "Callable[[], RemoteRun] | None" = None  # opens it if its files are on another host


def locate(app: App, call: Call) -> FoundRun:
    """The run that a request names."""
    entry, run = find_run(app, call)
    is_live = entry.is_live and entry.run is not None and entry.run.run_id == run.run_id
    source, remote = app.runs.log_source(run), app.runs.files_source(run)
    return FoundRun(run.run_id, run.n, app.home.folder(run.folder), is_live, entry.task.task_id, source, remote)


class LogReader:
    """Reads and searches logs in a small pool of threads."""

    def __init__(self) -> None:
        self._pages = LogPages()
        self._threads = ThreadPoolExecutor(2, "backburner-logs")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, function: "Callable[[], Any]") -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def log(self, async_app: AsyncApp, call: Call) -> dict[str, object]:
        """A part of the output of a run: from a cursor, the last lines, or from a line."""
        ways = [name for name in ("cursor", "tail", "line") if call.get(name) is not None]
        if len(ways) > 1:
            raise BadInput("Use only one of 'cursor', 'tail' and 'line'.")
        most, lines = call.get("bytes", _DEFAULT_BYTES), call.get("lines", 500)
        if not 1 <= most <= MAX_BYTES:
            raise BadInput(f"'bytes' must be between 1 and {MAX_BYTES}.")
        if not 1 <= lines <= MAX_LINES or not 0 <= call.get("tail", 0) <= MAX_LINES or call.get("line", 1) < 1:
            raise BadInput(f"'lines' and 'tail' must be at most {MAX_LINES}, and 'line' at least 1.")
        run = await async_app.call(lambda app: locate(app, call))
        offset = position_of(call.get("cursor", f"{max(1, run.n)}:0"), max(1, run.n))[1]

        def read() -> LogPage | None:
            try:
                if call.get("line") is not None:
                    return self._pages.from_line(run.source, call.get("line"), lines, MAX_BYTES, live=run.is_live)
                if call.get("tail") is not None:
                    return self._pages.from_end(run.source, call.get("tail"), MAX_BYTES, live=run.is_live)
                return self._pages.from_cursor(run.source, offset, most, live=run.is_live)
            except FileNotFoundError:
                return None

        page = await self._run(read)
        about = {"run_id": run.run_id, "n": run.n, "live": run.is_live, "removed": page is None and not run.is_live}
        page = page or LogPage("", offset, offset, 1, 0, 0, False)
        if page.note:
            about["note"] = page.note
        return {
            **about,
            "text": page.text,
            "start": f"{run.n}:{page.start}",
            "cursor": f"{run.n}:{page.cursor}",
            "first_line": page.first_line,
            "lines": page.text.count("\n") + (not page.text.endswith("\n") and bool(page.text)),
            "total_lines": page.total_lines,
            "size": page.size,
            "more": page.more,
        }

    async def search(self, async_app: AsyncApp, call: Call) -> dict[str, object]:
        """The lines of the output that contain a text or match a pattern."""
        text, limit = call.get("q"), limit_of(call, 1000, 10_000)
        if not text or len(text) > _MAX_PATTERN_CHARACTERS:
            raise BadInput(f"'q' must have between 1 and {_MAX_PATTERN_CHARACTERS} characters.")
        run = await async_app.call(lambda app: locate(app, call))
        options: dict[str, Any] = {
            "regex": call.get("regex", False),
            "case": call.get("case", False),
            "after": call.get("after", 0),
            "limit": limit,
        }
        try:
            if options["regex"]:
                found = await self._search_in_process(run, text, options)
            else:
                found = await self._run(lambda: self._pages.search(run.source, text, **options))
        except FileNotFoundError:
            found = Found([], 0, None)
        return {"hits": [hit._asdict() for hit in found.hits], "total": found.total, "more": found.next is not None, "next": found.next}

    async def text(self, async_app: AsyncApp, call: Call) -> Reply:
        """The whole output as a text file; with `q`, only the lines that contain it."""
        run = await async_app.call(lambda app: locate(app, call))
        try:
            log = await self._run(run.source.open)
        except FileNotFoundError:
            raise TaskNotFound(task_id=f"{run.run_id} (output)") from None
        headers = {"content-disposition": f'attachment; filename="{run.run_id}.log"'}
        return Reply(200, _pieces(log, call.get("q")), "text/plain; charset=utf-8", headers)

    async def artifacts(self, async_app: AsyncApp, call: Call) -> dict[str, object]:
        """The files that a command left in the `work/` folder of its run."""
        run = await async_app.call(lambda app: locate(app, call))
        found = await self._run(lambda: _files(run))
        return {"items": [{"name": file.name, "size": file.size, "modified_at": iso(file.modified_at)} for file in found]}

    async def artifact(self, async_app: AsyncApp, call: Call) -> Reply:
        """One of these files, as a download. Browsers never show it as a page."""
        run, name = await async_app.call(lambda app: locate(app, call)), call.path["name"]
        if run.remote:
            open_run = run.remote
            file, pieces = await self._run(lambda: _open_remote(open_run, name))
            return Reply(200, pieces, "application/octet-stream", _download_headers(name, file.size))

        def find() -> int:
            if (file := find_artifact(run.folder, name)) is None:
                raise TaskNotFound(task_id=f"{run.run_id} (file {name})")
            return open_artifact(run.folder, file)

        try:
            descriptor = await self._run(find)
        except OSError:
            raise TaskNotFound(task_id=f"{run.run_id} (file {name})") from None
        size = os.fstat(descriptor).st_size
        return Reply(200, _file_pieces(descriptor, size), "application/octet-stream", _download_headers(name, size))

    async def _search_in_process(self, run: FoundRun, text: str, options: dict[str, Any]) -> Found:
        """Search for a pattern. The log of another host is copied first, for as long as the search takes."""
        if run.remote is None:
            return await _search_in_process(run.folder, text, options)
        with tempfile.TemporaryDirectory(prefix="backburner-") as folder:
            await self._run(lambda: write_pieces(os.path.join(folder, NAME), _pieces(run.source.open(), None)))
            return await _search_in_process(folder, text, options)


def _download_headers(name: str, size: int) -> dict[str, str]:
    return {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}",
        "content-length": str(size),
        "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    }


def _files(run: FoundRun) -> "Sequence[Artifact | RunFile]":
    if run.remote is None:
        return artifact_files(run.folder)
    with contextlib.closing(run.remote()) as remote:
        return remote.files()


def _open_remote(open_run: "Callable[[], RemoteRun]", name: str) -> "tuple[RunFile, Generator[bytes]]":
    """A file of a run on another host, and its content, which closes the connection when it ends."""
    remote = open_run()
    try:
        file, content = remote.read_file(name)
    except BaseException:
        remote.close()
        raise

    def pieces() -> Generator[bytes]:
        try:
            yield from content
        finally:
            remote.close()

    return file, pieces()


def _file_pieces(descriptor: int, size: int) -> Generator[bytes]:
    """A file, exactly as long as it was; zeros in the place of what was cut off in the meantime."""
    with os.fdopen(descriptor, "rb") as file:
        while size > 0:
            piece = file.read(min(size, _PIECE_BYTES)) or bytes(min(size, _PIECE_BYTES))
            size -= len(piece)
            yield piece


def _pieces(opened: Log, containing: str | None) -> Generator[bytes]:
    with opened as log:
        start = log.body_start()
        if containing is None:
            yield from (piece for _, piece in log.chunks(start))
            return
        size = log.size
        while start < size:
            after, found = log.lines_with(containing, start, MAX_BYTES, growing=False)
            yield found
            if after <= start:
                return
            start = after


async def _search_in_process(folder: str, text: str, options: dict[str, Any]) -> Found:
    """Search for a pattern in a process of its own: some patterns take forever, and a thread could not be stopped."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-Pc", _SEARCH, source),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        request = json.dumps({"folder": folder, "text": text, **options}).encode()
        async with asyncio.timeout(_SEARCH_TIMEOUT_SECONDS):
            out, _ = await child.communicate(request)
    except TimeoutError:
        raise BadInput(f"The search for '{text}' took longer than {_SEARCH_TIMEOUT_SECONDS:g} s and was stopped.") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    answer: dict[str, Any] = json.loads(out) if out else {"error": "The search failed."}
    if "error" in answer:
        raise BadInput(answer["error"])
    return Found([Hit(*hit) for hit in answer["hits"]], answer["total"], answer["next"])


def search_main() -> int:
    """The process that searches: reads a request from standard input and prints what it found."""
    request = json.loads(sys.stdin.read())
    try:
        found = LogPages().search(
            local_log(request["folder"]),
            request["text"],
            regex=request["regex"],
            case=request["case"],
            after=request["after"],
            limit=request["limit"],
        )
        print(json.dumps(found._asdict()))
    except FileNotFoundError:
        print(json.dumps(Found([], 0, None)._asdict()))
    except BadInput as error:
        print(json.dumps({"error": str(error)}))
    return 0
