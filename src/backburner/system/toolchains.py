"""The parts of a home directory that a sandboxed command can read: compilers, interpreters and packages, but no settings or credentials."""

import functools
import os
import time

from backburner.system.paths import is_below

# Folders below the home directory that hold tools and packages, and the files in them that may hold credentials.
_KNOWN = (
    *(".pyenv", ".nvm", ".fnm", ".volta", ".n", ".bun", ".deno", ".rbenv", ".rvm", ".asdf", ".sdkman", ".jenv", ".goenv", ".g", ".opam", ".ghcup"),
    *(".cargo", ".rustup", "go", ".m2", ".gradle", ".konan", ".ivy2", ".sbt", ".stack", ".cabal", ".elan", ".juliaup", ".dotnet", ".nuget/packages"),
    *(".local/bin", ".local/lib", ".local/share/uv", ".local/share/mise", ".local/share/fnm", ".local/share/pnpm", ".local/share/pypoetry"),
    *(".local/share/virtualenvs", ".local/pipx", ".local/share/pipx", ".poetry", ".npm-global", ".yarn", "miniconda3", "anaconda3", "miniforge3", ".conda/envs"),
)  # fmt: skip
_NAMES = frozenset(name for name in _KNOWN if "/" not in name and name.startswith("."))
_CREDENTIALS = (
    *(
        ".cargo/credentials",
        ".cargo/credentials.toml",
        ".cargo/config",
        ".cargo/config.toml",
        ".m2/settings.xml",
        ".m2/settings-security.xml",
    ),
    *(
        ".gradle/gradle.properties",
        ".gradle/init.gradle",
        ".gradle/init.d",
        ".ivy2/.credentials",
        ".sbt/.credentials",
        ".sbt/1.0/credentials.sbt",
    ),
    *(".cabal/config", ".stack/upload", ".local/share/uv/credentials", ".npm-global/etc/npmrc", ".dotnet/corefx"),
)
# Tools that keep locks and the state of their daemons beside the packages, and do not run if they cannot write there.
WRITTEN = (".gradle", ".ivy2", ".sbt", ".cabal", ".stack")
_SEARCH_INTERVAL = 10.0  # seconds after which new tools are noticed
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/opt", "/nix", "/etc")
# Above a folder of programs: not these, which hold more than a toolchain.
_SHARED = ("/", "/home", "/root", "/srv", "/mnt", "/media", "/var", "/tmp", "/run", "/data", "/Users")


def readable(home: str, path: str) -> list[str]:
    """The folders outside of the system that may be read: known ones below `home`, and those of the programs in `path`."""
    return _readable(home, path, int(time.monotonic() // _SEARCH_INTERVAL))


@functools.lru_cache(8)
def _readable(home: str, path: str, _: int) -> list[str]:
    found = [folder for name in _KNOWN if os.path.isdir(folder := os.path.join(home, name)) and not os.path.islink(folder)]
    for folder in path.split(os.pathsep):
        if not folder.startswith("/") or not os.path.isdir(folder):
            continue
        real = os.path.realpath(folder)
        if not any(is_below(real, known) for known in (*_SYSTEM, *found)) and (root := _root(real, home)):
            found.append(root)
    return found


def _root(folder: str, home: str) -> str | None:
    """The toolchain that a folder of programs belongs to: a known one, the folder above `bin`, or only itself."""
    parts = folder.split("/")
    known = next((number for number, part in enumerate(parts) if part in _NAMES), None)
    if known is not None:
        return "/".join(parts[: known + 1])
    above = os.path.dirname(folder)
    if parts[-1] in ("bin", "sbin", "shims") and above not in (*_SHARED, home) and not is_below(home, above):
        return above
    return None if folder in (*_SHARED, home) or is_below(home, folder) else folder


def credentials(home: str) -> list[str]:
    """Files in these folders that must not be read."""
    return [path for path in _possible_credentials(home, int(time.monotonic() // _SEARCH_INTERVAL)) if os.path.lexists(path)]


@functools.lru_cache(8)
def _possible_credentials(home: str, _: int) -> list[str]:
    return [f"{home}/{name}" for name in _CREDENTIALS if os.path.lexists(f"{home}/{name.partition('/')[0]}")]
