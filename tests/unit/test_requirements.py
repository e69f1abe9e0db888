"""Requirements and tests hold each other: nothing is claimed without a test, nothing is missing without a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import manifest
from tests.manifest import ROOT, Manifest, Requirement, Tag

ONE = Requirement("X-1", "1.2", "Something | is true.")
HERE = "tests/unit/test_x.py::test_it"


def test_manifest_and_tests_agree() -> None:
    assert manifest.faults(manifest.load(), manifest.tags()) == []


@pytest.mark.parametrize("script", ["requirements.py", "schemas.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("gaps", "found", "fault"),
    [
        ({}, [], "X-1 has neither a test nor a gap"),
        ({}, [Tag("X-1", HERE), Tag("X-2", HERE)], f"{HERE} names X-2, which is not in the manifest"),
        ({"X-1": "later", "X-2": "later"}, [], "the gap X-2 is not a requirement"),
        ({"X-1": "later"}, [Tag("X-1", HERE)], "X-1 has a test now: drop its gap, or begin it with 'partly:'"),
        ({"X-1": "partly: later"}, [], "the gap X-1 says that a part is proven, but no test names it"),
    ],
)
def test_each_disagreement_is_named(gaps: dict[str, str], found: list[Tag], fault: str) -> None:
    assert manifest.faults(Manifest((ONE,), gaps), found) == [fault]


@pytest.mark.parametrize(
    ("gaps", "found"),
    [({}, [Tag("X-1", HERE)]), ({"X-1": "later"}, []), ({"X-1": "partly: later"}, [Tag("X-1", HERE)])],
)
def test_a_proven_a_missing_and_a_half_proven_requirement_are_fine(gaps: dict[str, str], found: list[Tag]) -> None:
    assert manifest.faults(Manifest((ONE,), gaps), found) == []


def test_tags_are_found_wherever_they_stand() -> None:
    source = """
import pytest
pytestmark = pytest.mark.requirement("A")
@pytest.mark.requirement("B", "C")
async def test_one(): ...
class TestTwo:
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.requirement("D"))])
    def test_three(self, n): ...
"""
    assert manifest.tags_of(source, "t.py") == [
        Tag("A", "t.py"),
        Tag("B", "t.py::test_one"),
        Tag("C", "t.py::test_one"),
        Tag("D", "t.py::TestTwo::test_three"),
    ]


@pytest.mark.parametrize("arguments", ["", "name", "*ids", "1"])
def test_a_tag_that_cannot_be_read_is_refused(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"t\.py:1"):
        manifest.tags_of(f"mark = pytest.mark.requirement({arguments})", "t.py")


def test_the_page_shows_tests_gaps_and_counts() -> None:
    page = manifest.render(Manifest((ONE,), {"X-1": "partly: later"}), [Tag("X-1", HERE), Tag("X-1", HERE)])
    assert "1 requirements: 0 proven, 1 proven in part, 0 open." in page
    assert r"| X-1 | 1.2 | Something \| is true. | `unit/test_x.py::test_it` | partly: later |" in page
