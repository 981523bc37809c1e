"""The web interface with 10,000 tasks, a log of 100,000 lines, 50 live runs and ten tabs, in a real browser.

The browser is the one of the tests (`scripts/browser`). Without it, or without playwright, only the figures of the server are measured.
"""

import contextlib
import importlib.util
import json
import operator
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from backburner import BackburnerSync
from backburner.interfaces.web.page import assets, compressed
from bench import throughput
from bench.cpu_time import cpu_milliseconds
from bench.home import LAUNCHER, PYTHON, BenchHome, scratch_folder, wait_until
from bench.million import fill
from bench.rounds import Figures, run_rounds

TASKS, LINES, LIVE, TABS = 10_000, 100_000, 50, 10
NO_OPS = 1000
_SETS = 4
_QUIET_SECONDS = 2.0
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_LOG = f"for n in range({LINES}): print(f'\\033[3{{n % 8}}mline {{n}}\\033[0m', 'needle' if n % 4 == 0 else 'hay')"
_BUSY = "import time\nwhile True: print(time.time(), flush=True); time.sleep(0.5)"
_STAMPS = "import time\nwhile True: print('stamp', time.time(), flush=True); time.sleep(0.1)"
# 5,000 lines a second for four seconds, when the page is open.
_FLOOD = """
import os, time
while not os.path.exists("go"): time.sleep(0.01)
for n in range(400):
    print("\\n".join(f"stamp {time.time()} {m}" for m in range(50)), flush=True)
    time.sleep(0.01)
time.sleep(600)
"""
# The time of each paint of a stamp, minus the stamp: what is drawn is read in the frame in which it appears.
_WATCH_STAMPS = """() => {
  window.delays = []; let last = 0;
  const look = () => {
    let newest = 0;
    for (const line of document.querySelectorAll('.log-line .t')) {
      const stamp = Number(/^stamp ([0-9.]+)/.exec(line.textContent)?.[1]);
      newest = Math.max(newest, stamp || 0);
    }
    if (newest > last) { last = newest; delays.push(Date.now() - newest * 1000); }
    requestAnimationFrame(look);
  };
  look();
}"""
# The time after the frame with a new row was painted: a message that is posted in a frame arrives when the frame is done.
_WATCH_ROWS = """() => {
  window.seen = {}; const found = new Set(), {port1, port2} = new MessageChannel();
  port1.onmessage = ({data}) => { for (const id of data) seen[id] = Date.now(); };
  const look = () => {
    const ids = [...document.querySelectorAll('main a[href^="/t/"]')].map(link => link.pathname.slice(3)).filter(id => !found.has(id));
    for (const id of ids) found.add(id);
    if (ids.length) port2.postMessage(ids);
    requestAnimationFrame(look);
  };
  look();
}"""
_FIRST_ROW = (
    "const look = () => document.querySelector('.row') ? (window.firstRow = performance.now()) : requestAnimationFrame(look);"
    "if (location.host) look();"  # not in the empty page, which is the one to compare with
)
_FRAMES = """async () => {
  const times = []; let before = performance.now();
  for (let step = 0; step < 60; step++) {
    scrollBy(0, 400);
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - before); before = performance.now();
  }
  return times.sort((a, b) => a - b)[Math.floor(times.length * 0.95)];
}"""
_FILTER = """async () => {
  const box = document.querySelector('input[type=search], .filters input');
  const start = performance.now();
  box.value = 'copy_99'; box.dispatchEvent(new Event('input', {bubbles: true}));
  const shown = () => [...document.querySelectorAll('main a[href^="/t/"]')];
  while (!shown().length || shown().some(link => !link.href.includes('copy_99'))) await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def measure(rounds: int) -> list[Figures]:
    """Return milliseconds, MB and bytes by name."""
    with scratch_folder() as folder, BenchHome(folder, concurrent=LIVE + 30) as home:
        fill(home, TASKS)
        log = home.cli("run", "--wait", "--yes", "--", PYTHON, "-c", _LOG) and _last(home)
        return run_rounds({"web": lambda: _round(home, log)}, rounds, warm_up=False)


def _engine_figures() -> Figures:
    """What the engine needs for 1,000 no-ops, five at a time, with a client of the stream and with the board in a browser, against without.

    1,000, because a run of 300 takes 0.7 s, of which the first changes, that are painted at once, would be the larger part. Each run with
    somebody who watches is divided by the one without in the same set; the order changes with every set, and the figure is the median of
    all sets. The server runs all the time: without clients it does nothing. Before each run it is quiet for longer than the longest pause
    of the stream. CPU time is that of everything that the benchmark has started, the browser included.
    """
    browser = _browser()
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (
        cpu_milliseconds() as used,
        scratch_folder() as folder,
        BenchHome(folder, throughput.WIDTH) as home,
        BackburnerSync.open(home.root) as library,
        _server(home) as (server, _),
        _pages(browser, server) if browser else contextlib.nullcontext() as open_page,
    ):
        page = open_page("/") if open_page else None
        watchers: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {"": contextlib.nullcontext}
        watchers["stream"] = lambda: contextlib.closing(_stream(server))
        if page:
            board = page.url
            page.goto("about:blank")
            watchers["page"] = lambda: _shown(page, board)
        throughput.submit_all(library, home)  # starts the engine
        for number in range(_SETS):
            for name, watched in list(watchers.items())[:: -1 if number % 2 else 1]:
                with watched():
                    time.sleep(_QUIET_SECONDS)
                    before = used() if used else 0
                    found[name, "time"].append(throughput.submit_all(library, home, NO_OPS))
                    if used:
                        found[name, "CPU"].append(used() - before)
    ratios = {key: map(operator.truediv, values, found["", key[1]]) for key, values in found.items() if key[0]}
    return {f"engine, {name} {kind}": statistics.median(values) for (name, kind), values in ratios.items()}


@contextlib.contextmanager
def _shown(page: Any, board: str) -> Iterator[None]:
    """The board in a browser that shows an empty page before and afterwards."""
    page.goto(board)
    page.locator(".connection", has_text="live").wait_for()
    page.wait_for_timeout(1500)  # until the other views are loaded, too
    yield
    page.goto("about:blank")


def _last(home: BenchHome) -> str:
    return json.loads(home.cli("list", "--all", "--limit", "1", "--json"))[0]["task_id"]


def _round(home: BenchHome, log: str) -> Figures:
    figures = _sizes()
    with _server(home) as (server, start_ms):
        figures |= {"server start": start_ms} | _server_figures(home, server, log)
        if browser := _browser():
            with _pages(browser, server) as open_page:
                figures |= _page_figures(home, server, open_page, log, start_ms)
    return figures | _engine_figures()


def _sizes() -> Figures:
    """The sizes of what the first view needs, and of all views, in kB."""
    files = assets().files
    figures: Figures = {}
    for kind, first in (("JS", "app.js"), ("CSS", "app.css")):
        all_files = [asset.content for path, asset in files.items() if path.endswith(first[3:])]
        figures |= {kind: len(files[first].content) / 1000, f"{kind}, gzip": len(compressed(files[first].content)) / 1000}
        figures[f"{kind}, all"] = sum(map(len, all_files)) / 1000
    return figures


class _Server:
    """A web interface, and requests with the token of its home."""

    def __init__(self, home: BenchHome, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.home, self.port, self.process = home, port, process
        self.address = f"http://127.0.0.1:{port}"

    @property
    def token(self) -> str:
        return (self.home.root / "token").read_text().strip()

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.address}/api/v1{path}", headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def milliseconds(self, path: str, times: int = 15) -> float:
        """The median time of a request."""
        found = []
        for _ in range(times):
            start = time.perf_counter()
            self.get(path)
            found.append((time.perf_counter() - start) * 1000)
        return statistics.median(found)

    @property
    def pid(self) -> int:
        """The process that serves, which the command at the terminal has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid

    def memory(self) -> float:
        """The memory of the serving process in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1000

    def wake_ups(self) -> int:
        """How often all threads of the serving process were scheduled so far."""
        found = 0
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            status = (thread / "status").read_text()
            found += sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)
        return found


@contextlib.contextmanager
def _server(home: BenchHome) -> Iterator[tuple[_Server, float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [LAUNCHER, "web", "--no-open", "--port", str(port)]
    start = time.perf_counter()
    process = subprocess.Popen(command, env=home.environ, cwd=home.cwd, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    server = _Server(home, port, process)
    try:
        wait_until(lambda: _answers(port), "the web interface", 60)
        yield server, (time.perf_counter() - start) * 1000
    finally:
        serving = server.pid
        process.terminate()
        process.wait(30)
        wait_until(lambda: not os.path.exists(f"/proc/{serving}"), "the server to exit")  # the next round uses the same home
        if process.stdin:
            process.stdin.close()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
        return True
    return False


def _server_figures(home: BenchHome, server: _Server, log: str) -> Figures:
    figures = {
        "board": server.milliseconds("/board"),
        "filter, server": server.milliseconds("/tasks?q=copy_99&limit=100"),
        "tail": server.milliseconds(f"/runs/{log}/log?tail=200"),
        "jump": server.milliseconds(f"/runs/{log}/log?line={LINES // 2}&lines=200"),
        "find all": server.milliseconds(f"/runs/{log}/log/search?q=needle&limit=10000", 5),
    }
    before = server.memory()
    streams = [_stream(server) for _ in range(TABS)]
    figures |= {"RSS": before, "RSS per client": (server.memory() - before) / TABS}
    for stream in streams:
        stream.close()
    time.sleep(1)
    start, begun = server.wake_ups(), time.monotonic()
    time.sleep(10)
    figures["wake-ups"] = (server.wake_ups() - start) / (time.monotonic() - begun)
    return figures


def _stream(server: _Server) -> socket.socket:
    """A client of the live stream that has received its beginning."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = f"GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    client.sendall(head.encode())
    assert select.select([client], [], [], 30)[0] and client.recv(4096)
    return client


