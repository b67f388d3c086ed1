"""Compiles CUDA C++ to PTX by NVRTC: ptx.py LIBNVRTC SOURCE writes to standard output."""

import ctypes
import sys

OPTIONS = [b"--gpu-architecture=compute_50", b"--std=c++14"]


def main(library, source):
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    with open(source, "rb") as file:
        text = file.read()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    failed = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    sys.stderr.write(read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog))
    check(failed)
    sys.stdout.write(read(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))


def read(program, size_of, get):
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(get(program, buffer))
    return buffer.value.decode()


def check(code):
    if code != 0:
        sys.exit(f"NVRTC: error {code}")


main(*sys.argv[1:])
