# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the documentation says is what the code does: problem kinds, causes, modules, variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.dflash.plugins.module_utils import _causes
from ansible_collections.gpufleet.dflash.plugins.module_utils._kinds import KINDS
from ansible_collections.gpufleet.dflash.plugins.module_utils._watch import REFUSALS

CHECKOUT = Path(__file__).resolve().parents[2]
MODULE_UTILS = CHECKOUT / "plugins" / "module_utils"
PAGE = (CHECKOUT / "docs" / "problems.md").read_text(encoding="utf-8")
PROBLEMS, CAUSES = re.split(r"^## Causes of an unhealthy service$", PAGE, flags=re.MULTILINE)
MODULES = {path.stem for path in (CHECKOUT / "plugins" / "modules").glob("*.py")}
ROLES = sorted(path.name for path in (CHECKOUT / "roles").iterdir())
# Verdicts that never reach a report as its cause: the wait goes on, or the last words give the cause.
NOT_FINAL = ("serving", "died")
# The outcome of a wait that ended well.
HEALTHY = "healthy"


# --- docs/problems.md ----------------------------------------------------------------------------------


def sections(part: str) -> dict[str, str]:
    """{title: text} of the sections of a part of the page."""
    pieces = re.split(r"^### (.+)$", part, flags=re.MULTILINE)
    titles = pieces[1::2]
    assert len(titles) == len(set(titles)), "a section is there twice"
    return dict(zip(titles, pieces[2::2]))


def rows(part: str, header: str) -> list[list[str]]:
    """The cells of the table whose first column has this header, without its two head lines."""
    (table,) = re.findall(rf"^\| {header} \|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)", part, flags=re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]


def strings(expression: ast.expr) -> Iterator[str]:
    """The texts that an expression can be: itself, or either side of a condition."""
    if isinstance(expression, ast.IfExp):
        yield from strings(expression.body)
        yield from strings(expression.orelse)
    elif isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.value


def calls(path: Path, *names: str) -> Iterator[ast.Call]:
    """The calls of these functions in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
            yield node


def causes_of_endings() -> set[str]:
    """Causes that a dead service's journal and way of ending give."""
    tables = [*_causes.SIGNALS.values(), *_causes.RESULTS.values(), _causes.OUT_OF_MEMORY, _causes.ENDED_CLEANLY]
    named = {name for call in calls(MODULE_UTILS / "_causes.py", "Cause") for name in strings(call.args[0])}
    return named | {cause.name for cause in tables} | {pattern.cause for pattern in _causes.PATTERNS}


def causes_of_verdicts() -> set[str]:
    """Causes that looking at the unit, the port and the answers gives."""
    found = {cause for cause, _message, _fix in REFUSALS.values()}
    for path in (MODULE_UTILS / f"{name}.py" for name in ("_watch", "_health", "_gate")):
        for call in calls(path, "Verdict"):
            if not any(keyword.arg in NOT_FINAL for keyword in call.keywords):
                found |= set(strings(call.args[0]))
    return found - {HEALTHY}


def test_every_kind_has_a_section_and_no_section_is_of_another() -> None:
    assert sorted(sections(PROBLEMS)) == sorted(KINDS)


def test_every_kind_that_the_code_names_is_in_the_table_and_the_other_way_round() -> None:
    called: set[str] = set()
    texts: set[str] = set()
    for path in MODULE_UTILS.glob("*.py"):
        if path.name == "_kinds.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)} & set(KINDS)
        for call in calls(path, "problem", "Problem"):
            called |= set(strings(call.args[0]))
    assert called <= set(KINDS)
    assert len(called) > 10
    assert texts == set(KINDS)


