"""From a prompt to token ids, such that no content can forge a turn.

The chat template sees a random placeholder where a message's content belongs. What it renders around the placeholders
is split at the vocabulary's special tokens, and only those become control ids; everything else, content included, is
tokenised with special tokens off, together with the plain text beside it, so that harmless content gets exactly the
ids it would get if the whole text were tokenised at once. Content is opaque to the template: filters such as ``trim``
touch the placeholder, not the content, and a template that changes, drops or repeats a placeholder is refused.
"""

from __future__ import annotations

import itertools
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gnusnode.contracts.generation import Message, Prompt
from gnusnode.errors import ContextTooLong, ModelInvalid, RequestError
from gnusnode.inference.child.native import Attr, Vocab
from gnusnode.inference.child.template import MAX_TEMPLATE, TemplateRenderer

NO_TEMPLATE: Final = (
    "the model file has no chat template: messages are joined as 'Role: text' paragraphs, and nothing but the layout"
    " tells turns apart"
)
_FALLBACK: Final = (
    "{% for message in messages %}{{ message.role | capitalize }}"
    "{% if message.name %} ({{ message.name }}){% endif %}: {{ message.content }}\n\n{% endfor %}Assistant:"
)
_CACHED_SHAPES: Final = 64
_MAX_FAILURES: Final = 3
"""A shape for which the template failed this often is not rendered again for a while: each run may cost a second."""
_FORGIVEN_AFTER: Final = 60.0
"""Seconds; the failures may have been those of a starved machine."""


@dataclass(frozen=True)
class Scaffold:
    """What a template makes of a conversation's shape: texts of its own, and the places of contents and names."""

    parts: tuple[str | tuple[int, str], ...]
    """A text, or (message index, field)."""


