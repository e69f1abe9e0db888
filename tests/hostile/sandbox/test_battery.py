"""Every program of the battery is contained by every backend that registers, and leaves the host as it was."""

from __future__ import annotations

import pytest
import trio

from sandbox.run.types import Job, SandboxBackend
from tests.hostile.sandbox.attempts import ATTEMPTS
from tests.hostile.sandbox.battery import LIMITS, Case, fault, world
from tests.hostile.sandbox.behaviour import BEHAVIOUR

pytestmark = pytest.mark.slow


@pytest.mark.requirement("A-CODE-1", "A-CODE-2")
async def test_a_backend_that_is_here_proves_what_it_declares(backends: SandboxBackend) -> None:
    report = await backends.self_test()
    assert report.faults == ()
    assert report.declared is not None
    assert report.proved == report.declared.controls
    await backends.aclose()


@pytest.mark.requirement("A-CODE-1", "A-CODE-3")
@pytest.mark.parametrize("case", [*ATTEMPTS, *BEHAVIOUR], ids=str)
async def test_a_hostile_program_is_contained(backends: SandboxBackend, case: Case) -> None:
    found = await backends.probe()
    assert found.strength is not None, found.reason
    if not case.applies_to(found.strength):
        pytest.skip(f"{backends.name} does not declare what {case.name} is about")
    async with world() as targets:
        assert await fault(case, backends, targets) == ""
    await backends.aclose()


LEAVE = """
import os, sys, tempfile
for place in ('/tmp', os.getcwd(), tempfile.gettempdir(), os.path.expanduser('~')):
    try:
        open(os.path.join(place, 'gnusnode-left'), 'w').write('x')
    except OSError:
        pass
os.environ['GNUSNODE_LEFT'] = 'x'
import json
json.gnusnode_left = True
print('left')
"""
FIND = """
import json, os
found = [place for place in ('/tmp', os.getcwd()) if os.path.exists(os.path.join(place, 'gnusnode-left'))]
print(found, 'GNUSNODE_LEFT' in os.environ, hasattr(json, 'gnusnode_left'))
"""


async def test_a_second_run_cannot_see_the_first(backends: SandboxBackend) -> None:
    assert (await backends.run(Job(source=LEAVE), LIMITS)).stdout.text == "left\n"
    assert (await backends.run(Job(source=FIND), LIMITS)).stdout.text == "[] False False\n"
    await backends.aclose()


async def test_two_jobs_at_once_cannot_see_each_other(backends: SandboxBackend) -> None:
    slow = (
        "import os, time\nopen(f'mine-{os.urandom(4).hex()}', 'w').close()\ntime.sleep(1)\nprint(len(os.listdir('.')))"
    )
    texts: list[str] = []

    async def one() -> None:
        texts.append((await backends.run(Job(source=slow), LIMITS)).stdout.text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(one)
    assert texts == ["1\n", "1\n"]
    await backends.aclose()
