"""Every option of a node, in one frozen tree. Names carry their unit; secrets are paths of files, never values.

``docs/configuration.md`` documents each option, which a test holds; ``config.load`` says where values come from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from gnusnode.config.values import (
    ROLES,
    RoleName,
    expand,
    host_port,
    is_loopback,
    multiaddr,
    role_names,
    split_address,
    web_url,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Address = Annotated[str, AfterValidator(host_port)]
"""``HOST:PORT``, ``[V6]:PORT``; port 0 lets the system choose."""
Multiaddr = Annotated[str, AfterValidator(multiaddr)]
Url = Annotated[str, AfterValidator(web_url)]
FilePath = Annotated[Path, AfterValidator(expand)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Ident = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class NodeSettings(Section):
    """Who this node is."""

    name: str = Field(
        default="", max_length=64, description="Name shown in status and on the page; empty: the host's name."
    )
    roles: Annotated[tuple[RoleName, ...], BeforeValidator(role_names)] = Field(
        default=ROLES, min_length=1, description="Roles that this node takes on; `all` stands for every one."
    )


class ApiSettings(Section):
    """The HTTP surface."""

    listen: Address = Field(
        default="127.0.0.1:8477", description="Address of the HTTP API, `HOST:PORT`; port 0 chooses one."
    )
    tls_cert: FilePath | None = Field(default=None, description="PEM file with the certificate chain of the API.")
    tls_key: FilePath | None = Field(
        default=None, description="PEM file with its private key; none: it is in `api.tls_cert`."
    )
    require_key: bool = Field(
        default=False, description="Ask for an API key also on a loopback address; elsewhere a key is always asked for."
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Names that the `Host` header may have besides loopback and the address of `api.listen`.",
    )
    cors_origins: tuple[Url, ...] = Field(default=(), description="Web origins that may call the API from a browser.")
    max_connections: int = Field(default=256, ge=1, le=65_536, description="Open connections; more are closed at once.")
    max_body_bytes: int = Field(default=8 * MIB, ge=KIB, le=GIB, description="Largest request body.")
    max_in_flight: int = Field(
        default=64, ge=1, le=10_000, description="Requests being answered at a time; more get 503."
    )
    header_seconds: Seconds = Field(default=5.0, description="Time a client has to send its request head.")
    body_seconds: Seconds = Field(default=30.0, description="Time a client has to send its request body.")
    keep_alive_seconds: Seconds = Field(default=75.0, description="How long an idle connection stays open.")
    stalled_write_seconds: Seconds = Field(
        default=30.0, description="A connection whose client reads nothing for this long is closed."
    )
    sse_keepalive_seconds: Seconds = Field(
        default=15.0, description="Silence on an event stream after which a comment is sent."
    )

    @model_validator(mode="after")
    def _reachable_only_with_tls(self) -> ApiSettings:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key belongs to a certificate: give tls_cert too")
        if self.tls_cert is None and not is_loopback(split_address(self.listen)[0]):
            raise ValueError(f"others can reach {self.listen}: give tls_cert, or listen on 127.0.0.1")
        return self


class NetSettings(Section):
    """The swarm."""

    enabled: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Take part in a network; `auto`: once the node belongs to a swarm or `net.peers` names anybody.",
    )
    listen: tuple[Multiaddr, ...] = Field(
        default=("/ip4/0.0.0.0/tcp/8478",),
        description="TCP multiaddrs to listen on for peers; port 0 chooses one; empty: others cannot dial this node.",
    )
    announce: tuple[Multiaddr, ...] = Field(
        default=(), description="Multiaddrs to tell others in place of the ones found, as behind a forwarded port."
    )
    peers: tuple[Multiaddr, ...] = Field(
        default=(), description="Multiaddrs of peers to keep dialling, each ending in `/p2p/` and a PeerID."
    )
    mdns: bool = Field(default=True, description="Find peers on the local network by multicast.")
    mdns_interfaces: tuple[str, ...] = Field(
        default=(), description="Addresses of the interfaces for multicast; empty: all of them."
    )
    dht: bool = Field(default=True, description="Find peers by the distributed hash table.")
    relay: Literal["off", "client", "server"] = Field(
        default="client",
        description="Relayed connections; `client`: use members' relays where needed, `server`: relay for members too.",
    )
    allow: tuple[str, ...] = Field(
        default=(), description="Networks in CIDR notation that may connect; empty: all that `net.deny` leaves."
    )
    deny: tuple[str, ...] = Field(default=(), description="Networks in CIDR notation that may not connect.")
    max_connections: int = Field(default=200, ge=4, le=10_000, description="Connections to peers.")
    max_per_address: int = Field(default=32, ge=1, le=10_000, description="Incoming connections of one IP address.")
    dial_seconds: Seconds = Field(default=5.0, description="Time a dialled address has to become a connection.")
    ping_seconds: Seconds = Field(
        default=5.0, description="A connection is asked for a sign of life this often, and dropped after three misses."
    )
    heartbeat_seconds: Seconds = Field(default=10.0, description="How often this node announces itself.")
    ttl_seconds: Seconds = Field(
        default=30.0, description="How long an announcement holds; a peer that is silent for longer is gone."
    )
    serve_artifacts: bool = Field(default=True, description="Let members of the swarm fetch model files from here.")
    upload_bytes_per_second: int = Field(default=0, ge=0, description="Bandwidth for that, of all peers; 0: no limit.")
    discovered_peers: int = Field(
        default=32, ge=1, le=1000, description="Connections that this node seeks by itself before it stops looking."
    )


class ModelSettings(Section):
    """Model files: which one answers, and how new ones are fetched."""

    default: Ident = Field(
        default="auto",
        description="Model that is loaded first and answers; `auto`: the packaged one, `none`: start without a model.",
    )
    load: tuple[Ident, ...] = Field(default=(), description="Further models to load at start, by name.")
    embedding: Ident = Field(
        default="none", description="Model for `/v1/embeddings`; `auto`: the packaged one, `none`: no model."
    )
    path: FilePath | None = Field(default=None, description="Directory of model files; empty: `models` in the home.")
    hub: Url = Field(default="https://huggingface.co", description="Where `models pull OWNER/REPO/FILE` looks.")
    pull_chunk_bytes: int = Field(
        default=8 * MIB, ge=64 * KIB, le=GIB, description="Size of a ranged request, hashed on its own."
    )
    pull_max_bytes: int = Field(default=64 * GIB, ge=MIB, description="Largest file that `models pull` fetches.")
    pull_bytes_per_second: int = Field(default=0, ge=0, description="Bandwidth limit of a pull; 0: none.")
    trusted_packers: tuple[str, ...] = Field(
        default=(), description="PeerIDs whose signed expert artifacts may run here, besides this node itself."
    )
    require_signature: bool = Field(default=True, description="Run only expert artifacts that a trusted packer signed.")
    reserve_bytes: int = Field(default=GIB, ge=0, description="Free disk space that a pull must leave.")


class RemoteEngine(Section):
    """An OpenAI-compatible server that the operator already runs, used as one more model."""

    name: Ident = Field(description="Name under which this node offers the model.")
    url: Url = Field(description="Base URL up to and including `/v1`.")
    model: str = Field(min_length=1, max_length=256, description="Name of the model at the server.")
    key_file: FilePath | None = Field(
        default=None, description="0600 file that holds the server's API key; empty: none."
    )


class InferenceSettings(Section):
    """How models run."""

    n_ctx: int = Field(
        default=8192, ge=256, le=2**24, description="Context of one model, in tokens, shared by its slots."
    )
    slots: int = Field(default=8, ge=1, le=64, description="Generations that run together in one model.")
    canonical_slots: int = Field(
        default=4,
        ge=1,
        le=64,
        description="The same in the canonical (bit-exact) profile, where each slot has a whole context of its own.",
    )
    canonical_ready: bool = Field(
        default=False,
        description="Load models in the canonical profile at start too, and not with the first request for it:"
        " bit-exact answers then begin, and go on after the loss of a node, without waiting for a load.",
    )
    batch: int = Field(default=512, ge=32, le=16_384, description="Most tokens of one decode call.")
    prefill_per_step: int = Field(
        default=256,
        ge=16,
        le=16_384,
        description="Prompt tokens per step: keeps a long prompt from stalling running answers.",
    )
    threads: int = Field(default=0, ge=0, le=1024, description="CPU threads of one model; 0: measured at start.")
    gpu: Literal["auto"] | Annotated[int, Field(ge=0, le=100_000)] = Field(
        default="auto", description="Layers on the GPU; `auto`: as many as fit into its free memory, 0: none."
    )
    max_queued: int = Field(
        default=256, ge=1, le=100_000, description="Generations that wait for a slot; more are refused."
    )
    max_queued_per_tenant: int = Field(default=64, ge=1, le=100_000, description="The same for one tenant.")
    start_seconds: Seconds = Field(default=600.0, description="Time a model has to load.")
    watchdog_seconds: Seconds = Field(default=30.0, description="An engine that makes no step for this long is ended.")
    quarantine_crashes: int = Field(
        default=5,
        ge=1,
        le=100,
        description="Crashes within `quarantine_window_seconds` that put a model into quarantine.",
    )
    quarantine_window_seconds: Seconds = Field(default=600.0, description="Time in which those crashes fall.")
    quarantine_seconds: Seconds = Field(
        default=1800.0, description="Time after which a quarantined model is tried again."
    )
    remote: tuple[RemoteEngine, ...] = Field(default=(), description="Servers to use as further models.")


class RouterSettings(Section):
    """How requests become plans."""

    classify: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Let a model classify intent, domain and risk; `auto`: only where the simple rules leave a choice.",
    )
    plan_seconds: Seconds = Field(default=300.0, description="How long a signed plan is valid.")
    requeues: int = Field(
        default=2, ge=0, le=7, description="Further experts that a request may go to after one has failed."
    )
    claim_seconds: Seconds = Field(
        default=1.0, description="Silence of another node, besides the way there, after which the next one is asked."
    )
    first_token_seconds: Seconds = Field(
        default=10.0,
        description="Silence before the first word, besides the time that it is expected to take; while another node"
        " can be asked, signs of life without a word count as silence.",
    )
    idle_seconds: Seconds = Field(
        default=30.0, description="Silence in the middle of an answer after which it counts as lost."
    )
    hedge_seconds: Seconds = Field(
        default=2.0,
        description="Wait for a first word, after which a second expert is asked too; only plain text at low risk.",
    )
    explore: float = Field(
        default=0.1, ge=0, le=0.5, description="Part of the requests in plain text at low risk that new nodes get."
    )
    keep_plans: int = Field(
        default=1000, ge=1, le=1_000_000, description="Plans and outputs that can be fetched afterwards."
    )


class LimitSettings(Section):
    """Limits of a request."""

    request_seconds: Seconds = Field(default=120.0, description="Wall time of a request, queueing included.")
    max_tokens: int = Field(default=2048, ge=1, le=1_000_000, description="Answer length where the request names none.")
    stream_buffer_bytes: int = Field(
        default=256 * KIB, ge=KIB, le=GIB, description="What may wait for a slow reader of one stream."
    )
    shutdown_seconds: Annotated[float, Field(gt=0, le=60)] = Field(
        default=4.0, description="Time for running requests to end after the first SIGINT or SIGTERM."
    )


class StoreSettings(Section):
    """The database."""

    map_bytes: int = Field(
        default=64 * GIB,
        ge=16 * MIB,
        le=2**46,
        description="Address space of the database at start; it is no disk space.",
    )


class ObserveSettings(Section):
    """What the node tells about itself."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity that is logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto`: console on a terminal, else JSON, one object a line."
    )
    lag_warning_ms: int = Field(
        default=250, ge=10, le=60_000, description="Loop lag, over ten seconds, at which `status` and `doctor` warn."
    )


class Settings(Section):
    """All options of a node."""

    profile: str = Field(
        default="solo",
        pattern=r"^[a-z0-9-]{1,32}$",
        description="Set of defaults to begin with: a file of `configs/profiles`.",
    )
    node: NodeSettings = NodeSettings()
    api: ApiSettings = ApiSettings()
    net: NetSettings = NetSettings()
    models: ModelSettings = ModelSettings()
    inference: InferenceSettings = InferenceSettings()
    router: RouterSettings = RouterSettings()
    limits: LimitSettings = LimitSettings()
    store: StoreSettings = StoreSettings()
    observe: ObserveSettings = ObserveSettings()
