"""The values of the sandbox interface refuse what makes no sense, and have one encoding."""

from __future__ import annotations

import dataclasses

import pytest

from sandbox.run.types import (
    Boundary,
    Check,
    Control,
    Feature,
    Job,
    Limits,
    ReadGrant,
    SelfTestReport,
    Strength,
)

STRENGTH = Strength(
    boundary=Boundary.SHARED_KERNEL,
    engine="fake",
    engine_version="1",
    image_digest="",
    seccomp_digest=None,
    controls=frozenset({Control.NET, Control.FS}),
    features=frozenset({Feature.TMP}),
)
PASSED = (Check("a", Control.NET, True, "refused"), Check("b", Control.FS, True, "refused"))


def report(*checks: Check, declared: Strength | None = STRENGTH) -> SelfTestReport:
    return SelfTestReport(backend="fake", declared=declared, checks=checks, at_ms=1)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
def test_a_limit_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a//b", "a\0b", "./a"])
def test_a_file_of_a_job_cannot_leave_its_directory(path: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        Job(source="", files=((path, b""),))


def test_a_file_of_a_job_needs_a_name_that_can_be_written() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        Job(source="", files=(("a\ud800", b""),))


def test_two_files_of_a_job_cannot_have_one_path() -> None:
    with pytest.raises(ValueError, match="same path"):
        Job(source="", files=(("a", b"1"), ("a", b"2")))


@pytest.mark.parametrize("inside", ["/", "/tmp/x", "/etc", "/proc/1", "/usr/lib", "data", "/a/../etc"])
def test_a_grant_cannot_cover_what_the_sandbox_needs(inside: str) -> None:
    with pytest.raises(ValueError, match="grant"):
        ReadGrant("/srv/data", inside)


def test_a_strength_has_one_digest_whatever_the_order() -> None:
    same = dataclasses.replace(STRENGTH, controls=frozenset([Control.FS, Control.NET]))
    assert same.digest == STRENGTH.digest
    assert dataclasses.replace(STRENGTH, deterministic=True).digest != STRENGTH.digest


def test_a_report_passes_when_every_declared_control_is_confirmed() -> None:
    assert report(*PASSED).passed
    assert report(*PASSED).proved == STRENGTH.controls


@pytest.mark.parametrize(
    ("checks", "fault"),
    [
        ((*PASSED, Check("c", Control.NET, False, "reached")), "c: reached"),
        ((*PASSED, Check("works", None, False, "it does not")), "works: it does not"),
        (PASSED[:1], "nothing proves the control fs"),
        ((PASSED[0], Check("b", Control.FS, False, "open", required=False)), "nothing proves the control fs"),
        ((), "nothing proves the control net"),
    ],
)
def test_a_report_fails_on_one_wrong_answer_or_a_missing_one(checks: tuple[Check, ...], fault: str) -> None:
    assert not report(*checks).passed
    assert fault in report(*checks).faults


def test_what_a_kernel_of_its_own_may_allow_does_not_refuse_a_backend() -> None:
    assert report(*PASSED, Check("vsock", Control.NET, False, "open", required=False)).passed


def test_a_backend_that_is_not_there_has_not_passed() -> None:
    assert not report(declared=None).passed


def test_the_digest_of_a_report_covers_every_answer() -> None:
    other = (*PASSED[:1], dataclasses.replace(PASSED[1], found="refused differently"))
    assert report(*PASSED).digest == report(*PASSED).digest != report(*other).digest
