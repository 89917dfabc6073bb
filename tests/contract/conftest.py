"""What the contract suites share: child processes that a test controls, and a disk small enough to fill."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Child = subprocess.Popen[str]


@pytest.fixture
def start_child() -> Iterator[Callable[[str], Child]]:
    """Start Python with this source; it is killed at the latest when the test ends."""
    children: list[Child] = []

    def start(source: str) -> Child:
        command = [sys.executable, "-u", "-c", source]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
