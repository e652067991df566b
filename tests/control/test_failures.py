from __future__ import annotations

from typing import Any

import pytest

from kvserving_operator.control.failures import ApiFailure, describe, problem
from kvserving_operator.reasons import Reason

SECRET = "hf_veryPrivate0123456789"  # no token of anybody's


def failure(status: int, reason: str = "", message: str = "", retry_after: float = 0, **details: Any) -> ApiFailure:
    return ApiFailure(status, reason, message, "patch services prod/qwen", details, retry_after)


@pytest.mark.parametrize(
    ("found", "reason", "again"),
    [
        (failure(409, "Conflict"), Reason.CONFLICT, True),
        (failure(403, "Forbidden", "pods is forbidden: exceeded quota: q"), Reason.QUOTA_EXCEEDED, True),
        (failure(403, "Forbidden", 'User "x" cannot patch resource "services"'), Reason.FORBIDDEN, True),
        (failure(403, "Forbidden", 'user "x" is attempting to grant RBAC permissions'), Reason.FORBIDDEN, True),
        (failure(403, "Forbidden", "maximum cpu usage per Container is 1"), Reason.APPLY_FAILED, True),
        (failure(400, "BadRequest", 'admission webhook "w" denied the request: no'), Reason.APPLY_FAILED, True),
        (failure(413, "RequestEntityTooLarge", "policy p denied request: no"), Reason.APPLY_FAILED, True),
        (failure(403, "Forbidden", "", causes=[{"reason": "NamespaceTerminating"}]), Reason.APPLY_FAILED, True),
        (failure(401, "Unauthorized"), Reason.FORBIDDEN, True),
        (failure(422, "Invalid"), Reason.APPLY_FAILED, False),
        (failure(400, "BadRequest"), Reason.APPLY_FAILED, False),
        (failure(404, "NotFound"), Reason.KIND_MISSING, True),
        (failure(429, "TooManyRequests", retry_after=7), Reason.API_UNAVAILABLE, True),
        (failure(500, "InternalError"), Reason.API_UNAVAILABLE, True),
        (failure(0, "TimeoutError"), Reason.API_UNAVAILABLE, True),
    ],
)
def test_each_answer_has_its_reason_and_says_whether_trying_again_may_help(
    found: ApiFailure, reason: Reason, again: bool
) -> None:
    meant = problem(found)
    assert (meant.reason, meant.again) == (reason, again)
    assert "patch services prod/qwen" in meant.message
    assert meant.retry_after >= found.retry_after


def test_a_missing_object_is_told_from_a_missing_kind() -> None:
    assert failure(404, "NotFound", name="qwen").missing
    assert not failure(404, "NotFound", name="qwen").kind_missing
    assert failure(404, "NotFound").kind_missing


def test_a_refused_body_is_told_by_field_and_never_by_value() -> None:
    causes = [
        {"field": "spec.ports[0].port", "reason": "FieldValueInvalid", "message": f'Invalid value: "{SECRET}"'},
        {"field": "spec.type", "reason": "FieldValueNotSupported"},
    ]
    told = describe(failure(422, "Invalid", f'Service "qwen" is invalid: "{SECRET}"', causes=causes))
    assert "spec.ports[0].port (FieldValueInvalid)" in told
    assert "spec.type" in told
    assert SECRET not in told


def test_a_quota_is_told_with_its_numbers() -> None:
    message = 'pods "x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
    assert "limited: pods=2" in describe(failure(403, "Forbidden", message))


@pytest.mark.parametrize("status", [400, 403, 422])
def test_what_a_policy_says_is_told_and_the_operators_rights_are_not_blamed(status: int) -> None:
    denial = f'admission webhook "images.example.com" denied the request: unsigned image, token={SECRET}'
    told = describe(failure(status, "Forbidden", denial))
    assert "a policy of the cluster refuses it" in told
    assert "unsigned image" in told
    assert "grant" not in told
    assert SECRET not in told


def test_a_claim_that_would_shrink_is_explained() -> None:
    causes = [{"field": "spec.resources.requests.storage", "reason": "FieldValueForbidden"}]
    assert "never shrinks" in describe(failure(422, "Invalid", "", causes=causes))
