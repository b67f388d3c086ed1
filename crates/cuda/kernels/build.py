"""Compiles a folder's kernels by NVRTC, each source for several GPUs.

NAME.cu becomes NAME.images: for each target a header of four little-endian 32-bit numbers (1 for PTX
or 0 for a cubin, ten times the compute capability, the image's length, its packed length), and the
image, packed by zlib. PTX ends with a zero byte. `crates/cuda/src/images.rs` reads them.

manifest.json says what they were made from: tests compare it with the files without compiling.
"""

import argparse
import ctypes
import hashlib
import json
import pathlib
import re
import struct
import sys
import zlib

OPTIONS = ["--std=c++17"]
HEADER = struct.Struct("<4I")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    parser.add_argument("library", help="NVRTC")
    parser.add_argument("version", help="its version")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("targets", nargs="+", metavar="target", help="sm_XX, or compute_XX for PTX")
    args = parser.parse_args()
    nvrtc = Nvrtc(args.library, args.folder)
    sources = sorted(path for path in args.folder.iterdir() if path.suffix in (".cu", ".h"))
    packs = []
    for source in sources:
        if source.suffix == ".cu":
            images = {target: nvrtc.compile(source, target) for target in args.targets}
            pack = source.with_suffix(".images")
            if args.check:
                check(pack, images)
            else:
                pack.write_bytes(b"".join(packed(*image) for image in images.items()))
            packs.append(pack)
    manifest = {
        "nvrtc": args.version,
        "options": OPTIONS,
        "targets": args.targets,
        "sources": hashes(sources),
        "images": hashes(packs),
    }
    if beside := folders_beside(sources):
        manifest["beside"] = {
            folder: hashes(sorted((args.folder / folder).glob("*.h"))) for folder in beside
        }
    text = json.dumps(manifest, indent=2) + "\n"
    path = args.folder / "manifest.json"
    if not args.check:
        path.write_text(text)
    elif path.read_text() != text:
        sys.exit(f"{path} does not describe its folder; run build.sh")


class Nvrtc:
    """Compiles sources of a folder, which is where their headers are."""

    def __init__(self, library, folder):
        self.library = ctypes.CDLL(library)
        self.folder = folder

    def compile(self, source, target):
        program = ctypes.c_void_p()
        text, name = source.read_bytes(), source.name.encode()
        self.call("nvrtcCreateProgram", ctypes.byref(program), text, name, 0, None, None)
        options = [f"--gpu-architecture={target}", f"--include-path={self.folder}", *OPTIONS]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = self.library.nvrtcCompileProgram(program, len(options), array)
        if failed:
            log = self.read(program, "ProgramLog").rstrip(b"\0").decode()
            sys.exit(f"{source} for {target}:\n{log}")
        return self.read(program, "PTX" if is_ptx(target) else "CUBIN")

    def read(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def call(self, function, *arguments):
        code = getattr(self.library, function)(*arguments)
        if code != 0:
            sys.exit(f"{function}: error {code}")


def is_ptx(target):
    return target.startswith("compute_")


def packed(target, image):
    data = zlib.compress(image, 9)
    capability = int(target.split("_")[1])
    return HEADER.pack(is_ptx(target), capability, len(image), len(data)) + data


def check(pack, images):
    """What is packed, not how: versions of zlib pack differently."""
    data, at = pack.read_bytes(), 0
    for target, image in images.items():
        kind, capability, _, size = HEADER.unpack_from(data, at)
        at += HEADER.size
        is_this = f"{'compute' if kind else 'sm'}_{capability}" == target
        if not is_this or zlib.decompress(data[at : at + size]) != image:
            sys.exit(f"{pack}, {target}: not what the source gives; run build.sh")
        at += size
    if at != len(data):
        sys.exit(f"{pack}: has more images than it should; run build.sh")


def folders_beside(sources):
    """Other folders whose headers the sources include, as they name them."""
    included = (re.findall(r'#include "(\.\./.*)/', path.read_text()) for path in sources)
    return sorted(set(sum(included, [])))


def hashes(paths):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


main()
