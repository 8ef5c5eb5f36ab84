"""Counted: how many there are of something, in words."""


def counted(number: int, noun: str) -> str:
    """The number with the noun, in the plural where it is not one.

    >>> counted(1, "statistic"), counted(4, "output")
    ('1 statistic', '4 outputs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
