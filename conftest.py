"""What all tests need: Ctrl-C, which a job in the background of a shell is started without."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take Ctrl-C as a program in the foreground does; processes that tests start then do so too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
