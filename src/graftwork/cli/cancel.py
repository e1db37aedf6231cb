"""``graftwork cancel JOB``: end a Slurm job so that its nodes drain, and only then by force."""

from __future__ import annotations

import click

from graftwork.cli.screened import screened
from graftwork.ui import Screen


@click.command("cancel")
@screened
@click.argument("job", metavar="JOB")
@click.option("--bound", metavar="SECONDS", type=click.IntRange(min=0), help="How long to wait before scancel.")
def command(screen: Screen, job: str, bound: int | None) -> int:
    """Tell the batch script of a running JOB to drain its nodes, wait, and scancel it only if it is still there.

    A job that has not started is removed at once. The default bound is the drain that the job was written with.
    """
    from graftwork.launch.cancel import cancel

    ended = cancel(job, bound, say=lambda text: screen.step("cancel", f"job {job}: {text}"))
    if screen.as_json:
        screen.document({"job": ended.job, "how": ended.how, "state": ended.state, "seconds": round(ended.seconds, 1)})
    how = "had not started and was removed" if ended.how == "pending" else "drained"
    screen.result(f"job {job} {how} in {ended.seconds:.0f} s{f': {ended.state}' if ended.state else ''}")
    return 0
