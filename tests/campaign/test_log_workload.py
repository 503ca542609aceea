"""The log workload: unique values, every kind of operation, reads where errors would show."""

from collections import Counter
from itertools import islice

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Operation
from shaketable.workloads.log import FINAL_READS, TAIL_REACH, LogWorkload, aim_before_end

CLIENTS = 5
WORKLOAD = LogWorkload(3)


def drawn(client: int, count: int = 3000) -> list[Operation]:
    return list(islice(WORKLOAD.operations("7", client, CLIENTS), count))


def test_values_are_unique_and_name_their_client() -> None:
    values = []
    for client in range(CLIENTS):
        own = [o.value for o in drawn(client) if o.f == "append"]
        assert own == [client + CLIENTS * count for count in range(len(own))]
        values += own
    assert len(set(values)) == len(values)


def test_all_operations_go_to_all_queues() -> None:
    kinds = Counter((operation.f, operation.key) for operation in drawn(0))
    keys = [f"shaketable/{queue}" for queue in range(3)]
    assert set(kinds) == {(f, key) for f in ("append", "read", "end") for key in keys}
    shares = Counter(operation.f for operation in drawn(0))
    assert shares["append"] > shares["read"] > shares["end"] > 100
    assert len({Counter(o.key for o in drawn(c)).most_common(1)[0][1] for c in range(5)}) > 1


def test_reads_look_at_the_tail_past_it_and_everywhere() -> None:
    reads = [operation for operation in drawn(1) if operation.f == "read"]
    end = 1000
    distances = Counter(end - WORKLOAD.choose_offset(read, end) for read in reads)
    assert distances[-1] > 50
    assert distances[0] > 50
    assert distances[1] > 50
    near = sum(count for distance, count in distances.items() if distance <= 5)
    assert near > len(reads) / 2
    assert sum(count for distance, count in distances.items() if distance > 500) > 100


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 10**9))
def test_offsets_are_in_reach(aim: float, end: int) -> None:
    offset = WORKLOAD.choose_offset(Operation("read", "shaketable/0", aim=aim), end)
    assert 0 <= offset <= end + 1


@given(st.integers(-1, TAIL_REACH), st.integers(0, 10**9))
def test_an_aim_at_a_distance_is_exact(distance: int, end: int) -> None:
    read = Operation("read", "shaketable/0", aim=aim_before_end(distance))
    assert WORKLOAD.choose_offset(read, end) == max(0, end - distance)


def test_final_operations_cover_every_queue_once() -> None:
    for clients in (1, 2, 5):
        finals = [o for c in range(clients) for o in WORKLOAD.final_operations(c, clients)]
        assert Counter(o.key for o in finals if o.f == "end") == Counter(
            f"shaketable/{queue}" for queue in range(3)
        )
        offsets = [WORKLOAD.choose_offset(o, 100) for o in finals if o.key == "shaketable/1"]
        assert offsets == [None, *range(99, 99 - FINAL_READS, -1)]


def test_answers_become_columns() -> None:
    class Client:
        node = "n0"

        async def append(self, key: str, value: int) -> int:
            return value + 100

        async def read(self, key: str, offset: int) -> int | None:
            return offset + 1 if offset < 5 else None

        async def end(self, key: str) -> int:
            return 9

    def do(operation: Operation, offset: int | None) -> tuple:
        answer = trio.run(WORKLOAD.invoke, operation, offset, Client())
        shown = WORKLOAD.end_shown(operation, answer.output, answer.offset)
        return answer.output, answer.offset, shown

    assert do(Operation("append", "q", value=7), None) == (None, 107, 108)
    assert do(Operation("read", "q", aim=0.1), 3) == (4, 3, 4)
    assert do(Operation("read", "q", aim=0.1), 8) == (None, 8, 0)
    assert do(Operation("end", "q"), None) == (9, None, 9)


@pytest.mark.parametrize("queues", [0, -1, "3", 1.5])
def test_queues_that_cannot_be_are_refused(queues: object) -> None:
    with pytest.raises(UsageError, match=r"workload log: queues .*: expected a number from 1"):
        WORKLOAD.configured({"queues": queues})
