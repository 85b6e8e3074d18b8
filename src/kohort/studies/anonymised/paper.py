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
_PRINTED: Final = {  # thousandths
    "mammographic": {
        "none": "767 766 779 778 771 771 779 778 819 819 526 481 790 790 823 822 791 790",
        "k3-exact": "726 722 738 737 767 765 718 716 738 737 670 643 742 742 730 729 767 766",
        "k3": "746 746 767 766 767 766 714 713 694 693 526 481 694 693 694 693 759 759",
        "l2": "654 651 686 685 666 664 730 730 642 635 570 566 646 640 646 641 714 713",
        "t0.2": "546 511 558 471 546 511 558 471 558 471 550 480 534 515 558 471 502 449",
    },
    "housing": {
        "none": "963 963 974 974 985 985 612 612 596 532 594 450 664 635 861 854 588 540",
        "k3-exact": "762 751 772 761 783 771 476 305 490 399 458 242 501 451 558 499 457 413",
        "k3": "765 755 770 759 783 772 475 303 499 404 451 229 499 459 558 506 458 411",
        "l2": "625 599 624 597 652 626 465 273 558 483 346 309 567 546 617 577 451 404",
        "t0.2": "470 419 467 424 481 416 462 271 470 373 452 248 361 284 468 376 442 394",
    },
    "adult": {
        "none": "858 788 857 791 874 816 760 432 789 601 239 193 794 645 854 789 742 591",
        "k3-exact": "830 754 840 767 863 795 760 432 799 644 761 435 793 643 838 766 738 583",
        "k3": "830 753 837 764 865 800 760 432 788 595 760 432 790 640 840 767 729 573",
        "l2": "797 703 807 715 848 757 760 432 794 609 761 433 794 643 820 722 735 578",
        "t0.2": "784 647 775 672 831 707 760 432 799 641 761 434 792 644 800 664 741 575",
    },
}


def _pairs(text: str) -> list[tuple[float, float]]:
    numbers = [int(one) / 1000 for one in text.split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


CLASSIFIERS: Final[dict[str, dict[str, Scores]]] = {
    table: {variant: dict(zip(NAMES, _pairs(text), strict=True)) for variant, text in by_variant.items()}
    for table, by_variant in _PRINTED.items()
}

# Tables 7.1 (not anonymised) and 7.2 (each silo anonymised): the positive class's precision, recall and F1.
FEDERATED: Final[dict[str, dict[str, float]]] = {
    "none": {"accuracy": 0.850, "precision": 0.727, "recall": 0.616, "f1": 0.667},
    "k3": {"accuracy": 0.835, "precision": 0.695, "recall": 0.561, "f1": 0.621},
}

# Section 7.1: information loss of the three silos.
SILO_LOSS: Final = (0.0613, 0.0597, 0.0630)
