"""What a fatbin's images hold: the machine code of every kernel, apart from symbol tables and debugging information."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAGIC = 0xBA55ED50
_CUBIN = 2  # kind of an image; 1 is PTX
_NO_BITS = 8  # type of a section that has a size but no bytes in the file
# Sections with what a kernel runs on: instructions, parameters, constants that instructions name, static shared memory.
_CODE = (".text.", ".nv.constant0.", ".nv.constant2", ".nv.constant3", ".nv.shared.")


_INSTRUCTION = 16  # bytes, from sm_70 on
_BANK, _OFFSET = 54, 40  # lowest bits of an instruction's constant operand: 5 bits of the bank, 14 of the offset
_ADDRESSES = 4  # the bank with the addresses of a module's variables


def different_code(before: bytes, after: bytes) -> list[tuple[int, str]]:
    """(compute capability, section) of all code that differs between two fatbins, or that only one of them has.

    Where a module has other variables, the table with their addresses is laid out anew. Instructions that differ in the
    offset into that table alone do the same.
    """
    codes = code(before), code(after)
    both = {key for key in codes[0].keys() & codes[1].keys() if _same(codes[0][key], codes[1][key])}
    return sorted((codes[0].keys() | codes[1].keys()) - both)


def _same(before: bytes, after: bytes) -> bool:
    if before == after:
        return True
    starts = range(0, len(before), _INSTRUCTION)
    pairs = [(before[at : at + _INSTRUCTION], after[at : at + _INSTRUCTION]) for at in starts]
    return len(before) == len(after) and all(a == b or _without_offset(a) == _without_offset(b) for a, b in pairs)


def _without_offset(instruction: bytes) -> int:
    number = int.from_bytes(instruction, "little")
    reads_address = number >> _BANK & 0x1F == _ADDRESSES
    return number & ~(0x3FFF << _OFFSET) if reads_address else number


def code(fatbin: bytes) -> dict[tuple[int, str], bytes]:
    """(compute capability, section) -> bytes, for the sections of all cubins that hold code. PTX is not looked at.

    Raises ValueError where the bytes are no fatbin.
    """
    return {(arch, name): data for arch, cubin in _cubins(fatbin) for name, data in _sections(cubin) if _is_code(name)}


def _is_code(name: str) -> bool:
    return name.startswith(_CODE)


def _cubins(fatbin: bytes) -> Iterator[tuple[int, bytes]]:
    """Compute capability, such as 90, and ELF file of every cubin."""
    at = 0
    while at < len(fatbin):
        if len(fatbin) - at < 16 or struct.unpack_from("<I", fatbin, at)[0] != _MAGIC:
            raise ValueError(f"no fatbin: there is no header at byte {at}")
        _, _, header, size = struct.unpack_from("<IHHQ", fatbin, at)
        image, at = at + header, at + header + size
        while image < at:
            kind, _, header, size = struct.unpack_from("<HHIQ", fatbin, image)
            (arch,) = struct.unpack_from("<I", fatbin, image + 28)
            if kind == _CUBIN:
                yield arch, fatbin[image + header : image + header + size]
            image += header + size


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every section of a 64-bit ELF file."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("an image of the fatbin is no ELF file; it may be compressed")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", elf, table + k * size) for k in range(count)]
    names = elf[rows[names_at][4] :]
    for name, kind, _, _, offset, length in rows:
        data = struct.pack("<Q", length) if kind == _NO_BITS else elf[offset : offset + length]
        yield names[name : names.index(b"\0", name)].decode(), data
