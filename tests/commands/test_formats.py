"""Numbers as people read them."""

from __future__ import annotations

import pytest

from winnow.commands.formats import written_bytes, written_seconds, written_share, written_speed


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (written_speed(None), "–"),
        (written_speed(0.43), "0.4 tok/s"),
        (written_speed(9.94), "9.9 tok/s"),
        (written_speed(1234.5), "1,234 tok/s"),
        (written_bytes(1536), "1.5 KiB"),
        (written_bytes(3 << 30), "3.00 GiB"),
        (written_seconds(0.0123), "12 ms"),
        (written_share(1, 40), "2.5%"),
        (written_share(1, 0), "0.0%"),
    ],
)
def test_numbers_are_short(written, expected):
    assert written == expected
