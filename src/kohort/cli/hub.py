"""`kohort hub`: run the coordinator of a deployment on Flower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import JsonOption, emit, say, stdout

if TYPE_CHECKING:
    from kohort.transport.deployment.backend import FlowerBackend

__all__ = ["register"]

COMPARE = "Compare the fingerprint with its operator; if it differs: kohort hub forget"

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the finished one-shot run.")]
SamePlan = Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan of that run.")]
SitesOption = Annotated[str, typer.Option("--sites", metavar="a,b,c", help="Names of the sites.")]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the new model and its ledger.")]
WaitOption = Annotated[float, typer.Option(min=0, help="Seconds to wait for sites to connect.")]
SeedOption = Annotated[int | None, typer.Option(help="For tests: a seed instead of the operating system's randomness.")]

HubArgument = Annotated[Path, typer.Argument(metavar="HUB", help="The hub's folder.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    hub = typer.Typer(
        name="hub", help="Coordinate sites on other machines.", no_args_is_help=True, rich_markup_mode=None
    )
    hub.command("init")(init)
    hub.command("add")(add)
    hub.command("start")(start)
    hub.command("status")(status)
    hub.command("forget")(forget)
    hub.command("revoke")(revoke)
    hub.command("renew")(renew)
    hub.command("domains")(domains)
    hub.command("join")(join)
    hub.command("leave")(leave)
    app.add_typer(hub)


def init(
    hub: HubArgument,
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites reach the hub.")],
    name: Annotated[str, typer.Option(help="Name of the hub at the sites.")] = "hub",
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS, no node keys: loopback only.")] = False,
) -> None:
    """Create a hub: its keys, a certificate authority, a server certificate, and the invitation for sites.

    Example: kohort hub init hub --address hub.example.org:9092
    """
    from kohort.transport.deployment.hub import HubFolder

    made = HubFolder.init(hub, address=address, name=name, insecure=insecure)
    from kohort.transport.deployment.files import Invitation

    fingerprint = Invitation.read(made.path / "invitation.json").hub.fingerprint
    if insecure:
        say("INSECURE: no TLS and no node keys. Whoever is on this machine can read and answer. For tests only")
    say(
        f"give every site {made.path / 'invitation.json'}, and send its operator this fingerprint over another channel:"
    )
    stdout().print(fingerprint)


def add(
    hub: HubArgument,
    registration: Annotated[
        Path,
        typer.Argument(metavar="REGISTRATION", help="A site's registration.json, or handover.json."),
    ],
    fingerprint: Annotated[
        str, typer.Option(help="The fingerprint its operator told you; another one is refused.")
    ] = "",
) -> None:
    """Admit a site, or the new keys of a known site. Compare the printed fingerprint with its operator's.

    Example: kohort hub add hub north/registration.json
    """
    from kohort.crypto.identity.roster import require_fingerprint
    from kohort.transport.deployment.files import Registration
    from kohort.transport.deployment.hub import HubFolder
    from kohort.transport.deployment.rotation import KeyHandover

    if KeyHandover.is_at(registration):
        handover = KeyHandover.read(registration)
        require_fingerprint(handover.rotation.new, fingerprint)
        site = HubFolder(hub).replace(handover)
        say(f"{site.name} has new keys; the old ones are revoked. {COMPARE}")
        stdout().print(site.fingerprint)
        return
    read = Registration.read(registration)
    require_fingerprint(read.site, fingerprint)
    site = HubFolder(hub).add(read)
    say(f"added {site.name}. {COMPARE}")
    stdout().print(site.fingerprint)


def start(hub: HubArgument) -> None:
    """Serve sites until stopped with Ctrl-C.

    Example: kohort hub start hub
    """
    from kohort.transport.deployment.hub import HubFolder

    folder = HubFolder(hub)
    settings = folder.settings
    if settings["insecure"]:
        say("INSECURE: no TLS and no node keys. Whoever is on this machine can read and answer. For tests only")
    say(f"serving {len(folder.sites())} sites at {settings['address']}")
    folder.start()


def status(hub: HubArgument, json: JsonOption = False) -> None:
    """Show which sites are connected, since when, and the last step of the last run.

    Example: kohort hub status hub
    """
    from kohort.transport.deployment.hub import HubFolder

    sites, last = HubFolder(hub).status()
    if json:
        emit({"sites": [site.to_mapping() for site in sites], "last": last})
        return
    from rich.table import Table

    table = Table("site", "status", "since", "receipts", "fingerprint")
    for site in sites:
        table.add_row(site.name, site.status, site.since, str(site.receipts), site.fingerprint[:16])
    stdout().print(table)
    if last:
        when = datetime.fromtimestamp(last["at"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        say(f"last: {last['method']}, round {last['round'] + 1}, {last['task']}, {when}")


def forget(
    hub: HubArgument,
    site: Annotated[str | None, typer.Argument(metavar="[SITE]", help="The site's name.")] = None,
    overdue: Annotated[
        bool, typer.Option("--overdue", help="Delete the rows of all sites whose retention period is over.")
    ] = False,
) -> None:
    """Remove a site and delete the rows it sent. Models stay: a site's contribution cannot be removed from them.

    Overdue rows (method.gate.keep_days) are also deleted whenever the hub starts and before every run.

    Example: kohort hub forget hub north
    """
    from kohort.errors import ConfigError
    from kohort.transport.deployment.hub import HubFolder

    if (site is None) != overdue:
        raise ConfigError("forget takes a site or --overdue", hint="Example: kohort hub forget hub north")
    folder = HubFolder(hub)
    changed = folder.drop_overdue() if site is None else folder.forget(site)
    say(f"{'overdue rows' if site is None else f'forgot {site}; rows'} deleted from {len(changed)} tables")
    for place in changed:
        stdout().print(place, markup=False)


def revoke(
    hub: HubArgument,
    fingerprint: Annotated[str, typer.Argument(metavar="FINGERPRINT", help="Fingerprint of a key that leaked.")],
) -> None:
    """Revoke a site's key for good. Its site is let in again with new keys only; open runs end.

    Example: kohort hub revoke hub 3f2a...
    """
    from kohort.transport.deployment.hub import HubFolder

    name = HubFolder(hub).revoke(fingerprint)
    say(f"revoked; {name} is no longer registered" if name else "revoked; no registered site has this key")


def renew(hub: HubArgument) -> None:
    """Issue a new server certificate and invitation from the same keys; restart the hub afterwards.

    Also after the address in hub.toml changed, and for a hub that an older version made. Example: kohort hub renew hub
    """
    from kohort.transport.deployment.files import Invitation
    from kohort.transport.deployment.hub import HubFolder

    changed = HubFolder(hub).renew()
    if not changed:
        say("issued a new certificate; restart the hub to use it. Sites need nothing new")
        return
    say("issued a new certificate; restart the hub to use it. Its fingerprint covers its address and authority now:")
    say(f"give every site {hub / 'invitation.json'} (kohort site renew) and send its operator this fingerprint:")
    stdout().print(Invitation.read(hub / "invitation.json").hub.fingerprint)


def domains(
    hub: HubArgument,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan that declares them.")],
    out: Annotated[Path, typer.Option(help="The file for sites.")] = Path("domains.json"),
) -> None:
    """Sign the domains a plan declares (kinds, bounds, bins, categories), for sites to take over with a command.

    Example: kohort hub domains hub plan.toml --out domains.json
    """
    from kohort.runs.config import read_plan
    from kohort.transport.deployment.hub import HubFolder

    made = HubFolder(hub).domains(read_plan(plan), out)
    say(f"signed: {', '.join(made.data) or 'nothing is declared'}. Every site's operator runs:")
    stdout().print(f"kohort site domains SITE {out}", markup=False)


def join(
    hub: HubArgument,
    run: RunArgument,
    plan: SamePlan,
    sites: SitesOption,
    out: OutOption,
    wait: WaitOption = 60.0,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    """Let sites join a finished one-shot run. They run its plan among themselves; nobody else is asked.

    Three or more join at once; each must have approved the plan. Example:

    kohort hub join hub out/first plan.toml --sites f,g,h --out out/second
    """
    from kohort.runs.continued import join_run

    _continue(join_run, hub, run, plan, sites, out, wait, seed, json=json)


def leave(
    hub: HubArgument,
    run: RunArgument,
    plan: SamePlan,
    sites: SitesOption,
    out: OutOption,
    wait: WaitOption = 60.0,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    """Take sites out of a finished one-shot run: exactly the fit without them.

    Sites that joined together leave without anybody being asked. A part of such a group leaves only under a budget:
    three or more leave, three or more stay and open their sum. The earlier folder still holds the model: delete it.

    Example: kohort hub leave hub out/second plan.toml --sites f,g,h --out out/third
    """
    from kohort.runs.continued import leave_run

    _continue(leave_run, hub, run, plan, sites, out, wait, seed, json=json)
    say(f"{run} still holds a model with these sites: delete it when nobody needs it any more")


def _continue(
    change: Callable[..., dict[str, Any]],
    hub: Path,
    earlier: Path,
    plan: Path,
    sites: str,
    out: Path,
    wait: float,
    seed: int | None,
    *,
    json: bool,
) -> None:
    from kohort.crypto.identity.keys import load_identity
    from kohort.crypto.identity.signers import signer_of
    from kohort.runs.config import read_plan
    from kohort.transport.deployment.hub import HubFolder

    folder = HubFolder(hub)
    signer = signer_of(load_identity(hub / "identity.key"))

    @contextmanager
    def places(names: Sequence[str]) -> Iterator[FlowerBackend]:
        with folder.backend(wait=wait, only=names) as backend:
            folder.remember_run(out)
            yield backend

    result = change(read_plan(plan), earlier, _names(sites), out=out, places=places, signer=signer, seed=seed)
    folder.remember_run(out)
    if json:
        emit(result)
        return
    stdout().print(f"{result['notes'][-1]}. Written to {out}", markup=False)


def _names(text: str) -> list[str]:
    from kohort.cli.common import names
    from kohort.errors import ConfigError

    found = list(names(text))
    if len(set(found)) < len(found) or not found:
        raise ConfigError("--sites names no site, or one twice", hint="Write it as --sites a,b,c")
    return found
