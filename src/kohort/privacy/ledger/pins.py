"""Whose signature a ledger must carry: keys that the reader knows from somewhere else than the ledger itself.

Chains and signatures show that a ledger is consistent. Whoever rewrites all of it can sign it with a fresh key, so
only a signer that is pinned makes it sound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kohort.errors import IntegrityError
from kohort.privacy.ledger.checks import SignedBy

__all__ = ["Pins"]


@dataclass(frozen=True, kw_only=True)
class Pins:
    """What the reader knows of the signers of a ledger."""

    signers: Mapping[str, str] = field(default_factory=dict)
    """By fingerprint or signing key, whose it is, in words."""
    required: bool = False
    """Whether any other signer is an error: the reader said, or the folder shows, whose ledger this must be."""
    unvouched: Mapping[str, str] = field(default_factory=dict)
    """The same for signers that must have signed, and are known from what lies beside the ledger alone: the ledger is
    then consistent, and its signer stays unknown."""
    site: str = ""
    """The site whose one chain this must be; empty for any."""
    sites: Mapping[str, str] = field(default_factory=dict)
    """By name, the fingerprints of sites whose own signed heads may be in a hub's ledger."""
    hub_key: str = ""
    """The signing key of the hub that must have issued the receipts; empty for any."""

    def whose(self, signer: SignedBy) -> str:
        """Whose signature it is, in words; empty if nobody known here vouches for the signer.

        Raises:
            IntegrityError: Another signer is required.
        """
        label = self.signers.get(signer.fingerprint) or self.signers.get(signer.key)
        if label:
            return label
        if signer.fingerprint in self.unvouched or signer.key in self.unvouched:
            return ""
        if self.required:
            wanted = " or ".join(sorted({*self.signers.values(), *self.unvouched.values()}))
            raise IntegrityError(
                f"the ledger is signed by {signer.shown[:16]}…, not by {wanted}",
                hint="Somebody signed it again or put another ledger in its place: compare it with the hub's receipts",
            )
        return ""

    def check_chains(self, chains: Collection[str], signer: SignedBy) -> None:
        """Whether the ledger holds the chain it must hold, and whether the chain's own site signed it.

        Args:
            chains: The sites whose own chains these are; none of a hub's ledger.
            signer: Who signed the head.

        Raises:
            IntegrityError: It holds another site's, or another site signed it.
        """
        if self.site and set(chains) != {self.site}:
            raise IntegrityError(
                f"the ledger is not that of site {self.site!r}", hint="Put the site's own ledger folder back"
            )
        owner = next((name for name, text in self.sites.items() if text == signer.fingerprint), "")
        foreign = [name for name in chains if name in self.sites and name != owner]
        if foreign or (owner and chains and set(chains) != {owner}):
            raise IntegrityError(
                f"the ledger of site {min(foreign or chains)!r} is not signed by that site",
                hint="Somebody put another site's ledger in its place, or signed it again",
            )

    def check_hub(self, hub_key: str, *, receipts: int) -> None:
        """Whether the receipts are those of the hub that is known.

        Raises:
            IntegrityError: Another key signed them.
        """
        if self.hub_key and receipts and hub_key != self.hub_key:
            raise IntegrityError(
                "the receipts are signed by another key than the hub's", hint="Compare the fingerprint in hub.json"
            )

    def check_site(self, site: str, fingerprint: str) -> bool:
        """Whether a site's identity in a hub's ledger is the one that is known.

        Returns:
            True if the site is known.

        Raises:
            IntegrityError: It is known with another key.
        """
        known = self.sites.get(site)
        if known is not None and known != fingerprint:
            raise IntegrityError(f"the heads of site {site!r} are signed by another key than the site's")
        return known is not None
