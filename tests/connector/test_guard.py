from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.connector.support import KEYS, NOW, OTHER_KEY, PROBE_PARAMS, REVISION, Rig, handoff, signed
from tests.connector.test_signing import json_values

from kvserving_connector.core.policy import Role
from kvserving_connector.core.signing import sign_params
from kvserving_connector.guard import MAX_BODY_BYTES, Guard, Message
from kvserving_connector.settings import Settings

PATHS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
    "/invocations",
    "/tokenize",
    "/anything/else",
]
FORGED = [
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "remote_block_ids": None},
    {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "e", "remote_request_id": "r"},
    handoff(remote_host="10.0.0.9", remote_port=1),
]


def test_a_body_without_the_key_passes_byte_for_byte(tmp_path: Path) -> None:
    raw = b'{ "prompt" : "h\\u4f60 kv_transfer" ,\n "n": 2, "n": 3}'
    rig = Rig(tmp_path, Role.DECODE)
    assert rig.post(raw)[0] == 200
    assert rig.engine.bodies == [raw]


def test_signed_parameters_reach_decode_as_they_were_signed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    params = signed()
    assert rig.post({"prompt": "a", "kv_transfer_params": params}, chunks=7)[0] == 200
    assert rig.engine.seen == {"prompt": "a", "kv_transfer_params": params}
    assert dict(rig.engine.scopes[0]["headers"])[b"content-length"] == str(len(rig.engine.bodies[0])).encode()
    assert b"transfer-encoding" not in dict(rig.engine.scopes[0]["headers"])
    assert rig.accepted == 1


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF", "\\ude00\\ud83d", "\ud800"])
def test_halves_of_characters_are_refused_where_the_engine_would_fail(tmp_path: Path, half: str) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    forged = '{"prompt": "a", "vllm_xargs": {"x": "%s"}, "kv_transfer_params": {}}'
    status, answer = rig.post((forged % half).encode("utf-8", "surrogatepass"))
    assert status == 400
    assert "surrogate" in json.loads(answer)["error"]["message"]
    assert rig.post((forged % "\\ud83d\\ude00").encode())[0] == 200
    assert rig.engine.seen["vllm_xargs"] == {"x": "😀"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("params", FORGED)
@pytest.mark.parametrize("role", [*Role, None])
def test_forged_parameters_reach_no_engine_on_any_path(
    tmp_path: Path, path: str, params: dict[str, Any], role: Role | None
) -> None:
    rig = Rig(tmp_path, role)
    assert rig.post({"prompt": "a", "kv_transfer_params": params}, path=path)[0] == 200
    assert rig.engine.seen == {"prompt": "a"}
    assert rig.accepted == 0


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ("text", "malformed"),
        (17, "malformed"),
        ([1], "malformed"),
        (True, "malformed"),
        ({}, "unsigned"),
        (handoff(), "unsigned"),
        ({**signed(), "remote_host": "10.0.0.9"}, "bad_signature"),
        ({**signed(), "remote_port": "1"}, "malformed"),
        (sign_params(handoff(), keys=KEYS, revision=REVISION, expiry=int(NOW) - 1), "expired"),
        (sign_params(handoff(), keys=KEYS, revision="old", expiry=int(NOW)), "foreign_revision"),
        (signed(remote_block_ids=[[]]), "incomplete"),
    ],
)
def test_refused_parameters_are_removed_and_counted_by_reason(tmp_path: Path, params: Any, reason: str) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    assert rig.post({"prompt": "a", "kv_transfer_params": params})[0] == 200
    assert rig.engine.seen == {"prompt": "a"}
    assert rig.refused(reason) == 1


def test_requests_that_one_handoff_cannot_serve_are_recomputed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    rig.post({"prompt": ["a", "b"], "kv_transfer_params": signed()})
    rig.post({"prompt": "a", "n": "3", "kv_transfer_params": signed()})
    assert (rig.refused("multi_prompt"), rig.refused("multi_choice"), rig.accepted) == (1, 1, 0)
    assert "kv_transfer_params" not in rig.engine.seen


def test_parameters_for_decode_are_not_taken_by_prefill(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.PREFILL)
    rig.post({"prompt": "a", "max_tokens": 1, "kv_transfer_params": signed()})
    assert (rig.engine.seen, rig.refused("wrong_role")) == ({"prompt": "a", "max_tokens": 1}, 1)


def test_prefill_gets_the_routers_form_without_unknown_keys(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.PREFILL)
    rig.post(
        {"prompt": "a", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, "prompt_token_ids": [1]}}
    )
    assert rig.engine.seen["kv_transfer_params"] == PROBE_PARAMS
    assert rig.accepted == 1


