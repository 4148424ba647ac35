from pathlib import Path


def test_the_primes_are_all_there() -> None:
    expected = [n for n in range(9000, 9201) if all(n % d for d in range(2, 100))]
    assert [int(line) for line in Path("/app/primes.txt").read_text().split()] == expected
