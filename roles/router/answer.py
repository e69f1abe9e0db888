"""What the caller has of an answer, whoever made which part of it. Pure."""

from __future__ import annotations

from gnusnode.contracts.generation import Usage
from gnusnode.contracts.services import ChoiceDelta, ChoiceDone, ChoiceResume


class Answer:
    """The choices of a request as far as they were passed on.

    Attributes:
        done: the finished choices; they are never asked for again.
        begun: whether the caller has seen anything.
        exact: whether every piece of text came with its token ids, without which nobody could go on.
    """

    def __init__(self, choices: int) -> None:
        self._tokens: dict[int, list[int]] = {index: [] for index in range(choices)}
        self.done: dict[int, ChoiceDone] = {}
        self.begun = False
        self.exact = True

    def take(self, item: ChoiceDelta | ChoiceDone) -> None:
        """Notes what is passed on to the caller."""
        self.begun = True
        if isinstance(item, ChoiceDone):
            self.done[item.index] = item
            return
        self._tokens[item.index].extend(item.delta.tokens)
        self.exact &= bool(item.delta.tokens) or not item.delta.text

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self._tokens)

    @property
    def missing(self) -> tuple[ChoiceResume, ...]:
        """The choices that are left to make, each with what the caller has of it."""
        return tuple(
            ChoiceResume(index=index, tokens=tuple(tokens))
            for index, tokens in self._tokens.items()
            if index not in self.done
        )

    @property
    def usage(self) -> Usage:
        """Tokens of all choices; their common prompt counts once, and what was resumed from is in the choice's own."""
        parts = [done.usage for done in self.done.values()]
        return Usage(
            prompt_tokens=max(part.prompt_tokens for part in parts),
            cached_tokens=max(part.cached_tokens for part in parts),
            completion_tokens=sum(part.completion_tokens for part in parts),
        )
