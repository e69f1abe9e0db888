"""What ``elm pack`` puts into an archive."""

from __future__ import annotations

from gnusnode.contracts import ids
from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.tools import CapabilityManifest
from gnusnode.inference.artifacts.elmfile import Archive, Span
from gnusnode.inference.artifacts.elmrecord import ElmManifest, ElmModel, ElmSpec
from gnusnode.inference.artifacts.models import LoadableModel


def archive_of(spec: ElmSpec, model: LoadableModel, signer: Signer | None, *, embed: bool, now_ms: int) -> Archive:
    """The small members, signed where there is a signer, and whether the model follows."""
    template = None if spec.template is None else spec.template.encode("utf-8")
    stored = model.manifest
    manifest = ElmManifest(
        expert_id=spec.expert_id,
        version=spec.version,
        description=spec.description,
        role=spec.role,
        domains=spec.domains,
        model=ElmModel(sha256=stored.sha256, size=stored.size, source=stored.source),
        template_sha256=None if template is None else ids.sha256(template),
        defaults=spec.defaults,
        determinism=stored.traits.determinism,
        license=stored.license,
    )
    capability = None
    if signer is not None:
        capability = CapabilityManifest.signed(
            signer,
            module_name=spec.expert_id,
            module_version=spec.version,
            artifact_hash=manifest.artifact_hash,
            required_capabilities=spec.required_capabilities,
            sandbox_requirements=spec.sandbox_requirements,
            issued_at_ms=now_ms,
        ).to_bytes()
    return Archive(manifest.to_json(), capability, template, Span(0, stored.size) if embed else None)
