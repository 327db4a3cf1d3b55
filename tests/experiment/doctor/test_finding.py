from dynapipe_hpc.experiment.doctor.finding import Finding, Level, lines, merged


def test_what_all_ranks_say_is_said_once() -> None:
    found = [[Finding("torch", "2.0"), Finding("GPUs", "none")]] * 4
    assert merged(found) == [Finding("torch", "2.0"), Finding("GPUs", "none")]


def test_ranks_that_differ_are_named() -> None:
    found = [[Finding("torch", "2.0"), Finding("GPUs", "none")]] * 2
    found.append([Finding("torch", "1.0", Level.PROBLEM), Finding("GPUs", "none")])
    assert merged(found) == [
        Finding("torch", "2.0 (ranks 0, 1)"),
        Finding("torch", "1.0 (rank 2)", Level.PROBLEM),
        Finding("GPUs", "none"),
    ]


def test_what_one_rank_says_of_its_host_stands_alone() -> None:
    found = [[Finding("memory of a", "1 GB")], [], [Finding("memory of b", "2 GB")], []]
    assert merged(found) == [Finding("memory of a", "1 GB"), Finding("memory of b", "2 GB")]


def test_a_section_has_its_subjects_in_a_column() -> None:
    findings = [Finding("ABI", "own"), Finding("threads", "single", Level.PROBLEM)]
    assert list(lines("MPI", findings)) == ["MPI", "  ABI      own", "  threads  PROBLEM: single"]
