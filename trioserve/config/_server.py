"""What a server is told at its start: addresses, limits and bounds, as frozen structs.

Every bound of the server stands here with its default and its unit; nothing in the server waits, queues or
allocates without one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from trioserve.config._security import AdminConfig, AuthConfig, TlsConfig

KIB = 1 << 10
MIB = 1 << 20

Nbytes = Annotated[int, Meta(ge=1, description="bytes")]
Seconds = Annotated[float, Meta(gt=0, le=86_400, description="seconds")]
Number = Annotated[int, Meta(ge=1)]
U32 = Annotated[int, Meta(ge=1, le=2**32 - 1)]
"""What clients are told of in a field of 32 bits."""


class ServerLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What one client, one connection and all of them together may take."""

    max_connections: Number = 10_000
    """Open connections of one process; the next one is told so and closed."""

    max_connections_per_address: Number = 256
    """Open connections of one client address, of IPv6 one network of 64 bits; the next one is told so and closed.
    Raise it where many clients come through one proxy. Connections of Unix sockets are not counted."""

    max_unauthenticated: Number = 256
    """Open connections that have not authenticated yet, where that is asked for; the next one is told so and closed."""

    unauthenticated_s: Seconds = 5.0
    """Time that a connection has to authenticate, in seconds."""

    header_stall_s: Seconds = 5.0
    """Longest that a header or meta section may take to arrive once its first byte has, in seconds."""

    body_min_nbytes_per_s: Nbytes = 16 * KIB
    """Slowest that a body may arrive once `body_grace_s` has passed, in bytes a second."""

    body_grace_s: Seconds = 2.0
    """Time that a body may take at any rate, in seconds."""

    max_frame_nbytes: Annotated[int, Meta(ge=4 * KIB, le=2**32 - 8, description="bytes")] = 64 * MIB
    """Largest body of a frame in bytes; a larger one is refused from its header."""

    max_meta_nbytes: Annotated[int, Meta(ge=512, le=8 * 65_535, description="bytes")] = 64 * KIB
    """Largest meta section of a frame in bytes."""

    max_ndim: Annotated[int, Meta(ge=1, le=255)] = 8
    """Most dimensions of a tensor."""

    max_tensors: Annotated[int, Meta(ge=1, le=65_534)] = 32
    """Most tensors in a frame."""

    max_bytes_elements: U32 = 65_536
    """Most elements of a BYTES tensor."""

    max_binds: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """Most handles bound on one connection."""

    credit_requests: U32 = 256
    """Requests one connection may have in flight."""

    credit_nbytes: Annotated[int, Meta(ge=KIB, le=KIB * (2**32 - 1), description="bytes")] = 64 * MIB
    """Body bytes one connection may have in flight."""

    output_soft_nbytes: Nbytes = 4 * MIB
    """Unsent reply bytes of one connection that are tolerated for `output_soft_s`."""

    output_soft_s: Seconds = 10.0
    """Time a connection may stay above `output_soft_nbytes` before it is closed, in seconds."""

    output_hard_nbytes: Nbytes = 16 * MIB
    """Unsent reply bytes at which a connection is closed at once. A client that was below `output_soft_nbytes` may be
    owed more by one batch, however large its results are."""

    output_total_nbytes: Nbytes = 256 * MIB
    """Unsent reply bytes of all connections together; past it the connection that holds most is closed."""

    control_frames_per_s: U32 = 1_000
    """Control frames one connection may send a second, as a token bucket one second deep."""

    connection_turn_frames: Number = 256
    """Frames of one connection handled before the next connection has its turn."""

    connection_turn_nbytes: Nbytes = 256 * KIB
    """Bytes of one connection handled before the next connection has its turn."""

    turn_frames: Number = 512
    """Frames of all connections of a group handled before the loop gets a turn."""

    turn_nbytes: Nbytes = 4 * MIB
    """Bytes of all connections of a group handled before the loop gets a turn: about a millisecond of copying. One
    connection gets a quarter of it."""

    turn_us: Annotated[int, Meta(ge=1, description="microseconds")] = 500
    """Time one turn of a group may take before the loop gets one, in microseconds."""

    max_queued_rows: Number = 65_536
    """Rows of one model that may wait or run at once, if its slots are not fewer; a row past it is shed."""

    max_queued_nbytes: Nbytes = 1024 * MIB
    """Payload bytes of all models that may wait or run at once; a request past it is shed."""


class WorkerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The processes that run the models."""

    depth: Annotated[int, Meta(ge=0, le=3, description="batches; 0 = measured")] = 0
    """Batches that may be with an executor at once; 0 lets the server choose from what it measures when a
    model is loaded."""

    start_timeout_s: Seconds = 120.0
    """Time a worker may take from its start until its models are loaded and warm, in seconds."""

    stop_grace_s: Seconds = 5.0
    """Time a worker may take to finish once it has been told to, in seconds; then it is killed."""

    restart_backoff_s: Annotated[float, Meta(ge=0, le=3600, description="seconds")] = 0.1
    """Longest pause before a worker that died is started anew, in seconds; doubled with each death within
    `restart_window_s`, up to 10 s. Up to half of a pause is left to chance."""

    max_restarts: Annotated[int, Meta(ge=0, le=10_000, description="restarts")] = 5
    """Deaths of a worker within `restart_window_s` after which it is started again. One more, and its models are
    closed: it dies of something that starting again does not cure."""

    restart_window_s: Seconds = 60.0
    """Time after which a death is forgotten, in seconds."""

    retry_failed_s: Seconds = 30.0
    """Longest pause, in seconds, between two trials of a worker that dies again and again. Its models are closed
    meanwhile, and open when a trial succeeds; one more death within `restart_window_s` closes them again."""

    spare: Annotated[int, Meta(ge=0, le=1, description="workers")] = 0
    """1 keeps a second executor ready, with all models loaded and warm, that takes over at once when the first is lost.
    It does nothing meanwhile, and costs as much memory as the first."""

    quarantine_s: Annotated[float, Meta(ge=0, le=86_400, description="seconds; 0 = never")] = 600.0
    """How long an input that was run when a worker died is suspected, and one that did so twice is refused, in
    seconds; 0 switches both off."""


class RepositoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How the repository is looked after while the server runs."""

    poll_seconds: Annotated[float, Meta(ge=0, le=86_400, description="seconds; 0 = never")] = 0.0
    """Time between two looks at the files of the repository, in seconds; what has changed, and was the same at the next
    look, is loaded, reloaded or unloaded. 0 changes nothing unless somebody orders it."""


class QuotaConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a tenant may send."""

    requests_per_s: Annotated[float, Meta(ge=0, le=1e9, description="requests a second; 0 = no quota")] = 0.0
    """Requests a second in the long run, whatever becomes of them later; 0 for no quota."""

    burst: Annotated[int, Meta(ge=0, le=2**31, description="requests; 0 = one second's")] = 0
    """Requests that may come at once after a pause; 0 for as many as the rate gives in a second. Needs a rate."""


class ServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A server, without its models."""

    models: str = ""
    """Model repository, model folder or Python file that is served. In a file: relative to that file."""

    host: str = "127.0.0.1"
    """Address that TCP listens on; empty for no TCP. Beyond this machine the protocol needs a trusted
    network."""

    port: Annotated[int, Meta(ge=0, le=65_535)] = 7001
    """TCP port; 0 takes any free one, which the server logs and `Server.addresses` tells."""

    unix_path: str = ""
    """Path of the Unix socket; empty for none. A stale socket file is replaced, any other file is not."""

    backlog: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """Connections that the kernel may hold ready for the server to accept."""

    grace_s: Annotated[float, Meta(ge=0, le=86_400, description="seconds")] = 10.0
    """Time that accepted requests have to finish when the server is told to stop, in seconds."""

    on_fin: Literal["serve", "cancel"] = "serve"
    """What becomes of a connection's requests when its client has closed its sending side."""

    state_dir: str = "auto"
    """Folder where the service times that were learnt of each model are kept from one start to the next, a few
    KiB a model. `auto` is `trioserve` in `$XDG_CACHE_HOME`, or in `~/.cache`; empty keeps nothing, and so does a
    folder that cannot be written. In a file: relative to that file."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe event that is logged."""

    log_format: Literal["auto", "console", "json"] = "auto"
    """How events are written; `auto` is `console` on a terminal and `json` elsewhere."""

    record: str = ""
    """Directory that a record of the traffic of each model is written to when the server stops; empty for none. In a
    file: relative to the working directory."""

    record_requests: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    """Requests of one model that are recorded, in 25 bytes each; later ones are only counted."""

    repository: RepositoryConfig = field(default_factory=RepositoryConfig)
    """How the repository is looked after while the server runs."""

    limits: ServerLimits = field(default_factory=ServerLimits)
    """What clients may take."""

    quota: QuotaConfig = field(default_factory=QuotaConfig)
    """Of every tenant without a table of its own, and of every connection that names no tenant."""

    tenants: dict[str, QuotaConfig] = field(default_factory=dict)
    """Quotas by the name of the tenant: `[tenants.NAME]`."""

    tls: TlsConfig = field(default_factory=TlsConfig)
    """Encryption of the TCP port."""

    auth: AuthConfig = field(default_factory=AuthConfig)
    """Tokens that clients must present."""

    admin: AdminConfig = field(default_factory=AdminConfig)
    """Who may ask the server about itself."""

    workers: WorkerConfig = field(default_factory=WorkerConfig)
    """The processes that run the models."""
