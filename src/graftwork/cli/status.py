"""``graftwork status``: what upstream has become of for every patch, whether that is well known, and what to do."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.targets import Target
from graftwork.cli import options, writing
from graftwork.errors import GraftworkError, PinError, PolicyError, UnreachableError, UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.upstream.policy import Problem
    from graftwork.upstream.proposal import Proposal

_STYLE = {"open": "good", "merged": "warn", "closed": "dim", "missing": "bad", "not looked at": "bad"}


@click.command("status")
@options.checkout
@click.argument("names", metavar="[PATCH]...", nargs=-1)
@click.option("--refresh", is_flag=True, help="Ask GitHub and the package index, and write upstream.json.")
@click.option("--offline", is_flag=True, help="The same from the cache alone; ask nobody.")
@click.option("--history", "clone", metavar="CLONE", type=click.Path(path_type=Path), help="Decide on tags here, too.")
@click.option("--check", is_flag=True, help="Exit 8 on evidence that is old, contradicted, overtaken or missing.")
@click.option("--propose", is_flag=True, help="Print what to drop, cut again or correct, as edits.")
@click.option("--ledger", is_flag=True, help="Write patch.upstream.status.md from the evidence.")
@click.option("--ledger-check", is_flag=True, help="Exit 8 if patch.upstream.status.md is not what the evidence says.")
@click.option("--today", metavar="DATE", help="The day that ages are counted to; today (UTC) if not given.")
def command(
    screen: Screen,
    found: Catalog,
    names: tuple[str, ...],
    refresh: bool,
    offline: bool,
    clone: Path | None,
    check: bool,
    propose: bool,
    ledger: bool,
    ledger_check: bool,
    today: str | None,
) -> int:
    """Show where upstream stands for each PATCH (all, if none is named): as it was seen, or anew with --refresh."""
    if clone is not None and not (refresh or offline):
        raise UsageError("--history decides anew", hint="Give --refresh or --offline with it.")
    if ledger and ledger_check:
        raise UsageError("--ledger writes the ledger, --ledger-check only compares it", hint="Give one of them.")
    day = _day(today)
    job = Status(found, screen, names)
    failed: list[GraftworkError] = []
    if refresh or offline:
        failed = job.read(offline=offline, clone=clone)
    document = job.show()
    targets = [found.target(name) for name in found.target_names]
    problems = _problems(job.patches, targets, day) if check or propose else []
    document["problems"] = [vars(problem) for problem in problems]
    document["proposals"] = job.propose(problems, targets) if propose else []
    if ledger:
        job.write_ledger(targets)
    refused = _refused(job, targets, problems if check else [], failed, ledger_check or (check and not ledger))
    if refused is not None:
        screen.error(refused, document)
        return refused.exit_code
    if screen.as_json:
        screen.document(document)
    seen = sum(len(patch.upstream.refs) for patch in job.patches)
    said = f"{len(job.patches)} patches, {seen} references seen"
    screen.result("the ledger of upstream's state is what the evidence says" if ledger_check else said)
    return 0


class Status:
    """The patches that were asked for, and what is done with them."""

    def __init__(self, catalog: Catalog, screen: Screen, names: tuple[str, ...]) -> None:
        self.catalog, self.screen = catalog, screen
        self._ids = list(dict.fromkeys(catalog.patch_named(name).id for name in names)) or catalog.patch_ids
        self.patches = [catalog.patch(name) for name in self._ids]

    @property
    def everything(self) -> list[Patch]:
        """All patches of the catalog, as the ledger wants them."""
        return [self.catalog.patch(name) for name in self.catalog.patch_ids]

    def read(self, *, offline: bool, clone: Path | None) -> list[GraftworkError]:
        """Read upstream anew and write the evidence that changed; what could not be read comes back."""
        from graftwork.catalog.seen import FILE, dumped
        from graftwork.trees.cache import Cache
        from graftwork.upstream.answers import Answers
        from graftwork.upstream.github import GitHub
        from graftwork.upstream.history import History
        from graftwork.upstream.status import Refresh

        cache = Cache(warn=self.screen.warn)
        github = GitHub.from_environment(Answers(cache), offline)
        history = History(clone) if clone is not None else None
        with contextlib.ExitStack() as stack:
            opened = Opened(self.catalog, cache, self.patches, stack, offline)
            job = Refresh(self.patches, github, opened, self.catalog.platforms_of(self.patches), history)
            evidence = job.run()
        how = "from the cache" if offline else "with a token" if github.token else "without a token"
        self.screen.step("asked", f"{github.root}: {github.asked} requests, {how}")
        for patch in self.patches:
            file, data = patch.folder / FILE, dumped(evidence[patch.id])
            if not file.is_file() or file.read_bytes() != data:
                self._write(file, data)
        self.patches = [self.catalog.patch(name) for name in self._ids]
        unique = {error.message: error for error in job.failed}
        for error in unique.values():
            self.screen.warn(f"not read, what is known of it stays as it was: {error.message}")
        return list(unique.values())

    def show(self) -> dict[str, Any]:
        """The table of references; the same as data."""
        import msgspec

        from graftwork.oci.errors import printable

        rows, styles = [], []
        for patch in self.patches:
            for row in patch.spec.upstream:
                seen = patch.upstream.seen(row.ref)
                state = seen.state if seen else "not looked at"
                held = next((item.first for item in patch.upstream.contained if item.ref == row.ref and item.first), "")
                title = printable(seen.title)[:60] if seen else ""
                ref = row.ref.partition("/")[2]
                rows.append((ref, state, row.relation, seen.as_of if seen else "-", held or "-", patch.id, title))
                styles.append(_STYLE[state])
        if rows:
            self.screen.table(("reference", "state", "relation", "seen", "first in", "patch", "title"), rows, styles)
        for patch in self.patches:
            for item in patch.upstream.collisions:
                where = f"{item.anchor} at {item.file}:{item.ours[0]}"
                self.screen.line(f"  {patch.id}: {item.ref} is open and changes lines near {where}")
        return {"patches": [msgspec.to_builtins(patch.upstream) for patch in self.patches]}

    def propose(self, problems: list[Problem], targets: list[Target]) -> list[dict[str, Any]]:
        """Print and return what to do."""
        from graftwork.upstream.proposal import Proposer

        maker = Proposer(self.catalog, targets, self._state_of, self._changes_of)
        made: list[Proposal] = []
        for patch in self.patches:
            made += maker.moved(patch)
            made += [maker.for_problem(patch, problem) for problem in problems if problem.patch == patch.id]
            made += maker.colliding(patch)
        for item in dict.fromkeys(made):
            self.screen.step("propose", f"{item.patch}: {item.what}")
            for text in (item.diff, item.add, "".join(f"$ {line}\n" for line in item.commands)):
                for line in text.splitlines():
                    self.screen.line(f"    {line}")
        return [vars(item) for item in dict.fromkeys(made)]

    def write_ledger(self, targets: list[Target]) -> None:
        """Write the ledger where it differs."""
        from graftwork.upstream import ledger

        there, wanted = ledger.current(self.catalog.root, self.everything, targets)
        file = self.catalog.root / ledger.FILE
        if there != wanted:
            self._write(file, wanted.encode())
        else:
            self.screen.step("unchanged", str(file))

    def _write(self, file: Path, data: bytes) -> None:
        writing.write(file, data)
        self.screen.step("written", str(file))

    def _state_of(self, patch: Patch, target: Target) -> Any:
        """The patch on the target's pinned wheel, or None where that cannot be read."""
        from graftwork.catalog.catalog import engine_version
        from graftwork.cli.options import pinned_wheel
        from graftwork.upstream.matrix_work import plan_alone

        try:
            with pinned_wheel(target, self.catalog.lock(target), self.screen) as tree:
                return plan_alone(tree, patch, engine_version(target), target.platform).state
        except (UnreachableError, PinError) as error:
            self.screen.warn(f"{patch.id} was not planned on {target.name}: {error.message}")
            return None

    def _changes_of(self, ref: str, engine: str) -> Any:
        """The changes of a reference as they are in the cache, if they are."""
        from graftwork.trees.cache import Cache
        from graftwork.upstream.answers import Answers
        from graftwork.upstream.changes import from_api
        from graftwork.upstream.github import GitHub
        from graftwork.upstream.threads import changed_files

        github = GitHub.from_environment(Answers(Cache(warn=self.screen.warn)), offline=True)
        row = next(row for patch in self.patches for row in patch.upstream.refs if row.ref == ref)
        try:
            return from_api(changed_files(github, row.moved_to or ref, row.merge_commit), engine)[0]
        except UnreachableError:
            return []  # proposed without the definitions that it would name