def test_the_index_of_problems_lists_every_kind_with_its_severity() -> None:
    assert {(kind, severity) for kind, severity, _line in rows(PROBLEMS, "kind")} == {
        (f"[{kind}](#{kind})", severity) for kind, severity in KINDS.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_a_fix_and_a_public_report(kind: str) -> None:
    text = sections(PROBLEMS)[kind]
    assert re.search(r"^Fix(:|, by )", text, flags=re.MULTILINE)
    assert re.search(r"^Reports: [\w.-]+/[\w.-]+#\d+(, [\w.-]+/[\w.-]+#\d+)*\.$", text, flags=re.MULTILINE)


def test_every_cause_has_a_section_and_no_section_is_of_another() -> None:
    assert len(causes_of_verdicts()) > 8
    assert sorted(sections(CAUSES)) == sorted(causes_of_endings() | causes_of_verdicts())


def test_the_index_of_causes_lists_every_section_in_its_order() -> None:
    listed = [re.sub(r"\[(.+)\]\(.*", r"\1", cells[0]) for cells in rows(CAUSES, "cause")]
    assert listed == list(sections(CAUSES))


def test_the_index_of_causes_keeps_the_order_in_which_words_are_tried() -> None:
    tried = list(dict.fromkeys(pattern.cause for pattern in _causes.PATTERNS))
    assert list(sections(CAUSES))[: len(tried)] == tried


def quoted_lines() -> list[tuple[str, str]]:
    """(cause, line of the journal) as the page quotes them."""
    return [
        (cause, double or single)
        for cause, text in sections(CAUSES).items()
        for quotes in re.findall(r"^Journal: (.+?)\n\n", text, flags=re.MULTILINE | re.DOTALL)
        for double, single in re.findall(r"``(.+?)``|`(.+?)`", quotes)
    ]


@pytest.mark.parametrize(("cause", "line"), quoted_lines())
def test_a_quoted_line_of_the_journal_leads_to_its_cause(cause: str, line: str) -> None:
    assert _causes.explain([line], _causes.ending([line])).name == cause


def test_every_cause_of_an_ending_quotes_a_line() -> None:
    assert {cause for cause, _line in quoted_lines()} == causes_of_endings()


def test_links_within_the_page_lead_somewhere() -> None:
    """Anchors as GitHub makes them: a title that comes again gets a number."""
    anchors: list[str] = []
    for title in re.findall(r"^#+ (.+)$", PAGE, flags=re.MULTILINE):
        anchor = title.lower().replace(" ", "-")
        again = sum(re.sub(r"-\d$", "", known) == anchor for known in anchors)
        anchors.append(f"{anchor}-{again}" if again else anchor)
    assert set(re.findall(r"\]\(#(.+?)\)", PAGE)) <= set(anchors)


def test_index_links_lead_to_their_own_part() -> None:
    for cells in rows(CAUSES, "cause"):
        match = re.fullmatch(r"\[(.+)\]\(#(.+)\)", cells[0])
        assert match
        assert match[2] == (f"{match[1]}-1" if match[1] in KINDS else match[1])


# --- modules -------------------------------------------------------------------------------------------


def test_the_readme_lists_every_module() -> None:
    table = rows((CHECKOUT / "README.md").read_text(encoding="utf-8"), "module")
    assert sorted(cells[0].strip("`") for cells in table) == sorted(MODULES)


def test_the_action_group_holds_every_module() -> None:
    runtime = yaml.safe_load((CHECKOUT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    assert runtime["action_groups"] == {"dflash": sorted(MODULES)}


@pytest.mark.parametrize("module", ["cuda_wheel_facts", "cuda_library_check", "cuda_host_facts"])
def test_modules_with_problems_point_to_the_page(module: str) -> None:
    tree = ast.parse((CHECKOUT / "plugins" / "modules" / f"{module}.py").read_text(encoding="utf-8"))
    (text,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "DOCUMENTATION"
    )  # fmt: skip
    assert any("docs/problems.md" in note for note in yaml.safe_load(text)["notes"])


def test_kinds_that_the_module_names_exist() -> None:
    """cuda_library_check lists its kinds by severity in RETURN."""
    text = (CHECKOUT / "plugins" / "modules" / "cuda_library_check.py").read_text(encoding="utf-8")
    for severity in ("error", "warning"):
        (named,) = re.findall(rf"- {severity.capitalize()}s are (.+?)\.\n", text, flags=re.DOTALL)
        kinds = re.findall(r"V\(([\w-]+)\)", named)
        assert kinds
        assert {KINDS[kind] for kind in kinds} == {severity}


# --- roles ---------------------------------------------------------------------------------------------


def load(role: str, path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHECKOUT / "roles" / role / path).read_text(encoding="utf-8"))
    return loaded


def options(role: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(entry point, name, specification) of every option."""
    specs = load(role, "meta/argument_specs.yml")["argument_specs"]
    return [(entry, name, spec) for entry, body in specs.items() for name, spec in body.get("options", {}).items()]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_documents_its_defaults(role: str) -> None:
    documented = {name: spec for entry, name, spec in options(role) if entry == "main"}
    for name, value in load(role, "defaults/main.yml").items():
        assert name in documented, name
        spec = documented[name]
        # What must be given has an empty value, so that tools can read the role without it.
        assert not value if spec.get("required") else spec.get("default") == value, name


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_has_the_defaults_of_the_role(role: str) -> None:
    defaults = load(role, "defaults/main.yml")
    for entry, name, spec in options(role):
        if "default" in spec:
            assert spec["default"] == defaults.get(name, "no such default"), f"{entry}: {name}"


@pytest.mark.parametrize("role", ROLES)
def test_variables_carry_the_name_of_their_role(role: str) -> None:
    names = {*load(role, "defaults/main.yml"), *(name for _entry, name, _spec in options(role))}
    assert {name for name in names if not name.startswith(f"{role}_")} == set()