class _Failures:
    """How often the template failed for a shape of late. One shape's failures say nothing about another's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_shape: OrderedDict[object, tuple[int, float]] = OrderedDict()

    def add(self, shape: object) -> None:
        count = self._by_shape.pop(shape, (0, 0.0))[0] + 1
        self._by_shape[shape] = (count, self._clock())
        if len(self._by_shape) > _CACHED_SHAPES:
            self._by_shape.popitem(last=False)

    def seconds_left(self, shape: object) -> float:
        """How long the shape is not to be tried; 0: it may be."""
        count, last = self._by_shape.get(shape, (0, 0.0))
        left = last + _FORGIVEN_AFTER - self._clock()
        if left <= 0:
            self._by_shape.pop(shape, None)
        return left if count >= _MAX_FAILURES and left > 0 else 0.0


class PromptBuilder:
    """Prompts of one model. ``scaffold`` may run on another thread than the rest."""

    def __init__(
        self,
        vocab: Vocab,
        template: str | None,
        renderer: TemplateRenderer,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vocab = vocab
        self._renderer = renderer
        self.warning = NO_TEMPLATE if template is None else ""
        self._template = _FALLBACK if template is None else template
        self._shapes: OrderedDict[object, Scaffold] = OrderedDict()
        self._lock = threading.Lock()
        self._failures = _Failures(clock)
        self._longest = max(len(vocab.text(token)) for token in range(vocab.size))
        self._marks = _marks(vocab, self._template)
        self._forbidden = frozenset(token for token in self._marks.values() if not vocab.attrs[token] & Attr.UNKNOWN)
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._mark = re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")

    def scaffold(self, messages: tuple[Message, ...]) -> Scaffold:
        """The template's output for the shape of a conversation: roles, and which contents and names are there.

        Raises:
            RequestError: the template refuses the messages, or does not show them as they are.
            ModelInvalid: the template is faulty or exceeds its limits.
        """
        shape = tuple((message.role, bool(message.content), message.name is not None) for message in messages)
        with self._lock:
            if shape in self._shapes:
                self._shapes.move_to_end(shape)
                return self._shapes[shape]
            self._check_renderable(shape)
        try:
            made = self._render(messages)
        except ModelInvalid:
            with self._lock:
                self._failures.add(shape)
            raise
        with self._lock:
            self._shapes[shape] = made
            if len(self._shapes) > _CACHED_SHAPES:
                self._shapes.popitem(last=False)
        return made

    def ids(self, prompt: Prompt, limit: int) -> list[int]:
        """Token ids of a prompt.

        Args:
            limit: prompts that must be longer are refused before they are tokenised.

        Raises:
            ContextTooLong: more than ``limit`` tokens.
            RequestError: a token id outside the vocabulary; and as ``scaffold``.
        """
        if prompt.tokens is not None:
            return self.checked(prompt.tokens, "prompt")
        if prompt.text is not None:
            self._check_length(len(prompt.text), limit)
            return self.with_bos(self.untrusted(prompt.text))
        messages = prompt.messages or ()
        self._check_length(sum(len(message.content) for message in messages), limit)
        return self.with_bos(self._fill(self.scaffold(messages), messages))

    def untrusted(self, text: str) -> list[int]:
        """Token ids of text that nobody vouches for: none of them marks a turn.

        Raises:
            RequestError: the vocabulary cannot spell the text otherwise.
        """
        if not text:
            return []
        ids = self._vocab.tokenize(text, special=False)
        if self._forbidden.isdisjoint(ids):
            return ids
        # A converter left a turn marker among the plain tokens: spell it in two halves.
        cuts = [0, *(match.start() + 1 for match in self._mark.finditer(text)), len(text)]
        halves = [text[start:end] for start, end in itertools.pairwise(cuts)]
        ids = [token for half in halves for token in self._vocab.tokenize(half, special=False)]
        if not self._forbidden.isdisjoint(ids):
            raise RequestError("the text can only be spelled with tokens that mark a turn", param="messages")
        return ids

    def checked(self, tokens: tuple[int, ...], param: str) -> list[int]:
        """The ids as a list.

        Raises:
            RequestError: one is outside the vocabulary.
        """
        outside = next((token for token in tokens if token >= self._vocab.size), None)
        if outside is not None:
            raise RequestError(f"token {outside} is outside the vocabulary of {self._vocab.size}", param=param)
        return list(tokens)

    def _check_renderable(self, shape: object) -> None:
        if len(self._template) > MAX_TEMPLATE:
            raise ModelInvalid(
                f"the model's chat template is longer than {MAX_TEMPLATE} characters",
                hint="give the model another template, or send a plain prompt",
            )
        if wait := self._failures.seconds_left(shape):
            raise ModelInvalid(
                "the model's chat template failed repeatedly for messages like these",
                hint="give the model another template, or send a plain prompt",
                retry_after=wait,
            )

    def _render(self, messages: tuple[Message, ...]) -> Scaffold:
        places: dict[str, tuple[int, str]] = {}

        def placeholder(index: int, field: str, value: str | None) -> str | None:
            if not value:
                return value
            mark = f"x{secrets.token_hex(12)}x"
            places[mark] = (index, field)
            return mark

        plain: list[dict[str, Any]] = []
        for index, message in enumerate(messages):
            fields = {"role": message.role, "content": placeholder(index, "content", message.content)}
            if message.name is not None:
                fields["name"] = placeholder(index, "name", message.name)
            plain.append(fields)
        values = {
            "messages": plain,
            "add_generation_prompt": True,
            "bos_token": self._spelling(self._vocab.bos),
            "eos_token": self._spelling(self._vocab.eos),
        }
        return _split(self._renderer.render(self._template, values), places)

    def _fill(self, scaffold: Scaffold, messages: tuple[Message, ...]) -> list[int]:
        ids: list[int] = []
        pending = ""
        """Plain text since the last special token: template text and content, tokenised as one."""
        strip_next = False
        for part in scaffold.parts:
            if isinstance(part, tuple):
                index, field = part
                pending += getattr(messages[index], field)
                strip_next = False
                continue
            for piece in self._mark.split(part):
                token = self._marks.get(piece)
                if token is None:
                    pending += piece.lstrip() if strip_next else piece
                    strip_next = strip_next and not piece
                    continue
                attrs = self._vocab.attrs[token]
                ids += self.untrusted(pending.rstrip() if attrs & Attr.LSTRIP else pending)
                ids.append(token)
                pending, strip_next = "", bool(attrs & Attr.RSTRIP)
        return ids + self.untrusted(pending)

    def with_bos(self, ids: list[int]) -> list[int]:
        """The ids with the beginning-of-text token before them, where the vocabulary wants it.

        Raises:
            RequestError: that makes no token at all.
        """
        bos = self._vocab.bos
        if self._vocab.adds_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        if not ids:
            raise RequestError("the prompt has no tokens", param="prompt")
        return ids

    def _spelling(self, token: int | None) -> str:
        return "" if token is None else self._vocab.text(token)

    def _check_length(self, chars: int, limit: int) -> None:
        if chars > limit * self._longest:
            raise ContextTooLong(
                f"a text of {chars} characters cannot fit {limit} tokens",
                param="messages",
                hint="shorten the prompt",
            )


def _split(rendered: str, places: dict[str, tuple[int, str]]) -> Scaffold:
    """The rendered text as parts, every placeholder exactly once."""
    if not places:
        return Scaffold((rendered,))
    pieces = re.split("(" + "|".join(places) + ")", rendered)
    found = [piece for piece in pieces if piece in places]
    for mark, (index, field) in places.items():
        if (count := found.count(mark)) != 1 and (field == "content" or count > 1):
            raise RequestError(
                f"the model's chat template shows this message's {field} {count} times instead of once, or changes it",
                param=f"messages.{index}.{field}",
                hint="the model may not support this role or order of roles",
            )
    return Scaffold(tuple(places.get(piece, piece) for piece in pieces if piece))


def _marks(vocab: Vocab, template: str) -> dict[str, int]:
    """Spelling and id of every token that can mark a turn: control tokens, and plain ones that the template writes."""
    marks: dict[str, int] = {}
    for token, attrs in enumerate(vocab.attrs):
        text = vocab.text(token)
        is_control = attrs & (Attr.CONTROL | Attr.UNKNOWN) or token in vocab.eog
        if is_control or (attrs & Attr.USER_DEFINED and len(text.strip()) > 2 and text in template):
            marks[text] = token
    marks.pop("", None)
    return marks
