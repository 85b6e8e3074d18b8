"""The figures the thesis prints (Saleh: Comparison of the Effects of Data Privacy Preserving Methods on Machine
Learning Algorithms in IoT, Marmara University, 2022), as data. Each constant names its table.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ASSOCIATION", "CLASSIFIERS", "EDUCATION", "EDUCATION_GROUPS", "FEDERATED", "NAMES", "PARTITIONS", "SILO_LOSS",
    "Scores",
]  # fmt: skip

Scores = dict[str, tuple[float, float]]
"""Classifier to (accuracy, macro F1)."""

# Table 2.2: each value of education, its most frequent income, and that income's share (truncated at four decimals).
EDUCATION: Final[dict[str, tuple[str, float]]] = {
    "Prof-school": (">50K", 0.7398), "Doctorate": (">50K", 0.7255), "Masters": (">50K", 0.5491),
    "Preschool": ("<=50K", 0.9879), "11th": ("<=50K", 0.9492), "1st-4th": ("<=50K", 0.9676),
    "5th-6th": ("<=50K", 0.9469), "9th": ("<=50K", 0.9457), "10th": ("<=50K", 0.9373), "7th-8th": ("<=50K", 0.9350),
    "12th": ("<=50K", 0.9269), "HS-grad": ("<=50K", 0.8414), "Some-college": ("<=50K", 0.8103),
    "Assoc-voc": ("<=50K", 0.7467), "Assoc-acdm": ("<=50K", 0.7420), "Bachelors": ("<=50K", 0.5871),
}  # fmt: skip

# Section 2.5: the six groups of education at rho = 10.
EDUCATION_GROUPS: Final = (
    frozenset({"HS-grad", "Some-college"}),
    frozenset({"Assoc-acdm", "Assoc-voc"}),
    frozenset({"Prof-school", "Doctorate"}),
    frozenset({"Bachelors"}),
    frozenset({"Masters"}),
    frozenset({"11th", "10th", "7th-8th", "5th-6th", "9th", "12th", "1st-4th", "Preschool"}),
)

# Tables 5.1 (none) and 5.2 (k = 3): association of each Mammographic column with severity, truncated at three decimals.
ASSOCIATION: Final[dict[str, dict[str, float]]] = {
    "none": {"bi_rads": 0.361, "age": 0.221, "shape": 0.266, "margin": 0.279, "density": 0.005},
    "k3": {"bi_rads": 0.259, "age": 0.242, "shape": 0.209, "margin": 0.218, "density": 0.007},
}

# Tables 5.3 (Mammographic), 5.4 (Adult), 5.5 (Housing): partitions, and information loss as a share.
PARTITIONS: Final[dict[str, dict[str, tuple[int, float]]]] = {
    "mammographic": {
        "k3-exact": (199, 0.1329), "k3": (199, 0.1738), "l2": (125, 0.6350), "t0.2": (33, 0.9837),
        "t0.3": (74, 0.8971), "t0.4": (119, 0.6537),
    },
    "adult": {
        "k3-exact": (9246, 0.0576), "k3": (9246, 0.0746), "l2": (4919, 0.0929), "t0.2": (2925, 0.3266),
        "t0.3": (7134, 0.0792), "t0.4": (7863, 0.0807),
    },
    "housing": {
        "k3-exact": (5351, 0.4399), "k3": (5351, 0.4402), "l2": (2391, 0.6583), "l3": (769, 0.7182),
        "t0.2": (131, 0.6742), "t0.3": (538, 0.6652), "t0.4": (1040, 0.6532),
    },
}  # fmt: skip

# Tables 5.6 (none), 5.7 (k3-exact), and 5.8 Adult, 5.9 Mammographic, 5.10 Housing (k3, l2, t0.2): accuracy and macro F1
# of each classifier.
NAMES: Final = (
    "extra trees", "random forest", "gradient boosting", "SVM", "logistic regression", "SGD", "Gaussian NB", "KNN",
    "MLP",
)  # fmt: skip
_PRINTED: Final[dict[str, dict[str, tuple[tuple[float, float], ...]]]] = {
    "mammographic": {
        "none": (
            (0.767, 0.766), (0.779, 0.778), (0.771, 0.771), (0.779, 0.778), (0.819, 0.819), (0.526, 0.481),
            (0.790, 0.790), (0.823, 0.822), (0.791, 0.790),
        ),
        "k3-exact": (
            (0.726, 0.722), (0.738, 0.737), (0.767, 0.765), (0.718, 0.716), (0.738, 0.737), (0.670, 0.643),
            (0.742, 0.742), (0.730, 0.729), (0.767, 0.766),
        ),
        "k3": (
            (0.746, 0.746), (0.767, 0.766), (0.767, 0.766), (0.714, 0.713), (0.694, 0.693), (0.526, 0.481),
            (0.694, 0.693), (0.694, 0.693), (0.759, 0.759),
        ),
        "l2": (
            (0.654, 0.651), (0.686, 0.685), (0.666, 0.664), (0.730, 0.730), (0.642, 0.635), (0.570, 0.566),
            (0.646, 0.640), (0.646, 0.641), (0.714, 0.713),
        ),
        "t0.2": (
            (0.546, 0.511), (0.558, 0.471), (0.546, 0.511), (0.558, 0.471), (0.558, 0.471), (0.550, 0.480),
            (0.534, 0.515), (0.558, 0.471), (0.502, 0.449),
        ),
    },
    "housing": {
        "none": (
            (0.963, 0.963), (0.974, 0.974), (0.985, 0.985), (0.612, 0.612), (0.596, 0.532), (0.594, 0.450),
            (0.664, 0.635), (0.861, 0.854), (0.588, 0.540),
        ),
        "k3-exact": (
            (0.762, 0.751), (0.772, 0.761), (0.783, 0.771), (0.476, 0.305), (0.490, 0.399), (0.458, 0.242),
            (0.501, 0.451), (0.558, 0.499), (0.457, 0.413),
        ),
        "k3": (
            (0.765, 0.755), (0.770, 0.759), (0.783, 0.772), (0.475, 0.303), (0.499, 0.404), (0.451, 0.229),
            (0.499, 0.459), (0.558, 0.506), (0.458, 0.411),
        ),
        "l2": (
            (0.625, 0.599), (0.624, 0.597), (0.652, 0.626), (0.465, 0.273), (0.558, 0.483), (0.346, 0.309),
            (0.567, 0.546), (0.617, 0.577), (0.451, 0.404),
        ),
        "t0.2": (
            (0.470, 0.419), (0.467, 0.424), (0.481, 0.416), (0.462, 0.271), (0.470, 0.373), (0.452, 0.248),
            (0.361, 0.284), (0.468, 0.376), (0.442, 0.394),
        ),
    },
    "adult": {
        "none": (
            (0.858, 0.788), (0.857, 0.791), (0.874, 0.816), (0.760, 0.432), (0.789, 0.601), (0.239, 0.193),
            (0.794, 0.645), (0.854, 0.789), (0.742, 0.591),
        ),
        "k3-exact": (
            (0.830, 0.754), (0.840, 0.767), (0.863, 0.795), (0.760, 0.432), (0.799, 0.644), (0.761, 0.435),
            (0.793, 0.643), (0.838, 0.766), (0.738, 0.583),
        ),
        "k3": (
            (0.830, 0.753), (0.837, 0.764), (0.865, 0.800), (0.760, 0.432), (0.788, 0.595), (0.760, 0.432),
            (0.790, 0.640), (0.840, 0.767), (0.729, 0.573),
        ),
        "l2": (
            (0.797, 0.703), (0.807, 0.715), (0.848, 0.757), (0.760, 0.432), (0.794, 0.609), (0.761, 0.433),
            (0.794, 0.643), (0.820, 0.722), (0.735, 0.578),
        ),
        "t0.2": (
            (0.784, 0.647), (0.775, 0.672), (0.831, 0.707), (0.760, 0.432), (0.799, 0.641), (0.761, 0.434),
            (0.792, 0.644), (0.800, 0.664), (0.741, 0.575),
        ),
    },
}  # fmt: skip
CLASSIFIERS: Final[dict[str, dict[str, Scores]]] = {
    table: {variant: dict(zip(NAMES, scores, strict=True)) for variant, scores in by_variant.items()}
    for table, by_variant in _PRINTED.items()
}

# Tables 7.1 (not anonymised) and 7.2 (each silo anonymised): the positive class's precision, recall and F1.
FEDERATED: Final[dict[str, dict[str, float]]] = {
    "none": {"accuracy": 0.850, "precision": 0.727, "recall": 0.616, "f1": 0.667},
    "k3": {"accuracy": 0.835, "precision": 0.695, "recall": 0.561, "f1": 0.621},
}

# Section 7.1: information loss of the three silos.
SILO_LOSS: Final = (0.0613, 0.0597, 0.0630)
