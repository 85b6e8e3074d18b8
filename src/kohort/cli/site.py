"""`kohort site`: run one site of a deployment on Flower."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import ForceOption, say, stdout

__all__ = ["register"]

SiteArgument = Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder.")]
PASSPHRASE = "KOHORT_PASSPHRASE"  # noqa: S105 - the name of a variable


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    site = typer.Typer(
        name="site",
        help="Take part in a federation with rows that stay on this machine.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    site.command("init")(init)
    site.command("trust")(trust)
    site.command("revoke")(revoke)
    site.command("rotate")(rotate)
    site.command("renew")(renew)
    site.command("domains")(domains)
    site.command("approve")(approve)
    site.command("profile")(profile)
    site.command("start")(start)
    app.add_typer(site)


def init(
    site: SiteArgument,
    name: Annotated[str, typer.Option(help="Name of this site at the hub and its peers.")],
    invitation: Annotated[Path, typer.Option(help="The hub's invitation.json.")],
    table: Annotated[
        str | None, typer.Option(help="The site's rows: a path or a database's address; a key-holder has none.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Copy the roles of the columns from this plan.")] = None,
    fingerprint: Annotated[
        str, typer.Option(help="The fingerprint the hub's operator told you; another is refused.")
    ] = "",
) -> None:
    """Create a site: its keys, site.toml (table, roles, policy) and the registration for the hub.

    With KOHORT_PASSPHRASE set, the key file is encrypted with it. Example: kohort site init north --name north
    --table north.csv --invitation invitation.json --plan plan.toml
    """
    from kohort.crypto.identity.names import check_name
    from kohort.crypto.identity.roster import require_fingerprint
    from kohort.runs.config import read_plan
    from kohort.tables.sources.opening import is_source
    from kohort.transport.deployment.files import Invitation, Registration
    from kohort.transport.deployment.site import SiteFolder

    check_name(name)
    read = Invitation.read(invitation)
    require_fingerprint(read.hub, fingerprint)
    SiteFolder.init(
        site,
        name=name,
        table=None if table is None else table if is_source(table) else Path(table),
        invitation=read,
        plan=None if plan is None else read_plan(plan),
        passphrase=os.environ.get(PASSPHRASE),
    )
    if not fingerprint:
        say(f"the hub's fingerprint, to compare with its operator: {read.hub.fingerprint}")
    say(f"read {site / 'site.toml'}, then give the hub {site / 'registration.json'} and its operator this fingerprint:")
    stdout().print(Registration.read(site / "registration.json").site.fingerprint)


def trust(
    site: SiteArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A peer's name.")],
    fingerprint: Annotated[str, typer.Argument(metavar="FINGERPRINT", help="The fingerprint its operator gave you.")],
) -> None:
    """Trust a peer: it counts towards the minimum number of sites and may receive shares and secrets.

    Example: kohort site trust north south 3f2a...
    """
    from kohort.transport.deployment.site import SiteFolder

    SiteFolder(site).trust(name, fingerprint)
    say(f"{name} is trusted from now on")


def revoke(
    site: SiteArgument,
    fingerprint: Annotated[
        str, typer.Argument(metavar="FINGERPRINT", help="Fingerprint of a key that is no longer valid.")
    ],
) -> None:
    """Revoke a fingerprint for good, whichever peer uses it.

    Example: kohort site revoke north 3f2a...
    """
    from kohort.transport.deployment.site import SiteFolder

    SiteFolder(site).distrust(fingerprint)
    say("revoked")


def rotate(site: SiteArgument) -> None:
    """Create new keys for a stopped site, signed by the old keys, which are revoked. Unfinished runs end.

    Example: kohort site rotate north
    """
    from kohort.transport.deployment.rotation import HANDOVER_FILE, rotate_site
    from kohort.transport.deployment.site import SiteFolder

    made = rotate_site(SiteFolder(site), passphrase=os.environ.get(PASSPHRASE))
    say(f"give the hub {site / HANDOVER_FILE} (kohort hub add). Every peer's operator revokes the old fingerprint:")
    stdout().print(made.rotation.old.fingerprint)
    say("and, after comparing it with you, trusts the new one (kohort site revoke, kohort site trust):")
    stdout().print(made.rotation.new.fingerprint)


def renew(
    site: SiteArgument,
    invitation: Annotated[Path | None, typer.Option(help="The hub's new invitation.json.")] = None,
    fingerprint: Annotated[
        str, typer.Option(help="The fingerprint the hub's operator told you; another is refused.")
    ] = "",
) -> None:
    """Bring the folder of a stopped site that an older version made to the present form; its keys stay.

    Example: kohort site renew north --invitation invitation.json
    """
    from kohort.crypto.identity.roster import require_fingerprint
    from kohort.transport.deployment.files import Invitation
    from kohort.transport.deployment.renewal import renew_site

    read = None if invitation is None else Invitation.read(invitation)
    if read is not None:
        require_fingerprint(read.hub, fingerprint)
        if not fingerprint:
            say(f"the hub's fingerprint, to compare with its operator: {read.hub.fingerprint}")
    made = renew_site(site, invitation=read, passphrase=os.environ.get(PASSPHRASE))
    for change in made.changes or ("nothing had to be renewed",):
        say(change)
    if made.changed:
        say(f"the hub's operator runs kohort hub forget, then kohort hub add with {site / 'registration.json'};")
        say("peers' operators revoke the old fingerprint and trust this one:")
    stdout().print(made.fingerprint)


def domains(
    site: SiteArgument,
    update: Annotated[Path, typer.Argument(metavar="DOMAINS", help="The domains.json that the hub's operator signed.")],
) -> None:
    """Take over declared domains that the hub signed into site.toml. Roles, policy and limits stay as they are.

    Example: kohort site domains north domains.json
    """
    from kohort.transport.deployment.domains import DomainUpdate
    from kohort.transport.deployment.site import SiteFolder

    changes = DomainUpdate.read(update, hub=SiteFolder(site).invitation.hub).apply(site)
    for change in changes or ["site.toml declares the same already"]:
        stdout().print(change, markup=False)
    if changes:
        say("changed in site.toml; restart the site to use it, and approve plans anew that changed with it")


def approve(
    site: SiteArgument,
    plan: Annotated[str | None, typer.Argument(metavar="PLAN", help="A plan file, or a hash from the ledger.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=v", help="Overrides that the hub will use.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw the approval.")] = False,
) -> None:
    """Show what a plan may ever ask of this site, and approve exactly this plan; without a plan, list approved ones.

    The text is that of `kohort plan explain`. Example: kohort site approve north plan.toml
    """
    from kohort.runs.config import read_plan
    from kohort.runs.explain import explain_plan
    from kohort.transport.deployment.site import SiteFolder

    approvals = SiteFolder(site).approvals
    if plan is None:
        for known, note in approvals.listed().items():
            stdout().print(f"{known} {note}", markup=False)
        return
    is_hash = len(plan) == 64 and not Path(plan).exists()
    read = None if is_hash else read_plan(Path(plan), overrides=set_ or [])
    plan_hash = plan if read is None else read.digest()
    if withdraw:
        approvals.withdraw(plan_hash)
        say("withdrawn")
        return
    if read is None:
        say("a hash does not show what the plan asks; read it with: kohort plan explain PLAN.toml")
    else:
        typer.echo(explain_plan(read).text)
    approvals.approve(plan_hash, note="" if is_hash else Path(plan).name)
    say("approved:")
    stdout().print(plan_hash)


def profile(
    site: SiteArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the profile goes.")],
    force: ForceOption = False,
) -> None:
    """Write the profile of this site's table, for kohort harmonise; it passes the door and is in the ledger.

    The site must not be running. Example: kohort site profile north --out north.json
    """
    from kohort.files import require_new, write_atomic
    from kohort.transport.deployment.site import SiteFolder

    require_new(out, force=force)
    released = SiteFolder(site).profile(passphrase=os.environ.get(PASSPHRASE))
    write_atomic(out, released)
    say(f"{out} is listed in the ledger of {site}. Read it, then give it to whoever runs kohort harmonise")


def start(
    site: SiteArgument,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS, no node keys: loopback only.")] = False,
    retries: Annotated[int, typer.Option(min=0, help="How often to try again when the hub does not answer.")] = 30,
) -> None:
    """Answer the hub's requests until stopped with Ctrl-C. It says what it waits for, and why it refused something.

    Example: kohort site start north
    """
    from kohort.transport.deployment.site import SiteFolder

    if insecure:
        say("INSECURE: no TLS and no node keys. Whoever is on this machine can read and answer. For tests only")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the SuperNode process is ended too
    SiteFolder(site).start(insecure=insecure, retries=retries, passphrase=os.environ.get(PASSPHRASE), say=say)