class Opened:
    """The releases of an engine as trees, found once; they stay open as long as *stack*."""

    def __init__(
        self, catalog: Catalog, cache: Any, patches: list[Patch], stack: contextlib.ExitStack, offline: bool
    ) -> None:
        self.catalog, self.cache, self.patches, self.stack, self.offline = catalog, cache, patches, stack, offline
        self._found: dict[str, Any] = {}

    def __call__(self, engine: str) -> Any:
        """(version, tree) of each, oldest first. UnreachableError, each time, where the index cannot be asked."""
        if engine not in self._found:
            try:
                self._found[engine] = self._open(engine)
            except UnreachableError as error:
                self._found[engine] = error
        if isinstance(self._found[engine], UnreachableError):
            raise self._found[engine]
        return self._found[engine]

    def _open(self, engine: str) -> list[Any]:
        from graftwork.trees.index import PackageIndex
        from graftwork.trees.pages import PageCache
        from graftwork.upstream import releases

        index = PackageIndex(pages=PageCache(self.cache, offline=self.offline))
        notes, pins = releases.FirstUse(self.cache), releases.locked_pins(self.catalog, engine)
        wanted = releases.in_range("", [patch for patch in self.patches if patch.engine == engine])
        found = []
        for release in releases.find_releases(index, engine, pins, notes, wanted):
            tree = releases.open_release(release, self.cache, index)
            self.stack.enter_context(tree)
            self.stack.callback(_note, notes, release, tree)
            found.append((release.version, tree))
        return found


