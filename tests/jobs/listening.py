"""Addresses at which a process listens, by the system's own tables."""

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTENS = "0A"


def open_to_others(pid: int) -> list[str]:
    """Addresses and ports at which other hosts could reach a process."""
    found = [each for family in ("tcp", "tcp6") for each in _listening(pid, family)]
    return [f"{address} {port}" for address, port in found if not address.is_loopback]


def _listening(pid: int, family: str) -> list[tuple[IPv4Address | IPv6Address, int]]:
    process = Path("/proc") / str(pid)
    sockets = set()
    for fd in (process / "fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            sockets.add(fd.readlink().name.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in (process / "net" / family).read_text().splitlines()[1:]]
    own = [row[1].split(":") for row in rows if row[3] == _LISTENS and row[9] in sockets]
    return [(_address(address), int(port, 16)) for address, port in own]


def _address(digits: str) -> IPv4Address | IPv6Address:
    """From words of 32 bits, each in the order of the processor."""
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    return ip_address(b"".join(words))
