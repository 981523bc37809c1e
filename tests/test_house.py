"""The house rules that a machine can check: layers, the public surface, the documentation, and what no file may hold."""

import ast
import re
import subprocess
from pathlib import Path

import backburner
from backburner.config import SETTINGS
from backburner.doors.cli import VERBS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "backburner"

# Each layer may import itself and those before it; `open_runtime` and `serve` alone build adapters.
CORE = {
    "text",
    "errors",
    "extras",
    "ready",
    "lifecycle",
    "models",
    "ids",
    "config",
    "progress",
    "words",
    "masking",
    "approval",
    "ports",
    "times",
    "trace",
    "commandline",
    "notification",
    "schedule",
    "standing",
}
GROUND = {
    "callers",
    "feed",
    "machine",
    "signs",
    "surroundings",
    "unapproved",
    "home",
    "process",
    "wake",
    "watch",
    "output",
    "folders",
    "http_server",
    "worktree",
    "zone",
}
ADAPTERS = {"stores", "executors", "channels", "sources"}
ENGINE = {
    "gate",
    "validation",
    "attendance",
    "consent",
    "reading",
    "dialogue",
    "timetable",
    "scheduler",
    "when",
    "outward",
    "discovery",
    "delays",
    "hosts",
    "runtime",
    "awaited",
    "runner",
    "engine",
    "starter",
    "takeover",
    "follow",
    "doctor",
}
ACROSS = {"library", "api", "telemetry", "testing"}
ALLOWED = {
    **dict.fromkeys(CORE, CORE),
    **dict.fromkeys(GROUND, CORE | GROUND),
    **dict.fromkeys(ADAPTERS, CORE | GROUND | ADAPTERS),
    **dict.fromkeys(ENGINE, CORE | GROUND | ENGINE),
    "agents": CORE | GROUND | ENGINE | {"agents", "doors"},
    "post": CORE | GROUND | ENGINE | {"channels", "post", "sources"},
    "clients": CORE | GROUND | {"clients"},
    "doors": CORE | GROUND | ENGINE | {"agents", "clients", "doors"},
    **dict.fromkeys(ACROSS, CORE | GROUND | ADAPTERS | ENGINE | ACROSS),
}
# Where adapters are built, inside a function.
BUILDERS = {("runtime", "stores"), ("engine", "executors"), ("doctor", "agents"), ("doctor", "clients"), ("doctor", "stores")}


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("backburner"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("backburner.")}
    return found


def test_layers_import_only_what_is_below_them() -> None:
    for path in SOURCE.rglob("*.py"):
        part = _part(path)
        if part in ("__init__", "__main__"):
            continue
        above = {other for other in _imports(path) - ALLOWED[part] if (part, other) not in BUILDERS}
        assert not above, f"{path.relative_to(SOURCE)} imports {above}"


def test_no_door_touches_the_store() -> None:
    for path in (SOURCE / "doors").rglob("*.py"):
        assert not re.search(r"\.store\b", path.read_text()), path


def test_the_public_surface_is_complete_sorted_and_loads() -> None:
    assert backburner.__all__ == sorted(backburner.__all__)
    assert {name for names in backburner._HOMES.values() for name in names} == set(backburner.__all__)
    for name in backburner.__all__:
        assert getattr(backburner, name).__doc__ or name.startswith("Task")


def test_no_module_grows_beyond_reading() -> None:
    long = {str(path): n for path in SOURCE.rglob("*.py") if (n := len(path.read_text().splitlines())) > 800}
    assert not long


def test_every_module_says_what_it_is() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert not text or path.name == "__main__.py" or ast.get_docstring(ast.parse(text)), path


def test_every_verb_and_setting_is_documented() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    for name in (*(f"### `backburner {verb}`" for verb in VERBS), *(f"`{name}`" for name in SETTINGS)):
        assert name in reference


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


def test_the_readme_is_short_and_names_the_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    assert "./backburner" in text and "scripts/test" in text


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys; from backburner.doors import cli, verbs; from backburner.stores import sqlite;"
        "print(*{'asyncio','dataclasses','subprocess','socket','pathlib','logging','shutil','ctypes','tomllib'} & set(sys.modules))"
    )
    python = ROOT / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
