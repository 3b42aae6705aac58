"""A folder that somebody is writing is busy, whatever else is the matter with it."""

import pytest

from fedpriv.util import manifest, ownership
from fedpriv.util.errors import UserError
from fedpriv.util.folders import check_free


def test_a_busy_folder_is_told_before_its_files_are_counted(tmp_path):
    folder = tmp_path / "run"
    manifest.mark(folder, "run")
    (folder / "just written").write_text("")  # not listed yet where the list was read a moment ago
    with ownership.held(folder), pytest.raises(UserError, match="is at work in this folder"):
        check_free(folder, force=True)
    with pytest.raises(UserError, match="holds files that fedpriv did not make"):
        check_free(folder, force=True)
    assert (folder / "just written").exists()
