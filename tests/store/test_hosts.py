from dynapipe_hpc.store.ring_layout import Hosts


def test_ranks_are_numbered_within_their_host() -> None:
    hosts = Hosts((0, 1, 0, 1, 1))
    assert hosts.ranks_of == {0: [0, 2], 1: [1, 3, 4]}
    assert [hosts.place_of[rank] for rank in range(5)] == [0, 0, 1, 1, 2]
