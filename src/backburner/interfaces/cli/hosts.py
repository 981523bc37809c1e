"""`join`, `migrate`, `worker` and `hosts`: a ledger on Postgres, and the hosts that share it."""

import argparse
import os

from backburner.coordination.config_file import load_config
from backburner.coordination.ledger_file import join_home_ledger, migrate_home_ledger
from backburner.core import formatting, task_text
from backburner.core.errors import BadInput
from backburner.core.ledger_url import problem_of, shown
from backburner.core.models import Caller
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.tasks import hint
from backburner.services.app import App, open_app
from backburner.system.home import Home, write_atomically
from backburner.system.paths import locate


def join(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Name a ledger in the settings, and add this home to its hosts. Its tables must exist."""
    environ = dict(os.environ)
    home = Home(locate(args.home, environ)).make()
    if problem := problem_of(args.url):
        raise BadInput(f"The address {problem}.")
    configured = load_config(home, environ, flags).text("store.url")
    if configured not in ("", args.url):
        raise BadInput(f"This home already uses the ledger {shown(configured)}. To leave it, remove `url` under [store] in {home.config}.")
    name = join_home_ledger(home, args.url, args.name or "")
    if not configured:
        _name_ledger(home, args.url)
    if args.json:
        task_text.print_json({"url": shown(args.url), "name": name, "host_id": home.host_id()})
    else:
        print(f"This home is now the host {visible(name)} of {shown(args.url)}. To check it: backburner doctor")
    return 0


def _name_ledger(home: Home, url: str) -> None:
    with open(home.config, encoding="utf-8") as file:
        before = file.read()
    quoted = url.replace("\\", "\\\\").replace('"', '\\"')
    line = f'url = "{quoted}"'
    if any(part.strip() == "[store]" for part in before.splitlines()):
        after = "\n".join(f"{part}\n{line}" if part.strip() == "[store]" else part for part in before.splitlines()) + "\n"
    else:
        after = f"{before.rstrip()}\n\n[store]\n{line}\n".lstrip()
    write_atomically(home.config, after)


def migrate(args: argparse.Namespace, flags: dict[str, str]) -> int:
    environ = dict(os.environ)
    home = Home(locate(args.home, environ)).make()
    if args.url and (problem := problem_of(args.url)):
        raise BadInput(f"The address {problem}.")
    done = migrate_home_ledger(home, load_config(home, environ, flags), args.url)
    if args.json:
        task_text.print_json(done._asdict() if done else None)
    elif done is None:
        print(
            f"The ledger of {home.root} is a file, which is upgraded when it is opened. For Postgres, set `url` under [store] in {home.config}"
        )
    elif not done.before:
        print(f"Created the tables of the ledger {done.address}.")
    elif done.before < done.after:
        print(f"Upgraded the ledger {done.address} from schema {done.before} to {done.after}.")
    else:
        print(f"The ledger {done.address} is up to date.")
    return 0


def worker(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Run the engine in the foreground with lanes, until Ctrl-C; or drain the one that is running."""
    from backburner.interfaces.cli.serve import serve
    from backburner.system.caller_identity import current_caller

    environ = dict(os.environ)
    flags = {**flags, **({"worker.lanes": ",".join(args.lane)} if args.lane else {})}
    flags |= {"worker.capacity": str(args.capacity)} if args.capacity is not None else {}
    with open_app(args.home, environ, flags) as app:
        if not app.host_id:
            raise BadInput("A worker runs tasks of other hosts, and the ledger of this home is a file. First: backburner join URL")
        if args.drain:
            app.hosts.drain(app.host_id, current_caller("cli", environ))
            hint("This host takes no more tasks of other hosts. What has begun continues.")
            return 0
        if not app.config.labels:
            raise BadInput(f"No lanes to serve: use --lane, or set `lanes` under [worker] in {app.home.config}.")
    return serve(argparse.Namespace(home=args.home, http=None), flags)


def hosts(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if args.what and not args.name:
        raise BadInput(f"Which host? backburner hosts {args.what} NAME")
    if args.what == "forget":
        lost = app.hosts.forget(args.name, caller)
        hint(f"{lost} {'run' if lost == 1 else 'runs'} of {args.name} {'is' if lost == 1 else 'are'} lost.")
        return 0
    if args.what == "drain":
        hint(f"Host {app.hosts.drain(args.name, caller).name} takes no more tasks of other hosts. What has begun continues.")
        return 0
    found = app.hosts.list()
    if args.json:
        task_text.print_json(
            [
                {
                    **host._asdict(),
                    "is_here": host.host_id == app.host_id,
                    "changed_at": formatting.iso(host.changed_at),
                    "seen_at": formatting.iso(host.seen_at),
                }
                for host in found
            ]
        )
        return 0
    if not found:
        hint("The ledger of this home is a file, which no other host uses. To share one: backburner join URL")
        return 0
    rows = [("NAME", "STATE", "LANES", "RUNS", "CAPACITY", "VERSION", "SEEN")]
    for host in found:
        state = f"{host.state}{', draining' if host.draining else ''}{', this host' if host.host_id == app.host_id else ''}"
        lanes = " ".join(host.lanes) or "-"
        row = (host.name, state, lanes, str(host.runs), str(host.capacity or "-"), host.version or "-", formatting.local_time(host.seen_at))
        rows.append(row)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        print("  ".join(visible(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0
