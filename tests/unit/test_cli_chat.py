"""What ``run`` and ``chat`` say beside an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnusnode.cli import chat


class Client:
    """Streams one answer, the last chunk of which carries ``facts``."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        assert (path, body["stream"]) == ("/v1/chat/completions", True)
        yield {"choices": [{"delta": {"content": "Hello"}, "finish_reason": None}]}
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}], "gnus": self._facts}


@pytest.mark.parametrize("resumed", [True, False])
def test_an_answer_that_another_node_finished_says_so_beside_the_text(
    resumed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = Client({"resumed": resumed})
    assert chat._stream(client, {}) == "Hello"
    said = capsys.readouterr()
    assert said.out == "Hello\n"
    assert ("another one went on" in said.err) is resumed
