"""Finds commands in text that other programs run: code of interpreters, awk and sed, values of options, and the input of shells. Pure.

Only what is written plainly is found. All of it would run in the same sandbox; it matters because a person should decide about it.
"""

import itertools
import os
from collections.abc import Iterator, Sequence

from backburner.approval.effects import may_be_secret, names_secret_variable
from backburner.approval.program_tables import (
    DELETES,
    INSTALLS,
    INTERPRETERS,
    NETWORK,
    PRINTS,
    PRIVILEGE,
    PROCESSES,
    PROJECT,
    READS,
    SUBCOMMANDS,
)
from backburner.approval.shell_parser import SimpleCommand, Word, parse
from backburner.approval.wrappers import SHELLS, unwrap
from backburner.core.deferred_modules import re
from backburner.core.formatting import quoted

_MAX_TEXTS = 50
_AWKS = frozenset(["awk", "gawk", "mawk"])
_CODE = frozenset([*INTERPRETERS, "bun", "deno", "elixir", "julia", "osascript", "groovy", "scala", "tclsh", "guile", "octave"])
_CODE_OPTION = r"-\w*[cerEp]|--(eval|print|execute|exec)|eval"
_CALLS = (
    r"\b(?:system|popen|Popen|exec\w*|spawn\w*|subprocess\.\w+|check_output|check_call|getoutput|shell_exec|passthru|proc_open|Command\.new"
    r"|capture[23]e?|qx)\b"
)
_REQUESTS = (
    r"urlopen|urlretrieve|\brequests\.|httpx|aiohttp|\bfetch\(|\bhttps?['\"]?\)?\.(get|request)|axios|Net::HTTP|open-uri|URI\.open|file_get_contents"
    r"|\bLWP|curl_exec|WebSocket|read_(csv|json|parquet|html)"
)
_URL = r"(?:https?|ftp|wss?)://(?!localhost|127\.|0\.0\.0\.0|\[::1\])[\w.-]+[^\s'\"`\\)]*"
_LITERAL = r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\""
_SECRET = (
    r"['\"]((?:/root|/home/\w+|~)/\.(?:ssh|aws|gnupg|kube|docker|netrc|npmrc|pypirc|git-credentials|config/gh)[^'\"]*|/etc/shadow)['\"]"
)
_OUTSIDE = r"((?!/tmp/(?!.*\.\.)|/dev/)(?:/|~/|\.\./)[^'\"]*)"  # a path that is not in the project
_DELETED = (
    rf"\b(?:rmtree|rmSync|rmdirSync|unlinkSync|rm_rf?|rm_r|remove_tree|unlink|remove)\(?\s*(?:[\w.]+\(\s*)?['\"]{_OUTSIDE}['\"]"
    rf"|\bPath\(\s*['\"]{_OUTSIDE}['\"]\s*\)(?:\.(?:expanduser|resolve)\(\))?\.(?:unlink|rmdir)\("
)
_WRITTEN = (
    rf"\b(?:open|fopen|File\.open)\(\s*(?:[\w.]+\(\s*)?['\"]{_OUTSIDE}['\"]\s*\)?\s*,\s*(?:mode\s*=\s*)?['\"][wax]"
    rf"|\b(?:writeFile(?:Sync)?|appendFile(?:Sync)?|createWriteStream|File\.write|file_put_contents)\(\s*['\"]{_OUTSIDE}['\"]"
    rf"|\bPath\(\s*['\"]{_OUTSIDE}['\"]\s*\)(?:\.(?:expanduser|resolve)\(\))?\.(?:write_(?:text|bytes)|touch|mkdir)\("
)
# Libraries that connect to services, and the program that does the same.
_CLIENTS = {
    "aws": r"\bboto3\.\w+\(|\bnew (?:S3|DynamoDB|AWS\.\w+)(?:Client)?\(",
    "gcloud": r"\b(?:storage|bigquery|firestore|pubsub_v1)\.\w*Client\(",
    "sendmail": r"\b(?:smtplib\.SMTP(?:_SSL)?|Net::SMTP\.start|nodemailer\.createTransport|imaplib\.\w+)\(",
    "psql": r"\b(?:psycopg2?|asyncpg|pg8000)\.connect\(|\bnew (?:pg\.)?(?:Pool|Client)\(\s*[{'\"]|\bPG\.connect\(|create_engine\(\s*['\"]postgres",
    "mysql": r"\b(?:pymysql|MySQLdb|mysql\.connector|mysql2?)\.(?:connect|createConnection)\(|create_engine\(\s*['\"]mysql|\bnew (?:PDO|mysqli)\(",
    "mongosh": r"\bMongoClient\(|\bmongoose\.connect\(",
    "redis-cli": r"\bredis\.(?:Redis|StrictRedis|from_url|createClient)\(|\bRedis\.new\b",
    "ssh": r"\bparamiko\.\w+\(|\bftplib\.\w+\(|\bNet::(?:SSH|SCP|FTP)\b|\bfabric\.Connection\(",
    "docker run": r"\bdocker\.(?:from_env|DockerClient)\(",
    "gh api": r"\bnew Octokit\(|\bGithub\(|\bWebClient\(",
}
_NAMES_HOME = r"homedir\(\)|Path\.home\(\)|environ(?:\.get\(|\[)['\"]HOME|\bENV\[['\"]HOME|process\.env\.HOME|Dir\.home"
_CHANGES = r"\b(?:rmtree|rm(?:dir)?Sync|unlink\w*|rm_rf?|writeFile\w*|appendFile\w*|write_(?:text|bytes)|File\.write|copyfile?|copyFile\w*|rename\w*)\(|,\s*['\"][wax]b?['\"]"
_OPENED = r"\b(?:open|Path|readFile(?:Sync)?|createReadStream|File\.(?:read|readlines|open)|file_get_contents|fopen|dotenv_values|slurp)\(?\s*['\"]([^'\"\s]+)['\"]"
_VARIABLE = r"(?:environ(?:\.get\(|\[)|getenv\(|process\.env\.|process\.env\[|\bENV\[)\s*['\"]?(\w+)['\"]?(?!['\"]?[\])]?\s*=[^=])"
_CONNECTION = r"\b(?:create_connection|connect|connect_ex)\(\(\s*['\"](?!localhost|127\.|0\.0\.0\.0|::1)([\w.-]+)['\"]"
_INSTALLATION = r"\bpip\.main\(|\binstall\.packages\(|\bPkg\.add\(|\bBiocManager::install\(|\binstall_github\("
_SIGNAL = (
    r"\bkill\(?\s*['\"]?[A-Z0-9]+['\"]?\s*,\s*(?=\d)(\d+)|\b(?:os\.killp?g?|process\.kill|Process\.kill)\(\s*(?:['\"]\w+['\"]\s*,\s*)?(\d+)"
)
_DOCUMENT = r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n"
# Options whose value is a program, and what comes before it in the value.
_RUNS_VALUE = {
    "tar": r"--to-command|--checkpoint-action|-I|--use-compress-program|-F|--info-script|--new-volume-script|--rmt-command|--rsh-command",
    "rg": r"--pre|--hostname-bin",
    "man": r"-P|--pager|-H|--html",
    "zip": r"-TT|--unzip-command",
    "rsync": r"-e|--rsh|--rsync-path",
    "script": r"-c|--command|-\w*c",
    "make": r"--eval",
    **dict.fromkeys(("gdb", "lldb"), r"-i?ex|--(init-)?eval-command|-o|-O|--one-line"),
    **dict.fromkeys(("vim", "vi", "nvim", "ex", "view", "less"), r"-c|--cmd"),
    "sort": r"--compress-program",
    "split": r"--filter",
}
_RUNS_NOTHING_ELSE = frozenset(["tar", "rg", "man", "zip", "sort"])
_BEFORE_COMMAND = r"exec=|[!:]+|\.(shell|system|sh)\s+|shell\s+|(call|print|p|expr)\s.*?system\(\s*\"|python\s.*?system\(\s*['\"]"
# Programs that run the words after their options.
_RUNS_REST = frozenset(
    ["watch", "strace", "ltrace", "perf", "valgrind", "hyperfine", "parallel", "unbuffer", "flock", "taskset", "chrt", "heaptrack", "entr"]
    + ["rlwrap", "xvfb-run", "caffeinate", "chronic", "firejail", "concurrently", "nodemon", "dotenv", "prlimit", "numactl", "fd", "fdfind"]
    + ["watchexec", "expect", "gtimeout", "retry", "ts", "sem", "setpriv", "py-spy", "xargs"]
)
_NOTABLE = NETWORK | INSTALLS | PRIVILEGE | PROCESSES | DELETES | SHELLS | SUBCOMMANDS.keys() | {"git", "curl"}
_PROGRAMS = _NOTABLE | READS.keys() | PRINTS.keys() | PROJECT.keys()
_HAS_VALUE = ("-e", "-o", "-n", "-s", "-t", "-d", "-g")
_RUNS_TEXT = r"\b(?:exec\w*|eval|Function|instance_eval|system|spawn\w*)\s*\("
_DECODED = r"b64decode|b32decode|fromhex|unhexlify|codecs\.decode|\batob\(|decode64|base64_decode|['\"]base64['\"]|zlib\.decompress"
_DECODES = frozenset(["base64", "base32", "xxd", "openssl", "rev", "gunzip", "zcat", "uudecode"])


