"""What the columns of a table seem to be: one inference for every command and for Python.

A column is a **suspected identifier** if it tells persons apart without being a measurement: texts that hardly repeat,
whole numbers that are named like an identifier and hardly repeat, or that count on by one, free text, and values with
the shape of an e-mail address, a telephone number or the like; and, however often a person occurs, a column that is
named like a person's number, in English or another language of statistics offices. A suspected identifier is never a
feature, a domain or a released column unless the user names it. A number with decimals is never one for being distinct.

The shapes follow the eighteen identifiers of the HIPAA Safe Harbor rule (45 CFR 164.514(b)(2)).

Guarantee: reasons name columns and counts, never a cell. A suspicion is no proof: a column that is not suspected may
still identify.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from kohort.errors import ConfigError

__all__ = [
    "FREE_TEXT",
    "KINDS",
    "MANY_CATEGORIES",
    "ColumnGuess",
    "IdentifierKind",
    "guess_columns",
    "indirect",
    "is_measured",
    "person_of",
    "plain_name",
    "suspected",
    "wide_texts",
]

Shape = Literal["number", "category", "boolean", "date", "items", "text"]
SAMPLE = 10_000
_GERMAN = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss"})
FREE_TEXT = "holds free text"
MEASURED = r"^\s*[€$£<>~]?\s*[+-]?\d[\d.,' ]*([.,]\d+|\s*([€$£%]|[A-Za-zµ°][A-Za-zµ°/²³%]{0,7}))\s*$"
"""A number with a fraction, a unit or a currency, written as text."""
SHARE_OF_MEASURED = 0.8
SHARE_OF_SHAPE = 0.5
SHARE_OF_UNIQUE = 0.95
FEWEST_UNIQUE = 20
FEWEST_IN_SEQUENCE = 10
MANY_VALUES = 20
LONG_TEXT, MANY_WORDS = 40, 5
MANY_CATEGORIES = 200
"""A text with more values than that has no use as a category."""
SHARE_OF_RARE = 0.5
ID_NAME = re.compile(
    r"(.*_)?(id|ids|key|nbr|no|num|number|code|index|idx|mrn|pseudonym|record|matricule|numero|nro|codice|codigo|"
    r"identifiant|identificador|identificativo|[a-z]*(nr|nummer|kennung|kennziffer|kennzeichen))|"
    r"(id|nr|no|numero|codice|codigo|matricule|identifiant)_.*"
)
_PERSONS = (
    r"pat|patient(en|e|in)?|versicherten?|(kranken|sozial|renten)?versicher(ung|ungs|ten)|fall|kunden?|klienten?|"
    r"mitglieds?|personen?|personal|probanden?|teilnehmer|bewohner|schueler|studenten|matrikel|steuer|ausweis|konto|"
    r"ahv|sv|kv|client|verzekerde|klant|deelnemer|persoons?|leerling|burgerservice|rijksregister|dossier"
)
"""Beginnings of German and Dutch compounds for the number of a person, such as Versichertennummer."""
_NUMBERS = r"id|nr|nummer|nummern|kennung|kennziffer|kennzeichen|schluessel|pseudonym|sleutel"
_PERSONS_AFTER = (
    r"patient|patiente|assure|adherent|beneficiaire|client|dossier|personne|individu|eleve|etudiant|"
    r"securite_sociale|secu|paciente|persona|asegurado|afiliado|cliente|historia(_clinica)?|seguridad_social|"
    r"expediente|alumno|paziente|assistito|assicurato|tessera(_sanitaria)?|cartella(_clinica)?|fiscale|fiscal|"
    r"identificacion|identite|identita|identidad"
)
"""What follows `numero` or `codice` in French, Spanish and Italian names for the number of a person."""
PERSON_NUMBER = (
    rf"(.*_)?({_PERSONS})_?({_NUMBERS})|"
    rf"(id|n|nr|num|numero|nro|code|codice|codigo|matricule|identifiant)_(de_|du_|del_|della_|la_|l_|d_)*"
    rf"({_PERSONS_AFTER})(_.*)?|"
    rf"({_PERSONS_AFTER}|usager|salarie)_(id|numero|matricule|code|codice|codigo|identifiant)|"
    r"matricule|kennung|aktenzeichen|pseudonym|bsn|kvnr|svnr|dni|nif|nss|nhc|codfis|insz|personnummer"
)
"""Names of the number of a person in German, Dutch, French, Spanish and Italian."""


@dataclass(frozen=True)
class IdentifierKind:
    """One kind of identifier: words a column's name may hold, and the shape of a value."""

    title: str
    words: str
    shape: str | None = None
    direct: bool = True


