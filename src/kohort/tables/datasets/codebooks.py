"""Public codebooks: what is documented about the columns of the named datasets.

Adult: the published description (Becker and Kohavi, 1996); the bounds of the numbers are the census bureau's codes and
top codes as published with it. Dry Bean: the smallest and largest value of each measure as published with the table
(Koklu and Ozkan, 2020), rounded outwards. Skin: colours are bytes. HIGGS: detector geometry for the angles; momenta
and masses have no largest value, so their bounds are round numbers that hardly a collision exceeds, and values beyond
them are clipped.

Guarantee: everything here is declared and public, so no site discloses anything by using it.
"""

from __future__ import annotations

from kohort.tables.schema import Schema

__all__ = ["adult_codebook", "dry_bean_codebook", "higgs_codebook", "skin_codebook"]

WORKCLASS = "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay"
EDUCATION = (
    "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters Preschool "
    "Prof-school Some-college"
)
MARITAL_STATUS = "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed"
OCCUPATION = (
    "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
    "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving"
)
RELATIONSHIP = "Husband Not-in-family Other-relative Own-child Unmarried Wife"
RACE = "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"
NATIVE_COUNTRY = (
    "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece "
    "Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico "
    "Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand "
    "Trinadad&Tobago United-States Vietnam Yugoslavia"
)


def adult_codebook() -> Schema:
    """Declared categories and bounds of every column of Adult; no roles."""
    return Schema.of(
        categories={
            "workclass": WORKCLASS.split(),
            "education": EDUCATION.split(),
            "marital_status": MARITAL_STATUS.split(),
            "occupation": OCCUPATION.split(),
            "relationship": RELATIONSHIP.split(),
            "race": RACE.split(),
            "sex": ["Female", "Male"],
            "native_country": NATIVE_COUNTRY.split(),
            "income": ["<=50K", ">50K"],
        },
        bounds={
            "age": (17, 90),
            "fnlwgt": (12285, 1490400),
            "education_num": (1, 16),
            "capital_gain": (0, 99999),
            "capital_loss": (0, 4356),
            "hours_per_week": (1, 99),
        },
        nullable=["workclass", "occupation", "native_country"],
    )


def dry_bean_codebook() -> Schema:
    """Declared bounds and classes of Dry Bean; no roles."""
    return Schema.of(
        categories={"class": ["BARBUNYA", "BOMBAY", "CALI", "DERMASON", "HOROZ", "SEKER", "SIRA"]},
        bounds={
            "area": (20_000, 255_000),
            "perimeter": (520, 2_000),
            "major_axis_length": (180, 740),
            "minor_axis_length": (120, 465),
            "aspect_ration": (1.0, 2.5),
            "eccentricity": (0.2, 0.92),
            "convex_area": (20_000, 264_000),
            "equiv_diameter": (160, 570),
            "extent": (0.55, 0.87),
            "solidity": (0.91, 1.0),
            "roundness": (0.48, 1.0),
            "compactness": (0.64, 0.99),
            "shape_factor1": (0.0027, 0.0105),
            "shape_factor2": (0.0005, 0.0037),
            "shape_factor3": (0.41, 0.98),
            "shape_factor4": (0.94, 1.0),
        },
    )


def skin_codebook() -> Schema:
    """Declared bounds and classes of Skin Segmentation; no roles."""
    return Schema.of(categories={"skin": ["1", "2"]}, bounds={"b": (0, 255), "g": (0, 255), "r": (0, 255)})


def higgs_codebook() -> Schema:
    """Declared bounds and classes of HIGGS; no roles."""
    jets = {
        f"jet_{number}_{what}": bounds
        for number in range(1, 5)
        for what, bounds in {"pt": (0, 8), "eta": (-3, 3), "phi": (-1.75, 1.75), "b_tag": (0, 3.2)}.items()
    }
    return Schema.of(
        categories={"label": ["0", "1"]},
        bounds={
            "lepton_pt": (0, 8),
            "lepton_eta": (-2.5, 2.5),
            "lepton_phi": (-1.75, 1.75),
            "missing_energy_magnitude": (0, 8),
            "missing_energy_phi": (-1.75, 1.75),
            **jets,
            "m_jj": (0, 15),
            "m_jjj": (0, 8),
            "m_lv": (0, 4),
            "m_jlv": (0, 7),
            "m_bb": (0, 9),
            "m_wbb": (0, 6),
            "m_wwbb": (0, 6),
        },
    )