def commands_in(parts: Sequence[SimpleCommand], line: str | None) -> list[SimpleCommand]:
    """Return the commands in text that the parts of a command run. `line` is the shell line that they are from, if there is one."""
    found = []
    for number, text in enumerate(_texts(parts, line)):
        if number >= _MAX_TEXTS:
            break
        found += [inner for part in parse(text) for inner in unwrap(part, 1) if inner.words]
    found += [SimpleCommand(part.words, unreadable=(reason,)) for part in parts if (reason := _makes_run_a_program(part))]
    found += [SimpleCommand(part.words, unreadable=("what it would run is encoded",)) for part in parts if _runs_encoded_code(part)]
    if any(map(_decodes, parts)):
        found += [SimpleCommand(part.words, unreadable=("what it would run is encoded",)) for part in parts if _runs_input(part)]
    return found


def _makes_run_a_program(part: SimpleCommand) -> str | None:
    """Why a command must be asked about that makes a program such as tar run a script or a shell; None if it does not."""
    name, texts = os.path.basename(part.name or ""), [word.text for word in part.words[1:]]
    if name not in _RUNS_NOTHING_ELSE:
        return None
    for value in map(_command, _values(texts, _RUNS_VALUE[name])):
        program = (value.split() or [""])[0]
        if program in SHELLS or "/" in program or _interprets(program):
            return f"makes {name} run '{value}'"
    return None


