"""Public bounds and classes of tables of measurements, so that no site has to tell ranges to use them.

Dry Bean: the smallest and largest value of each measure as published with the table (Koklu and Ozkan, 2020), rounded
outwards. Skin: colours are bytes. HIGGS: detector geometry for the angles, and for momenta and masses, which have no
largest value, round numbers beyond which hardly a collision lies; what is beyond is clipped.
"""

from __future__ import annotations

from kohort.tables.schema import Schema

__all__ = ["dry_bean_codebook", "higgs_codebook", "skin_codebook"]


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
