"""The programs the gate knows, by what they do. What is not here asks. Data only."""

from backburner.approval.effects import Effect

SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/opt/homebrew/bin")

PRINTS = frozenset(
    ["echo", "printf", "true", "false", ":", "sleep", "pwd", "whoami", "id", "groups", "uname", "arch", "nproc", "uptime", "tty", "seq", "factor", "expr", "basename", "dirname", "test", "[", "logname", "yes", "cal", "let", "wait", "shift", "break", "continue", "return", "exit", "unset", "read", "local"]
)
LISTS = frozenset(
    ["ls", "dir", "vdir", "stat", "du", "df", "tree", "file", "which", "type", "whereis", "ps", "lscpu", "lsblk", "free", "hash", "locale", "getconf", "realpath", "readlink"]
)
READS = frozenset(
    ["cat", "head", "tail", "wc", "grep", "egrep", "fgrep", "rg", "ag", "ack", "sort", "uniq", "cut", "tr", "diff", "cmp", "comm", "nl", "od", "hexdump", "strings", "md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum", "cksum", "sum", "tac", "rev", "fold", "fmt", "paste", "join", "column", "expand", "unexpand", "jq", "zcat", "xzcat", "bzcat", "zgrep", "look"]
)
# Options of readers that write, run a program, or take their files from elsewhere.
BAD_OPTIONS = {
    "sort": ("-o", "--output", "--compress-program", "--files0-from", "-T", "--temporary-directory"),
    "rg": ("--pre", "--pre-glob", "--hostname-bin", "-z", "--search-zip"),
    "ag": ("--pager",),
    "ack": ("--pager", "--output"),
    "tree": ("-o", "-R"),
    "file": ("-C", "--compile", "-m", "--magic-file"),
    "wc": ("--files0-from",),
    "du": ("--files0-from",),
    "jq": ("-L", "-f", "--from-file", "--rawfile", "--slurpfile"),
    "diff": ("--output",),
    "date": ("-s", "--set", "-f", "--file"),
    "hexdump": ("-f",),
    "ls": (),
}
DELETES = frozenset(["rm", "rmdir", "unlink", "shred", "trash", "srm"])
CHANGES = {
    "mv": "moves files", "ln": "makes links", "install": "copies files over others", "truncate": "cuts files", "dd": "writes raw data", "patch": "changes files",
    "chmod": "changes permissions", "chattr": "changes attributes", "rsync": "copies files", "tar": "packs or unpacks files", "unzip": "unpacks files",
    "zip": "packs files", "gzip": "replaces files", "gunzip": "replaces files", "split": "writes files", "rename": "renames files",
}  # fmt: skip
PRIVILEGE = frozenset(
    ["sudo", "su", "doas", "pkexec", "chown", "chgrp", "mount", "umount", "useradd", "userdel", "usermod", "groupadd", "passwd", "visudo", "setcap", "insmod", "modprobe", "sysctl", "iptables", "nft", "chroot", "unshare", "nsenter", "mkfs", "fdisk", "parted", "mkswap", "swapon", "losetup", "hostname", "hostnamectl", "timedatectl", "date"]
)
PROCESSES = frozenset(
    ["kill", "pkill", "killall", "skill", "systemctl", "service", "reboot", "shutdown", "halt", "poweroff", "init", "crontab", "at", "batch", "launchctl", "loginctl", "tmux", "screen"]
)
INSTALLS = frozenset(["pip", "pip3", "pipx", "apt", "apt-get", "dpkg", "dnf", "yum", "rpm", "pacman", "apk", "brew", "port", "snap", "flatpak", "gem", "conda", "mamba", "uvx", "npx", "bunx"])
NETWORK = frozenset(
    ["ssh", "scp", "sftp", "rsh", "telnet", "ftp", "nc", "ncat", "netcat", "socat", "ping", "traceroute", "dig", "nslookup", "host", "whois", "gh", "glab", "aws", "gcloud", "az", "kubectl", "docker", "podman"]
)
INTERPRETERS = {
    "python": ("-c", "-"), "python3": ("-c", "-"), "pypy3": ("-c", "-"), "node": ("-e", "-p", "--eval", "--print", "-"), "deno": ("eval",),
    "bun": ("-e",), "perl": ("-e", "-E", "-n", "-p", "-i"), "ruby": ("-e", "-n", "-p", "-i"), "php": ("-r", "-B", "-R", "-E"), "lua": ("-e",), "Rscript": ("-e",),
}  # fmt: skip
MODULES = frozenset(["pytest", "unittest", "doctest", "mypy", "ruff", "black", "isort", "flake8", "pylint", "coverage", "compileall", "tox", "nox", "json.tool", "timeit"])
PROJECT = frozenset(
    ["pytest", "py.test", "tox", "nox", "make", "gmake", "ninja", "ruff", "mypy", "pyright", "ty", "black", "isort", "flake8", "pylint", "bandit", "coverage", "eslint", "prettier", "tsc", "jest", "vitest", "mocha", "rspec", "rake", "gradle", "gradlew", "mvn", "ctest", "cmake", "meson", "just", "task", "phpunit"]
)
# What the first word of a tool means; anything else of it is unknown.
SUBCOMMANDS: dict[str, dict[str, Effect]] = {
    tool: {word: effect for effect, words in meanings.items() for word in words.split()}
    for tool, meanings in {
        "cargo": {
            Effect.PROJECT_CODE: "build b check c test t run r bench clippy fmt doc tree metadata nextest",
            Effect.INSTALLS: "install add update",
            Effect.PUBLISHES: "publish",
        },
        "go": {Effect.PROJECT_CODE: "build test vet run fmt list generate", Effect.HARMLESS: "version", Effect.INSTALLS: "install get"},
        "npm": {
            Effect.PROJECT_CODE: "test t run run-script start",
            Effect.INSTALLS: "install i ci add update uninstall exec",
            Effect.PUBLISHES: "publish",
        },
        "pnpm": {
            Effect.PROJECT_CODE: "test run start",
            Effect.INSTALLS: "install i add update remove dlx exec",
            Effect.PUBLISHES: "publish",
        },
        "yarn": {
            Effect.PROJECT_CODE: "test run start build lint",
            Effect.INSTALLS: "install add up remove dlx",
            Effect.PUBLISHES: "publish",
        },
        "bun": {Effect.PROJECT_CODE: "test run", Effect.INSTALLS: "install add update remove x"},
        "uv": {Effect.PROJECT_CODE: "run build", Effect.INSTALLS: "add sync pip lock tool remove python", Effect.PUBLISHES: "publish"},
        "poetry": {Effect.PROJECT_CODE: "run", Effect.INSTALLS: "add install update lock remove", Effect.PUBLISHES: "publish"},
        "dotnet": {Effect.PROJECT_CODE: "build test run", Effect.INSTALLS: "add"},
        "mix": {Effect.PROJECT_CODE: "test compile format"},
        "twine": {Effect.PUBLISHES: "upload"},
    }.items()
}
