"""``fedpriv reproduce`` and ``fedpriv list claims`` as a user types them."""

import json

from command_line import call

from fedpriv.claims import claims


def test_list_claims(capsys):
    code, out, err = call(capsys, "list", "claims", "--json")
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out)}
    assert set(rows) == set(claims())
    assert rows["fedre-table-2"]["about"] == "communication"
    assert rows["fedre-table-2"]["needs"] == "nothing"


def test_a_counted_claim(capsys, tmp_path):
    out = tmp_path / "card"
    code, said, err = call(capsys, "reproduce", "fedre-table-2", "--out", out)
    assert code == 0
    assert err == ""
    assert said.startswith("does not hold: of 18 values tried, 15 hold, 3 do not; 1 of 1 statements hold")
    assert "holds: FedRE uploads the least." in said
    assert {"claim.html", "claim.md", "claim.json"} <= {path.name for path in out.iterdir()}
    again, *_ = call(capsys, "reproduce", "fedre-table-2", "--out", out, "--quiet")
    assert again == 0
