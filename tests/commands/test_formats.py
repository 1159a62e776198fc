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


def test_bytes_go_to_the_next_unit_at_1024() -> None:
    found = [written_bytes(count) for count in (0, 1000, 1023, 1024, -2048, 1 << 20, 1 << 40)]
    assert found == ["0 B", "1000 B", "1023 B", "1.0 KiB", "-2.0 KiB", "1.0 MiB", "1024.00 GiB"]


def test_shares_from_ten_percent_on_are_whole() -> None:
    assert [written_share(part, 1000) for part in (0, 4, 99, 100, 996)] == ["0.0%", "0.4%", "9.9%", "10%", "100%"]
