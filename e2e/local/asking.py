"""Requests as clients send them, and what they get back as token ids."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

LENGTHS = (1, 15, 16, 17, 257, 2048)
ANSWER_TOKENS = 24
REQUEST_SECONDS = 90.0


@dataclass(frozen=True)
class Question:
    """One request: ``tokens`` long as a completion prompt, as chat with the template around it."""

    tokens: int
    chat: bool
    stream: bool

    @property
    def path(self) -> str:
        """Path of the API."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, texts: Texts, salt: str, **more: Any) -> dict[str, Any]:
        """Return the request. ``salt`` keeps it apart from every other in prefix caches, so that it is cold."""
        text = texts.of(self.tokens)
        asked = {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        return {
            "model": "tiny",
            **asked,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stream": self.stream,
            "return_token_ids": True,
            "cache_salt": f"{salt} {self}",
            **more,
        }


QUESTIONS = tuple(Question(n, chat, stream) for n in LENGTHS for chat in (False, True) for stream in (False, True))


class Texts:
    """Texts of an exact number of tokens, made of words that are one token each for a model's tokenizer."""

    def __init__(self, model: Path) -> None:
        vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        licence = (Path(__file__).resolve().parents[2] / "LICENSE").read_text()
        written = {word for word in licence.split() if word.isalpha() and word.islower()}
        self._words = sorted(word for word in written if f"\u0120{word}" in vocabulary and word in vocabulary)

    def of(self, tokens: int, seed: int = 0) -> str:
        """Return the text of that many tokens; the same for the same seed."""
        return " ".join(random.Random(f"{seed} {tokens}").choices(self._words, k=tokens))


@dataclass(frozen=True)
class Reply:
    """Token ids of an answer, by choice, and how it ended."""

    ids: tuple[tuple[int, ...], ...]
    finish_reason: str | None
    prompt_tokens: int | None = None
    logprobs: tuple[dict[str, float], ...] = ()


async def ask(session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]) -> Reply:
    """Post a request and read its whole answer; raise ``AssertionError`` for anything but a complete one."""
    async with asyncio.timeout(REQUEST_SECONDS), session.post(url + path, json=body) as response:
        if response.status != 200:
            raise AssertionError(f"{path} answered {response.status}: {await response.text()}")
        if not body.get("stream"):
            return _whole(await response.json())
        return await _streamed(response)


async def ask_all(
    url: str, texts: Texts, salt: str, questions: tuple[Question, ...] = QUESTIONS
) -> dict[Question, Reply]:
    """Ask the questions one after the other, each cold."""
    async with aiohttp.ClientSession() as session:
        replies = {}
        for question in questions:
            reply = await ask(session, url, question.path, question.body(texts, salt))
            if not question.chat and reply.prompt_tokens is not None:
                assert reply.prompt_tokens == question.tokens, "the text has another number of tokens than it should"
            replies[question] = reply
        return replies


def different(expected: dict[Question, Reply], found: dict[Question, Reply]) -> list[str]:
    """Return a line for each question whose token ids differ."""
    return [
        f"{question}: {found[question].ids} instead of {reply.ids}"
        for question, reply in expected.items()
        if found[question].ids != reply.ids
    ]


def _whole(answer: dict[str, Any]) -> Reply:
    choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    return Reply(
        tuple(tuple(choice["token_ids"]) for choice in choices),
        choices[0]["finish_reason"],
        answer["usage"]["prompt_tokens"],
        tuple((choices[0].get("logprobs") or {}).get("top_logprobs") or ()),
    )


async def _streamed(response: aiohttp.ClientResponse) -> Reply:
    ids: list[int] = []
    finished = None
    done = False
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        assert "error" not in event, f"the stream ended with {event['error']}"
        for choice in event["choices"]:
            ids += choice.get("token_ids") or ()
            finished = choice.get("finish_reason") or finished
    assert done, "the stream ended without [DONE]"
    assert finished is not None, "the stream ended without a finish reason"
    return Reply((tuple(ids),), finished)
