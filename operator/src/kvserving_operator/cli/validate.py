"""``kvserving validate``: every fault of every file."""

from __future__ import annotations

import json

import click


@click.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the answer.")
def command(files: tuple[str, ...], output: str) -> int:
    """Check each FILE (- is standard input) and report every fault; exit status 1 when there is one."""
    from ..plan import check
    from . import files as source

    results = []
    for file in files:
        reading = source.inspect(file)
        faults = list(reading.faults)
        if reading.serving is not None:
            known = {(f.path, f.message) for f in faults}
            faults += [f for f in check(reading.serving) if (f.path, f.message) not in known]
        results.append((file, faults, reading.resolved))
    if output == "json":
        answer = [
            {
                "file": file,
                "valid": not faults,
                "faults": [{"path": f.path, "message": f.message, "value": f.value} for f in faults],
            }
            for file, faults, _ in results
        ]
        click.echo(json.dumps(answer, indent=2))
    else:
        for file, faults, resolved in results:
            for line in source.lines(file, faults):
                click.echo(line)
            if not faults:
                click.echo(f"{source.shown(file)}: valid")
                for path in resolved:
                    where = f"{source.shown(file)}: {path}"
                    click.echo(f"{where}: relative to this machine: `kvserving up` takes it, `kubectl apply` does not")
    return 1 if any(faults for _, faults, _ in results) else 0
