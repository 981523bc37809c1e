"""Tells from the end of a failed command's output whether the sandbox may be the reason. Pure.

The patterns were collected from programs that ran in the sandbox. Only what a program reports counts: warnings, failed assertions, diffs
and lines of source code are left out, because they often quote such messages. Patterns are compiled when first used.
"""

import functools
import re

from backburner.core.terminal_text import readable

NETWORK = "it could not reach the network"
SERVICE = "it could not reach a service on this machine"
WRITE = "it could not write outside its folders"
DEVICE = "it could not use a device or a container"
LOGIN = "it could not use the logins in the home folder"
LIMIT = "it started too many processes or wrote too large a file"
PROGRAM = "a program was not found in the sandbox"
USER = "it was not permitted to act as root or another user"
TRACE = "it was not permitted to trace a process"
NAMESPACE = "it was not permitted to create a sandbox or a namespace"
SOCKET = "it was not permitted to open a socket"
FILES = "it was not permitted to open a file or folder"
OPERATION = "it was not permitted to perform a system operation"

_MAX_CHARACTERS = 8_000
_MAX_LINE_CHARACTERS = 2_000
_CANNOT_EXECUTE = 126
_NOT_FOUND = 127
_FILE_SIZE_SIGNAL = (153, -25)  # SIGXFSZ, as a shell and as Python report it

_UNLESS_RETRIED = r"(?!.{0,120}(?:Retrying \(|will retry in |tries left|(?:try|tries) remaining))"
# Lines that quote a message, or that a program did not fail for. Every wildcard is bounded, because output can be long and hostile.
_IGNORED = (
    # Warnings, except those of PHP and gdb, which name the function, and those about downloads, which may be all there is for minutes.
    r"^\W{0,40}(?:npm |go: )?warn(?:ing)?s?\b(?!: +[\w\\]{1,40}\(|: could not trace)" + _UNLESS_RETRIED,
    r"^W: ",
    r"(?-i:\b(?:WARN|WARNING|INFO|DEBUG)\b)" + _UNLESS_RETRIED,
    r"\b\w{1,40}Warning: ",
    r"^npm error Log files were not written",
    # Failed assertions and what they compare.
    r"\bassert",
    r"^\W{0,40}(?:expected|received|actual)\b",
    r"\bdid not raise\b",
    # Diffs, and lines of source code beside their numbers.
    r"^\s{0,40}[-+?] ",
    r"^[-+](?![-+>]|e:\d)\S",
    r"^\W{0,40}\d{0,6}\s{0,40}\|",
    r";\s{0,40}$",
)

# How a program reports an error of the system: after a colon, a bracket or a dash; not as a word in a sentence or in quotes.
_REPORTED = r"(?:: ?|[.,)\]-] |\()(?<!\b4\d\d: )"
_END = r"(?=[.,:;)\]\"'\\]|\s{0,40}$| [@(]| - | at | in /)"
_DENIED = _REPORTED + "permission denied" + _END
_NOT_PERMITTED = _REPORTED + "operation not permitted" + _END
_MISSING = "no such file or directory"
_SETTINGS = r"(?:/home/[^/\s]{1,40}|/root|~)/\.(?:ssh|aws|kube|docker|gnupg|netrc|pypirc|npmrc|config|azure)\b"
_LOOPBACK = r"(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[?::1\]?|0\.0\.0\.0)"

