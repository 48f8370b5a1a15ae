#!/usr/bin/env python3
"""Writes the packets that crates/weir-ipsec/tests/scapy.txt compares ours with: made by scapy, an implementation of its own.

Each line: algorithm, mode, udp, extended, key, SPI, sequence number, packet, sealed packet. IV, padding and identification are given
to scapy as ours are, so equal bytes mean that either opens what the other sealed. Each is also opened by scapy here.

    pip install scapy cryptography; scripts/esp-vectors.py > crates/weir-ipsec/tests/scapy.txt
"""

from scapy.config import conf

conf.verb = 0
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting
from scapy.layers.ipsec import AUTH_ALGOS, CRYPT_ALGOS, ESP, SecurityAssociation
from scapy.packet import Raw

SPI = 0x1234ABCD
ALGORITHMS = [
    ("aes128-gcm", "AES-GCM", "NULL", 20),
    ("aes256-gcm", "AES-GCM", "NULL", 36),
    ("chacha20-poly1305", "CHACHA20-POLY1305", "NULL", 36),
    ("null-hmac-sha256", "NULL", "SHA2-256-128", 32),
    ("null", "NULL", "NULL", 0),
]
SEQUENCES = [(False, 1), (False, 0xFFFFFFFF), (True, 7), (True, 0x0000000500000003), (True, 0xFFFFFFF000000002)]


def packets():
    """IP packets of both families, of all lengths modulo 4."""
    for length in (0, 1, 2, 3, 64, 261):
        data = Raw(bytes((17 * i + length) & 0xFF for i in range(length)))
        yield IP(src="10.1.0.1", dst="10.2.0.2", tos=0xB9, id=length, ttl=63) / UDP(sport=1111, dport=53) / data
        yield IPv6(src="fd01::1", dst="fd02::2", tc=0x2E, fl=0xABCDE, hlim=9) / TCP(sport=5, dport=80, seq=9) / data
    yield IP(src="10.1.0.1", dst="10.2.0.2", flags="DF", options=b"\x01\x01\x01\x00") / ICMP(id=1, seq=2)
    yield IPv6(src="fd01::1", dst="fd02::2") / IPv6ExtHdrHopByHop() / UDP(sport=1, dport=2) / Raw(b"xyz")


def outer(inner, family, sequence):
    """The outer header as RFC 4301 and RFC 6040 fill it, with our identification."""
    tos = inner.tos if inner.version == 4 else inner.tc
    if family == 4:
        fragment = "DF" if inner.version == 6 or inner.flags.DF else 0
        return IP(src="192.0.2.1", dst="192.0.2.2", ttl=64, tos=tos, id=sequence & 0xFFFF, flags=fragment)
    label = inner.fl if inner.version == 6 else 0
    return IPv6(src="2001:db8::1", dst="2001:db8::2", hlim=64, tc=tos, fl=label)


def seal(packet, cipher, proof, key, mode, udp, extended, sequence):
    header = outer(packet, int(mode[-1]), sequence) if mode.startswith("tunnel") else None
    settings = dict(spi=SPI, crypt_algo=cipher, auth_algo=proof, tunnel_header=header)
    if cipher != "NULL":
        settings["crypt_key"] = key
    if proof != "NULL":
        settings["auth_key"] = key
    if udp:
        settings["nat_t_header"] = UDP(sport=4500, dport=4500, chksum=0)
    association = SecurityAssociation(ESP, esn_en=extended, esn=sequence >> 32, **settings)
    extra = {"iv": sequence.to_bytes(8, "big")} if cipher != "NULL" else {}
    sealed = association.encrypt(
        packet, seq_num=sequence & 0xFFFFFFFF, esn_en=extended, esn=sequence >> 32, **extra
    )
    version = 4 if bytes(sealed)[0] >> 4 == 4 else 6
    again = (IP if version == 4 else IPv6)(bytes(sealed))
    opened = association.decrypt(again, verify=True, esn_en=extended, esn=sequence >> 32)
    assert bytes(opened)[40:] == bytes(packet)[40:], (bytes(opened).hex(), bytes(packet).hex())
    return sealed


def main():
    for name, cipher, proof, key_len in ALGORITHMS:
        key = bytes((31 * i + 7) & 0xFF for i in range(key_len))
        for index, packet in enumerate(packets()):
            packet = packet.__class__(bytes(packet))
            for mode in ("transport", "tunnel4", "tunnel6"):
                for udp in (False, True):
                    over_v6 = mode == "tunnel6" or (mode == "transport" and packet.version == 6)
                    if udp and over_v6:
                        continue
                    extended, sequence = SEQUENCES[index % len(SEQUENCES)]
                    sealed = seal(packet.copy(), cipher, proof, key, mode, udp, extended, sequence)
                    fields = [name, mode, int(udp), int(extended), key.hex() or "-", f"{SPI:08x}", f"{sequence:016x}"]
                    print(*fields, bytes(packet).hex(), bytes(sealed).hex())


main()
