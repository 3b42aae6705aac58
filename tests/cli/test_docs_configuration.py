"""The page of settings names every one."""

from pathlib import Path

from fedpriv.api.attacking import AttackSettings
from fedpriv.attacks.observation import ThreatModel
from fedpriv.study.settings import Circumstances, FederationSettings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_names_every_setting_and_grant():
    text = PAGE.read_text()
    names = {*FederationSettings.__annotations__, *AttackSettings.__annotations__} - {*Circumstances.__annotations__}
    assert {name for name in names if f"`{name.replace('_', '-')}`" not in text} == set()
    assert [name for name in ThreatModel.__annotations__.keys() - {"rounds_seen"} if f"| `{name}` |" not in text] == []
