import signal
import threading

import pytest

from icgd_papers.training.interrupts import postponed_interrupt


def test_the_first_ctrl_c_is_noticed_and_the_second_interrupts():
    with postponed_interrupt() as is_stopped:
        assert not is_stopped()
        signal.raise_signal(signal.SIGINT)
        assert is_stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_is_left_alone(monkeypatch):
    seen = []
    usual = signal.signal(signal.SIGINT, lambda *_: seen.append("own"))
    try:
        with postponed_interrupt() as is_stopped:
            signal.raise_signal(signal.SIGINT)
            assert not is_stopped()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert seen == ["own"]


def test_a_thread_changes_no_handler():
    found = []

    def enter() -> None:
        with postponed_interrupt() as is_stopped:
            found.append((is_stopped(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [(False, signal.default_int_handler)]
