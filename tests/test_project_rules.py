"""Project rules that can be checked automatically: layers, public names, documentation, and the import time of the command line."""

import ast
import re
import subprocess
from pathlib import Path

import backburner
from backburner.core.settings import SETTINGS
from backburner.interfaces.cli.parsers import VERBS

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


def test_the_source_has_only_the_folders_that_are_layers() -> None:
    found = {path.name for path in SOURCE.iterdir() if path.is_file() or any(path.rglob("*.py"))}
    assert found == {*FOLDERS, "__init__.py", "__main__.py", "py.typed"}


def test_interfaces_do_not_use_the_store() -> None:
    library = SOURCE / "interfaces" / "library"
    for path in [*(SOURCE / "interfaces").rglob("*.py"), *(SOURCE / "agent_tools").rglob("*.py")]:
        if library in path.parents or path.name == "doctor.py":
            continue
        assert not re.search(r"(?<!home)\.(store|ledger)\b", path.read_text().replace("backburner.store", "")), path


def test_the_exported_names_are_complete_sorted_and_importable() -> None:
    assert backburner.__all__ == sorted(backburner.__all__)
    assert {name for names in backburner._EXPORTS.values() for name in names} == set(backburner.__all__)
    for name in backburner.__all__:
        assert getattr(backburner, name).__doc__ or name.startswith("Task")


def test_every_module_has_a_docstring() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert not text or path.name == "__main__.py" or ast.get_docstring(ast.parse(text)), path


def test_every_command_and_setting_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    for name in (*(f"### `backburner {verb}`" for verb in VERBS), *(f"`{name}`" for name in SETTINGS)):
        assert name in reference


def test_links_in_the_documentation_point_to_existing_files() -> None:
    pages = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")
    for page in (*(ROOT / name for name in pages), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


def test_the_readme_is_short_and_names_the_first_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    assert "./backburner" in text and "scripts/test" in text


def test_the_architecture_page_is_short_and_shows_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert len(text.splitlines()) < 200
    assert all(f"\n{folder}/ " in text for folder in FOLDERS)


def test_source_paths_in_the_architecture_page_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = "|".join(FOLDERS)
    for path, name in re.findall(rf"\b((?:{folders})/[\w/]+\.py)(?::([\w.]+))?", text):
        assert (SOURCE / path).is_file(), path
        if name:
            assert re.search(rf"^\s*(?:async )?(?:def|class) {name.split('.')[-1]}\b", (SOURCE / path).read_text(), re.MULTILINE), (
                path,
                name,
            )


def test_paths_in_the_readme_of_the_tests_exist() -> None:
    text = (ROOT / "tests" / "README.md").read_text()
    for path in re.findall(r"`([\w/]+(?:/|\.py))`", text):
        assert any((folder / path).exists() for folder in (ROOT / "tests", ROOT)), path


def test_the_tour_has_nine_chapters_whose_tests_have_docstrings() -> None:
    chapters = sorted((ROOT / "tests" / "tour").glob("test_*.py"))
    assert [path.name[5:7] for path in chapters] == [f"{number:02}" for number in range(1, 10)]
    for path in chapters:
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name.startswith("test_"):
                assert ast.get_docstring(part), f"{path.name}: {part.name}"


def test_the_command_line_does_not_import_slow_modules() -> None:
    imports = (
        "import sys; from backburner.interfaces.cli import main, tasks; from backburner.store import ledger, sqlite;"
        "print(*{'asyncio','dataclasses','subprocess','socket','pathlib','logging','shutil','ctypes','tomllib'} & set(sys.modules))"
    )
    python = ROOT / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", imports], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