@pytest.mark.parametrize(
    "body",
    [
        {"vllm_xargs": {"kv_transfer_params": "abc"}},
        {"sampling_params": {"extra_args": {"kv_transfer_params": {"do_remote_prefill": True}}}},
        {"requests": [{"body": {"kv_transfer_params": {}}}]},
        [{"kv_transfer_params": {}}],
    ],
)
@pytest.mark.parametrize("role", list(Role))
def test_hidden_parameters_are_removed_and_counted(tmp_path: Path, body: Any, role: Role) -> None:
    rig = Rig(tmp_path, role)
    assert rig.post(body)[0] == 200
    assert b"kv_transfer_params" not in rig.engine.bodies[0]
    assert rig.refused("nested") == 1


@pytest.mark.parametrize("media", ["application/json", "application/vnd.api+json", "text/plain", None])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("key", ["kv_transfer_params", "\\u006bv_transfer_params", "kv\\u005Ftransfer\\u005fparams"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET"])
def test_the_key_is_found_in_every_spelling_encoding_and_method(
    tmp_path: Path, media: str | None, encoding: str, key: str, method: str
) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    raw = f'{{"prompt": "a", "{key}": {{"do_remote_prefill": true}}}}'.encode(encoding)
    assert rig.post(raw, content_type=media, method=method)[0] == 200
    assert rig.engine.seen == {"prompt": "a"}


def test_of_duplicate_keys_the_engine_sees_the_one_that_was_checked(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    good = json.dumps(signed())
    rig.post(f'{{"prompt":"a","kv_transfer_params":{good},"kv_transfer_params":{{"do_remote_prefill":true}}}}'.encode())
    assert rig.engine.seen == {"prompt": "a"}
    rig.post(f'{{"prompt":["a","b"],"kv_transfer_params":{good},"prompt":"a"}}'.encode())
    assert rig.engine.bodies[-1].count(b'"prompt"') == 1
    assert rig.engine.seen["kv_transfer_params"] == signed()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"kv_transfer_params":',
        b'{"kv_transfer_params":1}x',
        b"kv_transfer_params",
        b'{"kv_transfer_params":' + b"[" * 100_000,
    ],
)
def test_an_unusable_body_is_a_client_error_in_openai_form(tmp_path: Path, raw: bytes) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    status, answer = rig.post(raw)
    error = json.loads(answer)["error"]
    assert status == error["code"] == 400
    assert "kv_transfer_params" in error["message"]
    assert rig.engine.bodies == []
    assert rig.refused("malformed") == 1


@pytest.mark.parametrize(
    ("media", "raw"),
    [
        ("multipart/form-data; boundary=b", b'--b\r\n\r\n{"kv_transfer_params":"x"}\r\n--b--'),
        ("multipart/form-data; boundary=b", b'--b\r\n\r\n{"\\u006bv_transfer_params":"x"}\r\n--b--'),
        ("application/x-www-form-urlencoded", b"vllm_xargs=%7B%22kv%5Ftransfer_params%22%3A1%7D"),
        ("application/x-www-form-urlencoded", b"vllm_xargs={%22%5cu006bv_transfer_params%22:1}"),
        ("multipart/form-data; boundary=b", '{"kv_transfer_params": {}}'.encode("utf-16")),
    ],
)
def test_form_data_cannot_carry_parameters(tmp_path: Path, media: str, raw: bytes) -> None:
    """vLLM parses the form field ``vllm_xargs`` of its audio endpoints as JSON."""
    rig = Rig(tmp_path, Role.DECODE)
    assert rig.post(raw, path="/v1/audio/transcriptions", content_type=media)[0] == 400
    assert (rig.engine.bodies, rig.refused("nested")) == ([], 1)


def test_form_data_in_a_charset_that_could_hide_the_key_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    assert rig.post(b"+AGs-v", content_type="multipart/form-data; boundary=b; charset=utf-7")[0] == 400


def test_an_audio_upload_passes_untouched(tmp_path: Path) -> None:
    raw = b"--b\r\n\r\n" + bytes(range(256)) * 100 + b"\r\n--b--"
    rig = Rig(tmp_path, Role.DECODE)
    assert rig.post(raw, content_type='multipart/form-data; boundary="b"')[0] == 200
    assert rig.post(raw, content_type="application/octet-stream")[0] == 200
    assert rig.engine.bodies == [raw, raw]


def test_a_body_over_the_limit_is_answered_413(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvserving_connector.guard.MAX_BODY_BYTES", 1000)
    for chunks in (1, 5):
        rig = Rig(tmp_path, Role.DECODE)
        status, answer = rig.post(b"x" * 1001, chunks=chunks)
        assert (status, json.loads(answer)["error"]["code"], rig.engine.bodies) == (413, 413, [])
    assert MAX_BODY_BYTES == 64 * 1024 * 1024


def test_without_a_key_file_every_handoff_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.DECODE, key=None)
    rig.post({"prompt": "a", "kv_transfer_params": signed()})
    assert (rig.engine.seen, rig.refused("unsigned")) == ({"prompt": "a"}, 1)


def test_a_key_file_that_changes_is_read_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.DECODE, key=OTHER_KEY + "00")
    rig.post({"prompt": "a", "kv_transfer_params": signed()})
    assert rig.refused("bad_signature") == 1
    (tmp_path / "signing").write_text(f"{OTHER_KEY}\n{KEYS.accepted[0].decode()}\n")
    rig.post({"prompt": "a", "kv_transfer_params": signed()})
    assert rig.accepted == 1