# -- in the browser


def _browser() -> str | None:
    """The path of the browser; None if it or playwright is not installed."""
    if importlib.util.find_spec("playwright") is None:
        print("playwright is not installed; the figures of the page are skipped", file=sys.stderr)
        return None
    found = next((path for name in (os.environ.get("BACKBURNER_BROWSER"), *_BROWSERS) if name and (path := shutil.which(name))), None)
    if found is None:
        print("no browser is installed (scripts/browser); the figures of the page are skipped", file=sys.stderr)
    return found


@contextlib.contextmanager
def _pages(browser: str, server: _Server) -> Iterator[Any]:
    """A function that opens a page of the web interface, in a fresh context or as another tab of one."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--enable-precise-memory-info"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=arguments)
        home = f"http://backburner.localhost:{server.port}"

        def open_page(path: str, context: Any = None) -> Any:
            if context is None:
                context = started.new_context(viewport={"width": 1280, "height": 800})
                context.set_default_timeout(60_000)
                context.add_init_script(_FIRST_ROW)
                first = context.new_page()
                first.goto(home)
                # The token takes the place of the credential of a paired page.
                keep = "token => import(document.querySelector('script[type=module]').src).then(net => net.keepCredential(token))"
                first.evaluate(keep, server.token)
                first.close()
            page = context.new_page()
            page.goto(home + path)
            page.locator(".connection", has_text="live").wait_for()
            return page

        yield open_page
        started.close()


def _page_figures(home: BenchHome, server: _Server, open_page: Any, log: str, start_ms: float) -> Figures:
    board = open_page("/")
    figures: Figures = {}
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    figures["paint"] = board.evaluate(paint)
    figures["start and paint"] = start_ms + figures["paint"]
    board.wait_for_function("() => window.firstRow")
    figures["rows"] = board.evaluate("firstRow")
    figures["requests"] = board.evaluate(f"performance.getEntriesByType('resource').filter(entry => entry.startTime < {paint}).length + 1")
    figures["filter"] = board.evaluate(_FILTER)
    board.goto(board.url.partition("?")[0])
    board.locator(".connection", has_text="live").wait_for()
    figures["frame p95"] = board.evaluate(_FRAMES)
    figures["heap"] = board.evaluate("performance.memory.usedJSHeapSize") / 1e6
    output = open_page(f"/t/{log}", board.context)
    output.locator(".log-line").first.wait_for()
    figures["heap, log"] = output.evaluate("performance.memory.usedJSHeapSize") / 1e6
    output.close()
    figures |= _live_figures(home, server, board, open_page)
    start = time.perf_counter()
    tabs = [open_page("/", board.context) for _ in range(TABS - 1)]
    figures["ten tabs"] = (time.perf_counter() - start) * 1000
    for tab in tabs:
        tab.close()
    board.context.close()
    return figures


def _live_figures(home: BenchHome, server: _Server, board: Any, open_page: Any) -> Figures:
    """How long after an event or a line it is painted, while 50 commands print."""
    for _ in range(LIVE):
        home.cli("run", "--yes", "--", PYTHON, "-c", _BUSY)
    filtered = open_page("/?q=painted", board.context)
    filtered.evaluate(_WATCH_ROWS)
    for _ in range(20):
        home.cli("run", "--yes", "--description", "painted", "--", "sleep", "600")
    rows = {item["task_id"]: item["created_at"] for item in server.get("/tasks?limit=20")["items"]}
    filtered.wait_for_function("ids => ids.every(id => id in seen)", arg=list(rows))
    seen = filtered.evaluate("seen")
    made = board.evaluate("rows => Object.fromEntries(Object.entries(rows).map(([id, at]) => [id, Date.parse(at)]))", rows)
    delays = sorted(seen[task_id] - made[task_id] for task_id in rows)
    figures = {"event p50": statistics.median(delays), "event p99": delays[-1]}
    for name, code in (("line", _STAMPS), ("flood", _FLOOD)):
        home.cli("run", "--yes", "--", PYTHON, "-c", code)
        page = open_page(f"/t/{_last(home)}", board.context)
        page.evaluate(_WATCH_STAMPS)
        (home.cwd / "go").touch()
        page.wait_for_function("() => delays.length >= 20")
        (home.cwd / "go").unlink()
        delays = page.evaluate("delays")[1:]
        figures |= {f"{name} p50": statistics.median(delays), f"{name} worst": max(delays)}
        page.close()
    running = [item["task_id"] for item in server.get("/tasks?status=running&limit=200")["items"]]
    home.cli("cancel", *running)
    return figures
