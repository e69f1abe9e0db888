"""Why a request was not made, or its answer not taken: a closed set of codes on two errors of the tree."""

from __future__ import annotations

from enum import StrEnum

from gnusnode.errors import Forbidden, Unavailable


class Reason(StrEnum):
    """Stable codes; they go into attestations as ``reason_code`` and, in lower case, into dry-runs as risk flags."""

    URL_MALFORMED = "URL_MALFORMED"
    URL_SCHEME = "URL_SCHEME"
    URL_USERINFO = "URL_USERINFO"
    URL_HOST = "URL_HOST"
    URL_PORT = "URL_PORT"
    SSRF_ADDRESS = "SSRF_ADDRESS"
    """The address, or one of those that the name stands for, is not a public one."""
    DOMAIN_NOT_ALLOWED = "DOMAIN_NOT_ALLOWED"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    HEADER_NOT_ALLOWED = "HEADER_NOT_ALLOWED"
    CREDENTIAL_LEAK = "CREDENTIAL_LEAK"
    ROBOTS_DISALLOWED = "ROBOTS_DISALLOWED"
    ROBOTS_UNAVAILABLE = "ROBOTS_UNAVAILABLE"
    REDIRECT_LIMIT = "REDIRECT_LIMIT"
    REDIRECT_DOWNGRADE = "REDIRECT_DOWNGRADE"
    CONTENT_TYPE = "CONTENT_TYPE"
    CONTENT_ENCODING = "CONTENT_ENCODING"
    HEADERS_TOO_LARGE = "HEADERS_TOO_LARGE"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    RATE_LIMITED = "RATE_LIMITED"
    DNS_FAILED = "DNS_FAILED"
    CONNECT_FAILED = "CONNECT_FAILED"
    PROTOCOL_ERROR = "PROTOCOL_ERROR"
    DEADLINE = "DEADLINE"
    HTTP_STATUS = "HTTP_STATUS"
    """The server answered, and what it says is no success."""


class WebRefused(Forbidden):
    """A rule forbids the request or its answer; trying again does not help.

    Args:
        reason: the rule.
    """

    def __init__(self, reason: Reason, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.reason = reason


class WebFailed(Unavailable):
    """The request is allowed and did not succeed: the name, the network, the server, or a limit of rate or time.

    Args:
        reason: what failed.
    """

    def __init__(
        self,
        reason: Reason,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what, where=where, hint=hint, retry_after=retry_after)
        self.reason = reason