def _texts(parts: Sequence[SimpleCommand], line: str | None) -> Iterator[str]:
    for part in parts:
        name = os.path.basename(part.words[0].text) if part.words else ""
        texts = [word.text for word in part.words[1:]]
        yield from _in_arguments(name, texts)
        if not all(word.known for word in part.words) and (text := _substituted(part.text, parts)) != part.text:
            yield text
    if runners := [part for part in parts if _runs_input(part) or _runs_written(part, parts)]:
        yield from _in_input(runners, parts, line or "")


def _in_arguments(name: str, texts: list[str]) -> Iterator[str]:
    if name in _AWKS:
        yield from (found for text in texts for found in _in_awk(text))
    elif name in ("sed", "gsed"):
        yield from (found for text in texts for found in _in_sed(text))
    elif name in ("sqlite3", "duckdb"):
        yield from (found for text in texts for found in in_code(text))
        yield from (_command(text) for text in texts if re.match(r"\.(shell|system|sh)\s", text))
    elif name == "alias":
        yield from (text.partition("=")[2] for text in texts)
    elif name in _RUNS_VALUE:
        yield from map(_command, _values(texts, _RUNS_VALUE[name]))
    elif _interprets(name):
        yield from (found for before, code in itertools.pairwise(texts) if re.fullmatch(_CODE_OPTION, before) for found in in_code(code))
    if name in _RUNS_REST:
        yield from _rest(texts)


