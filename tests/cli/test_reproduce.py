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


def test_one_row_and_column_as_json(capsys, tmp_path):
    arguments = ["fedre-table-2", "--row", "FedRE", "--column", "upload", "--out", tmp_path / "card", "--json"]
    code, said, _ = call(capsys, "reproduce", *arguments)
    assert code == 0
    card = json.loads(said)["card"]
    tried = [cell for cell in card["cells"] if cell["measured"] is not None]
    assert [(cell["row"], cell["column"], cell["measured"]["mean"]) for cell in tried] == [("FedRE", "upload", 5.12)]


def test_wrong_use_is_one_line(capsys, tmp_path):
    for arguments, match in (
        (["fedre-table-22"], "unknown claim 'fedre-table-22'"),
        (["fedre-table-2", "--scale", "big"], "unknown scale 'big'"),
        (["fedre-table-2", "--row", "X"], "--row X: unknown row 'X'"),
        (["fedre-table-1", "--seeds", "a"], "--seeds a: expected whole numbers"),
        (["fedre-table-1", "--images", "CIFAR-10"], "--images"),
        (["fedre-table-1", "--data-dir", tmp_path / "none"], "cifar"),
        ([tmp_path / "none.toml"], "a claim in TOML"),
    ):
        code, out, err = call(capsys, "reproduce", *arguments, "--out", tmp_path / "out")
        assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
        assert match in err
        assert not (tmp_path / "out").exists()