def test_a_probe_is_told_why_its_handoff_was_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    rig.post({"prompt": "a", "kv_transfer_params": handoff(), "vllm_xargs": {"kvserving_probe": "m"}})
    assert rig.engine.seen["vllm_xargs"] == {"kvserving_probe": "m", "kvserving_refused": "unsigned"}


def test_an_answer_streams_through_and_a_disconnect_reaches_the_engine(tmp_path: Path) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()
        first = asyncio.Event()
        log: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            log.append(json.loads((await receive())["body"]))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            log.append(await receive())

        async def receive() -> Any:
            if not body:
                await gone.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body.pop(), "more_body": False}

        async def send(message: Any) -> None:
            log.append(message)
            if message.get("body") == b"one":
                first.set()

        body = [json.dumps({"prompt": "a", "kv_transfer_params": signed()}).encode()]
        rig = Rig(tmp_path, Role.DECODE, app=app)
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        serving = asyncio.create_task(rig.guard(scope, receive, send))
        await asyncio.wait_for(first.wait(), 5)
        assert not serving.done()
        gone.set()
        await asyncio.wait_for(serving, 5)
        assert log[-1] == {"type": "http.disconnect"}

    asyncio.run(scenario())


def test_a_client_that_leaves_before_its_body_ends_is_not_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path, Role.DECODE)
        messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            raise AssertionError(message)

        await rig.guard({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
        assert rig.engine.bodies == []

    asyncio.run(scenario())


async def sends_nothing(message: Message) -> None:
    raise AssertionError(f"sent {message}")


def test_a_request_without_a_body_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        seen: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(receive)

        async def receive() -> Any:
            raise AssertionError("read")

        rig = Rig(tmp_path, Role.DECODE, app=app)
        await rig.guard({"type": "http", "method": "GET", "path": "/health", "headers": []}, receive, sends_nothing)
        await rig.guard({"type": "lifespan"}, receive, sends_nothing)
        assert seen == [receive, receive]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_websocket_messages_lose_the_key(tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        seen: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.extend([await receive() for _ in range(4)])

        def encode(text: str) -> Any:
            return text if kind == "text" else text.encode()

        sent = [
            {"type": "websocket.connect"},
            {"type": "websocket.receive", kind: encode('{"session": {"kv_transfer_params": {"a": 1}, "b": 2}}')},
            {"type": "websocket.receive", kind: encode("hello")},
            {"type": "websocket.receive", kind: encode("kv_transfer_params")},
        ]
        expected = [sent[0], None, sent[2], {"type": "websocket.disconnect", "code": 1008}]

        async def receive() -> Any:
            return sent.pop(0)

        rig = Rig(tmp_path, Role.DECODE, app=app)
        await rig.guard({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, sends_nothing)
        assert json.loads(seen[1][kind]) == {"session": {"b": 2}}
        assert [seen[0], *seen[2:]] == [expected[0], *expected[2:]]
        assert rig.refused("nested") == 1

    asyncio.run(scenario())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    params=st.dictionaries(
        st.sampled_from([*sorted(signed()), "extra"]), json_values | st.just("10.0.0.9"), max_size=14
    )
    | json_values,
    changes=st.dictionaries(st.sampled_from(sorted(handoff())), json_values, max_size=3),
    body=st.dictionaries(st.sampled_from(["prompt", "messages", "n", "vllm_xargs", "stream"]), json_values, max_size=4),
)
def test_whatever_reaches_decode_was_signed(tmp_path: Path, params: Any, changes: Any, body: Any) -> None:
    rig = Rig(tmp_path, Role.DECODE)
    genuine = signed()
    tampered = {**genuine, **changes}
    for candidate in (params, tampered):
        status, _ = rig.post({**body, "kv_transfer_params": candidate, "deep": [{"kv_transfer_params": candidate}]})
        assert status == 200
        assert rig.engine.seen.get("kv_transfer_params", genuine) == genuine
        assert rig.engine.seen["deep"] == [{}]


def test_the_role_comes_from_the_environment_and_a_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVING_ROLE", "decoder")
    with pytest.raises(ValueError, match="KVSERVING_ROLE='decoder'"):
        Guard(lambda *_: asyncio.sleep(0))
    assert Settings.from_environment({}).role is None
    with pytest.raises(ValueError, match="KVSERVING_REVISION"):
        Settings.from_environment({"KVSERVING_REVISION": "a\nb"})
    with pytest.raises(ValueError, match="KVSERVING_LEASE_SECONDS"):
        Settings.from_environment({"KVSERVING_LEASE_SECONDS": "soon"})
