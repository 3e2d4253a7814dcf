from services.importer.model import KIND_CHARACTERS_MAX, KINDS_MAX, OTHER_KINDS, Counts


def test_kinds_without_number_and_names_without_end_are_counted_in_bounds() -> None:
    counts = Counts()
    for number in range(KINDS_MAX + 5):
        counts.pass_over(f"kind {number}")
    counts.pass_over("kind 0")
    assert len(counts.not_understood) == KINDS_MAX + 1
    assert (counts.not_understood["kind 0"], counts.not_understood[OTHER_KINDS]) == (2, 5)
    counts = Counts()
    counts.pass_over("x" * 10_000)
    assert counts.not_understood == {"x" * KIND_CHARACTERS_MAX: 1}
