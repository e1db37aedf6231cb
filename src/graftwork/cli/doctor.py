"""``graftwork doctor REPOSITORY``: what a registry does with mounts, ranges, chunks, referrers and deletes."""

from __future__ import annotations

import click

from graftwork.cli.screened import screened
from graftwork.ui import Screen


@click.command("doctor")
@screened
@click.argument("repository", metavar="REGISTRY/REPOSITORY")
@click.option("--second", metavar="REPOSITORY", help="Where a mount is tried; REPOSITORY-mount if not given.")
@click.option("--insecure", is_flag=True, help="Plain HTTP to a registry that is not on this machine.")
def command(screen: Screen, repository: str, second: str | None, insecure: bool) -> int:
    """Push small blobs to a repository that you name, try everything graftwork may use, and remove what can be."""
    from graftwork.images.doctor import examine
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.registry import Registry
    from graftwork.oci.transport import Transport

    ref = ImageRef.parse(repository)
    with Registry(Transport(ref.registry, insecure=insecure)) as registry:
        found = examine(registry, ref.repository, second=second or "")
    styles = {"yes": "good", "no": "warn", "unclear": "bad"}
    rows = [(item.name, item.verdict, item.detail) for item in found.findings]
    screen.table(("what", "does it", "how we know"), rows, [styles[item.verdict] for item in found.findings])
    for name in found.left:
        screen.line(f"  left there: {name}")
    if screen.as_json:
        findings = [{"name": i.name, "verdict": i.verdict, "detail": i.detail} for i in found.findings]
        screen.document({"registry": found.registry, "findings": findings, "left": found.left})
    screen.result(f"{found.registry}: {sum(i.verdict == 'yes' for i in found.findings)} of {len(rows)} work")
    return 0
