"""Every reason that a condition or a notice may carry, declared once; those of events are in ``control/events.py``."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a condition holds, or what a plan wants to be known. The value is what users see.

    The sentence after each member is its meaning in the operator's reference.
    """

    INVALID_SPEC = "InvalidSpec"
    """The spec cannot be planned; what runs is left as it is."""
    EMPTY_FIELD = "EmptyField"
    """A field of a file has no value and counts as left out."""
    MODEL_FACTS_UNKNOWN = "ModelFactsUnknown"
    """The model's layers and heads are not known, so checks that need them are left out."""
    ENGINE_UNTESTED = "EngineUntested"
    """This version of the engine was not tested on this device."""
    ENGINE_VERSION_ASSUMED = "EngineVersionAssumed"
    """The image names no version; the message says which one is assumed."""
    REDUCED_ENGINE_SUPPORT = "ReducedEngineSupport"
    """This version of the engine lacks something that others have."""
    FLAG_UNKNOWN = "FlagUnknown"
    """This version of the engine has no such flag, or does not take it as it is written."""
    EXPERIMENTAL = "Experimental"
    """A setting whose behaviour may change."""
    NOT_IN_THIS_RELEASE = "NotInThisRelease"
    """A setting that is accepted but does nothing yet."""
    SETTING_WITHOUT_EFFECT = "SettingWithoutEffect"
    """A setting that does nothing beside the others of its object."""
    NOT_ON_ONE_MACHINE = "NotOnOneMachine"
    """Settings for a cluster, which do nothing where `kvserving up` runs the service on one machine."""
    ROUTER_OPEN = "RouterOpen"
    """The router does not check the key of its clients."""
    POLICY_WITHOUT_EFFECT = "PolicyWithoutEffect"
    """A network policy does not cover pods on their host's network."""
    STORE_NOT_BOUNDED = "StoreNotBounded"
    """The operator cannot bound what the store holds."""
    STORE_NOT_MOUNTED = "StoreNotMounted"
    """The store is a folder that no volume of the pods has."""
    MODEL_NOT_MOUNTED = "ModelNotMounted"
    """The model is a folder that no volume of the pods has."""
    LOADING_MODEL = "LoadingModel"
    """Engines load weights."""
    POD_LOST = "PodLost"
    """An engine's pod that served is gone, and the one in its place does not serve yet."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """No node has room for a pod."""
    CLAIM_MISSING = "ClaimMissing"
    """A claim that pods mount is not in the namespace."""
    CLAIM_UNBOUND = "ClaimUnbound"
    """A claim that pods mount has no volume: none was found or made, or it is lost."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A quota of the namespace forbids a pod or a child."""
    HANDSHAKE_INCOMPATIBLE = "HandshakeIncompatible"
    """Prefill and decode do not understand each other's KV layout."""
    RECOMPUTING_KV = "RecomputingKV"
    """Decode computes prompts again instead of receiving their KV."""
    PEER_STALE = "PeerStale"
    """An engine holds on to a peer that is not the present one, or two that have transferred no longer can."""
    TRANSFER_FAILED = "TransferFailed"
    """A transfer was begun and failed."""
    PROBE_FAILED = "ProbeFailed"
    """A probe was answered by an error."""
    ENGINE_UNREACHABLE = "EngineUnreachable"
    """An engine or a router takes no connection."""
    VERIFIED = "Verified"
    """A probe proved that KV moves from prefill to decode."""
    ENGINE_HUNG = "EngineHung"
    """An engine takes connections and does not answer, or has requests and computes nothing."""
    L2_UNREACHABLE = "L2Unreachable"
    """The L2 tier does not answer."""
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    """Counters that scaling or verification needs cannot be read."""
    SCALER_FAILED = "ScalerFailed"
    """A scaler cannot read or write the number of engines."""
    RATIO_UNMET = "RatioUnmet"
    """The bounds of prefill to decode engines cannot hold within the bounds of the roles."""
    OWNED_BY_OTHER = "OwnedByOther"
    """An object of the child's name belongs to someone else and is left alone."""
    ROLLOUT_FAILED = "RolloutFailed"
    """The new revision did not become ready in time."""
    SUSPENDED = "Suspended"
    """The object is suspended; nothing is changed."""

    READY = "Ready"
    """As it should be."""
    VALID = "Valid"
    """The spec can be planned."""
    STARTING = "Starting"
    """Pods are not ready yet."""
    VERIFYING = "Verifying"
    """A probe is on its way."""
    ROLLING_OUT = "RollingOut"
    """A revision replaces another one."""
    NOTHING_TO_DO = "NothingToDo"
    """The state is that of the spec."""
    POD_FAILING = "PodFailing"
    """A container ends again and again, or its image cannot be had."""
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason
    """A Secret or a key in it that the spec names is not there."""
    WAITING_FOR_DELETION = "WaitingForDeletion"
    """An object of the child's name is being deleted."""
    KIND_MISSING = "KindMissing"
    """The cluster lacks a kind that the spec needs."""
    FORBIDDEN = "Forbidden"
    """The operator may not do what is needed; the message names the verb."""
    CONFLICT = "Conflict"
    """Someone else sets the same fields."""
    APPLY_FAILED = "ApplyFailed"
    """The apiserver refused a child."""
    API_UNAVAILABLE = "ApiUnavailable"
    """The apiserver does not answer as it should."""


WORKING = frozenset(
    (
        Reason.STARTING,
        Reason.LOADING_MODEL,
        Reason.VERIFYING,
        Reason.ROLLING_OUT,
        Reason.WAITING_FOR_DELETION,
        Reason.CONFLICT,
    )
)
"""Of what is on its way."""
MENDS_ITSELF = WORKING | {Reason.POD_LOST}
"""Of what is mended without anybody."""
ENGINE_CONDITIONS = ("PrefillReady", "DecodeReady")
"""Conditions of the roles whose pods are engines."""
