"""Compiles one CUDA C++ source to PTX with NVRTC, through ctypes: no CUDA toolkit, no GPU, nothing but this file.

    nvrtc.py unpack WHEEL SHA256 FOLDER          checks the wheel and unpacks its shared libraries into FOLDER
    nvrtc.py ptx FOLDER SOURCE [OPTION...]       PTX to standard output
    nvrtc.py assemble FOLDER SOURCE [OPTION...]  makes machine code and throws it away; what the assembler says goes
                                                 to standard output

Exit status 1 with the compiler's messages on standard error if the source does not compile.
"""

import ctypes
import hashlib
import os
import sys
import zipfile

LIBRARIES = ("libnvrtc.so.12", "libnvrtc-builtins.so.12.0")


def fail(message):
    sys.stderr.write(message.rstrip() + "\n")
    sys.exit(1)


def unpack(wheel, sha256, folder):
    with open(wheel, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != sha256:
        fail(f"{wheel} has the sha256 {found}, not {sha256}")
    with zipfile.ZipFile(wheel) as archive:
        for name in LIBRARIES:
            with open(os.path.join(folder, name), "wb") as file:
                file.write(archive.read("nvidia/cuda_nvrtc/lib/" + name))


class Nvrtc:
    """The few calls of the library that a compilation takes."""

    def __init__(self, folder):
        # The first library opens the other one by its bare name and finds it loaded.
        self.builtins = ctypes.CDLL(os.path.join(folder, LIBRARIES[1]), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(os.path.join(folder, LIBRARIES[0]))
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        self.program = ctypes.c_void_p()

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code != 0:
            fail(f"{name}: {self.lib.nvrtcGetErrorString(code).decode()}")

    def text(self, what):
        """A result that the library hands out as a size and then the bytes: the log, the PTX, the machine code."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", self.program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self.call(f"nvrtcGet{what}", self.program, buffer)
        return buffer.raw[: size.value].rstrip(b"\0") if what != "CUBIN" else buffer.raw

    def compile(self, source, options):
        with open(source, "rb") as file:
            code = file.read()
        # The bare name: messages and PTX do not depend on where the repository is.
        name = os.path.basename(source).encode()
        self.call("nvrtcCreateProgram", ctypes.byref(self.program), code, name, 0, None, None)
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        result = self.lib.nvrtcCompileProgram(self.program, len(options), array)
        log = self.text("ProgramLog").decode(errors="replace")
        if result != 0:
            fail(log or self.lib.nvrtcGetErrorString(result).decode())
        return log


def main(arguments):
    if len(arguments) == 4 and arguments[0] == "unpack":
        unpack(*arguments[1:])
    elif len(arguments) >= 3 and arguments[0] in ("ptx", "assemble"):
        nvrtc = Nvrtc(arguments[1])
        log = nvrtc.compile(arguments[2], arguments[3:])
        if arguments[0] == "ptx":
            sys.stderr.write(log)
            sys.stdout.buffer.write(nvrtc.text("PTX"))
        else:
            nvrtc.text("CUBIN")
            sys.stdout.write(log)
    else:
        fail(__doc__)


main(sys.argv[1:])