# Each reason with its messages. The first reason that matches is given: the ones that say most come first.
_MESSAGES = (
    (
        LIMIT,
        r"file size limit exceeded",
        r"\bEFBIG: ",
        r"\[errno 27\] ",
        r"\bwrit(?:e|ing)\b.{0,200}: file too large",
        r"fork: (?:retry: )?resource temporarily unavailable",
        r"fork_exec\((?:\n\W{1,200})?\nBlockingIOError",
        r"can't start new thread",
        r"pthread_create failed",
        r"\bspawn \S{1,100} EAGAIN\b",
    ),
    (
        DEVICE,
        r"\b(?:connect|connecting) to the docker (?:daemon|API)\b",
        r"(?:connect|dial) .{0,80}docker\.sock",
        r"\bError while fetching server API version: ",
        r"\bvalid docker environment\b",
        r"\baccess KVM kernel module\b",
        r"^fuse: device not found",
        r"\bunused loop device\b",
        r"(?<![\w.-])/dev/(?!null\b|tcp/|udp/|fd/|std|shm/)[\w/.-]{1,80}'?: (?:no such file|permission denied|operation not)",
        r"(?:no such file or directory|permission denied): '/dev/(?!shm/)",
        # Graphics cards: these messages are from public reports.
        r"\bno CUDA GPUs are available\b",
        r"\bcouldn't communicate with the NVIDIA driver\b",
        r"\bfound no NVIDIA driver\b",
        r"\bno CUDA-capable device is detected\b",
    ),
    (
        USER,
        r"^sudo: the \"no new privileges\" flag is set",
        r"^sudo: effective uid is not 0",
        r"\b(?:must be superuser|you must be root|must be run as root|requires (?:superuser|root) privilege)",
        r"\bare you root\?",
        r"\bmay not be used by non-root users\b",
        r"changing (?:ownership|group) of .{1,300}: (?:invalid argument|operation not permitted)",
        r"cannot change ownership to uid \d{1,10}",
        r"\bsetres?[ug]id failed: ",
    ),
    (
        TRACE,
        r"\bptrace\b.{0,60}operation not permitted",
        r"\bPTRACE_\w{1,40}\b.{0,20}: operation not permitted",
        r"\bcould not trace the inferior\b",
    ),
    (
        NAMESPACE,
        r"\bunshare failed: ",
        r"\bcreating new namespace failed: ",
        r"^bwrap: .{0,200}operation not permitted",
        r"\bno usable sandbox!",
        r"\breassociate to namespace\b",
    ),
    (
        LOGIN,
        r"\bgh auth login\b",
        r"\bhf auth login\b",
        r"\bgcloud auth login\b",
        r"\bunable to locate credentials\b",
        r"\bcurrent-context is not set\b",
        r"\bnpm (?:error|ERR!) code ENEEDAUTH\b",
        _SETTINGS + r".{0,200}no such file",
        r"\bno such file or directory[:,] .{0,40}" + _SETTINGS,
    ),
    (
        NETWORK,
        r"\btemporary failure (?:in name resolution|resolving)\b",
        r"\bname or service not known\b",
        r"\bcould not resolve (?:host|proxy)\b",
        r"\bunable to resolve host\b",
        r"\bgetaddrinfo (?:EAI_AGAIN|ENOTFOUND)\b",
        r"\b(?:code|error) \(?(?:EAI_AGAIN|ENOTFOUND|ENETUNREACH)\b",
        r"\bconnect (?:ENETUNREACH|EHOSTUNREACH) ",
        r"\bDNSResolveFailed\b",
        _REPORTED + r"network (?:is )?unreachable" + _END,
        r"^[^\w\n]{0,40}network is unreachable",
        _REPORTED + r"no route to host" + _END,
        r"\blookup \S{1,200} on \S{1,60}:53\b",
        r"\bUnknownHostException: ",
        r"\bunknown (?:server host '|host [\w-]{1,100}\.\w)",
        r"\bfailed to resolve '",
        r"\bcould not translate host name\b",
        r"\bunable to look up \S{1,200} \(port ",
        r"\bname resolution for \S{1,200} failed\b",
        r"\bvalidated address for host\b",
        r"\bno servers could be reached\b",
        r"\berror sending request for url \((?!https?://" + _LOOPBACK + r")",
        r"\bcould not reach host \S",
        r"\ball attempts to connect to \S{1,200} failed\b",
        r"\berror connecting to [\w.-]{1,200}\n",
        r"\baudit endpoint returned an error$",
        r"\bcheck your (?:internet|network) connection\b",
        r"\bunable to connect \(lookup error",
        r"\bcould not connect to (?:the endpoint URL|registry\.)",
        r"\bfailed to connect to (?!" + _LOOPBACK + r"\b)\S{1,200} port \d",
        r"\bERR_(?:INTERNET_DISCONNECTED|NAME_NOT_RESOLVED)\b",
        r"\bconnection broken by '\w{1,40}Error\(",
        # pip has asked the index, and the index has not answered.
        r"\bthat satisfies the requirement .{1,200} \(from versions: none\)",
        # The summary of pytest is cut after the name of the exception.
        r"^(?:FAILED|ERROR) \S{1,300} - (?:requests\.exceptions\.Connection|httpx\.Connect|socket\.gai|urllib3\.exceptions\.(?:NameRes|NewConn|MaxRetry)|aiohttp\.client_exceptions\.ClientConnector)",
    ),
    (
        SERVICE,
        _REPORTED + r"connection refused" + _END,
        r"\bECONNREFUSED(?::| \S{1,60}:\d| /)",
        r"\bkind: ConnectionRefused\b",
        r"^(?:.{0,200}\b)?ConnectionRefusedError: ",
        r"\bconnect call failed \(",
        r"\bfailed to connect to " + _LOOPBACK + r" port \d",
        r"\bconnection to (?:the server )?\S{1,200} (?:was )?refused\b",
        r"\bunable to connect to port \d{1,5} on ",
        r"\bcan't connect to (?:local |MySQL )?server\b",
        r"\bon socket \".{1,200}\" failed: no such file",
        r"^\S{1,200}:\d{1,5} - no response$",
        r"\bconnection is bad: no error details available$",
        r"\bfailed to connect to (?:bus|socket)\b",
        r"\bsystem has not been booted with systemd\b",
        r"\bautolaunch (?:a dbus-daemon|D-Bus) without\b",
        r"\bauthentication agent\.$",
        r"^error connecting to agent: ",
        r"\bno \$DISPLAY environment variable\b",
        r"\bcannot open display\b",
        r"\bconnect(?: ENOENT |\(, AF=1 )",
        r"\.sock(?:et)?\b.{0,40}: " + _MISSING,
        r"\b(?:elastic_transport\.ConnectionError|AMQPConnectionError|KafkaTimeoutError: Unable to bootstrap|NoBrokersAvailable)\b",
        r"^(?:FAILED|ERROR) \S{1,300} - (?:redis\.exceptions\.ConnectionError|[\w.]{1,60}OperationalError: connection |pymongo\.errors\.(?:ServerSelection|AutoReconnect))",
    ),
    (
        SOCKET,
        r"\bsocket: (?:operation not permitted|permission denied)",
        r"\bcan't create TCP/IP socket \(13\)",
        r"\bSocketException: permission denied",
        r"\b(?:connect|listen|bind) EACCES\b",
        r"\bconnect: permission denied",
        r"\bpermission denied - (?:bind|connect)\(2\)",
        r"\berror 13 connecting to ",
        r"\bconnecting to .{1,200} failed: permission denied",
        r"\b(?:new connection|connection to \(.{1,80}\) failed): \[errno 13\]",
        r"\btcp (?:open|connect) error: permission denied",
        r"\bdon't have permission to perform this capture\b",
        r"\buv_interface_addresses returned unknown system error 13\b",
        r"socket\w{0,20}\.[^\n]{1,200}\n(?:\W{1,200}\n)?PermissionError: ",
        r"\bsocket\.py:\d{1,6}: PermissionError$",
    ),
    (
        WRITE,
        _REPORTED + r"read-only file system" + _END,
        r"\bEROFS\b",
        r"\bkind: ReadOnlyFilesystem\b",
        r"\[errno 30\] ",
        r"\battempt to write a readonly database\b",
        r"\bunable to open database file\b",
        r"\bENOENT: no such file or directory, mkdir '/(?:etc|opt|srv|usr|var)/",
        r"\bis not write-able at /",
        r"\bcould not create temporary file to hold stripped copy\b",
        r"\bunable to \(re\)create the private pkgRedirects directory\b",
        # mypy says no more about a cache that it cannot write; a crash while it checks a file starts with the name of the file.
        r"^error: INTERNAL ERROR -- please try using mypy\b",
        r"(?:cannot|can't|couldn't|could not|unable to|failed to) (?:be )?(?:append|copy|create|lock|make|mkdir|move|overwrite|remove|rename|save|touch|unlink|write)\b.{0,400}"
        + _DENIED,
        r"(?:for writing|cannot open output file|open lock file|open temporary file|_tmp_|mkstemp|FETCH_HEAD).{0,400}" + _DENIED,
        r"\bEACCES: permission denied, (?:mkdir|rename|unlink|symlink|copyfile|rmdir|mkdtemp)\b",
        r"\berror: error while writing \w",
        r"^\s{0,10}failed to open: .{1,400}\n\s{0,10}\nCaused by:\n\s{0,10}permission denied \(os error 13\)",
    ),
    (
        OPERATION,
        _NOT_PERMITTED,
        r"\bEPERM: operation not permitted",
        r"\boperation not permitted while ",
        r"^(?:E\s+)?PermissionError: \[errno 13\] permission denied$",
        r"\bkind: PermissionDenied\b",
        r"^mount: .{1,300}: permission denied",
        r"\bset (?:niceness|priority)\b.{0,60}: permission denied",
    ),
    (
        FILES,
        r"^(?!.{0,200}permission denied \(publickey)(?:.{0,1000})" + _DENIED,
        r"\bEACCES: permission denied, \w",
        r"\bAccessDeniedException: ",
        r"^fatal: not a git repository: /",
        r"\bfailed to access sysfs\b",
    ),
)