# Words are matched against the whole name, in lower case and with _ between its parts.
KINDS = (
    IdentifierKind("email address", r"(.*_)?e_?mail(_.*)?", r"^[^@\s]+@[^@\s]+\.[A-Za-z]{2,}$"),
    IdentifierKind("web address", r"(.*_)?(url|uri)|web_?site|homepage", r"^(https?|ftp)://\S+$|^www\.\S+$"),
    IdentifierKind(
        "IP address", r"(.*_)?ip(_?addr(ess)?)?", r"^(\d{1,3}\.){3}\d{1,3}$|^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$"
    ),
    IdentifierKind("social security number", r"(.*_)?ssn|social_?security(_.*)?", r"^\d{3}-\d{2}-\d{4}$"),
    IdentifierKind("fax number", r"fax(_.*)?"),
    IdentifierKind(
        "telephone number",
        r"(.*_)?(tele)?phone(_.*)?|mobile(_.*)?|tel|(.*_)?(telefon|telefoon|handy|mobil|gsm)_?(nr|nummer)?|telefono",
        r"^(\+\d{1,3}[ .-]?)?\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}$|^\+\d{8,15}$",
    ),
    IdentifierKind(
        "medical record number",
        r"mrn|medical_?record(_.*)?|patient_?(id|nbr|no|number)|(subject|hadm|icustay|encounter|visit)_?id",
    ),
    IdentifierKind(
        "health plan number",
        r"health_?plan(_.*)?|beneficiary(_.*)?|member_?id|insurance_?(id|no|number)|policy_?(no|number)",
    ),
    IdentifierKind(
        "account number",
        r"account(_?(id|no|nbr|number))?|iban|credit_?card(_.*)?|card_?(no|number)",
        r"^[A-Z]{2}\d{2}[A-Z0-9]{11,30}$",
    ),
    IdentifierKind(
        "certificate or licence number", r"(.*_)?licen[cs]e(_?(id|no|number))?|certificate(_.*)?|passport(_.*)?"
    ),
    IdentifierKind("vehicle identifier", r"vin|number_?plate|licen[cs]e_?plate|vehicle_?(id|number)"),
    IdentifierKind(
        "device identifier",
        r"device_?(id|serial|number)|serial_?(no|number)|imei|mac(_?addr(ess)?)?|udi",
        r"^([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}$",
    ),
    IdentifierKind(
        "biometric record", r"(finger|voice)_?print(_.*)?|retina(_.*)?|iris_?(scan|code)|biometric(_.*)?|dna"
    ),
    IdentifierKind("photograph", r"photo(_.*)?|photograph|picture|portrait"),
    IdentifierKind(
        "person's name",
        r"((first|last|middle|full|sur|family|given|maiden|patient|person|user)_?)?name|"
        r"(vor|nach|familien|geburts|patienten)name|nom(_de_famille)?|prenom|(voor|achter)?naam|apellidos?|cognome|nome",
    ),
    IdentifierKind("person's number", PERSON_NUMBER),
    IdentifierKind(
        "record identifier",
        r"id|(.*_)?[ug]uid|(row|record|person|customer|user|case)_?(id|no|number)",
        r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    ),
    IdentifierKind(
        "place",
        r"(.*_)?(zip(_?code)?|post(al)?_?code|street|address|city|town|county|district)|lat(itude)?|lon(gitude)?|lng|"
        r"(.*_)?(plz|postleitzahl|(wohn)?ort|strasse|anschrift|adresse|adres|woonplaats|commune|code_postal|"
        r"codigo_postal|direccion|indirizzo)",
        r"^\d{5}-\d{4}$",
        direct=False,
    ),
    IdentifierKind(
        "date",
        r"(.*_)?date(_.*)?|dob|dod|birth_?(date|day|year)|yob|(day|year)_of_(birth|death)|(admit|disch|death|in|out)_?time|timestamp|"
        r"(.*_)?([a-z]*datum|geburtstag|geburtsjahr|geboortejaar|naissance|nacimiento|nascita|fecha)(_.*)?",
        r"^\d{4}-\d{2}-\d{2}([ T].*)?$|^\d{1,2}[/.]\d{1,2}[/.]\d{2,4}$",
        direct=False,
    ),
)


