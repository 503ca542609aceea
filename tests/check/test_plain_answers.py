"""What `check` says is so: no invented times, nothing said twice, no answer lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shaketable.checkers.api import Event, Operation, Outcome, check
from shaketable.harness import cli
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign import read_history


def checked(tmp_path: Path, text: str, *options: str, name: str = "h.edn") -> dict[str, Any]:
    """Return the JSON of one history's check."""
    path = tmp_path / name
    path.write_text(text)
    cli.run(["check", str(path), *options, "--json", str(tmp_path / "result.json")])
    found: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    return found["histories"][0]


def edn(*events: str) -> str:
    """Return events as EDN; each is "process type f value"."""
    lines = []
    for event in events:
        process, kind, f, value = event.split(maxsplit=3)
        lines.append(f"{{:process {process}, :type :{kind}, :f :{f}, :value {value}}}")
    return "\n".join(lines) + "\n"


STALE = edn(
    "0 invoke write 1", "0 ok write 1", "0 invoke write 2", "0 ok write 2", "1 invoke read nil",
    "1 ok read 1",
)  # fmt: skip


def timed(text: str, *times: int) -> str:
    """Return the text with a time for each event."""
    lines = text.splitlines()
    return "\n".join(
        line.replace("{", f"{{:time {at}, ") for line, at in zip(lines, times, strict=True)
    )


def test_a_cas_from_the_first_value_to_itself_did_not_write_what_was_read_at_first(
    tmp_path: Path,
) -> None:
    """A later cas 0 -> 0 is the only operation that writes 0, but the register held it before."""
    text = edn(
        "0 invoke read nil", "0 ok read 0", "1 invoke write 1", "1 ok write 1",
        "0 invoke read nil", "0 ok read 0", "1 invoke cas [0 0]", "1 info cas [0 0]",
    )  # fmt: skip
    found = checked(tmp_path, text, "--model", "cas-register", "--initial", "0")
    (finding,) = found["checkers"]["linearizable"]["findings"]
    assert "wrote" not in finding["message"]
    assert "stale" not in finding["details"]


def test_a_history_without_times_is_told_no_durations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(tmp_path, STALE)
    said = capsys.readouterr().out
    assert found["timed"] is False
    (finding,) = found["checkers"]["linearizable"]["findings"]
    assert "had been acknowledged before it began" in finding["message"]
    assert "since_ns" not in finding["details"]["stale"]
    assert " ns" not in said


@pytest.mark.parametrize("times", [(5, 6, 7, 8, 9, 10), (0, 0, 0, 0, 0, 0)])
def test_durations_are_of_times_that_differ(tmp_path: Path, times: tuple[int, ...]) -> None:
    found = checked(tmp_path, timed(STALE, *times))
    (finding,) = found["checkers"]["linearizable"]["findings"]
    assert found["timed"] is (times[0] != times[-1])
    assert ("acknowledged 1 ns before" in finding["message"]) is found["timed"]


def test_a_set_without_times_has_no_latencies(tmp_path: Path) -> None:
    text = edn("0 invoke add 1", "0 ok add 1", "1 invoke read nil", "1 ok read []")
    for history, is_timed in ((text, False), (timed(text, 0, 10, 20_000_000, 30_000_000), True)):
        found = checked(tmp_path, history, "--checkers", "set-full,stats")
        lost = found["checkers"]["set-full"]
        assert (" ms after" in lost["findings"][0]["message"]) is is_timed
        assert lost["findings"][0]["message"].startswith("1 is lost: op 2, called ")
        assert bool(lost["data"]["latencies"][""]["lost_ms"]) is is_timed
        assert bool(found["checkers"]["stats"]["data"]["latency_ms"]) is is_timed