# The shell, env, xargs, timeout and make name the program that they did not find.
_PROGRAM_NOT_FOUND = (
    r": (?:command )?not found$",
    r"^(?:/usr/bin/)?(?:env|timeout|xargs|nice|nohup|make|find|stdbuf|setsid)(?:\[\d+\])?: .{0,300}" + _MISSING + "$",
    r"^\S{0,100}: (?:line )?\d{1,6}: .{1,300}: " + _MISSING + "$",
    r": cannot execute: required file not found$",
)
_NAME_OF_MISSING = (
    r"(?:[‘'\"`]([^‘’'\"`]{1,300})[’'\"`]|([^\s:‘’'\"`]{1,300})): (?:(?:command |cannot execute: required file )?not found|"
    + _MISSING
    + ")$"
)
_WORD_OF_BASH = r"^.{0,200}: (?:\[\[|declare|let|mapfile|popd|pushd|readarray|shopt|source|typeset): not found$"
_SCRIPT_WITHOUT_PERMISSION = r"^(?:[^:\n]{0,100}: ){1,3}[^:\n]{1,300}: permission denied$"


# How programs name a port of this machine, on a line that says that they could not connect to it.
_PORT = (
    _LOOPBACK
    + r"(?:\\?[\"'])?(?: \([^()\s]{1,60}\))?(?:\\?[\"'])?(?::|,? ?(?:and accepting TCP/IP connections on )?port[ =:]{1,2}|, )(\d{1,5})\b"
)
_COULD_NOT_CONNECT = (
    r"refused|ECONNREFUSED|permission denied|connect call failed|could ?n[o']t connect|failed to connect|no response|Errno 1(?:11|3)\b"
)
# In the traceback of pytest the address is an argument, and the error has no address.
_SOCKET_IN_PYTEST = r"\bsocket\.py:\d{1,6}: (?:PermissionError|ConnectionRefusedError)$"
_ADDRESS_IN_PYTEST = r"^address = \('" + _LOOPBACK + r"', (\d{1,5})\)"


