"""Chat templates made to hurt end with a typed error, and the next rendering works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnusnode.contracts.generation import Prompt
from gnusnode.errors import ModelInvalid, RequestError
from gnusnode.inference.child.template import MAX_RENDERED, HelperGone, TemplateRenderer
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


@pytest.mark.model
@pytest.mark.parametrize("name", ["loops", "gigabytes", "syntax"])
def test_streams_go_on_beside_a_hostile_template(name: str) -> None:
    with child(template=FAULTY[name], slots=2) as engine:
        stream = engine.generate(Prompt(text="Once upon a time"), max_tokens=40)
        for _ in range(5):
            with pytest.raises(ModelInvalid):
                engine.done(engine.generate("Hello"))
        assert len(engine.done(stream)["tokens"]) == 40
