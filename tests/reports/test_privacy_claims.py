"""Guarantees and audited claims on the page: none without what it rests on, a contradicted one is called so."""

from looped import each

from fedpriv.eval.records import ClaimedPrivacy, EpsilonBound, PrivacyAuditRecord
from fedpriv.reports.privacy import _contradicted, audited_claims, guarantee
from fedpriv.reports.report import write_results

CLAIM = ClaimedPrivacy(
    epsilon=1.0, delta=1e-5, unit="client", releases=1, neighbours="all images replaced", implied=25.4
)
RECORD = PrivacyAuditRecord(
    method="fedavg",
    dataset="digits",
    defense="clip + local-dp sensitivity=0.1",
    claimant="local-dp",
    seed=3,
    command="fedpriv audit-dp --defense local-dp:sensitivity=0.1",
    claim=CLAIM,
    way="uploads",
    canaries=1000,
    included=503,
    confidence=0.95,
    delta=1e-5,
    bounds=(EpsilonBound(name="one run", epsilon=4.31), EpsilonBound(name="Gaussian", epsilon=None, given="it is")),
    attainable=4.9,
    control=None,
    verdict="contradicted",
    sentence="The claim is contradicted: <b>local-dp</b> claims epsilon 1.",
)
OTHER = RECORD.model_copy(update={"verdict": "untested", "sentence": "Inconclusive.", "method": "fedprox"})


def written(tmp_path, audits):
    write_results([], {}, tmp_path, audits=audits)
    return (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()


def test_a_contradicted_claim_stands_first_and_is_called_so(tmp_path):
    told = audited_claims([OTHER, RECORD])
    assert [one.badge for one in told] == ["claim contradicted", "does not follow, inconclusive"]
    kept = OTHER.model_copy(update={"claim": CLAIM.model_copy(update={"implied": 1.0})})
    assert audited_claims([kept])[0].badge == "inconclusive"
    page, text = written(tmp_path, [OTHER, RECORD])
    assert page.index("claim contradicted") < page.index("does not follow, inconclusive")
    assert '<section id="privacy"' in page
    assert "&lt;b&gt;local-dp&lt;/b&gt;" in page  # a name is no markup
    assert "claim contradicted" in text
    assert RECORD.command in text


def test_every_figure_stands_in_the_table():
    row = audited_claims([RECORD])[0].row
    assert row["epsilon claimed"] == "1"
    assert row["clip and noise imply"] == "25.4"
    assert row["at least (95 %)"] == "one run 4.31, Gaussian beyond any number"
    assert row["with a tenth of the noise"] == "beyond any number"
    assert row["canaries"] == "1,000, 503 of them in: uploads that pass the defense"


@each(
    "label, method, verdict, wrong",
    [
        ("local-dp sensitivity=0.1", "fedavg", "contradicted", True),
        ("local-dp sensitivity=2", "fedavg", "contradicted", False),  # another noise
        ("local-dp sensitivity=0.1", "fedprox", "contradicted", False),
        ("local-dp sensitivity=0.1", "fedavg", "not contradicted", False),
    ],
)
def test_an_audit_is_about_the_very_defense(label, method, verdict, wrong):
    from fedpriv.federation.summary import DefenseFacts

    facts = DefenseFacts(
        name="local-dp", options={}, label=label, source="", guarantee="", answers=(), unanswered="", server_view="each"
    )
    assert _contradicted([RECORD.model_copy(update={"verdict": verdict})], facts, method) is wrong


APPROXIMATE = {
    "defense": "dp-sgd",
    "epsilon": 7.99923,
    "epsilon_of_weights": 7.99923,
    "delta": 1e-05,
    "noise_multiplier": 0.5579833984375,
    "clip": 1.0,
    "norm": "L2",
    "unit": "image",
    "neighbours": "one image more or less",
    "given": "the accounting is for Poisson samples, which shuffled batches are not: an approximation",
    "not_protected": ["how many images the client holds", "when"],
    "sampling": "batches",
    "sample_rate": 0.02666666,
    "releases": 57,
    "model_changes": ["resnet: 5 layers of group normalisation in place of batch normalisation"],
    "accountant": "Renyi DP",
}
CONDITIONAL = {
    "defense": "dp-noise",
    "epsilon": 8.0,
    "delta": 1e-05,
    "bound": 5.0,
    "given": "the client's extractor, though it was trained on the same images",
    "sensitivity": "2 S / 1 (the floor on n_c) of a row",
    "releases": 4,
    "a_later_condition": "holds on Sundays",
}


@each("record", [APPROXIMATE, CONDITIONAL])
def test_no_condition_is_dropped(record):
    told = " ".join(value for _, value in guarantee("fedgh", record).conditions)
    for key, value in record.items():
        if key not in ("defense", "epsilon", "epsilon_of_weights", "delta", "releases"):
            for part in value if isinstance(value, list) else [value]:
                assert (f"{part:.4g}" if isinstance(part, float) else part) in told, key


def test_what_is_covered_in_part_or_not_at_all():
    part = guarantee("a", {"defense": "dp-sgd", "epsilon": None, "epsilon_of_weights": 2.0, "releases": 3})
    assert part.words == "a, dp-sgd: epsilon 2 of the trained weights, none of uploads over 3 releases"
    none = guarantee("a", {"defense": "noise", "epsilon": None, "given": "", "model_changes": []})
    assert (none.words, none.conditions) == ("a, noise: no guarantee over ? releases", ())