@functools.cache
def _compiled(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE | re.MULTILINE)


def sandbox_reason(output: str, exit_code: int | None) -> str | None:
    """Return why a sandboxed command may have failed because of the sandbox, as part of a sentence for people.

    None means that its failure looks like an ordinary one, or that it did not fail. `exit_code` is None if the command was ended.
    """
    if exit_code == 0:
        return None
    if exit_code in _FILE_SIZE_SIGNAL:
        return LIMIT
    text = _without_quotes(readable(output[-_MAX_CHARACTERS:]))
    # make reports the exit code of the shell: "make: *** [Makefile:2: all] Error 127"
    codes = {exit_code, *(int(code) for code in re.findall(r"^make.{1,300}\] Error (\d{1,3})$", text, re.MULTILINE))}
    if codes & {_CANNOT_EXECUTE, _NOT_FOUND}:
        # A script that is not executable, and a line for bash that sh runs, are not the fault of the sandbox.
        text = _compiled(_SCRIPT_WITHOUT_PERMISSION, _WORD_OF_BASH).sub("", text)
    for reason, *patterns in _MESSAGES:
        if _compiled(*patterns).search(text):
            return reason
    return PROGRAM if _NOT_FOUND in codes and _compiled(*_PROGRAM_NOT_FOUND).search(text) else None


def missing_programs(output: str) -> set[str]:
    """The names of the programs that were not found, from the messages of shells and of programs that run others."""
    lines = [line for line in readable(output[-_MAX_CHARACTERS:]).split("\n") if _compiled(*_PROGRAM_NOT_FOUND).search(line)]
    found = [_compiled(_NAME_OF_MISSING).search(line) for line in lines]
    return {name.split()[0] for match in found if match and (name := match.group(1) or match.group(2)).strip()}


def refused_port(output: str) -> int | None:
    """The port of this machine that a program could not connect to, if its output names one: the last of them."""
    for line in reversed(_without_quotes(readable(output[-_MAX_CHARACTERS:])).split("\n")):
        if _compiled(_COULD_NOT_CONNECT).search(line) and (found := _compiled(_PORT).findall(line)):
            return next((int(port) for port in found if 0 < int(port) < 65536), None)
    if _compiled(_SOCKET_IN_PYTEST).search(output[-_MAX_CHARACTERS:]):
        ports = _compiled(_ADDRESS_IN_PYTEST).findall(output[-_MAX_CHARACTERS:])
        return next((int(port) for port in reversed(ports) if 0 < int(port) < 65536), None)
    return None


def _without_quotes(output: str) -> str:
    """Leave out the lines that quote messages: see `_IGNORED`, and what pytest prints about a failed assertion."""
    kept: list[str] = []
    in_assertion = in_summary = follows_error = False
    for line in output.split("\n"):
        line = line[-_MAX_LINE_CHARACTERS:]
        is_error = line.startswith("E  ") or line == "E"  # pytest marks the lines of an exception with an E
        in_summary = in_summary or "= short test summary info =" in line
        is_ignored = _compiled(*_IGNORED).search(line) is not None
        in_assertion = is_error and (in_assertion if follows_error else is_ignored)
        follows_error = is_error
        if not (is_ignored or in_assertion or (in_summary and line[:1].isspace())):
            kept.append(line)
    return "\n".join(kept)
