"""Amounts as Kubernetes writes them: 500m, 4, 16Gi, 1e3."""

import re
from decimal import ROUND_CEILING, Decimal

from kubetrain_trainer.errors import InvalidSetting

QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)(?:([KMGTPE]i|[mkMGTPE])|[eE]([+-]?\d+))?")
FACTORS = {"": Decimal(1), "m": Decimal("0.001")}
FACTORS |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)}
FACTORS |= {letter + "i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def whole_amount(quantity: str) -> int:
    """What a Kubernetes quantity says, rounded up: bytes, CPUs.

    Raises:
        InvalidSetting: where it is none.
    """
    return int(amount(quantity).to_integral_value(ROUND_CEILING))


def amount(quantity: str) -> Decimal:
    """
    Raises:
        InvalidSetting: where it is none.
    """
    match = QUANTITY.fullmatch(quantity)
    if match is None:
        raise InvalidSetting(f"size '{quantity}' is no Kubernetes quantity: write it like 500Gi")
    number, suffix, exponent = match.groups()
    return Decimal(number) * FACTORS[suffix or ""] * Decimal(10) ** int(exponent or 0)
