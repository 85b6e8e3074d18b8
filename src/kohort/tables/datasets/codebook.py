"""What is publicly documented about the columns of the embedded table.

The values below are those of the published description of Adult (Becker and Kohavi, 1996; the bounds of the numbers are
the census bureau's codes and top codes as published with it). They are declared, so no site discloses anything by
using them.
"""

from __future__ import annotations

from kohort.tables.schema import Schema

__all__ = ["adult_codebook"]

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
