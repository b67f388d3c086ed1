"""Prints the ELF file within a compressed Linux kernel: elf-kernel.py VMLINUZ >VMLINUX"""

import subprocess
import sys

PACKERS = {
    b"\xfd7zXZ\0": ["xz", "-dc"],
    b"\x28\xb5\x2f\xfd": ["zstd", "-dc"],
    b"\x1f\x8b\x08": ["gzip", "-dc"],
}


def elf(image):
    for magic, unpack in PACKERS.items():
        start = image.find(magic)
        while start >= 0:
            # Bytes after the packed kernel make the unpacker fail, but only after it has unpacked.
            unpacked = subprocess.run(
                unpack, input=image[start:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ).stdout
            if unpacked.startswith(b"\x7fELF"):
                return unpacked
            start = image.find(magic, start + 1)
    sys.exit(f"{sys.argv[1]} holds no ELF file packed by xz, zstd or gzip")


with open(sys.argv[1], "rb") as file:
    sys.stdout.buffer.write(elf(file.read()))