@dataclass(frozen=True, kw_only=True)
class ColumnGuess:
    """What one column seems to be.

    Attributes:
        name: The column.
        shape: What its values are.
        suspicion: Why it may identify persons, as words that follow the column's name; None if nothing says so.
    """

    name: str
    shape: Shape
    suspicion: str | None = None


def guess_columns(frame: pl.DataFrame, *, declared: Collection[str] = ()) -> tuple[ColumnGuess, ...]:
    """What each column of a table seems to be.

    Args:
        frame: The table.
        declared: Columns whose role the user named; nothing is suspected of them.

    Returns:
        One guess per column, in table order.
    """
    return tuple(
        ColumnGuess(
            name=column.name,
            shape=_shape(column),
            suspicion=None if column.name in declared else _suspicion(column),
        )
        for column in frame
    )


def suspected(frame: pl.DataFrame, *, declared: Collection[str] = ()) -> dict[str, str]:
    """The suspected identifiers among the columns nobody named, and why.

    Args:
        frame: The table.
        declared: Columns whose role the user named.

    Returns:
        A reason by column, in table order.
    """
    undeclared = frame.select([name for name in frame.columns if name not in declared])
    return {guess.name: guess.suspicion for guess in guess_columns(undeclared) if guess.suspicion is not None}


def wide_texts(frame: pl.DataFrame, *, declared: Collection[str] = ()) -> list[str]:
    """Columns of texts nobody named that have too many values to be categories.

    Args:
        frame: The table.
        declared: Columns whose role the user named.

    Returns:
        The names of the columns, in table order.
    """
    texts = [column for column in frame if column.dtype in (pl.String, pl.Categorical, pl.Enum)]
    return [one.name for one in texts if one.name not in declared and one.n_unique() > MANY_CATEGORIES]


def indirect(frame: pl.DataFrame, *, declared: Collection[str] = ()) -> dict[str, str]:
    """Columns nobody named that tell a place or a date: no identifiers by themselves, but known to many.

    Args:
        frame: The table.
        declared: Columns whose role the user named.

    Returns:
        A reason by column, in table order.
    """
    found: dict[str, str] = {}
    for column in frame:
        why = None if column.name in declared else _place_or_date(column)
        if why is not None:
            found[column.name] = why
    return found


def _place_or_date(column: pl.Series) -> str | None:
    kinds = [kind for kind in KINDS if not kind.direct]
    named = next((kind for kind in kinds if re.fullmatch(kind.words, plain_name(column.name))), None)
    if named is not None:
        return f"is named like {_a(named.title)}"
    if column.dtype.is_temporal():
        return "holds dates or times"
    shaped = _shaped_like(column.drop_nulls().head(SAMPLE), kinds) if column.dtype == pl.String else None
    return None if shaped is None else f"holds values of the shape of {_a(shaped.title)}"


def person_of(identifiers: Sequence[str], person: str | None) -> str | None:
    """The column that names the person a row is about.

    Args:
        identifiers: The declared identifiers.
        person: What was declared to name the person.

    Returns:
        `person`, or the only identifier, or None without one.

    Raises:
        ConfigError: There are several identifiers and none of them is declared to name the person.
    """
    if person is not None:
        return person
    if len(identifiers) > 1:
        raise ConfigError(
            f"several identifiers are named: {', '.join(identifiers)}",
            hint="Say which one names a person: --person, or data.person in a plan",
        )
    return next(iter(identifiers), None)


def plain_name(name: str) -> str:
    """A column's name in lower case, without accents, with `_` between its parts.

    Args:
        name: The name, such as `Patient-ID` or `GrößeCm`.

    Returns:
        The plain name, such as `patient_id` or `groesse_cm`.
    """
    german = name.translate(_GERMAN)
    plain = "".join(one for one in unicodedata.normalize("NFKD", german) if not unicodedata.combining(one))
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def _shape(column: pl.Series) -> Shape:
    if isinstance(column.dtype, pl.List):
        return "items"
    if column.dtype == pl.Boolean:
        return "boolean"
    if column.dtype.is_temporal():
        return "date"
    if column.dtype.is_numeric():
        return "number"
    return "text" if _is_free_text(column.drop_nulls().head(SAMPLE)) else "category"


def _suspicion(column: pl.Series) -> str | None:
    if column.dtype == pl.String:
        return _of_text(column)
    if column.dtype.is_integer():
        return _of_integers(column)
    if column.dtype.is_float() and _direct_kind(column.name) is not None:
        sample = column.drop_nulls().head(SAMPLE)
        if len(sample) and (sample == sample.floor()).all():
            return _of_integers(column.cast(pl.Int64, strict=False))
    return None


