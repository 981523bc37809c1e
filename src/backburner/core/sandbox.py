"""How a command runs that nobody approved: what it can see, write and reach. Pure."""

import functools
from enum import StrEnum

from backburner.core import light_json as json
from backburner.core.light_typing import NamedTuple


class Level(StrEnum):
    """What kind of sandbox this machine offers."""

    FULL = "full"  # bubblewrap: files, processes and network
    PARTIAL = "partial"  # Landlock and seccomp: the project is read-only
    NONE = "none"  # every command needs approval


class View(StrEnum):
    """What a command may do in its project."""

    WRITABLE = "writable"
    COPY = "copy"  # it changes a copy; the changes are applied when a person approves them
    READ_ONLY = "read-only"


class Network(StrEnum):
    NONE = "none"
    LISTEN = "listen"  # it can listen on TCP ports, and connect only to the ports in `connect`
    OPEN = "open"


class Support(NamedTuple):
    """What this machine offers. `reason` says why it is not more."""

    level: Level = Level.NONE
    bubblewrap: str | None = None
    overlay: bool = False  # a copy of the project can be given without copying it
    listen: bool = False  # the network can be limited to listening
    reason: str = ""

    def text(self) -> str:
        """For `doctor` and `status`."""
        match self.level:
            case Level.FULL:
                missing = [] if self.overlay else ["projects that are not trusted are read-only"]
                missing += [] if self.listen else ["servers need approval"]
                limits = f" ({'; '.join(missing)}: {self.reason})" if missing else ""
                return f"full, with {self.bubblewrap}{limits}"
            case Level.PARTIAL:
                return f"partial, with Landlock: projects are read-only ({self.reason})"
            case _:
                return f"none: every command needs approval ({self.reason})"


class Sandbox(NamedTuple):
    """The sandbox of one run. `project` is None if the command runs outside of every project."""

    level: Level
    project: str | None
    view: View
    git: bool = False  # the git folder is writable, for a single git command that was read completely
    network: Network = Network.NONE
    connect: tuple[int, ...] = ()
    processes: bool = False  # it can see the processes and ports of the machine
    read: tuple[str, ...] = ()  # further files and folders that it can read
    sockets: tuple[str, ...] = ()  # sockets of services that it can use
    stores: bool = False  # a request to this machine that was read completely, and whose answer is stored in the project

    @property
    def only_known_programs(self) -> bool:
        """Whether it permits more than the code of a project may have, because the command was read completely."""
        reads = self.network is Network.LISTEN and self.view is View.READ_ONLY
        return self.git or self.processes or self.network is Network.OPEN or reads or self.stores or bool(self.sockets)

    def to_json(self) -> str:
        return json.dumps({name: value for name, value in self._asdict().items() if value not in (None, False, ())})

    def text(self) -> str:
        """What the command could touch, for people."""
        if self.project is None:
            files = "no project"
        elif self.view is View.COPY:
            files = f"a copy of {self.project}"
        else:
            files = f"{self.project} {'writable' if self.view is View.WRITABLE else 'read-only'}"
        if self.git:
            files += " with its git folder"
        network = {Network.NONE: "no network", Network.LISTEN: "can listen on ports", Network.OPEN: "with network"}[self.network]
        if self.connect:
            network += f", connects to port {', '.join(map(str, self.connect))}"
        return f"{self.level}: {files}; {network}"


@functools.lru_cache(64)
def sandbox_from(text: str) -> Sandbox:
    """The sandbox that `to_json` described."""
    fields = json.loads(text)
    return Sandbox(
        Level(fields["level"]),
        fields.get("project"),
        View(fields["view"]),
        fields.get("git", False),
        Network(fields["network"]),
        tuple(fields.get("connect", ())),
        fields.get("processes", False),
        tuple(fields.get("read", ())),
        tuple(fields.get("sockets", ())),
        fields.get("stores", False),
    )
