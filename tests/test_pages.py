"""The examples, links, commands, names and numbers of the Markdown pages are correct."""

import io
import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from itertools import takewhile
from operator import attrgetter

import pytest

from tests.support.paths import ROOT

GENERATED = {".venv", "build", "results", "site"}  # folders
PAGES = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not GENERATED & set(path.relative_to(ROOT).parts)
    and not path.relative_to(ROOT).parts[0].startswith(".")
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n((?:    [^\n]*\n)+)", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MAX_README_WORDS = 1050

EXAMPLES = [
    pytest.param(code, output, id=f"{name}-{number}")
    for name, text in TEXTS.items()
    for number, (code, output) in enumerate(BLOCK.findall(text))
]


def links(text: str) -> list[str]:
    """The targets of links and pictures outside code."""
    return LINK.findall(re.sub(r"`[^`\n]*`", "", FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    explicit = set(re.findall(r'<a id="([^"]+)"', text))
    return explicit | {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def broken_links(page: str, text: str) -> list[str]:
    """The broken links of a page; links to other hosts are not checked."""
    broken_targets = []
    for link in links(text):
        if link.startswith(("https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        file = (ROOT / page).parent / target if target else ROOT / page
        reached = file.exists() and (not anchor or anchor in anchors(file.read_text(encoding="utf-8")))
        broken_targets += [] if reached else [link]
    return broken_targets


def commands(text: str, program: str) -> list[list[str]]:
    """The arguments of each command `program` in the code blocks and inline code of a page."""
    lines = re.sub(r"\\\n\s*", "", text).replace(" && ", "\n    ").splitlines()
    code = [line.strip() for line in lines if line.startswith("    ")] + re.findall(r"`([^`\n]+)`", text)
    pattern = re.compile(rf"^(?:[A-Z_]+=\S+ |\.venv/bin/)*{program} ([^#]*)")
    return [shlex.split(match[1]) for line in code if (match := pattern.match(line))]


def unknown_targets(text: str) -> set[str]:
    """The make targets that a page names and the Makefile lacks."""
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {words[0] for words in commands(text, "make") if words and "=" not in words[0]}
    return named - known


@cache
def help_of(path: tuple[str, ...]) -> str:
    """Return the output of `phiball PATH --help`, empty if there is no such command."""
    app = import_module("phiball.experiments.cli.app").app
    runner = import_module("typer.testing").CliRunner()
    shown = runner.invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    return str(shown.stdout) if shown.exit_code == 0 else ""


def unknown_options(words: list[str]) -> set[str]:
    """Return the options of `phiball WORDS` that do not exist, or the command if it does not exist."""
    path = tuple(word for word in takewhile(lambda word: not word.startswith("-"), words) if word.islower())
    known = set(re.findall(r"--[\w-]+", help_of(path)))
    named = {word.partition("=")[0] for word in words if word.startswith("--")}
    return named - known if known else {" ".join(path)}


@pytest.mark.parametrize("page", TEXTS)
def test_every_example_shows_its_output(page: str) -> None:
    assert len(BLOCK.findall(TEXTS[page])) == TEXTS[page].count("```python")


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_example_prints_the_output_shown(code: str, output: str) -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "a page", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().splitlines() == [line[4:] for line in output.splitlines()]


@pytest.mark.parametrize("page", TEXTS)
def test_links_and_pictures_exist(page: str) -> None:
    assert broken_links(page, TEXTS[page]) == []


@pytest.mark.parametrize("page", TEXTS)
def test_make_targets_exist(page: str) -> None:
    assert unknown_targets(TEXTS[page]) == set()


@pytest.mark.parametrize("page", TEXTS)
def test_commands_exist(page: str) -> None:
    pytest.importorskip("typer", reason="typer: not installed")
    for words in commands(TEXTS[page], "phiball"):
        assert unknown_options(words) == set(), words


def test_broken_links_and_unknown_commands_are_detected() -> None:
    pytest.importorskip("typer", reason="typer: not installed")
    text = "see [a](b.md), [c](README.md#d), ![e](f.png) and [g](#h)\n\n    make nonsense  # i\n"
    assert broken_links("README.md", text) == ["b.md", "README.md#d", "f.png", "#h"]
    assert unknown_targets(text) == {"nonsense"}
    assert commands("    X=1 phiball run worst-case --oops 3  # j", "phiball") == [
        ["run", "worst-case", "--oops", "3"]
    ]
    assert unknown_options(["run", "worst-case", "--oops", "3"]) == {"--oops"}
    assert unknown_options(["run", "nonsense"]) == {"run nonsense"}
    assert unknown_options(["verify", "--section=3", "--deeper"]) == {"--deeper"}


def test_readme_is_short() -> None:
    assert len(TEXTS["README.md"].split()) <= MAX_README_WORDS


def test_pictures_are_small() -> None:
    pictures = {
        (ROOT / page).parent / link for page in TEXTS for link in links(TEXTS[page]) if link.endswith(".png")
    }
    assert len(pictures) >= 9
    assert {picture.name: size for picture in pictures if (size := picture.stat().st_size) > 100_000} == {}


def test_numbers_of_verdicts_agree_with_the_claims() -> None:
    """README.md and docs/guides/verification.md print these numbers."""
    verification = pytest.importorskip("phiball.verification", reason="hypothesis: not installed")
    report = import_module("phiball.verification.report.entries")
    claims = verification.all_claims()
    kinds = ("holds", *(kind.value for kind in verification.Kind))

    def numbers(section: str | None) -> list[int]:
        found = [e for e in report.of_the_paper(claims) if section in (None, e.head.section)]
        counted = report.tally(found)
        return [len(found), *(counted.get(kind, 0) for kind in kinds), len(report.followers(found))]

    text = TEXTS["docs/guides/verification.md"]
    rows = re.findall(r"^\| (?:Section (\d), .+?|all) \|((?: \d* ?\|){9})$", text, re.MULTILINE)
    assert [name for name, _ in rows] == ["2", "3", "4", "5", "6", ""]
    for name, row in rows:
        assert [int(cell.strip() or 0) for cell in row.split("|")[:-1]] == numbers(name or None)
    beyond = sum(claim.section == "beyond" for claim in claims)
    assert re.findall(r"(\d+) claims go\s+beyond the paper", text) == [str(beyond)]
    assert re.findall(r"checks (?:all )?(\d+) claims", text + TEXTS["README.md"]) == [str(len(claims))] * 2
    (said,) = re.findall(r"reports on (\d+ statements: [^.]+)\. (\d+) claims go beyond", TEXTS["README.md"])
    assert [int(number) for number in re.findall(r"\d+", " ".join(said))] == [*numbers(None), beyond]


def public_names() -> set[str]:
    """Return the names at the top of phiball and in its namespaces."""
    package = import_module("phiball")
    namespaces = [import_module(f"phiball.{name}") for name in package._NAMESPACES if name != "sklearn"]
    return set(package.__all__).union(*(namespace.__all__ for namespace in namespaces))


def test_names_in_the_table_of_the_paper_are_public() -> None:
    """The last column of the table names the function for each item of the paper."""
    _, _, table = TEXTS["docs/theory/paper.md"].partition("| paper | content | here |\n")
    rows = [line for line in table.splitlines() if line.startswith("| ") and line.count("|") == 4]
    names = {name for row in rows for name in re.findall(r"`([A-Za-z_]\w*)[.`]", row.rsplit("|", 2)[1])}
    names -= {"clip", "sample"}  # a field and a method, named with their class
    assert len(names) > 40
    assert names <= public_names()


def test_every_top_level_name_is_mentioned_on_a_page() -> None:
    text = "\n".join(text for name, text in TEXTS.items() if name != "CHANGELOG.md")
    names = import_module("phiball").__all__
    assert 30 < len(names) < 42
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_files_on_the_path_of_a_call_in_contributing_contain_the_names_given() -> None:
    _, _, section = TEXTS["CONTRIBUTING.md"].partition("## The path of a call")
    rows = re.findall(r"^\| `([\w/.]+)` \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) > 4
    for file, text in rows:
        source = (ROOT / file).read_text(encoding="utf-8")
        names = [name for word in re.findall(r"`([\w.]+)`", text) for name in word.split(".")]
        assert [name for name in names if not re.search(rf"\b{name}\b", source)] == [], file


def test_map_in_contributing_lists_the_existing_folders() -> None:
    _, _, section = TEXTS["CONTRIBUTING.md"].partition("## Folders")
    lines = re.findall(r"^    (  )?(\w+)/ ", section.partition("\n## ")[0], re.MULTILINE)
    shown, top = set(), ""
    for indent, name in lines:
        top = top if indent else name
        shown.add(f"{top}/{name}" if indent else name)
    assert [name for name in shown if not (ROOT / name).is_dir()] == []
    packages = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("[a-z]*/*/__init__.py")}
    assert {name for name in packages if not name.startswith(("tests/", "build/", "results/"))} <= shown


def test_names_in_the_table_of_functions_are_public() -> None:
    package = import_module("phiball")
    _, _, table = TEXTS["docs/guides/index.md"].partition("| to | use |\n")
    rows = [line for line in table.partition("\n\n")[0].splitlines()[1:] if line.startswith("|")]
    names = {name for row in rows for name in re.findall(r"`([A-Za-z_]\w*)`", row)}
    assert len(names) > 20
    assert names <= public_names()
    for row in rows:
        for name in re.findall(r"`phiball\.([\w.]+)`", row):
            assert attrgetter(name)(package) is not None
