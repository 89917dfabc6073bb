"""Tags that lead back to where a model came from."""

import subprocess
from pathlib import Path

from offbeat.lifecycle.lineage import git_revision


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_revision_is_the_commit_and_says_when_files_differ(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_revision(tmp_path) == commit
    git(tmp_path, "tag", "v1")
    assert git_revision(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_revision(tmp_path) == f"{commit}-dirty"


def test_outside_a_checkout_the_revision_is_unknown(tmp_path: Path) -> None:
    assert git_revision(tmp_path) == "unknown"
    assert git_revision(tmp_path / "missing") == "unknown"
