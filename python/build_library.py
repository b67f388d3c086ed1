"""Compiles the shared library, or takes the one that SPARK_LIBRARY names, and puts it into the
wheel. Installing the wheel takes no compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "libspark_ccl.so"


class BuildLibrary(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        built = os.environ.get("SPARK_LIBRARY") or self.build()
        folder = Path(self.directory)
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / NAME
        shutil.copyfile(built, library)
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
        build_data["force_include"][str(library)] = f"spark_ccl/{NAME}"
        build_data["pure_python"] = False
        # Any Python 3.
        build_data["tag"] = f"py3-none-{platform_of(library)}"

    def build(self) -> Path:
        workspace = Path(self.root).parent
        target = Path(os.environ.get("CARGO_TARGET_DIR", workspace / "target"))
        command = ["cargo", "build", "--release", "-p", "spark-ccl-ffi"]
        subprocess.run([*command, "--target-dir", str(target)], cwd=workspace, check=True)
        return target / "release" / NAME


def platform_of(library: Path) -> str:
    """The platform that the library runs on: this machine's processor, and the oldest version of
    the C library that it needs. PyPI takes no wheel without that version."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    command = ["objdump", "--private-headers", str(library)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    minors = [int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", said)]
    # Another C library, such as musl, has no versions.
    return platform.replace("linux", f"manylinux_2_{max(minors)}", 1) if minors else platform
