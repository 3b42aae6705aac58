"""Entries of a leaderboard with figures of one's choice, judged by the package's own rule."""

from eval_cases import attacked, compared

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.federation.run_directory import RunConfig
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.records import EnteredAttack, LeaderboardEntry


def judged(*comparisons, **changes):
    """The verdict on an attack with these comparisons."""
    return judge(attacked(*comparisons, **({"target": "prototype", "n_targets": 20} | changes)))


def entry(method="fedproto", gain=1.0, p_value=0.5, *, clients=10, rounds_seen=1, dataset="fashion", **changes):
    """An entry of prototypes, attacked by ``dip``, which is so many dB beyond the best guess."""
    card = KnowledgeCard(rounds_seen=rounds_seen)
    one = compared(mean=gain, p_value=None if clients < 5 else p_value, n_clients=clients)
    verdict = judged(one, n_clients=clients, method=method, dataset=dataset, knowledge=card, attack="dip")
    known = {
        **{"target": "prototype", "method": method, "dataset": dataset, "seeds": (0,)},
        **{"run": RunConfig(method=method, dataset=dataset, clients=10), "upload_bytes": 2048.0},
        **{"accuracy": {"after_training": 0.875}, "versions": {"fedpriv": "0.1.0"}},
        **{"commands": (f"fedpriv attack --target prototype --method {method}",)},
        "attacks": (EnteredAttack(name="dip", version=2, options={}, knowledge=card, verdict=verdict),),
    }
    return LeaderboardEntry(**(known | changes))
