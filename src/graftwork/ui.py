"""What a person sees: one line a step, a table, progress on a terminal only. Machines get one JSON document."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from graftwork.errors import GraftworkError, redact

_STYLES = {"good": "32", "bad": "31", "warn": "33", "dim": "2", "bold": "1"}


class Screen:
    """Writes for people to *stream*; with ``as_json`` people's lines go to stderr and the document to stdout."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.stream: TextIO = sys.stderr if as_json else sys.stdout
        self.terminal = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.colour = self.terminal and not os.environ.get("NO_COLOR")

    def style(self, text: str, name: str) -> str:
        """*text* in a colour, where colours are wanted."""
        return f"\033[{_STYLES[name]}m{text}\033[0m" if self.colour else text

    def line(self, text: str = "") -> None:
        """A line of information; silent with --quiet."""
        if not self.quiet:
            self._write(text, self.stream)

    def step(self, name: str, text: str) -> None:
        """One finished step: its name in a fixed column, then what came of it."""
        self.line(f"{self.style(f'{name:<9}', 'bold')} {text}")

    def result(self, text: str) -> None:
        """The line that even --quiet shows (but not --json, whose document says it)."""
        if not self.as_json:
            self._write(text, self.stream)

    def warn(self, text: str) -> None:
        """A warning, always shown, on stderr."""
        self._write(f"{self.style('warning', 'warn')}: {redact(text)}", sys.stderr)

    def error(self, error: GraftworkError, document: Mapping[str, Any] | None = None) -> None:
        """An error with what to do next: on stderr, and as ``error`` of the JSON document, beside *document*."""
        if self.as_json:
            said = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
            self.document({**(document or {}), "error": said})
        self._write(f"{self.style('error', 'bad')}: {error.message}", sys.stderr)
        if error.hint:
            self._write(f"  {self.style('next', 'bold')}: {error.hint}", sys.stderr)

    def document(self, value: dict[str, Any]) -> None:
        """The one JSON document on stdout."""
        self._write(json.dumps(value, indent=2, sort_keys=True), sys.stdout)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None] = ()) -> None:
        """A table whose columns fit their widest cell; *styles* colours the rows' second column."""
        widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
        self.line("  " + self.style("  ".join(f"{c:<{w}}" for c, w in zip(head, widths, strict=True)).rstrip(), "dim"))
        for number, row in enumerate(rows):
            cells = [f"{c:<{w}}" for c, w in zip(row, widths, strict=True)]
            style = styles[number] if number < len(styles) else None
            cells[1] = self.style(cells[1], style) if style else cells[1]
            self.line("  " + "  ".join(cells).rstrip())

    @contextlib.contextmanager
    def download(self, name: str) -> Iterator[Callable[[int, int | None], None]]:
        """Report a download: a bar on a terminal; on a pipe a line when it is done. Yields (done, total) -> None."""
        seen = [0]
        if not self.terminal or self.quiet:
            yield lambda done, total: seen.__setitem__(0, done)
        else:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            console = Console(file=self.stream, no_color=not self.colour)
            with Progress(*columns, console=console, transient=True) as progress:
                task = progress.add_task(name, total=None, start=False)

                def show(done: int, total: int | None) -> None:
                    seen[0] = done
                    progress.start_task(task)
                    progress.update(task, completed=done, total=total)

                yield show
        if seen[0]:
            self.step("fetched", f"{name} ({size(seen[0])})")

    @staticmethod
    def _write(text: str, stream: TextIO) -> None:
        stream.write(text + "\n")
        stream.flush()


def size(count: int) -> str:
    """A number of bytes for people, in decimal units."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5 or unit == "GB":
            break
    return f"{value:.1f} {unit}"
