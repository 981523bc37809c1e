"""Tables of the programs that the gate knows, by their effect, with the options that are known to be harmless. Data only.

Everything else requires approval: unknown programs, unknown options, and abbreviated long options.
"""

from backburner.approval.effects import Effect
from backburner.approval.wrappers import Options

SYSTEM_DIRECTORIES = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/opt/homebrew/bin")
SYSTEM_LIBRARIES = ("/usr/lib/", "/usr/libexec/", "/opt/homebrew/Cellar/")  # where links in those directories may lead


def _options(text: str) -> Options:
    """Read `flags | options with a value | options with a value in the same word`."""
    flags, values, joined = [*text.split("|"), "", ""][:3]
    return Options(frozenset(flags.split()), frozenset(values.split()), joined=frozenset(joined.split()))


_GREP = (
    "-r -n -i -v -c -l -L -h -H -o -q -s -w -x -E -F -P -G -a -I -z -Z --recursive --line-number --ignore-case --count --files-with-matches"
    " --no-messages --word-regexp --only-matching --invert-match --extended-regexp --fixed-strings --color --quiet"
    " | -e -m -A -B -C --include --exclude --exclude-dir --color --max-count --context --after-context --before-context --regexp"
)
_SUMS = "-b -t --binary --text --tag"

# Programs that only print. Their arguments are not paths.
PRINTS: dict[str, Options] = {
    **dict.fromkeys(
        [
            "echo",
            "true",
            "false",
            ":",
            "sleep",
            "whoami",
            "arch",
            "tty",
            "factor",
            "basename",
            "dirname",
            "logname",
            "groups",
            "expr",
            "exit",
        ],
        _options(""),
    ),
    "pwd": _options("-P -L"),
    "id": _options("-u -g -n -G -r"),
    "uname": _options("-a -s -r -m -n -v -p -i -o"),
    "nproc": _options("--all"),
    "uptime": _options("-p -s"),
    "seq": _options("-w | -s -f"),
    "free": _options("-h -m -g -k -b"),
    "lscpu": _options(""),
    "tr": _options("-d -s -c -C -t"),
    "type": _options("-a -t -p -P"),
    "which": _options("-a"),
    "wait": _options(""),
}
# Programs that only read the files in their arguments.
READS: dict[str, Options] = {
    "cat": _options("-A -b -e -E -n -s -t -T -u -v --number --show-all"),
    "head": _options("-q -v --quiet --verbose | -n -c --lines --bytes"),
    "tail": _options("-f -F -q -v --follow --quiet | -n -c -s --lines --bytes"),
    "wc": _options("-l -w -c -m -L --lines --words --bytes --chars"),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _options(_GREP)),
    "rg": _options(
        "-n -i -v -c -l -w -x -F -o -S -s -N -q --no-heading --files --files-with-matches --ignore-case --count --line-number --smart-case"
        " | -e -m -A -B -C -t -T --type --max-count --context"
    ),
    "sort": _options(
        "-u -r -n -h -V -f -b -g -M -R -s -c -z --unique --reverse --numeric-sort --human-numeric-sort --version-sort"
        " | -k -t --key --field-separator"
    ),
    "uniq": _options("-c -d -u -i -z --count --repeated --unique"),
    "cut": _options("-s -n --complement | -d -f -c -b --delimiter --fields"),
    "diff": _options("-u -r -q -w -b -B -N -i -y -s -a --unified --brief --recursive --color | -U -C --color"),
    "cmp": _options("-s -l -b"),
    "comm": _options("-1 -2 -3"),
    "nl": _options("| -b"),
    "od": _options("-c -x -a -b | -A -t -j -N"),
    "hexdump": _options("-C -c -x | -n -s"),
    **dict.fromkeys(["md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum", "cksum"], _options(_SUMS)),
    "tac": _options(""),
    "rev": _options(""),
    "fold": _options("-s | -w"),
    "paste": _options("-s | -d"),
    "column": _options("-t | -s"),
    "ls": _options(
        "-a -A -l -h -r -R -t -S -1 -d -F -i -n -p -s -X -u -c -g -G -o -Q -C -m -x --all --almost-all --human-readable --reverse"
        " --recursive --color --group-directories-first | --color --sort"
    ),
    "stat": _options("-t | -c --format"),
    "du": _options("-s -h -a -c -k -m -b --summarize --human-readable --all | -d --max-depth"),
    "tree": _options("-a -d -f -h -s -C -n --dirsfirst | -L -I -P"),
    "file": _options("-b -i --brief --mime --mime-type"),
    "realpath": _options("-e -m -s"),
    "readlink": _options("-f -e -m -n"),
}
DELETES = frozenset(["rm", "rmdir", "unlink", "shred", "trash", "srm"])
CHANGES = {
    "mv": "moves files",
    "ln": "creates links",
    "install": "copies files over others",
    "bunzip2": "replaces files",
    "bzip2": "replaces files",
    "xz": "replaces files",
    "unxz": "replaces files",
    "zstd": "replaces files",
    "touch": "creates files",
    "mkdir": "creates folders",
    "truncate": "truncates files",
    "dd": "writes raw data",
    "patch": "changes files",
    "chmod": "changes permissions",
    "chattr": "changes attributes",
    "rsync": "copies files",
    "tar": "packs or unpacks files",
    "unzip": "unpacks files",
    "zip": "packs files",
    "gzip": "replaces files",
    "gunzip": "replaces files",
    "split": "writes files",
    "rename": "renames files",
}
PRIVILEGE = frozenset(
    [
        "sudo",
        "su",
        "doas",
        "pkexec",
        "chown",
        "chgrp",
        "mount",
        "umount",
        "useradd",
        "userdel",
        "usermod",
        "groupadd",
        "passwd",
        "visudo",
        "setcap",
        "insmod",
        "modprobe",
        "sysctl",
        "iptables",
        "nft",
        "chroot",
        "unshare",
        "nsenter",
        "mkfs",
        "fdisk",
        "parted",
        "mkswap",
        "swapon",
        "losetup",
        "hostname",
        "hostnamectl",
        "timedatectl",
    ]
    + [
        "ufw",
        "firewall-cmd",
        "ip6tables",
        "ebtables",
        "rmmod",
        "adduser",
        "deluser",
        "groupdel",
        "groupmod",
        "chpasswd",
        "cryptsetup",
        "wipefs",
    ]
    + [
        "zpool",
        "zfs",
        "lvcreate",
        "lvremove",
        "efibootmgr",
        "update-grub",
        "grub-install",
        "setenforce",
        "update-alternatives",
        "dpkg-reconfigure",
    ]
)
PROCESSES = frozenset(
    [
        "kill",
        "pkill",
        "killall",
        "skill",
        "systemctl",
        "service",
        "reboot",
        "shutdown",
        "halt",
        "poweroff",
        "init",
        "crontab",
        "at",
        "batch",
        "launchctl",
        "systemd-run",
        "ssh-add",
        "ssh-agent",
        "xdg-open",
        "open",
        "loginctl",
        "tmux",
        "screen",
        "pm2",
        "supervisorctl",
        "kill-port",
        "fkill",
    ]
    # windows and messages of the desktop, and editors that run extensions
    + ["code", "code-insiders", "codium", "cursor", "windsurf", "zed", "subl", "atom", "fleet", "idea", "pycharm", "charm", "webstorm", "phpstorm", "goland"]
    + ["clion", "rider", "rubymine", "datagrip", "studio", "gedit", "kate", "gvim", "osascript", "security", "defaults", "dbus-send", "gdbus", "busctl"]
    + ["gio", "notify-send", "gnome-open", "kde-open", "sensible-browser", "explorer", "start", "say"]
    # what starts and stops services, and the keyrings of the user
    + ["nginx", "apachectl", "apache2ctl", "httpd", "initctl", "rc-service", "pg_ctl", "pg_ctlcluster", "rabbitmqctl", "forever", "keyring", "secret-tool"]
)  # fmt: skip
INSTALLS = frozenset(
    [
        "pip",
        "pip3",
        "pipx",
        "apt",
        "apt-get",
        "dpkg",
        "dnf",
        "yum",
        "rpm",
        "pacman",
        "apk",
        "brew",
        "port",
        "snap",
        "flatpak",
        "gem",
        "conda",
        "mamba",
        "uvx",
        "npx",
        "bunx",
    ]
    + ["rustup", "nvm", "fnm", "asdf", "sdk", "volta", "corepack", "opam", "pod", "luarocks", "cpan", "cpanm", "easy_install"]
    + ["choco", "winget", "scoop", "zypper", "emerge", "nix", "nix-env", "nix-shell", "guix", "n", "virtualenv", "sdkmanager"]
)
# What shows the installed versions and packages, if the program keeps them in its own folder.
SHOWS_INSTALLED = {
    name: frozenset(
        ["list", "ls", "current", "which", "show", "env", "environment", "info", "--version", "-V", "version", "--help", "help"]
    )
    for name in ("rustup", "nvm", "fnm", "asdf", "volta", "opam", "gem", "luarocks")
} | dict.fromkeys(("conda", "mamba"), frozenset(["list", "info", "--version", "-V", "--help", "help"]))
SHOWS_VERSION = (["--version"], ["-V"], ["-version"], ["version"], ["--help"], ["help"])
NETWORK = frozenset(
    ["psql", "pg_dump", "pg_restore", "createdb", "dropdb", "mysql", "mysqldump", "mariadb", "redis-cli", "mongo", "mongosh", "cqlsh", "sqlcmd", "clickhouse-client"]
    + ["terraform", "tofu", "terragrunt", "pulumi", "ansible", "ansible-playbook", "ansible-galaxy", "packer", "vagrant", "helm", "helmfile", "kustomize", "argocd", "flux"]
    + ["eksctl", "minikube", "kind", "k3d", "k3s", "k9s", "nomad", "consul", "vault", "skaffold", "tilt", "crictl", "nerdctl", "buildah", "skopeo", "lxc", "incus", "virsh"]
    + ["docker-compose", "podman-compose", "multipass", "vercel", "netlify", "fly", "flyctl", "heroku", "wrangler", "firebase", "doctl", "hcloud", "linode-cli", "railway"]
    + ["supabase", "serverless", "sls", "sam", "cdk", "amplify", "eb", "ngrok", "cloudflared", "tailscale", "wg", "rclone", "s3cmd", "gsutil", "bq", "mosh", "lftp", "aria2c"]
    + ["http", "https", "xh", "grpcurl", "websocat", "nmap", "mtr", "tracepath", "ping6", "arp", "tcpdump", "mail", "sendmail", "mutt", "op", "bw", "pass", "gpg", "wget", "ssh", "ssh-copy-id", "ssh-keyscan", "sshfs", "autossh", "scp", "sftp", "rsh", "telnet", "ftp", "nc", "ncat", "netcat", "socat", "ping", "traceroute", "dig", "nslookup", "host", "whois", "gh", "glab", "aws", "gcloud", "az", "kubectl", "docker", "podman"]
    + ["hub", "oc", "kubectx", "kubens", "istioctl", "velero", "awslocal", "ansible-vault", "surge", "now", "eas", "kamal", "cap", "dokku", "gitlab-runner", "circleci", "act"]
    + ["curlie", "httpie", "yt-dlp", "youtube-dl", "restic", "borg", "duplicity", "mc", "gh-pages", "localtunnel", "lt", "stripe", "twilio"]
    + ["mongodump", "mongorestore", "mongoimport", "mongoexport", "pgcli", "mycli", "mysqladmin", "mysqlimport", "mysqlshow", "sqlplus", "influx", "createuser", "dropuser"]
    + ["pg_dumpall", "pg_basebackup", "usql", "kcat", "kafkacat", "etcdctl", "nats", "mosquitto_pub", "mosquitto_sub", "slack", "sentry-cli", "sonar-scanner", "snyk", "codecov", "coveralls"]
    + [f"kafka-{name}{ending}" for name in ("topics", "console-producer", "console-consumer", "consumer-groups") for ending in ("", ".sh")]
    # models, data sets, and agents that work with a model of others
    + ["huggingface-cli", "hf", "kaggle", "ollama", "openai", "claude", "codex", "gemini", "aider", "goose", "opencode", "qwen", "cursor-agent", "llm"]
)  # fmt: skip
# Interpreters, and the options that do not change what they run.
INTERPRETERS = {
    **dict.fromkeys(("python", "python3", "pypy3"), frozenset(["-u", "-B", "-q", "-I", "-s", "-E"])),
    **dict.fromkeys(("node", "perl", "ruby", "php", "lua", "Rscript"), frozenset()),
}
MODULES = frozenset(["pytest", "unittest", "mypy", "ruff", "black", "isort", "flake8", "pylint", "tox", "nox"])
# Programs that run or check the code of the project, with the options that are known to stay inside the project.
PROJECT: dict[str, Options] = {
    **dict.fromkeys(
        ("pytest", "py.test"),
        _options(
            "-q -v -vv -s -x -l -ra -rA --lf --ff --sw -qq --quiet --verbose --exitfirst --last-failed --failed-first --no-header --co"
            " --collect-only --durations --tb --maxfail --cov -h --version"
            " | -k -m -n --tb --maxfail --durations --cov --timeout --cov-report --color"
        ),
    ),
    **dict.fromkeys(("make", "gmake"), _options("-k -s -n -B -w -q -j --silent --keep-going --dry-run --always-make | | -j --jobs")),
    "ninja": _options("-v -n | | -j"),
    "tox": _options("-q -v -r | -e"),
    "nox": _options("-r -R | -s -e -k"),
    "ruff": _options("-q -v --fix --diff --check --quiet --statistics --watch --no-cache | --select --ignore"),
    **dict.fromkeys(("mypy", "pyright", "ty", "black", "isort", "flake8", "pylint"), _options("-q -v --strict --check --diff --version")),
    **dict.fromkeys(
        ("jest", "vitest", "mocha", "eslint", "prettier", "tsc"), _options("--watch --check --noEmit --coverage --fix -w | -t")
    ),
    "ctest": _options("-V -VV --output-on-failure | -R | -j"),
    "just": _options("-q -v --list -l"),
    "rspec": _options("| -e"),
}
# The effects of subcommands. Every other subcommand is unknown.
SUBCOMMANDS: dict[str, dict[str, Effect]] = {
    tool: {word: effect for effect, words in meanings.items() for word in words.split()}
    for tool, meanings in {
        "cargo": {
            Effect.PROJECT_CODE: "build b check c test t run r bench clippy fmt doc tree metadata nextest",
            Effect.INSTALLS: "install add update fetch remove generate-lockfile binstall generate",
            Effect.NETWORK_CHANGE: "search info login logout owner yank",
            Effect.PUBLISHES: "publish",
        },
        "go": {Effect.PROJECT_CODE: "build test vet run fmt", Effect.HARMLESS: "version", Effect.INSTALLS: "install get mod work"},
        "npm": {
            Effect.PROJECT_CODE: "test t run run-script start",
            Effect.NETWORK_CHANGE: "outdated view info show search audit ping whoami login logout adduser token access owner dist-tag org team profile hook star",
            Effect.INSTALLS: "install i ci add update up upgrade uninstall un remove rm exec link unlink prune dedupe create install-test it install-ci-test cit clean-install",
            Effect.PUBLISHES: "publish unpublish deprecate",
        },
        "pnpm": {
            Effect.PROJECT_CODE: "test run start",
            Effect.NETWORK_CHANGE: "outdated view info audit",
            Effect.INSTALLS: "install i add update up upgrade remove rm dlx exec create env fetch import link unlink prune dedupe patch-commit",
            Effect.PUBLISHES: "publish",
        },
        "yarn": {
            Effect.PROJECT_CODE: "test run start build lint",
            Effect.NETWORK_CHANGE: "outdated info npm audit",
            Effect.INSTALLS: "install add up upgrade upgrade-interactive remove dlx global set create link unlink dedupe",
            Effect.PUBLISHES: "publish",
        },
        "bun": {
            Effect.PROJECT_CODE: "test run",
            Effect.INSTALLS: "install i add a update remove rm x create upgrade link",
            Effect.PUBLISHES: "publish",
        },
        "uv": {
            Effect.PROJECT_CODE: "run build",
            Effect.INSTALLS: "add sync pip lock tool remove python venv self",
            Effect.PUBLISHES: "publish",
        },
        "poetry": {Effect.PROJECT_CODE: "run", Effect.INSTALLS: "add install update lock remove self sync", Effect.PUBLISHES: "publish"},
        "dotnet": {Effect.PROJECT_CODE: "build test run", Effect.INSTALLS: "add restore tool workload nuget"},
        "mix": {
            Effect.PROJECT_CODE: "test compile format",
            Effect.INSTALLS: "deps.get deps.update local.hex local.rebar archive.install",
            Effect.PUBLISHES: "hex.publish",
        },
        "bundle": {Effect.PROJECT_CODE: "exec", Effect.INSTALLS: "install update add outdated lock"},
        "composer": {
            Effect.PROJECT_CODE: "test run run-script exec validate show dump-autoload",
            Effect.INSTALLS: "install i update u require remove create-project global outdated audit",
        },
        **{
            key: {
                Effect.PROJECT_CODE: "run build test",
                Effect.INSTALLS: "install add sync update lock remove",
                Effect.PUBLISHES: "publish",
            }
            for key in ("pipenv", "pdm", "rye")
        },
        "deno": {
            Effect.PROJECT_CODE: "test run lint fmt check task",
            Effect.INSTALLS: "install add cache upgrade",
            Effect.PUBLISHES: "publish",
        },
        "cabal": {
            Effect.PROJECT_CODE: "build test run repl check",
            Effect.INSTALLS: "install update get fetch",
            Effect.PUBLISHES: "upload",
        },
        "stack": {Effect.PROJECT_CODE: "build test run exec", Effect.INSTALLS: "install update upgrade setup", Effect.PUBLISHES: "upload"},
        **{key: {Effect.PROJECT_CODE: "test analyze format", Effect.INSTALLS: "pub upgrade"} for key in ("flutter", "dart")},
        "mvn": {Effect.PROJECT_CODE: "test compile verify package", Effect.PUBLISHES: "deploy"},
        **{key: {Effect.PROJECT_CODE: "test build check assemble", Effect.PUBLISHES: "publish"} for key in ("gradle", "gradlew")},
        "twine": {Effect.PUBLISHES: "upload"},
        "pre-commit": {
            Effect.PROJECT_CODE: "run validate-config",
            Effect.INSTALLS: "install autoupdate uninstall install-hooks migrate-config",
        },
        "mise": {Effect.PROJECT_CODE: "run tasks exec", Effect.INSTALLS: "use install upgrade up self-update uninstall prune"},
        **{
            key: {Effect.INSTALLS: "install uninstall global update rehash"}
            for key in ("pyenv", "rbenv", "nodenv", "jenv", "goenv", "tfenv")
        },
        "swift": {Effect.PROJECT_CODE: "build test run"},
    }.items()
}
# Subcommands of these that need no network, in a sandbox. An empty set: all of them.
LOCAL_SUBCOMMANDS: dict[tuple[str, str], frozenset[str]] = {
    ("uv", "pip"): frozenset(["list", "show", "freeze", "check", "tree"]),
    ("go", "mod"): frozenset(["init", "verify", "edit", "graph", "why", "tidy", "vendor"]),
    ("go", "work"): frozenset(["init", "use", "edit"]),
    ("pnpm", "exec"): frozenset(),
    ("pnpm", "env"): frozenset(["list", "ls"]),
    ("yarn", "global"): frozenset(["list", "dir", "bin"]),
    ("uv", "python"): frozenset(["list", "find", "dir"]),
    ("uv", "tool"): frozenset(["list", "dir"]),
    **dict.fromkeys(
        [("rustup", "toolchain"), ("rustup", "target"), ("rustup", "component"), ("conda", "env"), ("mamba", "env")], frozenset(["list"])
    ),
    **dict.fromkeys([("dotnet", "tool"), ("dotnet", "workload")], frozenset(["list"])),
    **dict.fromkeys([("opam", "exec"), ("mise", "exec"), ("asdf", "exec")], frozenset()),
}
# Words with which programs that could change the system only print.
ONLY_SHOWS = {
    "nginx": r"-[tTvV]+( -c [\w./-]+)?",
    **dict.fromkeys(("apachectl", "apache2ctl", "httpd"), r"-[tvVSlLM]|configtest"),
    "mount": r"|-l",
    "sysctl": r"(-n )?(-a|[a-z][\w.]*)",
    "swapon": r"|--show",
    "losetup": r"|-a|-l",
}
# The same for programs that show which packages the system has.
SHOWS_PACKAGES = {
    "dpkg": r"(-l|-L|-S|-s|-p|--list|--listfiles|--search|--status|--get-selections|--print-architecture|--verify|-V)( .*)?",
    **dict.fromkeys(("apt", "apt-cache"), r"(list|show|policy|search|depends|rdepends|pkgnames|madison|showpkg)( .*)?"),
    "rpm": r"(-q\w*|--query)( .*)?",
    "pacman": r"(-Q\w*|-S[is]+)( .*)?",
    "apk": r"(info|list|policy|search)( .*)?",
    "brew": r"(list|ls|info|deps|uses|leaves|config|--prefix|--cellar|--version)( .*)?",
    **dict.fromkeys(("snap", "flatpak"), r"(list|info)( .*)?"),
    "pod": r"(--version|env|list)( .*)?",
    "corepack": r"--version|-v",
}
# Options with which these need no network.
LOCAL_OPTIONS = {
    "act": frozenset(["-n", "--dryrun", "-l", "--list"]),
    "ansible-playbook": frozenset(["--syntax-check", "--list-tasks", "--list-tags"]),
}
LOCAL_VERBS = {
    "kustomize": frozenset(["build"]),
    "packer": frozenset(["fmt", "validate"]),
}
# Options of these tools that change neither what runs nor in which directory.
SUBCOMMAND_OPTIONS: dict[str, Options] = {
    "cargo": _options(
        "-q -v --quiet --verbose --release --all --workspace --all-targets --all-features --no-run --lib --bins --locked --offline --no-fail-fast"
    ),
    "go": _options("-v -race -short -cover | -run -timeout | -count -run -timeout"),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), _options("-s --silent --if-present --watch --coverage")),
    **dict.fromkeys(("gradle", "gradlew", "mvn", "dotnet", "mix", "uv"), _options("-q --quiet --offline")),
}
BUILD_FILES = {
    **dict.fromkeys(("make", "gmake"), ("GNUmakefile", "makefile", "Makefile")),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), ("package.json",)),
    "just": ("justfile", "Justfile"),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
}
