"""The house rules that a machine can check: layers, the public surface, the documentation, and what no file may hold."""

import ast
import re
import subprocess
from pathlib import Path

import backburner
from backburner.core.settings import SETTINGS
from backburner.interfaces.cli.main import VERBS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "backburner"


FOLDERS = [
    "agent_tools",
    "agents",
    "approval",
    "coordination",
    "core",
    "engine",
    "execution",
    "integrations",
    "interfaces",
    "services",
    "store",
    "system",
    "testing",
]


def test_a_folder_is_a_layer_and_nothing_lies_beside_them() -> None:
    found = {path.name for path in SOURCE.iterdir() if path.is_file() or any(path.rglob("*.py"))}
    assert found == {*FOLDERS, "__init__.py", "__main__.py", "py.typed"}


def test_no_interface_touches_the_store() -> None:
    library = SOURCE / "interfaces" / "library"
    for path in [*(SOURCE / "interfaces").rglob("*.py"), *(SOURCE / "agent_tools").rglob("*.py")]:
        if library in path.parents or path.name == "doctor.py":
            continue
        assert not re.search(r"(?<!home)\.(store|ledger)\b", path.read_text().replace("backburner.store", "")), path


def test_the_public_surface_is_complete_sorted_and_loads() -> None:
    assert backburner.__all__ == sorted(backburner.__all__)
    assert {name for names in backburner._EXPORTS.values() for name in names} == set(backburner.__all__)
    for name in backburner.__all__:
        assert getattr(backburner, name).__doc__ or name.startswith("Task")


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
        "import sys; from backburner.interfaces.cli import main, tasks; from backburner.store import ledger, sqlite;"
        "print(*{'asyncio','dataclasses','subprocess','socket','pathlib','logging','shutil','ctypes','tomllib'} & set(sys.modules))"
    )
    python = ROOT / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