def test_an_undecided_part_without_times_is_at_no_second() -> None:
    events = [Event(n, "invoke", "enqueue", n % 3) for n in range(40)]
    events += [Event(n, "ok", "enqueue", n % 3) for n in range(40)]
    events += [Event(n, "invoke", "dequeue") for n in range(40)]
    events += [Event(n, "ok", "dequeue", (n * 7 + n // 5) % 3) for n in range(40)]
    verdict = check(events, "unordered-queue", memory_bytes=1 << 20, time_s=0.2)
    if verdict.outcome is Outcome.UNKNOWN:
        assert " s)" not in verdict.summary


@pytest.mark.parametrize(
    ("initial", "value", "outcome"),
    [(0, 0, Outcome.VALID), (0, 1, Outcome.INVALID), (None, None, Outcome.VALID)],
)
def test_a_first_value_may_be_a_number(initial: int | None, value: int, outcome: Outcome) -> None:
    read = [Event(0, "invoke", "read"), Event(0, "ok", "read", value)]
    assert check(read, "cas-register", initial=initial).outcome is outcome


def test_a_first_value_may_be_any_json() -> None:
    taken = [Operation(0, "dequeue", 0, 1, output=4)]
    assert check(taken, "fifo-queue", initial=[4, 5]).outcome is Outcome.VALID
    assert check(taken, "fifo-queue", initial="[4, 5]").outcome is Outcome.VALID
    with pytest.raises(UsageError, match="no first state"):
        check(taken, "fifo-queue", initial={1, 2})


def test_nothing_is_said_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [
        STALE,
        edn("0 invoke write 1", "0 ok write 1", "1 invoke read nil", "1 ok read 7"),
        edn("0 invoke add 1", "0 ok add 1", "1 invoke read nil", "1 ok read [1 2]"),
    ]
    for text in texts:
        found = checked(tmp_path, text)
        said = " ".join(capsys.readouterr().out.split())
        (finding,) = found["checkers"]["linearizable"]["findings"]
        for sentence in finding["message"].split(". "):
            assert said.count(sentence) == 1
        reason = finding["message"].rpartition(": ")[2].partition(".")[0]
        assert said.count(reason) == 1


WRITES_ALONE = edn(
    "0 invoke txn [[:w :x 1]]", "0 ok txn [[:w :x 1]]",
    "1 invoke txn [[:r :x nil] [:r :y nil]]", "1 ok txn [[:r :x 1] [:r :y nil]]",
)  # fmt: skip


def test_a_transaction_of_writes_alone_keeps_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "h.edn"
    path.write_text(WRITES_ALONE)
    first = json.loads(read_history(path).operations["extra"][0].as_py())
    assert first["output"] == first["input"] == [["w", "x", 1]]
    assert checked(tmp_path, WRITES_ALONE)["valid"] is True
    wrong = WRITES_ALONE.replace("[[:r :x 1] [", "[[:r :x 2] [")
    assert checked(tmp_path, wrong)["valid"] is False


def test_a_transaction_that_read_nothing_keeps_its_answer(tmp_path: Path) -> None:
    text = edn("0 invoke txn [[:w :x 1]]", "0 ok txn [[:w :x 1]]",
               "1 invoke txn [[:r :x nil]]", "1 ok txn [[:r :x nil]]")  # fmt: skip
    assert checked(tmp_path, text)["valid"] is False


@pytest.mark.parametrize("reads", [False, True])
def test_an_answer_that_was_left_out_is_that_of_writes_alone(*, reads: bool) -> None:
    asked: list[list[Any]] = [["w", "x", 1], ["w", "y", 2]] + [["r", "x", None]] * reads
    verdict = check([Operation(0, "txn", 0, 1, input=asked)], "multi-register")
    assert verdict.outcome is (Outcome.UNKNOWN if reads else Outcome.VALID)
    assert ("has no answer to its reads" in verdict.summary) is reads


@pytest.mark.parametrize("kind", ["ok", "fail", "info"])
@pytest.mark.parametrize("steps", ["[[:append :x 1]]", "[[:w :x 1]]", "[[:read :x nil]]"])
def test_transaction_cycles_names_what_it_does_not_judge(
    tmp_path: Path, kind: str, steps: str
) -> None:
    text = edn(f"0 invoke txn {steps}", f"0 {kind} txn {steps}")
    found = checked(tmp_path, text, "--checkers", "transaction-cycles")
    verdict = found["checkers"]["transaction-cycles"]
    assert verdict["valid"] == "unknown"
    assert "crashed" not in verdict["summary"]
    assert "judges transactions of send and poll" in verdict["summary"]


PAIRS = edn(
    "0 invoke add [0 0]", "0 ok add [0 0]", "0 invoke add [0 1]", "0 ok add [0 1]",
    "0 invoke read [0 nil]",
)  # fmt: skip


def test_a_set_of_pairs_is_compared_pair_by_pair(tmp_path: Path) -> None:
    full = checked(tmp_path, PAIRS + edn("0 ok read [[0 0] [0 1]]"), "--checkers", "set-full")
    assert full["checkers"]["set-full"]["valid"] is True
    plain = checked(tmp_path, PAIRS + edn("0 ok read [0 1]"), "--checkers", "set-full")
    kinds = {finding["kind"] for finding in plain["checkers"]["set-full"]["findings"]}
    assert kinds == {"lost-element", "unexpected-element"}
    assert "[0,1] is lost" in str(plain["checkers"]["set-full"]["findings"])


@pytest.mark.parametrize("how", [("--checkers", "set-full"), ("--model", "set")])
@pytest.mark.parametrize("name", ["h.edn", "h.jsonl"])
def test_keys_and_plain_values_are_not_mixed(
    tmp_path: Path, how: tuple[str, str], name: str
) -> None:
    answers = [("[0 1 2]", "unknown"), ("[7 [0 1]]", "unknown"), ("[0 [0 1]]", True)]
    for answer, valid in answers:
        text = PAIRS + edn(f"0 ok read {answer}")
        if name == "h.jsonl":
            text = as_json(text)
        found = checked(tmp_path, text, *how, "--partition-by", "key", name=name)
        assert found["valid"] == valid
        assert valid is True or "leave out --partition-by key" in found["incomplete"]


def as_json(text: str) -> str:
    """Return EDN of flat events as lines of JSON."""
    for old, new in ((" nil", " null"), (":process", '"process":'), (", :type :", ', "type": "'),
                     (", :f :", '", "f": "'), (", :value", '", "value":')):  # fmt: skip
        text = text.replace(old, new)
    for number in range(10):
        text = text.replace(f"{number} ", f"{number}, ")
    return text


@pytest.mark.parametrize(
    ("answers", "valid"),
    [(('"b"', '"a"', "nil"), True), (('"b"', "nil", "nil"), False), (('"b"', '"b"', "nil"), False)],
)
def test_queues_of_texts_are_counted(
    tmp_path: Path, answers: tuple[str, ...], *, valid: bool
) -> None:
    text = edn('0 invoke enqueue "a"', '0 ok enqueue "a"', '0 invoke enqueue "b"',
               '0 ok enqueue "b"')  # fmt: skip
    for answer in answers:
        text += edn("1 invoke dequeue nil", f"1 ok dequeue {answer}")
    assert checked(tmp_path, text, "--checkers", "total-queue")["valid"] is valid


def test_the_error_of_a_key_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "h.edn"
    path.write_text(edn("0 invoke write [x 1]", "0 info write [x :timeout]"))
    history = read_history(path, "key")
    assert history.incomplete is None
    assert history.operations["error"].to_pylist() == ["timeout"]
