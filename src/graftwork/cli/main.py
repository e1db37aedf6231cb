"""The ``graftwork`` command: verbs are loaded when they are called, errors become exit codes here."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import NoReturn

import click

from graftwork import __version__
from graftwork.errors import GraftworkError, UsageError
from graftwork.ui import Screen

VERBS = {
    "new": "Make a patch's folder from a diff or a pull request",
    "lint": "Check that patches say what they must, and compose in every order",
    "why": "Show everything that is known of one patch",
    "refresh": "Cut a patch anew, or take a tree edited by hand as its new revision",
    "rebase": "Propose a patch for another release, three-way",
    "export": "Write a patch as a commit for upstream, without our marks",
    "plan": "Show what each patch of a target is in a tree; writes nothing",
    "apply": "Apply a target's patches to a folder, all or none",
    "revert": "Restore the pristine files of a folder, byte for byte",
    "prove": "Take every patch apart, hunk by hunk, and demand that its tests notice",
    "verify": "Prove that a folder, a payload or a whole image holds the patches",
    "image": "Build a target's payload, graft it onto a base, and prove it",
    "push": "Graft onto a base and write the image straight to a registry",
    "lock": "Resolve a target's pins and write its lock, or check it",
    "status": "Show what became of each patch's upstream issues and pull requests",
    "matrix": "Show where every patch stands in every release of its engine",
    "report": "Write one HTML page about all patches: matrix, evidence, threats, ages",
    "mirror": "Copy a base once to another registry, resumable",
    "doctor": "Tell what a registry does with mounts, ranges, chunks and referrers",
    "probe": "Tell whether direct I/O will work on a storage tier's path, and what device is behind it",
    "cancel": "End a Slurm job so that its nodes drain, and only then by force",
    "launch": "Render a recipe into the commands, environment and files of each node",
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        found = importlib.import_module(f"graftwork.cli.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="graftwork", message="graftwork %(version)s")
def cli() -> None:
    """Patched inference-engine images, with proof that the patches are in them.

    \b
    Exit codes: 0 done, 2 usage, 3 drift, partial or outdated, 4 proof failed, 5 pin mismatch,
    6 not reachable, 7 obsolete patch, 8 policy, 70 a fault of graftwork.
    """


def run() -> NoReturn:
    """Entry point of the console script."""
    # Nearly all that a verb makes lives until it ends: looking for garbage as often as Python does takes a twentieth,
    # and looking through all of it once more at the end a tenth.
    gc.set_threshold(100_000, 20, 20)
    try:
        _run()
    finally:
        gc.freeze()


def _run() -> NoReturn:
    screen = Screen(as_json="--json" in sys.argv)
    try:
        code = cli.main(prog_name="graftwork", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except GraftworkError as error:
        screen.error(error)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        screen.error(UsageError(error.format_message(), hint=_help_hint(error)))
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("GRAFTWORK_DEBUG"):
            raise
        hint = "this is a bug; run again with GRAFTWORK_DEBUG=1 and report the traceback"
        screen.error(GraftworkError(f"{type(error).__name__}: {error}", hint=hint))
        sys.exit(70)


def _help_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"see: {context.command_path} --help" if context else "see: graftwork --help"
