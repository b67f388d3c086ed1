"""Compiles the shared libraries, or takes the one that SPARK_LIBRARY names and the other beside it,
and puts them into the wheel. Installing the wheel takes no compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The library of the package, and the one with NCCL's ABI, for PyTorch.
NAMES = ("libspark_ccl.so", "libspark_nccl.so")


class BuildLibrary(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        given = os.environ.get("SPARK_LIBRARY")
        built = Path(given).parent if given else self.build()
        folder = Path(self.directory)
        folder.mkdir(parents=True, exist_ok=True)
        libraries = [folder / name for name in NAMES]
        for library in libraries:
            shutil.copyfile(built / library.name, library)
            subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
            build_data["force_include"][str(library)] = f"spark_ccl/{library.name}"
        build_data["pure_python"] = False
        # Any Python 3.
        build_data["tag"] = f"py3-none-{platform_of(libraries)}"

    def build(self) -> Path:
        workspace = Path(self.root).parent
        target = Path(os.environ.get("CARGO_TARGET_DIR", workspace / "target"))
        command = ["cargo", "build", "--release", "-p", "spark-ccl-ffi", "-p", "spark-ccl-ffi-nccl"]
        subprocess.run([*command, "--target-dir", str(target)], cwd=workspace, check=True)
        return target / "release"


def platform_of(libraries: Sequence[Path]) -> str:
    """The platform that the libraries run on: this machine's processor, and the oldest version of
    the C library that they need. PyPI takes no wheel without that version."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    command = ["objdump", "--private-headers", *map(str, libraries)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    minors = [int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", said)]
    # Another C library, such as musl, has no versions.
    return platform.replace("linux", f"manylinux_2_{max(minors)}", 1) if minors else platform
