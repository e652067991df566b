"""The document with kubectl's output: the same from every run, and about the example as it is."""

from __future__ import annotations

from e2e.operator.running import ROOT
from e2e.operator.transcript import ASK, DOCUMENT, EXAMPLE, steady

_ONE = """\
NAME   READY   TRANSFER   REVISION           AGE
tiny   True    Verified   b9cc787344b76210   13s

  Creation Timestamp:  2026-11-28T05:43:12Z
  Resource Version:    326
  UID:                 c04634ce-3206-487e-8004-0154dc8e8091
Events:
  Type    Reason            Age   From                Message
  ----    ------            ----  ----                -------
  Normal  Ready             0s    kvserving-operator  Ready: every role is ready
  Normal  Available         0s    kvserving-operator  Ready: requests can be served
"""
_OTHER = """\
NAME   READY   TRANSFER   REVISION           AGE
tiny   True    Verified   0cc4787344b76999   2m5s

  Creation Timestamp:  2027-01-28T15:43:12Z
  Resource Version:    4811
  UID:                 11111111-3206-487e-8004-0154dc8e8091
Events:
  Type    Reason            Age                From                Message
  ----    ------            ----               ----                -------
  Normal  Available         2s (x3 over 1m4s)  kvserving-operator  Ready: requests can be served
  Normal  Ready             1m4s               kvserving-operator  Ready: every role is ready
"""


def test_two_runs_give_the_same_text_and_what_matters_stays() -> None:
    assert steady(_ONE) == steady(_OTHER)
    assert "tiny   True    Verified" in steady(_ONE)
    assert steady(_ONE.replace("Verified", "Starting")) != steady(_OTHER)
    assert steady(_ONE.replace("requests can be served", "nothing runs")) != steady(_OTHER)


def test_the_document_is_steady_and_shows_the_example_as_it_is() -> None:
    text = DOCUMENT.read_text()
    assert steady(text) == text
    assert f"```yaml\n{(ROOT / EXAMPLE).read_text()}```" in text


def test_the_document_tells_of_a_service_that_became_ready() -> None:
    text = DOCUMENT.read_text()
    assert "kvserving.kvserving.dev/tiny condition met" in text
    assert "True    True        Ready    1/1       1/1      Verified" in text


def test_the_document_says_how_to_send_a_request() -> None:
    assert ASK in DOCUMENT.read_text()
