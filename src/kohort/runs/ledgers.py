"""The ledger of a run at the hub: who signs it, how it is opened, and how it is sealed."""

from __future__ import annotations

from dataclasses import dataclass

from kohort.crypto.identity.signers import signer_of
from kohort.crypto.identity.user import state_folder, user_identity
from kohort.privacy.ledger.ledger import LEDGER_FILE, Ledger
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.reopen import drop_cut_lines, reopen
from kohort.privacy.ledger.signing import Signer
from kohort.rng import Streams
from kohort.runs.backend import Backend
from kohort.runs.folder import RunFolder

__all__ = ["Signers", "open_ledger", "seal_ledger", "signers_of"]


@dataclass(frozen=True, kw_only=True)
class Signers:
    """Who signs a run's ledger: its chains, its receipts, and its head and results."""

    sites: Signer
    hub: Signer
    sealer: Signer
    notes: tuple[str, ...] = ()


def signers_of(place: Backend, streams: Streams, folder: RunFolder | None) -> Signers:
    """Who signs the ledger of a run.

    The hub of a deployment signs everything with its own key. In a simulation, sites and hub have keys that follow from
    the seed, and the user's key seals the whole if a folder is written.

    Args:
        place: Where the run takes place.
        streams: Randomness of the run.
        folder: Where the run is written; None where nothing is.

    Returns:
        The signers. `notes` says so where the user's key cannot be kept, and a key of this run alone signs.
    """
    hub = place.hub_identity(streams)
    if hub is not None:
        own = signer_of(hub)
        return Signers(sites=own, hub=own, sealer=own)
    sites, issuer = (Signer.from_secret(streams.bytes("signer", name)) for name in ("sites", "hub"))
    if folder is None:
        return Signers(sites=sites, hub=issuer, sealer=sites)
    user = user_identity()
    if user is None:
        note = (
            f"{state_folder()} cannot be written, so a key of this run alone signed the ledger: its signer is unknown"
        )
        return Signers(sites=sites, hub=issuer, sealer=sites, notes=(f"{note}. Set KOHORT_STATE to a folder",))
    return Signers(sites=sites, hub=issuer, sealer=signer_of(user))


def open_ledger(folder: RunFolder | None, signers: Signers, *, run: str, goes_on: bool) -> tuple[Ledger, Receipts]:
    """Open the hub's ledger and receipts of a run.

    Args:
        folder: Where they are kept; None: in memory.
        signers: Who signs them.
        run: The identity of the run.
        goes_on: Whether an interrupted run goes on in `folder`.

    Returns:
        Both.
    """
    place = None if folder is None else folder.ledger
    has_ledger = goes_on and place is not None and (place / LEDGER_FILE).is_file()
    if has_ledger and place is not None:
        drop_cut_lines(place)
    ledger = Ledger(signer=signers.sites, sealer=signers.sealer, folder=place, run=run)
    receipts = Receipts(signer=signers.hub, folder=place)
    if has_ledger and place is not None:
        reopen(place, ledger, receipts)
    return ledger, receipts


def seal_ledger(ledger: Ledger, receipts: Receipts) -> None:
    """Sign the ledger's head, however the run ended, and close both files.

    Args:
        ledger: The ledger of the sites' releases.
        receipts: The hub's receipts, whose head the seal names.
    """
    try:
        ledger.seal(receipts=(receipts.length, receipts.head), hub_key=receipts.public)
    finally:
        ledger.close()
        receipts.close()
