"""From sound bytes to hostile ones: what stands in them is changed at random, and then made to fit its checksums again.

Everything follows from the random generator that is given.
"""

import bz2
import gzip
import io
import json
import lzma
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]
LARGEST = 1 << 21  # bytes of an input
NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 65536, 10**6, 2**24, 2**26 + 1, 2**31 - 1, 2**31, 2**32 - 1,
           2**33, 2**40, 2**62, 2**63 - 1, 2**64 - 1)  # fmt: skip
VALUES = (None, True, False, 0, 1, -1, 0.5, 2, 65537, 10**7, 10**10, 10**30, 1e308, "", "x", "\ud800", "../x", "a\nb",
          [], {}, [[]], {"a": 1}, ["x"], [0] * 1000, "y" * 5000)  # fmt: skip
# What json.dumps would not write: each stands for a text that takes its place.
TEXTS = {
    "@deep@": "[" * 100_000,
    "@nested@": "[" * 3000 + "]" * 3000,
    "@objects@": '{"a":' * 5000 + "1" + "}" * 5000,
    "@digits@": "9" * 5000,
    "@nan@": "NaN",
    "@infinity@": "-Infinity",
    "@huge@": "1e999",
}


def mutate(data: bytes, rng: random.Random, kind: str) -> bytes:
    """One to four changes: in the structure that this kind of file has, or anywhere."""
    structured = STRUCTURES.get(kind)
    if structured is not None and rng.random() < 0.7:
        try:
            return structured(data, rng)[:LARGEST]
        except Exception:  # an earlier change has broken what this one would change
            pass
    return change_bytes(data, rng)[:LARGEST]


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(CHANGES)(data or b"\0", rng)
    return data


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[place(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_number(data: bytes, rng: random.Random) -> bytes:
    """A number of one, two, four or eight bytes becomes another, often an extreme one."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    number = rng.choice(NUMBERS) if rng.random() < 0.8 else rng.getrandbits(64)
    at = place(data, rng)
    return data[:at] + (number % (1 << 8 * width)).to_bytes(width, order) + data[at + width :]


def set_digits(data: bytes, rng: random.Random) -> bytes:
    """A number that is written in digits becomes another of as many."""
    digits = [i for i, byte in enumerate(data[:5000]) if 48 <= byte <= 57]
    if not digits:
        return flip(data, rng)
    at = rng.choice(digits)
    end = at
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    new = rng.choice((b"7", b"9", b"0")) * (end - at) if rng.random() < 0.7 else rng.choice((b"-1", b"9" * 30, b""))
    return data[:at] + new + data[end:]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))] if data else data


def leave_out(data: bytes, rng: random.Random) -> bytes:
    at = place(data, rng)
    return data[:at] + data[at + rng.choice((1, 2, 4, 16, 100)) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    at, length = place(data, rng), rng.choice((1, 4, 16, 64, 512))
    return data[:at] + data[at : at + length] * rng.choice((2, 3, 100, 1000)) + data[at:]


def splice(data: bytes, rng: random.Random) -> bytes:
    a, b = place(data, rng), place(data, rng)
    return data[:a] + data[b:]


def insert(data: bytes, rng: random.Random) -> bytes:
    at = place(data, rng)
    return data[:at] + rng.choice((rng.randbytes(rng.choice((1, 4, 30))), bytes(8), b"\xff" * 8)) + data[at:]


def nest(data: bytes, rng: random.Random) -> bytes:
    at = place(data, rng)
    return (
        data[:at] + rng.choice((b"[", b"{", b"(", b"(l", b'{"a":', b"]")) * rng.choice((10, 1000, 100_000)) + data[at:]
    )


def place(data: bytes, rng: random.Random) -> int:
    """Anywhere; often in the first hundred bytes, where headers are, or the last."""
    where = rng.random()
    if where < 0.5:
        return rng.randrange(max(1, min(len(data), 100)))
    return rng.randrange(len(data)) if where < 0.9 else max(0, len(data) - 1 - rng.randrange(60))


CHANGES: tuple[Mutation, ...] = (
    flip, flip, set_number, set_number, set_number, set_digits, cut, leave_out, repeat, splice, insert, nest,
)  # fmt: skip


def change_png(data: bytes, rng: random.Random) -> bytes:
    """A chunk is changed, left out or repeated; lengths and checksums are right again."""
    chunks, at = [], 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    i = rng.randrange(len(chunks))
    kind, content = chunks[i]
    match rng.randrange(6):
        case 0:
            chunks[i:i] = [chunks[i]] * rng.choice((1, 2, 500))
        case 1:
            del chunks[i]
        case 2:
            bomb = zlib.compress(bytes(rng.choice((10, 10**5, 10**7))))
            name = rng.choice((b"zTXt", b"iCCP", b"iTXt"))
            chunks.insert(1, (name, b"a\0" + b"\1\0\0\0" * (name == b"iTXt") + b"\0" * (name != b"iTXt") + bomb))
        case 3:
            sides = struct.pack(">II", *(rng.choice((1, 4, 20_000, 33_554_432, 2**31 - 1, 0)) for _ in range(2)))
            chunks[0] = (chunks[0][0], sides + bytes(rng.choice((1, 8, 16, chunks[0][1][8])) for _ in range(1))
                         + bytes([rng.choice((0, 2, 3, 4, 6))]) + chunks[0][1][10:])  # fmt: skip
        case 4:
            name = rng.choice((b"acTL", b"fcTL", b"fdAT", b"eXIf", b"tRNS", b"PLTE", b"gAMA", b"cICP"))
            chunks.insert(rng.randrange(1, len(chunks)), (name, change_bytes(bytes(rng.choice((0, 4, 8, 26))), rng)))
        case _:
            chunks[i] = (kind, change_bytes(content, rng))
    return data[:8] + b"".join(
        struct.pack(">I", len(each)) + name + each + struct.pack(">I", zlib.crc32(name + each)) for name, each in chunks
    )


def change_json(data: bytes, rng: random.Random) -> bytes:
    """A value becomes another, of any type, or as deep or as large as nobody expects; or a name is changed."""
    root = [json.loads(data)]
    for _ in range(rng.choice((1, 1, 2))):
        parent, key = root, 0
        while isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.85:
            parent = parent[key]
            key = rng.choice(sorted(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
        value = rng.choice((*VALUES, *TEXTS))
        match rng.randrange(8):
            case 0 if parent is not root:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[rng.choice(("", "x", "model", "image", "step"))] = value
            case 2 if isinstance(parent, list) and parent is not root:
                parent.extend([parent[key]] * rng.choice((1, 3, 1000)))
            case 3 if isinstance(parent[key], (int, float)):
                parent[key] = rng.choice((-1, 10, 10**3, 10**6)) * parent[key]
            case _:
                parent[key] = value
    text = json.dumps(root[0])
    for name, other in TEXTS.items():
        text = text.replace(f'"{name}"', other)
    return text.encode("utf-8", "surrogatepass")


def change_lines(data: bytes, rng: random.Random) -> bytes:
    """One line of JSON is changed, left out, or repeated."""
    lines = data.splitlines()
    i = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            lines[i:i] = [
                rng.choice((b"5", b"null", b"[]", b'{"epoch": 1}', b'"x"', b"\xff\xfe", b"{", b"[" * 200_000))
            ]
        case 1:
            lines[i : i + 1] = [lines[i]] * rng.choice((0, 2, 1000))
        case _:
            lines[i] = change_json(lines[i], rng)
    return b"\n".join(lines) + b"\n"


def change_tar(data: bytes, rng: random.Random) -> bytes:
    """A header's field is changed, or a header is put before it; the checksum is right again."""
    at = 512 * rng.randrange(max(1, min(6, len(data) // 512)))
    block = bytearray(data[at : at + 512].ljust(512, b"\0"))
    before = b""
    match rng.randrange(5):
        case 0:
            kind, size = rng.choice(b"LKxgXSV"), rng.choice((10, 600, 10**6, 2**33 - 1))
            header = tarfile.TarInfo("././@LongLink")
            header.type, header.size = bytes([kind]), size
            before = header.tobuf(tarfile.GNU_FORMAT)
            before += rng.choice((b"", b"a" * 512, b"30 path=" + b"b" * 504, b"22 GNU.sparse.major=1\n" + bytes(490)))
            before *= rng.choice((1, 1, 1500))
        case 1:
            block[124:136] = rng.choice((b"77777777777\0", b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7, b"\xff" * 12))
        case 2:
            block[156] = rng.choice(b"0123456789SLKxgVDMN\0")
        case 3:
            block[:100] = rng.choice((b"../" * 10, b"/etc/x", b"a/" * 50, b"\xff" * 100, b"a\\b", b"")).ljust(
                100, b"\0"
            )[:100]
        case _:
            block = bytearray(change_bytes(bytes(block), rng)[:512].ljust(512, b"\0"))
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()[:8]
    return data[:at] + before + bytes(block) + data[at + 512 :]


def change_headed(data: bytes, rng: random.Random) -> bytes:
    """safetensors: eight bytes of length, JSON, numbers."""
    length = int.from_bytes(data[:8], "little")
    header = change_json(data[8 : 8 + length], rng)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def change_trace(data: bytes, rng: random.Random) -> bytes:
    """A trace: PELLUCID, version, length, JSON, numbers."""
    length = int.from_bytes(data[12:16], "little")
    header = change_json(data[16 : 16 + length], rng)
    header += b" " * (-len(header) % 8)
    return data[:12] + len(header).to_bytes(4, "little") + header + data[16 + length :]


def change_zip(data: bytes, rng: random.Random) -> bytes:
    """A member is changed, left out, or deflated."""
    whole, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    names = whole.namelist()
    chosen = rng.choice([name for name in names if name.endswith("data.pkl")] * 5 + names)
    method = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", method) as archive:
        for name in names:
            content = whole.read(name)
            if name == chosen:
                if rng.random() < 0.1:
                    continue
                content = change_bytes(content, rng)
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return out.getvalue()


def inside(unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes], kind: str) -> Mutation:
    """What is compressed is changed, and compressed again."""
    return lambda data, rng: pack(mutate(unpack(data), rng, kind))


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


STRUCTURES: dict[str, Any] = {
    "png": change_png,
    "json": change_json,
    "lines": change_lines,
    "tar": change_tar,
    "safetensors": change_headed,
    "trace": change_trace,
    "zip": change_zip,
    "gz": inside(gzip.decompress, gzipped, "bytes"),
    "tar.gz": inside(gzip.decompress, gzipped, "tar"),
    "tar.bz2": inside(bz2.decompress, lambda data: bz2.compress(data, 1), "tar"),
    "tar.xz": inside(lzma.decompress, lambda data: lzma.compress(data, preset=0), "tar"),
}
