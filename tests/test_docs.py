"""The documents cannot rot: what they list is compared with the code, and links lead somewhere."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tour
from cli.drf import below
from config_reference import config_schema, reference, reply_schema
from drfd import __version__
from drfd.client import Client
from drfd.common.errors import ConfigError, NotPermitted, Refused, Unavailable
from drfd.launcher.attempt import TRANSITIONS as ATTEMPT_TRANSITIONS
from drfd.protocol.requests import REQUESTS
from drfd_cli.main import VERBS, command_of
from fakes import TRANSITIONS
from reference import written
from tests.bench import readme

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
#: Everything written for users and administrators.
MANUAL = "\n".join(
    [README, REFERENCE, CONFIGURATION]
    + [
        (ROOT / "docs" / f"{name}.md").read_text()
        for name in ("administration", "cluster", "enforcement", "guide", "python", "simulator")
    ]
)
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_package_has_a_docstring_and_those_of_the_first_level_a_row_on_the_map():
    rows = re.findall(r"^\| `([\w/]+)/` \| [^|]+ \|$", ARCHITECTURE, re.MULTILINE)
    packages = set()
    for base in (ROOT / "drfd", ROOT / "cli"):
        for path in base.rglob("__init__.py"):
            docstring = ast.get_docstring(ast.parse(path.read_text()))
            assert docstring, f"{path} does not say what the package knows"
            packages.add(str(path.parent.relative_to(ROOT)))
    packages = {name for name in packages if name.count("/") == 1}
    assert not packages - set(rows), "packages without a row on the map in docs/architecture.md"
    assert not set(rows) - packages, "rows on the map in docs/architecture.md without a package"
    assert len(rows) == len(set(rows))


def test_every_picture_of_the_readme_is_there_and_asks_nobody_for_anything():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    for name in pictures:
        picture = (ROOT / name).read_text()
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert "url(http" not in picture


def test_every_state_has_its_sentence_and_the_transitions_are_the_codes_own():
    jobs = {
        str(before): [(kind.__name__, str(after)) for kind, after in moves.items()]
        for before, moves in TRANSITIONS.items()
    }
    attempts = {
        before.value: [(event.value, after.value) for event, (after, _) in row.items()]
        for before, row in ATTEMPT_TRANSITIONS.items()
    }
    for name, table in (("[A-Z]+", jobs), ("[a-z]+", attempts)):
        pattern = rf"^\| ({name}) \| [A-Z][^|]+\. \| (.+) \|$"
        found = []
        for before, moves in table.items():
            arrows: dict[str, list[str]] = {}
            for event, after in moves:
                if before != after:
                    arrows.setdefault(after, []).append(event)
            after = "; ".join(f"{state}: {', '.join(names)}" for state, names in arrows.items())
            found.append((before, after or "–"))
        assert re.findall(pattern, ARCHITECTURE, re.MULTILINE) == found


def test_every_dependency_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    for name in re.findall(r'"(\w+)', block[1]):
        assert re.search(rf"^\| (\w+, )?{name}(, \w+)? \|", ARCHITECTURE, re.MULTILINE)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200


#: New lines of what is measured after which the README's figures are too old.
MOST_ADDED = 3000


def test_the_readmes_figures_are_not_too_old():
    (commit,) = re.findall(r"at commit ([0-9a-f]{8,40})\b", README)
    asked = ["git", "diff", "--numstat", commit, "HEAD", "--", *readme.SOURCE]
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"the history with {commit} is not here")
    added = sum(map(int, re.findall(r"^\d+", done.stdout, re.MULTILINE)))
    assert added <= MOST_ADDED, "python -m tests.bench.readme measures them anew"


def test_the_readme_leads_to_every_document():
    for path in ROOT.glob("docs/*.md"):
        assert f"(docs/{path.name})" in README, f"README does not lead to {path.name}"
    for path in ROOT.glob("*.md"):
        assert path.name == "README.md" or f"({path.name})" in README


def test_every_verb_is_in_the_manual():
    for verb in VERBS:
        assert re.search(rf"`(drf )?{verb}\b", MANUAL), f"the manual does not show {verb}"
        command = command_of(verb)
        for name in below(command):
            assert f"{verb} {name}" in MANUAL, f"the manual does not show {verb} {name}"


def test_every_configuration_key_is_in_its_document():
    """Keys of tables that a site names are read off the source."""
    assert f"```toml\n{reference()}```" in CONFIGURATION, "run python -m tests.config_reference"
    keys = set()
    for name in ("config", "cluster", "calendar", "countable"):
        source = (ROOT / "drfd" / "daemon" / f"{name}.py").read_text()
        keys |= set(re.findall(r'\.(?:take|table|tables)\(\s*"(\w+)"', source))
    for key in keys:
        assert re.search(rf"\b{key}\b", CONFIGURATION), f"configuration.md lacks {key}"


def test_there_is_a_schema_of_each_table_and_of_each_reply():
    found = config_schema()["$defs"]
    assert found["limits"]["additionalProperties"] is False
    assert "24h" in found["defaults"]["properties"]["time"]["description"]
    assert found["scheduling"]["properties"]["policy"]["enum"][0] == "asset"
    for verb in REQUESTS:
        schema = reply_schema(verb)
        assert schema["$defs"] and ("$ref" in schema or verb == "submit"), verb


def test_every_method_of_the_python_client_is_in_its_document():
    text = (ROOT / "docs" / "python.md").read_text()
    for name, each in vars(Client).items():
        if callable(each) and not name.startswith("_") and name != "close":
            assert re.search(rf"\b{name}\b", text), f"python.md does not show {name}"


def test_the_tables_of_the_reference_are_the_codes_own():
    assert written(REFERENCE) == REFERENCE, "run python -m tests.reference"
    assert "| `RESOURCES` | The job needs" in REFERENCE
    assert "| `LOST` | Nobody saw its end. |" in REFERENCE


def test_the_reference_has_the_exit_code_of_each_error():
    own = re.findall(r"^\| (\d+) \|", REFERENCE.partition("drf's own codes")[2], re.MULTILINE)
    for each in (Refused, NotPermitted, Unavailable, ConfigError):
        assert str(each.exit_code) in own


def test_what_the_manual_types_is_understood():
    """Each option of each `drf VERB` in its code."""
    code = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^(?:\$ |\t)?drf ([a-z]+)(.*)$", code, re.MULTILINE)
    assert len(lines) > 15
    for verb, rest in lines:
        assert verb in VERBS, f"the manual types drf {verb}"
        command = command_of(verb)
        known = {name for parameter in command.params for name in parameter.opts}
        for each in below(command).values():
            known |= {name for parameter in each.params for name in parameter.opts}
        bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", rest.partition(" -- ")[0])
        for option in re.findall(r"(?<= )--?[a-z][a-z-]*", bare):
            assert option in known, f"the manual types drf {verb} {option}"


# -- links -------------------------------------------------------------------------------------


def test_every_link_of_a_document_leads_somewhere():
    for pattern in ("*.md", "docs/**/*.md", "drfd/**/*.md", "cli/**/*.md"):
        for path in ROOT.glob(pattern):
            for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
                if "://" in target:
                    continue
                name, _, anchor = target.partition("#")
                there = path.parent / name if name else path
                assert there.exists(), f"{path} links to {target}"
                heads = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE) if anchor else []
                anchors = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in heads]
                assert anchor in ["", *anchors], f"{path} links to {target}"


def test_every_file_and_name_that_a_document_gives_is_there():
    """`drfd/x.py` or `drfd/x/`, and `Class.method` or `CONSTANT` in either."""
    tops = "drfd|cli|tests|docs|systemd|debian"
    named = re.compile(rf"(?:`([A-Za-z_.]+)` in )?`((?:{tops})/[\w./-]+)`")
    for path in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]:
        for name, file in named.findall(path.read_text()):
            there = ROOT / file
            assert there.exists(), f"{path} names {file}"
            modules = sorted(there.glob("*.py")) if there.is_dir() else [there]
            text = "\n".join(module.read_text() for module in modules if module.suffix == ".py")
            for part in filter(None, name.split(".") if text else ()):
                defined = rf"(?:def|class) {part}\b|^ *{part}(?:: .*)? = "
                assert re.search(defined, text, re.MULTILINE), f"{path} names {name} in {file}"


def test_the_moving_picture_types_the_tour():
    assert tour.PICTURE.read_text() == tour.drawn(), "python -m tests.tour writes it anew"


def test_the_version_is_the_same_everywhere():
    files = ["pyproject.toml", "CITATION.cff", "debian/changelog"]
    plugins = [str(path.relative_to(ROOT)) for path in ROOT.glob("packaging/*/pyproject.toml")]
    assert len(plugins) == 2
    for file in [*files, *plugins]:
        found = re.search(r"^(?:version[ :=]+\"?|drfd \()([\d.]+)", (ROOT / file).read_text(), re.M)
        assert found is not None and found[1] == __version__, file


def test_every_dependency_has_its_licence_in_the_list():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_users = {name: extras[name] for name in extras.keys() - {"dev", "fuzz", "test"}}
    listed = (ROOT / "CONTRIBUTING.md").read_text()
    for extra, packages in {"": project["dependencies"], **of_users}.items():
        (row,) = re.findall(rf"^\| {f'`{extra}`' if extra else '–'} \| (.*) \|$", listed, re.M)
        for package in packages:
            assert f"{re.match('[a-z-]+', package)[0]} (" in row, package


def test_every_document_that_the_source_names_is_there():
    for folder in ("drfd", "cli", "tests", "systemd", "debian"):
        for path in ROOT.joinpath(folder).rglob("*.py"):
            for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text()):
                assert (ROOT / name).exists(), f"{path} names {name}"