def _interprets(name: str) -> bool:
    return name in _CODE or name.rstrip("0123456789.") in _CODE


def _values(texts: list[str], options: str) -> Iterator[str]:
    for text, after in zip(texts, (*texts[1:], ""), strict=False):
        option, equals, value = text.partition("=")
        if re.fullmatch(options, option):
            yield value if equals else after
        elif text.startswith("+"):
            yield text[1:]


def _command(value: str) -> str:
    """The command in the value of an option, such as `exec=COMMAND`, `!COMMAND` or `shell COMMAND`."""
    matched = re.match(_BEFORE_COMMAND, value)
    return re.sub(r"['\"]\s*\)\s*$", "", value[matched.end() :]) if matched else value


def _rest(texts: list[str]) -> Iterator[str]:
    """Texts that may be shell lines, and the command that begins with the first word that is the name of a program."""
    command = None
    for before, (index, text) in zip(("", *texts), enumerate(texts), strict=False):
        if re.search(r"\s", text):
            yield text
        elif command is None and before not in _HAS_VALUE and (name := os.path.basename(text)) in _PROGRAMS:
            command = name
            if name in _NOTABLE:
                yield quoted(texts[index:])


def in_code(code: str) -> Iterator[str]:
    """The commands that code of an interpreter starts, and commands with the same effect as its calls.

    These are requests, installations, signals to processes, secrets that it reads, and what it deletes or writes outside.
    """
    for module, name in re.findall(r"\bimport (subprocess|os|shutil|socket) as (\w+)", code):
        code = re.sub(rf"\b{name}\.", f"{module}.", code)
    for names in re.findall(r"\bfrom subprocess import ([\w, ]+)", code):
        code = re.sub(rf"\b({'|'.join(re.findall(r'[a-zA-Z_]+', names))})\(", r"subprocess.\1(", code)
    for call in re.finditer(_CALLS, code):
        if sequence := re.match(rf"[\s\w.!]*[\s(\[{{,]*((?:(?:{_LITERAL})[\s,\[\]()]*)+)", code[call.end() : call.end() + 1000]):
            yield _joined(sequence.group(1))
    yield from (first or second for first, second in re.findall(r"`([^`]{1,1000})`|%x[({\[]([^)}\]]{1,1000})", code))
    if re.search(_REQUESTS, code):
        yield from (f"curl {quoted([url])}" for url in re.findall(_URL, code))
    yield from (f"curl {host}" for host in re.findall(_CONNECTION, code))
    if re.search(_INSTALLATION, code):
        yield "pip install"
    yield from (f"kill {number}" for found in re.findall(_SIGNAL, code) for number in found if number)
    yield from (program for program, calls in _CLIENTS.items() if re.search(calls, code))
    if re.search(_NAMES_HOME, code) and re.search(_CHANGES, code):
        yield "tee ~"
    yield from (f"cat {path}" for path in re.findall(_SECRET, code))
    yield from (f"cat {quoted([path])}" for path in re.findall(_OPENED, code) if may_be_secret(path))
    yield from (f"printenv {name}" for name in re.findall(_VARIABLE, code) if names_secret_variable(name))
    yield from (f"tee {path}" for found in re.findall(_WRITTEN, code) for path in found if path)
    yield from (f"rm -r {path}" for found in re.findall(_DELETED, code) for path in found if path)


def _joined(literals: str) -> str:
    texts = [re.sub(r"\\(.)", r"\1", single or double) for single, double in re.findall(_LITERAL, literals)]
    return texts[0] if re.search(r"\s", texts[0]) else quoted(texts)


def _in_awk(program: str) -> Iterator[str]:
    for single, double in re.findall(rf"\|&?\s*(?:{_LITERAL})", program):
        yield single or double
    for single, double in re.findall(rf"(?:{_LITERAL})\s*(?:\)\s*)?\|&?\s*getline", program):
        yield single or double
    yield from in_code(program)