def _of_text(column: pl.Series) -> str | None:
    known = column.drop_nulls()
    if known.is_empty():
        return None
    sample = known.head(SAMPLE)
    kind = _direct_kind(column.name)
    distinct = sample.n_unique()
    if kind is not None and (distinct > MANY_VALUES or 2 * distinct >= len(sample)):
        return f"is named like {_a(kind.title)}"
    shape = _shaped_like(sample, [kind for kind in KINDS if kind.direct])
    if shape is not None:
        return f"holds values of the shape of {_a(shape.title)}"
    if _is_free_text(sample):
        return FREE_TEXT
    return _own_texts(known) if distinct >= SHARE_OF_RARE * len(sample) else None


def _shaped_like(sample: pl.Series, kinds: Sequence[IdentifierKind]) -> IdentifierKind | None:
    """The first of these kinds whose shape enough of the texts have."""
    for kind in kinds:
        if kind.shape is not None:
            count = int(sample.str.contains(kind.shape).sum())
            if count > SHARE_OF_SHAPE * len(sample):
                return kind
    return None


def is_measured(known: pl.Series) -> bool:
    """Whether most texts are numbers with a fraction, a unit or a currency.

    Args:
        known: A column of texts without missing values.

    Returns:
        True if the column is one of measurements; False for a column without texts.
    """
    sample = known.head(SAMPLE)
    return len(sample) > 0 and int(sample.str.contains(MEASURED).sum()) >= SHARE_OF_MEASURED * len(sample)


def _a(title: str) -> str:
    return f"{'an' if title[0] in 'aeiou' else 'a'} {title}"


def _own_texts(known: pl.Series) -> str | None:
    """Whether nearly every row has a text of its own, or few rows share one."""
    whole = known.n_unique()
    if is_measured(known):
        return None  # a measurement is no identifier for being distinct
    enough = len(known) >= FEWEST_UNIQUE or (whole == len(known) > 2 and _named_like_id(known.name))
    if enough and whole >= SHARE_OF_UNIQUE * len(known):
        return f"holds a text of its own in {whole:,} of {len(known):,} rows"
    if whole > MANY_CATEGORIES and whole >= SHARE_OF_RARE * len(known):
        return f"holds {whole:,} different texts in {len(known):,} rows"
    return None


def _of_integers(column: pl.Series) -> str | None:
    known = column.drop_nulls()
    if len(known) < 3:
        return None
    kind = _direct_kind(column.name)
    if kind is None and not _named_like_id(column.name):
        return _in_sequence(known)
    distinct = known.n_unique()
    if kind is not None and (distinct > MANY_VALUES or 2 * distinct >= len(known)):
        return f"is named like {_a(kind.title)}"
    if distinct == len(known):
        return "is named like an identifier and no number occurs twice"
    if distinct > MANY_CATEGORIES and distinct >= SHARE_OF_RARE * len(known):
        return f"is named like an identifier and holds {distinct:,} numbers in {len(known):,} rows"
    return None


def _in_sequence(known: pl.Series) -> str | None:
    if len(known) < FEWEST_IN_SEQUENCE:
        return None
    first, last = known[0], known[-1]
    if abs(int(last) - int(first)) != len(known) - 1:
        low, high = known.min(), known.max()
        unordered = isinstance(low, int) and isinstance(high, int) and high - low == len(known) - 1
        return "holds every number of a range once" if unordered and known.n_unique() == len(known) else None
    steps = known.diff().drop_nulls()
    return "counts the rows" if (steps == steps[0]).all() and abs(int(steps[0])) == 1 else None


def _named_like_id(name: str) -> bool:
    return ID_NAME.fullmatch(plain_name(name)) is not None


def _direct_kind(name: str) -> IdentifierKind | None:
    plain = plain_name(name)
    return next((kind for kind in KINDS if kind.direct and re.fullmatch(kind.words, plain)), None)


def _is_free_text(sample: pl.Series) -> bool:
    """Sentences: long, of many words, and seldom the same."""
    if sample.is_empty() or sample.dtype != pl.String:
        return False
    length = sample.str.len_chars().mean()
    if not isinstance(length, float) or length < LONG_TEXT:
        return False
    words = (sample.str.count_matches(" ") + 1).mean()
    return isinstance(words, float) and words >= MANY_WORDS and 2 * sample.n_unique() > len(sample)
