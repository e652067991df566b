"""``kvserving up``: a file as processes on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .bounded import Time

if TYPE_CHECKING:
    from ..local.client import Asked
    from ..local.run import Run
    from ..local.state import ServiceDir, State
    from .view import View


@click.command("up")
@click.argument("file", metavar="FILE")
@click.option("-d", "--detach", is_flag=True, help="Return when it is up; it goes on in the background.")
@click.option("--engine-python", metavar="PATH", help="Python with vLLM. Default: $KVSERVING_ENGINE_PYTHON, else ours.")
@click.option(
    "--router-python", metavar="PATH", help="Python with the router. Default: $KVSERVING_ROUTER_PYTHON, else ours."
)
@click.option(
    "--listen", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT", help="Address of the router."
)
@click.option("--without-tiers", is_flag=True, help="Leave out spec.cache and spec.kvcached.")
@click.option("--timeout", type=Time(min=1), help="Give up when it is not ready by then, such as 10m. Default: no end.")
def command(
    file: str,
    detach: bool,
    engine_python: str | None,
    router_python: str | None,
    listen: str,
    without_tiers: bool,
    timeout: float | None,
) -> int:
    """Run FILE (- is standard input) on this machine and prove that KV moves.

    Engines and router run as processes of this user; needs no root, no cluster and no
    container. Ctrl-C stops them in drain order, a second Ctrl-C at once. Exit status 0 when
    the transfer was proved, 1 when it was not or a start failed, 3 when this machine cannot
    run it as it is.
    """
    from .platform import require_linux

    require_linux()
    from ..local import client
    from ..local.addresses import split_host_port
    from ..local.leftovers import end_leftovers
    from ..local.output import lasting
    from ..local.prepare import Options, digest, prepare
    from ..local.state import READY, ServiceDir
    from ..local.volumes import claims
    from . import files
    from .summary import print_summary, stopped
    from .view import progress

    # Engines are neither left behind nor ended because nobody reads what is said of them.
    click.get_current_context().with_resource(lasting())
    try:
        address = split_host_port(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from error
    serving, of_file = files.read_with_notices(file)
    name = serving.metadata.name
    directory = ServiceDir(name)
    lock = client.claim(name, digest(serving), directory)
    with progress(name) as view:
        try:
            if ended := end_leftovers(directory):
                view.step(f"{ended} processes of an earlier run, whose supervisor was killed, are ended")
            options = Options(address, engine_python, router_python, without_tiers, timeout)
            run = prepare(serving, options, directory, view.step)
        except BaseException:
            directory.discard_unused()
            os.close(lock)
            raise
        for notice in (*map(str, of_file), *run.pods()[1]):
            view.notice(notice)
        if not detach:
            return _foreground(run, directory, lock, view)
        with _heeding(view) as asked:
            state = client.start_detached(run, directory, lock, view.update, asked)
    if state is None:
        click.echo(stopped(directory, claims(run.pods()[0], directory.base / "claims")))
        return 128 + (asked.number or signal.SIGINT)
    print_summary(state, detached=True)
    return 0 if state.phase == READY else 1


@contextmanager
def _heeding(view: View) -> Iterator[Asked]:
    """Let Ctrl-C, SIGTERM and SIGHUP stop what is being started: a job that is ended leaves no engines behind.

    SIGINT also where it was ignored, as in background jobs of a script: without ``--detach`` it is heeded there.
    """
    from ..local.client import Asked

    asked = Asked()

    def stop(number: int, _: object) -> None:
        if asked.stop(signal.Signals(number)):
            view.hurry = _hurry(asked.number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hurry(number: signal.Signals | None) -> str:
    """What hurries a stop that this signal asked for."""
    return "Ctrl-C again stops at once" if number == signal.SIGINT else "Ctrl-C stops at once"


def _foreground(run: Run, directory: ServiceDir, lock: int, view: View) -> int:
    import asyncio

    from ..local import runlogs
    from ..local.supervisor import Supervisor
    from ..local.verifier import verify
    from . import INTERRUPTED
    from .summary import stopped

    runlogs.begin(directory.logs)

    def tell(state: State) -> None:
        if supervisor.stopped_by is not None:
            view.hurry = _hurry(supervisor.stopped_by)
        view.update(state)

    supervisor = Supervisor(run, directory, verify, tell)
    try:
        asyncio.run(supervisor.run())
    finally:
        os.close(lock)
    view.close()
    click.echo(stopped(directory, supervisor.state.claims))
    if supervisor.stopped_by == signal.SIGINT:
        return INTERRUPTED
    verification = supervisor.state.verification
    return 0 if verification is not None and verification["ok"] else 1
