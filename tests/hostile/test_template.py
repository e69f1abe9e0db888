"""Chat templates made to hurt end with a typed error, and the next rendering works."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gnusnode.contracts.generation import Prompt
from gnusnode.errors import ModelInvalid, RequestError
from gnusnode.inference.child import template
from gnusnode.inference.child.template import MAX_RENDERED, HelperGone, TemplateRenderer
from sandbox import linux
from tests.child_driver import child

VALUES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "bos_token": "<s>"}

FAULTY = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a long call": "{{ 2 ** (2 ** 40) }}",
    "a constant folded at compile time": "{{ 3 ** 3000000000 }}",
    "gigabytes": "{{ 'a' * 2000000000 }}",
    "gigabytes of list": "{{ [0] * 2000000000 }}",
    "padding": "{{ 'a'.center(3000000000) }}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(70) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "too much output": "{{ 'a' * 3000000 }}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "deep nesting": "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('id') }}",
    "frames": "{{ messages.__init__.__globals__ }}",
    "format strings": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "changing its input": "{{ messages.append(1) }}",
    "including files": "{% include '/etc/passwd' %}",
    "importing": "{% import 'os' as os %}",
    "syntax": "{% if %}",
    "unknown filter": "{{ messages | no_such_filter }}",
    "division": "{{ 1 / 0 }}",
    "a lone surrogate": "{{ '\\ud800' }}",
}


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    running = TemplateRenderer()
    yield running
    running.close()


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_template_is_the_models_fault_and_the_next_one_renders(renderer: TemplateRenderer, name: str) -> None:
    with pytest.raises(ModelInvalid):
        renderer.render(FAULTY[name], VALUES)
    assert renderer.render("{{ messages[0].content }}", VALUES) == "hi"


def test_a_template_may_refuse_messages(renderer: TemplateRenderer) -> None:
    with pytest.raises(RequestError, match="no system role"):
        renderer.render("{{ raise_exception('no system role') }}", VALUES)


@pytest.mark.parametrize(
    "name", ["self.__init__", "lipsum.__globals__", "joiner.__init__.__globals__", "range.__self__"]
)
def test_what_leads_to_pythons_objects_is_undefined_or_refused(renderer: TemplateRenderer, name: str) -> None:
    try:
        shown = renderer.render("{{ " + name + " }}", VALUES)
    except ModelInvalid:
        shown = ""
    assert shown == ""


def test_a_template_cannot_call_what_it_was_not_given(renderer: TemplateRenderer) -> None:
    with pytest.raises(ModelInvalid, match="undefined"):
        renderer.render("{{ open('/etc/passwd') }}", VALUES)


def test_output_up_to_the_limit_comes_through(renderer: TemplateRenderer) -> None:
    assert renderer.render("{{ 'é' * 300000 }}", VALUES) == "é" * 300_000
    assert MAX_RENDERED >= 300_000 * 2


def test_a_helper_that_is_gone_is_noticed() -> None:
    gone = TemplateRenderer()
    gone.close()
    with pytest.raises(HelperGone):
        gone.render("x", {})


def helper_of(renderer: TemplateRenderer) -> dict[str, str]:
    lines = Path(f"/proc/{renderer.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.skipif(not linux.IS_LINUX, reason="the controls are Linux's own")
def test_the_helper_has_given_up_what_it_does_not_need_before_it_reads(renderer: TemplateRenderer) -> None:
    assert renderer.render("{{ messages[0].content }}", VALUES) == "hi"
    status = helper_of(renderer)
    assert (status["NoNewPrivs"], status["Seccomp"], status["CapEff"]) == ("1", "2", "0" * 16)
    assert os.readlink(f"/proc/{renderer.pid}/ns/net") != os.readlink("/proc/self/ns/net")


@pytest.mark.skipif(not linux.IS_LINUX, reason="the controls are Linux's own")
def test_a_rendering_that_broke_out_of_python_starts_reaches_and_signals_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken_out(_template: str, _values: dict[str, Any]) -> str:
        attempts: dict[str, Callable[[], object]] = {
            "fork": os.fork,
            "socket": socket.socket,
            "signal the helper": lambda: os.kill(os.getppid(), 0),
            "signal the engine": lambda: os.kill(engine, 0),
            "run": lambda: os.execv("/bin/true", ["true"]),
            "read": lambda: os.open("/etc/passwd", os.O_RDONLY),
        }
        succeeded: list[str] = []
        for name, attempt in attempts.items():
            with suppress(PermissionError):
                attempt()
                succeeded.append(name)
        return f"{len(attempts)} tried, done: {succeeded}"

    engine = os.getpid()
    monkeypatch.setattr(template, "render_here", broken_out)
    renderer = TemplateRenderer()
    try:
        assert renderer.render("", {}) == "6 tried, done: []"
    finally:
        renderer.close()


def test_a_rendering_that_only_waits_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(text: str, _values: dict[str, Any]) -> str:
        if text:
            threading.Event().wait()
        return "next"

    monkeypatch.setattr(template, "render_here", waits)
    monkeypatch.setattr(template, "_PATIENCE", 0.2)
    renderer = TemplateRenderer()
    try:
        with pytest.raises(ModelInvalid, match="took longer"):
            renderer.render("wait", {})
        _, alive = psutil.wait_procs(psutil.Process(renderer.pid).children(), timeout=30)
        assert not alive
        assert renderer.render("", {}) == "next"
    finally:
        renderer.close()


@pytest.mark.model
@pytest.mark.parametrize("name", ["loops", "gigabytes", "syntax"])
def test_streams_go_on_beside_a_hostile_template(name: str) -> None:
    with child(template=FAULTY[name], slots=2) as engine:
        stream = engine.generate(Prompt(text="Once upon a time"), max_tokens=40)
        for _ in range(5):
            with pytest.raises(ModelInvalid):
                engine.done(engine.generate("Hello"))
        assert len(engine.done(stream)["tokens"]) == 40
