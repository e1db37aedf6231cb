"""Every failure that a user can meet: what happened, where, and what to do next, with an exit code."""

from __future__ import annotations

import re
from pathlib import Path

EXIT_CODES = {
    0: "done",
    2: "usage: a wrong argument, a broken catalog file, a tree that cannot be read or written",
    3: "drift, partial or outdated: the tree is not what the patches expect; nothing was written",
    4: "proof failed: the finished artifact does not hold what it should",
    5: "a pin or digest does not match",
    6: "base or network not reachable",
    7: "obsolete patch: the defect is fixed upstream; drop the patch",
    8: "policy: status stale, budget exceeded, or a patch that lint refuses",
    70: "a fault of graftwork's own",
}

_URL_SECRETS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?:[^/\s@'\"]*@)?(?P<rest>[^\s?#'\"]*)(?:[?#][^\s'\"]*)?", re.IGNORECASE
)


def redact(text: str) -> str:
    """Remove user info, query and fragment from every URL in *text*."""
    return _URL_SECRETS.sub(lambda m: m["scheme"] + m["rest"], text)


class GraftworkError(Exception):
    """Base of all expected failures. ``hint`` is one sentence: what to do next."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(redact(message))
        self.message = redact(message)
        self.hint = redact(hint)


class UsageError(GraftworkError, ValueError):
    """A wrong argument, or an input file that cannot be used as it is."""

    exit_code = 2


class CatalogError(UsageError):
    """A patch.toml, target or lock that breaks a rule; names the file and, where known, the line."""

    def __init__(self, file: Path, message: str, *, line: int | None = None, hint: str = "") -> None:
        where = f"{file}:{line}" if line else str(file)
        super().__init__(f"{where}: {message}", hint=hint)
        self.file, self.line = file, line


class TreeError(UsageError):
    """A tree that cannot be read or written: unsafe archive, link out of the tree, wrong encoding."""


class MissingFile(TreeError, FileNotFoundError):
    """A path that the tree does not have."""


class StateError(GraftworkError):
    """A patch is drifted, partial or outdated; nothing was written."""

    exit_code = 3


class ProofError(GraftworkError):
    """The finished artifact does not hold what it should."""

    exit_code = 4


class PinError(GraftworkError):
    """A hash, size, version or tag differs from what the target pins. Names both values."""

    exit_code = 5


class UnreachableError(GraftworkError, ConnectionError):
    """The network, an index or a base image could not be reached."""

    exit_code = 6


class ObsoleteError(GraftworkError):
    """A patch whose defect is fixed upstream; it must be dropped."""

    exit_code = 7


class PolicyError(GraftworkError):
    """A budget is exceeded, evidence is stale, or a patch lacks what it must say."""

    exit_code = 8
