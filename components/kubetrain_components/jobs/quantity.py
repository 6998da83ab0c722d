"""Kubernetes quantities: 500m, 4, 16Gi, 1e3."""

import re
from decimal import ROUND_CEILING, Decimal

from kubetrain_trainer.errors import InvalidSetting

QUANTITY = re.compile(r"(\d{1,18}\.?\d{0,9}|\.\d{1,9})(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,2}))?")
FACTORS = {"": Decimal(1), "m": Decimal("1e-3"), "u": Decimal("1e-6"), "n": Decimal("1e-9")}
FACTORS |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)}
FACTORS |= {letter + "i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def whole_amount(quantity: str) -> int:
    """Return a Kubernetes quantity rounded up to a whole number, of bytes or CPUs for example.

    Raises:
        InvalidSetting: if it is not a quantity.
    """
    return int(amount(quantity).to_integral_value(ROUND_CEILING))


def amount(quantity: str) -> Decimal:
    """Return the number that a Kubernetes quantity stands for.

    Raises:
        InvalidSetting: if it is not a quantity.
    """
    match = QUANTITY.fullmatch(quantity)
    if match is None:
        raise InvalidSetting(f"size '{quantity}' is not a Kubernetes quantity: write it like 500Gi")
    number, suffix, exponent = match.groups()
    return Decimal(number) * FACTORS[suffix or ""] * Decimal(10) ** int(exponent or 0)
