"""Sends the frames that a guest can never send, each twenty times, past the kernel's stack.

Usage: forge.py IFNAME OWN OTHER, with the guest's IPv4 address and that of another station.
"""

import socket
import sys

wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((sys.argv[1], 0))
MAC = wire.getsockname()[4]
OWN, OTHER = [socket.inet_aton(address) for address in sys.argv[2:4]]
LINK_LOCAL = socket.inet_pton(socket.AF_INET6, "fe80::77")
UNOWNED = socket.inet_pton(socket.AF_INET6, "fd00:bad::77")
ALL_NODES = socket.inet_pton(socket.AF_INET6, "ff02::1")


def udp(source, destination):
    """Returns a datagram between two ports, without a checksum."""
    return source.to_bytes(2, "big") + destination.to_bytes(2, "big") + b"\0\x0c\0\0data"


def ipv4(source, datagram):
    """Returns a frame with a UDP packet to all stations."""
    length = (20 + len(datagram)).to_bytes(2, "big")
    header = b"\x45\0" + length + b"\0\0\0\0\x40\x11\0\0" + source + b"\xff" * 4
    return b"\xff" * 6 + MAC + b"\x08\0" + header + datagram


def ipv6(source, protocol, payload):
    """Returns a frame with an IPv6 packet to all stations."""
    length = len(payload).to_bytes(2, "big")
    header = b"\x60\0\0\0" + length + bytes([protocol, 255]) + source + ALL_NODES
    return b"\x33\x33\0\0\0\x01" + MAC + b"\x86\xdd" + header + payload


def icmpv6(kind, rest):
    """Returns a message of neighbour discovery, without a checksum."""
    return ipv6(LINK_LOCAL, 58, bytes([kind, 0, 0, 0]) + rest)


ARP_REPLY = b"\x08\x06\0\x01\x08\0\x06\x04\0\x02"
FRAMES = [
    # Another MAC, as from a macvlan.
    b"\xff" * 6 + bytes.fromhex("02000000070788b5"),
    # Another station's address in ARP.
    b"\xff" * 6 + MAC + ARP_REPLY + MAC + OTHER + b"\0" * 6 + OTHER,
    # Sources that are not the guest's.
    ipv4(socket.inet_aton("203.0.113.77"), udp(9, 9)),
    ipv6(UNOWNED, 17, udp(9, 9)),
    # Answers to DHCP and DHCPv6 clients.
    ipv4(OWN, udp(67, 68)),
    ipv6(LINK_LOCAL, 17, udp(547, 546)),
    # A router advertisement and a redirect.
    icmpv6(134, b"\x40\0\x07\x08" + b"\0" * 8),
    icmpv6(137, b"\0" * 4 + UNOWNED + LINK_LOCAL),
    # A neighbour advertisement with another MAC.
    icmpv6(136, b"\x20\0\0\0" + LINK_LOCAL + b"\x02\x01\x02\0\0\0\x07\x09"),
]
# Few enough for the queue of a TAP, which drops frames above 500.
for frame in FRAMES:
    for _ in range(20):
        wire.send(frame.ljust(60, b"\0"))
