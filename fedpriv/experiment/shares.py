"""Shares of a suite of attacks that processes can carry out apart, and how many processes are worth having."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.worker_number import number_of_workers
from fedpriv.pipeline.plan import PARTS, AttackPlan
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Declared
    from fedpriv.pipeline.execute import AttackContext


@dataclass(frozen=True)
class Suite:
    """A suite, as all who carry out a part of it must know it.

    Attributes:
        run: that is attacked.
        folder: of the results.
        plan: the whole of it.
        named: inferences that the user asked for.
        command: that does the same again.
    """

    run: Path
    folder: Path
    plan: AttackPlan
    named: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class Share:
    """A part of a suite.

    Attributes:
        plan: the suite's, with some of its attacks.
        network: what these train that others share; empty for nothing.
        suite: place of its suite among those that are carried out together.
        part: of its one attack (:data:`fedpriv.pipeline.plan.PARTS`); empty for all there is, scores included.
    """

    plan: AttackPlan
    network: str = ""
    suite: int = 0
    part: str = ""

    def __str__(self) -> str:
        """Names of the folders of its results."""
        return ", ".join(self.plan.results())

    @property
    def rank(self) -> int:
        """Place in the order in which shares are handed out, so that no long one is the last: the lower the sooner.

        Long searches, then inferences that learn from clients they make up, other searches, and inferences that do not.
        """
        from fedpriv.attacks.contract import Attack

        plan = self.plan
        if any(made.most_targets < Attack.most_targets for made in plan.attacks.values()):
            return 0
        if any("shadow" in option.name for made in plan.inferences.values() for option in fields(made)):
            return 1
        return 2 if plan.attacks else 3

    def divided(self) -> list[Share]:
        """Return it in two, the search and its control, where an attack has both and they share nothing; else itself."""
        plan = self.plan
        alone = len(plan.attacks) == 1 and not plan.inferences and not self.network
        if not alone or not plan.control or not all(made.budget for made in plan.attacks.values()):
            return [self]
        return [replace(self, part=part) for part in PARTS]

    def saved_in(self, folder: Path) -> bool:
        """True where a folder holds all of its results."""
        from fedpriv.scoring.storage import holds_scores, is_attack_directory

        places = [folder / name for name in self.plan.results()]
        return all(is_attack_directory(place) or holds_scores(place) for place in places)


class Shares:
    """Shares that are left to carry out; several threads may take them.

    Those that can be divided are handed out in two; whoever is done with the second is the next to take the whole, which
    then only has to be put together and scored.
    """

    def __init__(self, shares: Iterable[Share] = ()) -> None:
        wholes = sorted(shares, key=lambda share: share.rank)
        self._left = [part for share in wholes for part in share.divided()]
        self._wholes = {(share.suite, str(share)): share for share in wholes}
        self._undone = Counter((part.suite, str(part)) for part in self._left if part.part)
        self._begun: set[str] = set()
        self._lock = threading.Lock()

    def take(self, networks: set[str]) -> Share | None:
        """Take the first one, or None where there is none.

        One whose network another process trains is passed over as long as there is any else: then whoever would be idle
        takes the last.

        Args:
            networks: of the process that asks; that of the share is added.
        """
        with self._lock:
            if not self._left:
                return None
            others = self._begun - networks
            share = next((one for one in self._left if one.network not in others), self._left[-1])
            self._left.remove(share)
            if share.network:
                networks.add(share.network)
                self._begun.add(share.network)
            return share

    def done(self, share: Share) -> None:
        """Hear that a share was carried out."""
        with self._lock:
            if not share.part:
                return
            key = share.suite, str(share)
            self._undone[key] -= 1
            if not self._undone[key]:
                self._left.insert(0, self._wholes[key])

    def give_back(self, share: Share) -> None:
        """Put a share before all others, for whoever asks next."""
        with self._lock:
            self._left.insert(0, replace(share, network=""))


def shares_of(plan: AttackPlan) -> list[Share]:
    """Return the parts of a plan.

    With ``extractor=shadow`` all attacks that use an extractor are one share, so that the substitutes are trained once.
    """
    found: list[Share] = []
    shadowed = [name for name, made in _all(plan).items() if _takes_shadows(plan, made)]
    alone = [[name] for name in (*plan.inferences, *plan.attacks) if name not in shadowed]
    for names in [*([shadowed] if shadowed else []), *alone]:
        networks = {_all(plan)[name].trains(plan.card) for name in names}
        found.append(Share(_only(plan, names), networks.pop() if len(networks) == 1 else ""))
    return found


def _all(plan: AttackPlan) -> dict[str, Declared]:
    return {**plan.inferences, **plan.attacks}


def _only(plan: AttackPlan, names: Collection[str]) -> AttackPlan:
    attacks = {name: made for name, made in plan.attacks.items() if name in names}
    return replace(plan, attacks=attacks, inferences={k: made for k, made in plan.inferences.items() if k in names})


def _takes_shadows(plan: AttackPlan, made: Declared) -> bool:
    from fedpriv.attacks.inference.base import Inference

    if plan.card.extractor != "shadow":
        return False
    return made.takes_extractor(plan.target, plan.card) if isinstance(made, Inference) else True


def left_to_do(suites: Sequence[Suite]) -> list[Share]:
    """Return the shares of suites that are carried out together, suite by suite, but for those whose results are saved."""
    return [
        replace(share, suite=place, network=f"{place}:{share.network}" if share.network else "")
        for place, suite in enumerate(suites)
        for share in shares_of(suite.plan)
        if not share.saved_in(suite.folder)
    ]


def perform(suite: Suite, share: Share, ground: AttackContext, listener: Listener = SILENT) -> None:
    """Carry out a share; what is saved already is passed over."""
    from fedpriv.pipeline.execute import attack_all, attack_part
    from fedpriv.pipeline.infer import measure_all

    if share.part:
        attack_part(suite.folder, ground, share.plan, share.part, listener=listener)
        return
    attack_all(suite.folder, ground, share.plan, command=suite.command, listener=listener)
    measure_all(suite.folder, ground, share.plan, command=suite.command, named=suite.named, listener=listener)


# ---------------------------------------------------------------- how many


def workers_for(asked: int | str, plan: AttackPlan, *others: AttackPlan) -> int:
    """Return the number of processes, this one included, that carry out a plan, or several together.

    Args:
        asked: a number, or ``auto``: as many as there are cores and memory for, and one where the device is a GPU.
        plan: never more processes than it has shares.
        others: carried out together with it, on the same device.

    Raises:
        UserError: for anything else.
    """
    most = sum(len(share.divided()) for one in (plan, *others) for share in shares_of(one))
    if any(type(made).__module__ == "__main__" for made in _all(plan).values()):
        most = 1  # another process has another __main__
    return number_of_workers(asked, plan.device, most)
