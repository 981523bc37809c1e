"""The files of the page: their size, their colours, and that they contain nothing that could run the text of others."""

import itertools
import math
import os
import re
from pathlib import Path

import pytest

import backburner.interfaces.web
from backburner.interfaces.web.page import assets, compressed, join_modules

STATIC = Path(backburner.interfaces.web.__file__).parent / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
STYLES = "".join(path.read_text() for path in sorted(STATIC.glob("*.css")))
_COLOUR = r"oklch\(([\d.]+) ([\d.]+) ([\d.]+)\)"
# A colour of text, and the grounds on which it stands somewhere on the page.
GROUNDS = ("bg", "raised", "sunken", "hover")
PAIRS = [
    *itertools.product(
        ("text", "strong", "muted", "faint", "accent", "failed", "asks", "done", "running", "queued", "paused", "skipped"), GROUNDS
    ),
    *((state, f"{state}-fill") for state in ("running", "done", "failed", "asks", "queued", "paused", "skipped", "accent")),
    *(("text", fill) for fill in ("done-fill", "failed-fill", "asks-fill", "accent-fill", "skipped-fill")),
    *(("muted", fill) for fill in ("asks-fill", "done-fill", "failed-fill")),
    ("on-solid", "accent-solid"),
    *((f"ansi-{number}", "log-bg") for number in range(16)),
]


def tokens(theme: str) -> dict[str, tuple[float, float, float]]:
    """The colours of a theme by name, as lightness, chroma and hue."""
    found = {}
    for name, value in re.findall(r"--([\w-]+): ([^;]+);", STYLES):
        if colours := re.findall(_COLOUR, value):
            chosen = colours[-1 if theme == "dark" else 0]
            found[name] = tuple(map(float, chosen))
    return found


def luminance(colour: tuple[float, float, float]) -> float:
    """The relative luminance of an OKLCH colour, clipped to sRGB as browsers do it."""
    lightness, chroma, hue = colour
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long, medium, short = (
        (lightness + x * a + y * b) ** 3
        for x, y in ((0.3963377774, 0.2158037573), (-0.1055613458, -0.0638541728), (-0.0894841775, -1.2914855480))
    )
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    red, green, blue = (min(1.0, max(0.0, part)) for part in linear)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_colour_has_enough_contrast_on_every_ground(theme: str) -> None:
    colours = tokens(theme)
    weak = {f"{text} on {ground}": ratio for text, ground in PAIRS if (ratio := round(contrast(colours[text], colours[ground]), 2)) < 4.5}
    assert not weak


def test_white_on_black_has_the_known_contrast() -> None:
    assert round(contrast((1.0, 0.0, 0.0), (0.0, 0.0, 0.0)), 1) == 21.0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_html_or_code_from_text(script: Path) -> None:
    text = script.read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "createContextualFragment",
        "DOMParser",
        "srcdoc",
    ):
        assert word not in text, word


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_import_is_a_file_of_the_page(script: Path) -> None:
    for target in re.findall(r'^import .* from "([^"]+)";$', script.read_text(), re.M):
        assert target.startswith("."), target
        assert (script.parent / target).resolve().is_relative_to(STATIC.resolve())
        assert (script.parent / target).is_file(), target


def test_the_page_names_no_other_host() -> None:
    known = ("http://www.w3.org/2000/svg", "http://localhost:")
    for path in [*SCRIPTS, *STATIC.glob("*.css")]:
        for address in re.findall(r"https?://[\w.$:/{]+", path.read_text()):
            assert address.startswith(known), (path.name, address)


def test_the_page_stays_small() -> None:
    served = assets().files
    assert len(SCRIPTS) <= 16
    assert len(served["app.js"].content) <= 90_000 and len(compressed(served["app.js"].content)) <= 30_000
    assert sum(path.stat().st_size for path in SCRIPTS) <= 183_000
    assert len(served["app.css"].content) <= 24_000 and len(compressed(served["app.css"].content)) <= 6_000
    assert len(STYLES.encode()) <= 33_000


def test_the_first_view_is_one_module_whose_parts_share_no_name() -> None:
    joined = assets().files["app.js"].content.decode()
    assert not re.search(r"^import ", joined, re.M)
    names = re.findall(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", joined, re.M)
    assert [name for name in names if names.count(name) > 1] == []
    assert {"h", "patch", "nowView", "store", "go"} <= set(names)


def test_the_other_views_import_from_the_joined_module() -> None:
    files = assets().files
    for path, asset in files.items():
        for target in re.findall(r'^import .* from "([^"]+)";$', asset.content.decode(), re.M):
            assert os.path.normpath(os.path.join(os.path.dirname(path), target)) in files, (path, target)


def test_modules_are_joined_after_what_they_import() -> None:
    files = {
        "app.js": 'import { a } from "./a.js";\nimport { b } from "./views/b.js";\napp(a, b);\n',
        "a.js": "export const a = 1;\n",
        "views/b.js": 'import { go } from "../app.js";\nimport { a } from "../a.js";\nexport const b = a;\n',
        "views/late.js": 'import { a } from "../a.js";\nimport { c } from "./c.js";\n',
        "views/c.js": "export const c = 3;\n",
        "app.css": "a {}\n",
    }
    joined = join_modules(files)
    assert joined["app.js"] == "export const a = 1;\n\nexport const b = a;\n\napp(a, b);\n"
    assert joined["views/late.js"] == 'import { a } from "../app.js";\nimport { c } from "./c.js";\n'
    assert set(joined) == {"app.js", "views/late.js", "views/c.js", "app.css"}
