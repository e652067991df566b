"""Scalar types of the API: sizes, durations, percentages and ratios in Kubernetes notation.

Each is a ``str`` that keeps what the user wrote and adds its value, so that an object
renders back unchanged. A bad value raises ``ValueError`` with the value and the reason.
Each also states its form as a JSON schema, from which the CRD is made.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from .near_amounts import near_duration, near_percentage, near_size

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SECONDS = {"h": 3600, "m": 60, "s": 1}
_MOST_BYTES = 2**63 - 1
SHOWN = 60


class _Scalar(str):
    """A string with a validated form. Subclasses set ``pattern``, ``expected`` and ``longest``.

    With ``whole_numbers``, a number from ``least`` on is taken as well.
    """

    pattern: ClassVar[str]
    expected: ClassVar[str]
    longest: ClassVar[int]
    whole_numbers: ClassVar[bool] = False
    least: ClassVar[int] = 1

    def __new__(cls, value: object) -> Self:
        return super().__new__(cls, cls.check(str(value)))

    @classmethod
    def check(cls, value: str) -> str:
        """Return ``value`` when it has the form; raise ``ValueError`` with the reason otherwise."""
        if len(value) > cls.longest or not re.fullmatch(cls.pattern, value, re.ASCII):
            raise ValueError(f"{quoted(value)} is not {cls.expected}{cls._hint(value)}")
        return value

    @classmethod
    def near(cls, value: str) -> str:
        """Return what ``value`` may have meant, right or not; empty where nothing comes near."""
        return ""

    @classmethod
    def _hint(cls, value: str) -> str:
        found = cls.near(value)
        try:
            return f"; did you mean {cls.check(found)}?" if found not in ("", value) else ""
        except ValueError:
            return ""

    @classmethod
    def fraction(cls, value: float) -> str:
        """What is said of a number with a fraction, and the way out."""
        return f"is a number, not {cls.expected}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        shape: dict[str, Any] = {"maxLength": cls.longest, "pattern": f"^{cls.pattern}$"}
        if cls.whole_numbers:
            return {"x-kubernetes-int-or-string": True, "minimum": cls.least, **shape}
        return {"type": "string", **shape}

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, float):
            raise ValueError(f"{value!r} {cls.fraction(value)}")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"{quoted(value)} is not {cls.expected}")
        if isinstance(value, int) and not cls.whole_numbers:
            raise ValueError(f"{value} is a number, not {cls.expected}")
        return cls(value)


class Quantity(_Scalar):
    """A positive size such as ``64Gi``; ``bytes`` is its value."""

    pattern = r"[0-9]+(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?"
    expected = "a size such as 512Mi or 64Gi"
    longest = 24
    whole_numbers = True

    @classmethod
    def check(cls, value: str) -> str:
        """As for every scalar; a size is also greater than zero unless zero is allowed."""
        if value.startswith("-"):
            raise ValueError(f"{quoted(value)} is negative: a size must be greater than zero")
        super().check(value)
        if cls.least > 0 and _amount(value) == 0:
            raise ValueError(f"{value!r} must be greater than zero")
        if _amount(value) > _MOST_BYTES:
            raise ValueError(f"{quoted(value)} is 8Ei or more, beyond what Kubernetes counts: choose a smaller one")
        return value

    @classmethod
    def fraction(cls, value: float) -> str:
        """As for every scalar; what is below a thousand is taken to mean GiB."""
        example = f"{round(value * 1024)}Mi" if 2**-10 <= value < 1000 else "64Gi"
        return f"is a number without a unit: write it with one, such as {example}"

    @classmethod
    def near(cls, value: str) -> str:
        """As for every scalar; the unit of other notations, such as GB and Gib."""
        return near_size(value)

    @property
    def bytes(self) -> int:
        """Size in bytes, fractions rounded up."""
        return int(_amount(self).to_integral_value(rounding="ROUND_CEILING"))


class QuantityOrZero(Quantity):
    """A size that may be ``0``, which switches the feature off."""

    least = 0


class ResourceQuantity(Quantity):
    """An amount of a container resource: ``4``, ``500m``, ``1.5`` or ``64Gi``; zero is allowed."""

    pattern = r"[0-9]+(\.[0-9]{1,3})?(m|Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?"
    expected = "an amount such as 4, 500m or 64Gi"
    least = 0

    @classmethod
    def fraction(cls, value: float) -> str:
        """As for every size; of cores and devices a fraction stands in quotes."""
        return (
            f'is a number with a fraction: write "{value!r}" in quotes for cores, a size with its unit, such as 512Mi'
        )

    @property
    def value(self) -> Decimal:
        """The exact amount: cores, devices or bytes."""
        return _amount(self)


class Duration(_Scalar):
    """A duration such as ``90s`` or ``1h30m``; ``seconds`` is its value.

    The form bounds it: sums of a few durations fit the 32 bits that Kubernetes has for seconds.
    """

    pattern = r"([0-9]{1,4}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?"
    expected = "a duration such as 30s, 5m or 1h30m"
    longest = 19

    @classmethod
    def check(cls, value: str) -> str:
        """As for every scalar; a duration is also greater than zero."""
        if re.fullmatch(r"([0-9]+[hms]){1,3}", value, re.ASCII) and re.search(r"[0-9]{5}h|[0-9]{7}", value):
            raise ValueError(f"{quoted(value)} is too long: at most 9999h, 999999m or 999999s")
        super().check(value)
        if not value or _seconds(value) == 0:
            raise ValueError(f"{value!r} must be greater than zero, such as 30s, 5m or 1h30m")
        return value

    @classmethod
    def near(cls, value: str) -> str:
        """As for every scalar; the unit in other words, such as min."""
        return near_duration(value)

    @property
    def seconds(self) -> int:
        """Whole seconds."""
        return _seconds(self)


class Percentage(_Scalar):
    """A share from ``1%`` to ``100%``; ``percent`` is its value."""

    pattern = r"([1-9][0-9]?|100)%"
    expected = "a percentage from 1% to 100%"
    longest = 4

    @classmethod
    def near(cls, value: str) -> str:
        """As for every scalar; a number without its sign, or a share of one."""
        return near_percentage(value)

    @property
    def percent(self) -> int:
        """The number before the sign."""
        return int(self[:-1])


class Ratio(_Scalar):
    """Prefill to decode replicas, such as ``1:4``."""

    pattern = r"[1-9][0-9]{0,3}:[1-9][0-9]{0,3}"
    expected = 'a ratio of prefill to decode replicas such as "1:4"'
    longest = 9

    @property
    def terms(self) -> tuple[int, int]:
        """(prefill, decode)."""
        prefill, decode = self.split(":")
        return int(prefill), int(decode)


def quoted(value: object) -> str:
    """Return ``value`` as messages quote it, cut to ``SHOWN`` characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _amount(value: str) -> Decimal:
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", value)
    if match is None:
        raise ValueError(f"{value!r} is not a size")
    number, unit = match.groups()
    if unit == "m":
        return Decimal(number) / 1000
    return Decimal(number) * (_BINARY.get(unit) or _DECIMAL[unit])


def _seconds(value: str) -> int:
    return sum(int(n) * _SECONDS[u] for n, u in re.findall(r"([0-9]+)([hms])", value))
