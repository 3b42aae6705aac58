"""What attacks that match gradients share: which updates they explain, and how candidates are compared with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpriv.attacks.contract import CPU, Attack, AttackProblem
from fedpriv.attacks.gradients.gradient_matching import Matcher, SeveralSteps
from fedpriv.attacks.gradients.step_problems import MATCHING, MATCHING_ON, StepProblem, read_problem
from fedpriv.attacks.read.sent_entries import GradientMatch


@dataclass(frozen=True, kw_only=True)
class GradientMatching(Attack):
    """A target is an upload as a whole; its images are all those of its local steps, in the order of the steps.

    Attributes:
        several_steps: ``unrolled``, or ``approximate``: as if the steps were one gradient, which is faster and wrong by
            as much as the weights moved on the way.
        ignore: parameters whose gradients are left out of the comparison, because a defense changed them: patterns of
            names, joined by +, for example ``head.weight`` or ``bottleneck.*+head.*``.
        match: what of the rest is compared: ``all`` entries, only those ``sent`` (not zero: the answer to pruning), or
            their ``signs`` (the answer to ``sign``); see :mod:`fedpriv.attacks.read.sent_entries`.
    """

    several_steps: SeveralSteps = "unrolled"
    ignore: str = ""
    match: GradientMatch = "all"

    unit = "upload"
    needs = MATCHING
    needs_on = MATCHING_ON

    @property
    def labels_known(self) -> bool:
        """Whether labels are looked up or inferred; else they are found together with the images."""
        return True

    def read(self, problem: AttackProblem) -> StepProblem:
        """Return the updates to explain.

        Raises:
            UserError: when the model, the batch facts, a private head or granted labels are missing, or labels are too many.
        """
        return read_problem(self.name, problem, labels_known=self.labels_known, ignore=self.ignore, match=self.match)

    def matcher(self, problem: AttackProblem, updates: StepProblem) -> Matcher:
        """Return what compares candidates with the updates."""
        knowledge = problem.knowledge
        return Matcher(
            updates.model,
            knowledge.image_shape,
            updates.facts,
            self.several_steps,
            problem.device,
            knowledge.loss.proximal,
        )

    def caveat(self, problem: AttackProblem) -> str:
        """Return in words why the true images need not be what is searched for; empty where they are."""
        return self.read(replace(problem, device=CPU)).misfit