def _note(notes: Any, release: Any, tree: Any) -> None:
    """Hold the next reading to the RECORD of this one, if it was the first. A tree that was not read has no rows."""
    if release.record_sha256 is None and "rows" in vars(tree):
        notes.put(release.location.sha256, tree.record_sha256)


def _problems(patches: list[Patch], targets: list[Target], day: datetime.date) -> list[Problem]:
    from graftwork.upstream.policy import problems

    return problems(patches, targets, day)


def _refused(
    job: Status, targets: list[Target], problems: list[Problem], failed: list[GraftworkError], compare: bool
) -> GraftworkError | None:
    """The error that this run ends with: what is wrong with the evidence or its ledger, then what was not read."""
    from graftwork.upstream import ledger

    for problem in problems:
        job.screen.line(f"  {problem.patch}: {problem.text}")
    if problems:
        text = f"{len(problems)} findings about upstream, first: {problems[0].patch}: {problems[0].text}"
        return PolicyError(text, hint="graftwork status --propose prints what to do about each")
    if compare:
        try:
            ledger.check(job.catalog.root, job.everything, targets)
        except PolicyError as error:
            return error
    return failed[0] if failed else None


def _day(text: str | None) -> datetime.date:
    from graftwork.upstream.github import utc_now

    try:
        return datetime.date.fromisoformat(text) if text else utc_now().date()
    except ValueError:
        raise UsageError(f"--today {text!r} is not a day", hint="Write it as 2026-11-30.") from None
