"""An attack that fails wherever it runs."""

from dataclasses import dataclass

from fedpriv.attacks.inversion.vector import PixelInversion


@dataclass(frozen=True, kw_only=True)
class Failing(PixelInversion):
    name = "failing"
    summary = "fails"

    def run(self, problem):
        raise ArithmeticError("no way")
