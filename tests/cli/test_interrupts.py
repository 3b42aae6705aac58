"""Interrupts that come at awkward moments."""

import signal
import time

from command_line import call

from fedpriv.cli import train


def test_an_interrupt_while_an_object_is_destroyed_is_not_lost(capsys, monkeypatch, tmp_path):
    class Awkward:
        def __del__(self):
            raise KeyboardInterrupt

    def work(**named):
        Awkward()
        time.sleep(5)
        raise AssertionError("the interrupt was lost")

    monkeypatch.setattr(train.fedpriv, "train", work)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        code, _, err = call(capsys, "train", "--out", tmp_path / "run")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err.strip()) == (130, "fedpriv: interrupted"), err