def _in_sed(script: str) -> Iterator[str]:
    yield from re.findall(r"(?:^|[;{}\n\d$/!])[ \t]*e[ \t]+([^\n]+)", script)
    for _, replacement, flags in re.findall(r"s([/|,#@])(?:\\.|[^\\])*?\1((?:\\.|[^\\])*?)\1(\w*)", script):
        if "e" in flags:
            yield re.sub(r"\\(.)", r"\1", replacement)


def _substituted(text: str, parts: Sequence[SimpleCommand]) -> str:
    """A command with the values that the same line gives to its variables, and with what `$(echo …)` prints."""
    values = {name: value.text for part in parts if not part.words for name, value in part.assigned if value.plain}
    text = re.sub(r"\$\(echo ([^()$`]*)\)|`echo ([^`$]*)`", lambda found: found.group(1) or found.group(2), text)
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: values.get(found.group(1) or found.group(2), found.group()), text)


def _runs_input(part: SimpleCommand) -> bool:
    """Whether it is a shell or an interpreter that runs its input, or text that is only known when it runs."""
    name, words = os.path.basename(part.name or ""), part.words[1:]
    if name == "eval":
        return any(not word.plain for word in words)
    if name not in SHELLS and not _interprets(name):
        return False
    texts = [word.text for word in words]
    if name in SHELLS and texts[:1] and re.fullmatch(r"-\w*c", texts[0]):
        return any(not word.plain for word in words[1:2])
    return all(text == "-" or text.startswith("-s") or (name in SHELLS and text.startswith("-")) for text in texts[:1])


def _runs_encoded_code(part: SimpleCommand) -> bool:
    """Whether code of an interpreter decodes text and runs it."""
    texts = [word.text for word in part.words[1:] if _interprets(os.path.basename(part.name or ""))]
    return any(re.search(_RUNS_TEXT, text) and re.search(_DECODED, text) for text in texts)


def _decodes(part: SimpleCommand) -> bool:
    texts = [word.text for word in part.words[1:]]
    name = os.path.basename(part.name or "")
    if name in ("base64", "base32", "xxd", "openssl"):
        return any(re.fullmatch(r"-[a-z]*[dDr][a-z]*|--decode", text) for text in texts)
    return name in _DECODES


def _runs_written(part: SimpleCommand, parts: Sequence[SimpleCommand]) -> bool:
    """Whether it runs a file that the same line writes."""
    name, texts = part.name or "", [word.text for word in part.words[1:]]
    if name in (*SHELLS, ".", "source") or _interprets(os.path.basename(name)):
        name = next((text for text in texts if not text.startswith("-")), "")
    elif "/" not in name:
        return False
    written = [redirect.target.text for other in parts for redirect in other.redirects if ">" in redirect.operator]
    written += [word.text for other in parts if other.name == "tee" for word in other.words[1:]]
    return name != "" and os.path.normpath(name) in map(os.path.normpath, written)


def _in_input(runners: Sequence[SimpleCommand], parts: Sequence[SimpleCommand], line: str) -> Iterator[str]:
    """What the same line prints for a shell or an interpreter: with `echo`, or in a here-document."""
    shells = any(not _interprets(os.path.basename(part.name or "")) and not (part.name or "").endswith((".py", ".js")) for part in runners)
    printed = [re.sub(r"\\n", "\n", " ".join(word.text for word in part.words[1:])) for part in parts if part.name in ("echo", "printf")]
    printed += _documents(line)
    printed += [Word(a or b).text for a, b in re.findall(r"<<<[ \t]*(?:'([^']*)'|\"([^\"]*)\")", line)]
    for text in printed:
        yield from [text] if shells else in_code(text)


def _documents(line: str) -> Iterator[str]:
    """The texts of here-documents."""
    for start in itertools.islice(re.finditer(_DOCUMENT, line), _MAX_TEXTS):
        if end := re.compile(rf"^[ \t]*{start.group(2)}[ \t]*(?:\)|$)", re.MULTILINE).search(line, start.end()):
            yield line[start.end() : end.start()]
