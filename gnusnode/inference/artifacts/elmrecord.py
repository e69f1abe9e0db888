"""What an ELM artifact says of itself, and the checks that make it believable. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gnusnode.contracts import ids
from gnusnode.contracts.base import MalformedRecord, Record, describe
from gnusnode.contracts.fields import Line
from gnusnode.contracts.ids import Name, Sha256
from gnusnode.contracts.plan import ElmRole
from gnusnode.contracts.tools import CapabilityManifest, RequiredCapability, SandboxRequirements
from gnusnode.errors import DataError, RecordRefused
from gnusnode.inference.artifacts.gguf import MAX_TEMPLATE_CHARS
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults

ExpertId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z._]{0,31}$")]
"""Without a hyphen: it ends at the last one of ``<expert>-<version>``."""
Domains = Annotated[tuple[Name, ...], Field(max_length=64)]
Template = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEMPLATE_CHARS)]

_SIGN_HINT: Final = "get it from a signer that you trust, or add the signer to the trusted ones"


class ElmModel(Record):
    record_name: ClassVar[str] = "elm-model"

    sha256: Sha256
    size: Annotated[int, Field(gt=0, lt=2**53)]
    source: Annotated[str, StringConstraints(max_length=4096)] = ""
    """Where to get it when it is not embedded; for people."""


class ElmManifest(Record):
    """An expert: a model, how to talk to it, and what it is for. Its digest is the artifact's hash."""

    record_name: ClassVar[str] = "elm-manifest"

    format: Literal["gnusnode-elm-1"] = "gnusnode-elm-1"
    expert_id: ExpertId
    version: Version
    description: Line = ""
    role: ElmRole
    domains: Domains = ()
    model: ElmModel
    template_sha256: Sha256 | None = None
    """Of the UTF-8 bytes of the template member; None: the model's own template."""
    defaults: GenerationDefaults = GenerationDefaults()
    determinism: Literal["A", "B", "C"] = "C"
    license: Annotated[str, StringConstraints(max_length=128)] = ""

    def to_json(self) -> bytes:
        """The one JSON text of this manifest."""
        text = json.dumps(self.to_plain(), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8") + b"\n"

    @property
    def artifact_hash(self) -> str:
        """``sha256:<hex>`` of ``to_json``: covers model, template and settings by their hashes and values."""
        return ids.sha256(self.to_json())


class ElmSpec(BaseModel):
    """What ``elm pack`` is told: ``elm.toml``, and ``template.jinja`` beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    expert_id: ExpertId
    version: Version
    description: Line = ""
    role: ElmRole = ElmRole.PRIMARY_DRAFT
    domains: Domains = ()
    required_capabilities: Annotated[tuple[RequiredCapability, ...], Field(max_length=64)] = ()
    sandbox_requirements: SandboxRequirements = SandboxRequirements()
    defaults: GenerationDefaults = GenerationDefaults()
    template: Template | None = None


@dataclass(frozen=True)
class Contents:
    """An artifact whose parts belong together and whose signature, where there is one, is good."""

    manifest: ElmManifest
    template: str | None
    capability: CapabilityManifest | None
    """None: unsigned."""
    trusted: bool
    """Whether it is signed by one of the trusted signers."""


def check_contents(
    manifest_json: bytes,
    template: bytes | None,
    capability: bytes | None,
    *,
    trusted_signers: Collection[str],
    require_signature: bool,
    where: str,
) -> Contents:
    """Everything but the model's bytes, checked. A signature that is there must be good, whether required or not.

    Raises:
        DataError: malformed, or the parts do not belong together.
        RecordRefused: unsigned, badly signed, or signed by somebody else although a trusted signature is required.
    """
    manifest = _manifest(manifest_json, where)
    text = _template(manifest, template, where)
    signed = None if capability is None else _capability(capability, manifest, where)
    trusted = signed is not None and signed.signer in trusted_signers
    if require_signature and not trusted:
        reason = "it is not signed" if signed is None else f"its signer {signed.signer} is not trusted"
        raise RecordRefused(reason, where=where, hint=_SIGN_HINT)
    return Contents(manifest, text, signed, trusted)


def _manifest(data: bytes, where: str) -> ElmManifest:
    try:
        manifest = ElmManifest.model_validate_json(data)
    except ValidationError as error:
        raise DataError(f"the manifest is malformed: {describe(error)}", where=where, hint="get it again") from error
    if manifest.to_json() != data:
        # Duplicate keys, coerced values, other spellings: not the bytes whose meaning was signed.
        raise DataError("the manifest is not written in its one form", where=where, hint="pack it with `elm pack`")
    return manifest


def _template(manifest: ElmManifest, template: bytes | None, where: str) -> str | None:
    found = None if template is None else ids.sha256(template)
    if found != manifest.template_sha256:
        raise DataError("the template is not the one that the manifest names", where=where, hint="get it again")
    if template is None:
        return None
    try:
        text = template.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("the template is not UTF-8", where=where, hint="get it again") from error
    if not 1 <= len(text) <= MAX_TEMPLATE_CHARS:
        raise DataError(f"the template has {len(text)} characters", where=where, hint="shorten it")
    return text


def _capability(data: bytes, manifest: ElmManifest, where: str) -> CapabilityManifest:
    try:
        capability = CapabilityManifest.from_bytes(data)
    except MalformedRecord as error:
        raise RecordRefused(f"its capability manifest is malformed: {error}", where=where, hint=_SIGN_HINT) from error
    if not capability.signature_is_valid():
        raise RecordRefused("its signature is not good", where=where, hint=_SIGN_HINT)
    named = (capability.module_name, capability.module_version, capability.artifact_hash)
    if named != (manifest.expert_id, manifest.version, manifest.artifact_hash):
        raise RecordRefused("it was signed for other contents", where=where, hint=_SIGN_HINT)
    return capability
