"""What may be written as the address of a store, for tests of both sides that read it."""

from __future__ import annotations

from collections.abc import Iterator

_HOSTS = (
    *("store", "store:6380", "10.0.0.1:1", "[::1]:6379", "[2001:db8::1]", "STORE.example", "store:", "a,b", "sto re"),
    *(
        "",
        ":6379",
        "store:0",
        "store:70000",
        "store:x",
        "store:-1",
        "[::1",
        "[fe80::1%eth0]",
        "[v1.a]",
        "[a:b]",
        "user@h",
    ),
)
_PATHS = (
    "",
    "/",
    "//",
    "/0",
    "//0/",
    "/3",
    "/00",
    "/0/1",
    "/var/lib/kv",
    "/a b",
    "/a@b",
    "a",
    "/a;b",
    "/%20",
    "/\u0665",
)
_ENDS = (
    *("", "?", "#", "?&", "?x=y", "?x", "?db=3", "?byte=5Gi", "#a", "?#a", "?x=y#a", "?a=1&x=2", "?token=hunter2"),
    *(f"?bytes={right}" for right in ("5000000", "007", "1&bytes=2", "9" * 18)),
    *(
        f"?bytes={wrong}"
        for wrong in ("5Gi", "0", "-1", "", "1.5", "1e9", "%35Gi", "1&bytes=x", "1;2", "\u0665", "9" * 19)
    ),
    *("?%62ytes=5", "?%62ytes=x", "?BYTES=5", "?x=y&bytes=%20", "?bytes=5&x=y", "?bytes=5#a", "?x=a@b"),
)


def addresses(scheme: str) -> Iterator[str]:
    """Addresses with a scheme, right and wrong ones of every form that a store may say of its own."""
    for host in _HOSTS:
        yield from (f"{scheme}://{host}{path}" for path in _PATHS)
        yield from (f"{scheme}://{host}{end}" for end in _ENDS)
    for path in ("", "/", "/0", "/var/lib/kv"):
        yield from (f"{scheme}://store{path}{end}" for end in _ENDS)
        yield from (f"{scheme}://{path}{end}" for end in _ENDS)
