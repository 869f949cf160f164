"""What is kept of a probe's output."""

from __future__ import annotations

from tuner.output import OutputTail


def test_little_output_is_kept_whole_whatever_the_pieces() -> None:
    kept = OutputTail(head_bytes=4, tail_bytes=8)
    for piece in (b"ab", b"cdef", b"", b"ghi"):
        kept.write(piece)

    assert kept.text() == "abcdefghi"


def test_of_much_output_the_middle_is_left_out_and_counted() -> None:
    kept = OutputTail(head_bytes=4, tail_bytes=8)
    for number in range(100):
        kept.write(f"{number:02}".encode())

    assert kept.text() == "0001\n[... 188 bytes left out ...]\n96979899"


def test_a_flood_takes_no_more_memory_than_twice_the_tail() -> None:
    kept = OutputTail(head_bytes=16, tail_bytes=1024)
    for _ in range(1000):
        kept.write(b"x" * 4096)

    assert len(kept._tail) <= 2 * 1024 + 4096
    assert f"[... {4096 * 1000 - 16 - 1024} bytes left out ...]" in kept.text()


def test_bytes_that_are_no_text_and_nul_are_replaced() -> None:
    kept = OutputTail()
    kept.write("größe ".encode() + b"\xff\0!")

    assert kept.text() == "größe \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}!"
