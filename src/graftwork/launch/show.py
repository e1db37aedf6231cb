"""A rendered recipe on the screen, and on disk."""

from __future__ import annotations

import shlex
from pathlib import Path

from graftwork.errors import UsageError
from graftwork.launch.arguments import Line
from graftwork.launch.deployment import Component, render_json
from graftwork.launch.draft import Explained
from graftwork.launch.node.board import write_whole
from graftwork.launch.placeholders import readable
from graftwork.launch.render import Rendered
from graftwork.ui import Screen


def lines(rendered: Rendered, screen: Screen, *, explain: bool) -> None:
    """Each node with its components: as a command to read, or with a reason for each argument."""
    deployment = rendered.deployment
    screen.step("engine", f"{deployment.engine} {deployment.version}")
    if deployment.image.target:
        screen.step("target", deployment.image.target)
    bounds = deployment.bounds
    screen.step(
        "stop", f"engines {bounds.engine_s} s < node {bounds.drain_s} s < told {bounds.lead_s} s before the end"
    )
    explained = {each.component: each for each in rendered.explained}
    for node in range(deployment.nodes):
        screen.line()
        parts = rendered.memory.get(node, {})
        sums = " + ".join(f"{name} {size:.0f}" for name, size in parts.items())
        screen.step(f"node {node}", f"{sum(parts.values()):.0f} of {deployment.node.memory_gib:g} GiB: {sums}")
        for component in deployment.on_node(node):
            if explain:
                _explained(component, explained[component.name], screen)
            else:
                _command(component, explained[component.name], screen)


def _command(component: Component, why: Explained, screen: Screen) -> None:
    screen.line(f"  {screen.style(component.name, 'bold')}")
    for name, value in component.env.items():
        screen.line(f"    {name}={shlex.quote(readable(value))} \\")
    screen.line("    " + " ".join(shlex.quote(readable(word)) for word in component.argv))
    for path in component.files:
        screen.line(f"    file {path}")
    for line in [*why.arguments, *why.environment]:
        if line.origin == "user" and line.replaced:
            text = f"{readable(line.text)}, in place of {readable(line.replaced)}"
            screen.line(f"    {screen.style('yours', 'good')}: {text}")


def _explained(component: Component, why: Explained, screen: Screen) -> None:
    ports = ", ".join(
        name + (f" ({count})" if count > 1 else "") + (f" = {component.fixed[name]}" if name in component.fixed else "")
        for name, count in component.ports.items()
    )
    screen.line(f"  {screen.style(component.name, 'bold')}{f', ports {ports}' if ports else ''}")
    screen.line(f"    {readable(why.program)}")
    for line in [*why.arguments, *why.environment]:
        _reason(line, screen)
    for note in why.notes:
        screen.line(f"    {screen.style('left out', 'dim')}: {note}")


def _reason(line: Line, screen: Screen) -> None:
    styles = {"derived": "dim", "demanded": "warn", "user": "good"}
    screen.line(f"    {readable(line.text)}")
    replaced = f" (in place of {readable(line.replaced)})" if line.replaced else ""
    screen.line(f"        {screen.style(line.origin, styles[line.origin])}: {line.reason}{replaced}")


def write(rendered: Rendered, folder: Path) -> Path:
    """Write ``deployment.json`` into *folder*, in one step, and return it. UsageError when it cannot be written."""
    file = folder / "deployment.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, render_json(rendered.deployment).decode("utf-8"))
        return file
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}", hint="give another --out") from None
