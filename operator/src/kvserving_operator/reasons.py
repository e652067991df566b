"""Every reason that a condition, an event or a notice may carry, declared once."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a condition holds, or what a plan wants to be known. The value is what users see."""

    INVALID_SPEC = "InvalidSpec"
    MODEL_FACTS_UNKNOWN = "ModelFactsUnknown"
    ENGINE_UNTESTED = "EngineUntested"
    ENGINE_VERSION_ASSUMED = "EngineVersionAssumed"
    REDUCED_ENGINE_SUPPORT = "ReducedEngineSupport"
    EXPERIMENTAL = "Experimental"
    TIER_NOT_IN_THIS_RELEASE = "TierNotInThisRelease"
    NOT_IN_THIS_RELEASE = "NotInThisRelease"
    ROUTER_OPEN = "RouterOpen"
    STORE_NOT_BOUNDED = "StoreNotBounded"
    MODEL_NOT_MOUNTED = "ModelNotMounted"
    LOADING_MODEL = "LoadingModel"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    QUOTA_EXCEEDED = "QuotaExceeded"
    HANDSHAKE_INCOMPATIBLE = "HandshakeIncompatible"
    RECOMPUTING_KV = "RecomputingKV"
    TCP_FALLBACK = "TCPFallback"
    PEER_STALE = "PeerStale"
    TRANSFER_FAILED = "TransferFailed"
    PROBE_FAILED = "ProbeFailed"
    ENGINE_UNREACHABLE = "EngineUnreachable"
    VERIFIED = "Verified"
    ENGINE_HUNG = "EngineHung"
    L2_FULL = "L2Full"
    L2_UNREACHABLE = "L2Unreachable"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    OWNED_BY_OTHER = "OwnedByOther"
    ROLLOUT_FAILED = "RolloutFailed"
    SUSPENDED = "Suspended"

    READY = "Ready"
    VALID = "Valid"
    STARTING = "Starting"
    VERIFYING = "Verifying"
    ROLLING_OUT = "RollingOut"
    NOTHING_TO_DO = "NothingToDo"
    POD_FAILING = "PodFailing"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason
    WAITING_FOR_DELETION = "WaitingForDeletion"
    KIND_MISSING = "KindMissing"
    FORBIDDEN = "Forbidden"
    CONFLICT = "Conflict"
    APPLY_FAILED = "ApplyFailed"
    API_UNAVAILABLE = "ApiUnavailable"
