"""What a gate rules: policies and results on one side, exit codes and what is said on the other."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.finding_kinds import kinds_where
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.gating import parse_policy
from shaketable.reports.gating.rulings import Conclusion, FaultEffects, Kind, RunFacts, decide
from shaketable.reports.gating.run_measures import LOSSES, measure_loss

TODAY = datetime.date(2026, 11, 22)
VALID, UNKNOWN, INVALID = Outcome.VALID, Outcome.UNKNOWN, Outcome.INVALID


def concluded(durability: Outcome = VALID, vacuity: Outcome = VALID) -> tuple[Conclusion, ...]:
    kinds = (Kind("lost-append", 3, "value 7 is gone"),) if durability is INVALID else ()
    return (
        Conclusion("durability", durability, f"durability is {durability.name}", kinds),
        Conclusion(
            "vacuity", vacuity, "vacuous: none took effect" if vacuity else "6 of 6 took effect"
        ),
    )


GOOD = RunFacts(
    name="quick/one",
    path="store/quick/one",
    outcome=VALID,
    conclusions=concluded(),
    asked=("kill", "pause"),
    faults={"kill": FaultEffects(4, 4), "pause": FaultEffects(2, 2)},
    measures={
        "operations": 20_000,
        "faults_took_effect": 6,
        "recovery_median_s": 0.4,
        "recovery_worst_s": 1.5,
        "p99_ms": 80.0,
        "p99_steady_ms": 12.0,
        "unavailable_longest_s": 1.4,
        "unavailable_total_s": 2.5,
        "acknowledged_loss": 0,
    },
)
BAD = replace(GOOD, outcome=INVALID, conclusions=concluded(INVALID))
UNSURE = replace(GOOD, outcome=UNKNOWN, conclusions=concluded(UNKNOWN))
VACUOUS = replace(GOOD, outcome=UNKNOWN, conclusions=concluded(VALID, UNKNOWN))
# No checker says so: the gate itself sees that nothing took effect.
TOOTHLESS = replace(GOOD, faults={"kill": FaultEffects(0, 3)}, measures={"faults_took_effect": 0})
NEVER_SERVED = replace(GOOD, measures={**GOOD.measures, "recovery_worst_s": float("inf")})
SILENT = replace(GOOD, measures={}, missing={"p99_ms": "no operation was acknowledged"})
CRASHED = replace(GOOD, outcome=None, failure="port 9876 is in use", conclusions=())
FOUND = replace(BAD, mutant="ack-before-quorum")
MISSED = replace(GOOD, name="quick/two", mutant="stale-read")
LACKING = replace(GOOD, asked=("pause",), unavailable={"kill": "no root"})
UNDRAWN = replace(GOOD, asked=("kill", "pause", "wipe"))
LACKING_ALL = replace(GOOD, asked=(), unavailable={"kill": "no root"}, faults={})
SELDOM = replace(GOOD, outcome=UNKNOWN, vacuous="took effect too seldom, kill 1 of 3")
LOST = replace(
    GOOD,
    measures={**GOOD.measures, "acknowledged_loss": 3},
    at_least=frozenset({"acknowledged_loss"}),
)

STRICT = """
[floors]
operations = 10000
faults_took_effect = 5
faults = { kill = 2 }
[ceilings]
recovery_median_s = 0.5
recovery_worst_s = 2.0
p99_ms = 100
unavailable_longest_s = 2
unavailable_total_s = 5
acknowledged_loss = 0
"""
ALLOW = """
[[allow]]
verdict = "{0}"
runs = "quick/*"
reason = "issue 12"
until = {1}
"""
LACK = ALLOW.format("unavailable", "2026-12-01") + "faults = {}\n"
DETECT = "[detection]\nfound = {0}\n"

TABLE = [
    # policy, runs, exit code, what is said of what breaks it
    ("", [GOOD], 0, ""),
    ("", [BAD], 1, "durability is INVALID"),
    ("", [UNSURE], 2, "unknown: durability is UNKNOWN"),
    ("", [VACUOUS], 2, "vacuous: none took effect"),
    ("", [TOOTHLESS], 2, "vacuous: no requested fault took effect (kill, pause)"),
    ("", [CRASHED], 255, "there is no verdict: port 9876 is in use"),
    ("", [], 2, "runs with a verdict: 0; at least 1"),
    ("", [UNSURE, BAD, GOOD], 1, "durability is INVALID"),
    ("", [BAD, CRASHED], 255, "durability is INVALID"),
    (STRICT, [GOOD], 0, ""),
    (STRICT, [BAD], 1, "durability is INVALID"),
    (STRICT, [NEVER_SERVED], 1, "recovery after a fault, worst: never; at most 2 s"),
    (STRICT, [SILENT], 2, "not known (no operation was acknowledged); at most 100 ms"),
    ("floors.operations = 20001", [GOOD], 2, "operations: 20,000; at least 20,001"),
    ("floors.faults_took_effect = 7", [GOOD], 2, "faults that took effect: 6; at least 7"),
    ("floors.faults = { pause = 3 }", [GOOD], 2, "pause took effect 2 times; at least 3"),
    ("floors.faults = { wipe = 1 }", [GOOD], 2, "no run requested wipe"),
    ("floors.faults = { kill = 1 }", [LACKING], 2, "kill is not available: no root"),
    ("floors.runs = 2", [GOOD], 2, "runs with a verdict: 1; at least 2"),
    ("ceilings.p99_ms = 79.9", [GOOD], 1, "acknowledged operations: 80 ms; at most 79.90 ms"),
    ("ceilings.p99_ms = 80", [GOOD], 0, ""),
    ("ceilings.p99_steady_ms = 12", [SILENT], 2, "not known (the run has no such number)"),
    ("ceilings.recovery_median_s = 0.3", [GOOD], 1, "0.40 s; at most 0.30 s"),
    ("ceilings.unavailable_longest_s = 1", [GOOD], 1, "1.40 s; at most 1 s"),
    ("ceilings.unavailable_total_s = 2", [GOOD], 1, "2.50 s; at most 2 s"),
    ("ceilings.p99_ms = 1", [UNSURE], 1, "unknown: durability is UNKNOWN"),
    (ALLOW.format("unknown", "2026-11-22"), [UNSURE], 0, ""),
    (ALLOW.format("unknown", "2026-11-21"), [UNSURE], 2, "was allowed until 2026-11-21: issue 12"),
    (ALLOW.format("vacuous", "2026-12-01"), [UNSURE], 2, "unknown: durability is UNKNOWN"),
    (ALLOW.format("vacuous", "2026-12-01"), [VACUOUS], 0, ""),
    (ALLOW.format("vacuous", "2026-12-01"), [TOOTHLESS], 0, ""),
    (ALLOW.format("unknown", "2026-12-01"), [VACUOUS], 2, "vacuous: none took effect"),
    (ALLOW.format("unknown", "2026-12-01"), [BAD], 1, "durability is INVALID"),
    (ALLOW.format("unknown", "2026-12-01"), [CRASHED], 255, "port 9876 is in use"),
    (ALLOW.format("unknown", "2026-12-01"), [replace(UNSURE, name="x/y")], 2, "unknown: durab"),
    ("", [FOUND], 1, "durability is INVALID"),
    (DETECT.format(1.0), [FOUND], 0, ""),
    (DETECT.format(1.0), [FOUND, MISSED], 2, "planted bugs found: 1 of 2, not stale-read"),
    (DETECT.format(0.5), [FOUND, MISSED], 0, ""),
    (DETECT.format(1.0), [GOOD], 2, "planted bugs found: 0 of 0"),
    (DETECT.format(1.0), [GOOD, FOUND], 0, ""),
    (DETECT.format(1.0), [BAD, FOUND], 1, "durability is INVALID"),
    (DETECT.format(1.0) + 'bugs = ["lost"]', [FOUND], 2, "the planted bug lost was not run"),
    (DETECT.format(1.0) + "runs = 3", [FOUND], 2, "planted bugs run: 1; at least 3"),
    ("", [LACKING], 2, "kill was requested and could not be done: no root"),
    ("", [LACKING_ALL], 2, "kill was requested and could not be done: no root"),
    ("", [UNDRAWN], 2, "wipe was requested and never came up"),
    (LACK.format('["kill"]'), [LACKING], 0, ""),
    (LACK.format('"wipe"'), [UNDRAWN], 0, ""),
    (LACK.format('["wipe"]'), [LACKING], 2, "kill was requested and could not be done"),
    (LACK.format('["*"]'), [LACKING], 2, "kill was requested and could not be done"),
    (LACK.format('["kill"]'), [replace(LACKING, name="x/y")], 2, "could not be done"),
    (LACK.format('["kill"]'), [UNSURE], 2, "unknown: durability is UNKNOWN"),
    (ALLOW.format("unknown", "2026-12-01"), [LACKING], 2, "could not be done: no root"),
    (ALLOW.format("vacuous", "2026-12-01"), [UNDRAWN], 2, "never came up"),
    ("floors.faults = { kill = 0 }", [LACKING], 0, ""),
    ("floors.faults = { wipe = 0 }", [UNDRAWN], 0, ""),
    ("", [SELDOM], 2, "vacuous: took effect too seldom"),
    (ALLOW.format("unknown", "2026-12-01"), [SELDOM], 2, "vacuous: took effect too seldom"),
    (ALLOW.format("vacuous", "2026-12-01"), [SELDOM], 0, ""),
    (DETECT.format(1.0) + "[floors]\nruns = 1", [FOUND], 2, "runs with a verdict: 0; at least 1"),
    (DETECT.format(1.0) + "[floors]\nruns = 2", [FOUND, GOOD], 2, "with a verdict: 1; at least 2"),
    ("ceilings.acknowledged_loss = 2", [LOST], 1, "seen lost: 3 or more; at most 2"),
    ("ceilings.acknowledged_loss = 3", [LOST], 2, "seen lost: 3 or more; at most 3"),
    ("ceilings.acknowledged_loss = 0", [GOOD], 0, ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "runs", "code", "said"), TABLE)
def test_exit_codes(text: str, runs: list[RunFacts], code: int, said: str) -> None:
    result = decide(parse_policy(text, "gate.toml", TODAY), runs, TODAY)
    assert result.code == code
    messages = [ruling.message for _, ruling in result.breaches]
    assert bool(messages) == (code != 0)
    assert not said or any(said in message for message in messages)


def test_the_table_has_twenty_policies() -> None:
    assert len({text for text, *_ in TABLE}) >= 20


@pytest.mark.parametrize("later", [GOOD, UNSURE, CRASHED])
def test_a_retry_never_hides_an_invalid(later: RunFacts) -> None:
    first = replace(BAD, is_retried=True)
    result = decide(parse_policy("", "gate.toml", TODAY), [first, later], TODAY)
    assert result.code == (255 if later is CRASHED else 1)
    assert any("INVALID" in ruling.message for _, ruling in result.breaches)


@pytest.mark.parametrize("first", [UNSURE, VACUOUS, CRASHED])
def test_a_retry_may_decide_what_was_not_known(first: RunFacts) -> None:
    runs = [replace(first, is_retried=True), GOOD]
    assert decide(parse_policy(STRICT, "gate.toml", TODAY), runs, TODAY).code == 0


def test_retries_alone_are_no_run() -> None:
    runs = [replace(GOOD, is_retried=True)]
    assert decide(parse_policy("", "gate.toml", TODAY), runs, TODAY).code == 2


def test_what_is_let_pass_is_told_and_what_is_not_needed_too() -> None:
    policy = parse_policy(ALLOW.format("unknown", "2026-12-01"), "gate.toml", TODAY)
    let_pass = decide(policy, [UNSURE], TODAY)
    assert [ruling.allowed for ruling in let_pass.runs[0].rulings if ruling.allowed] == [
        policy.allow[0]
    ]
    assert let_pass.notes == ()
    assert decide(policy, [GOOD], TODAY).notes == (
        "no run needs that unknown of quick/* is allowed: issue 12",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("floors = 3", "floors: Expected object, got int"),
        ("[floor]\n", "unknown key 'floor'; did you mean 'floors'?"),
        ("[ceilings]\np99 = 3", "[ceilings]: unknown key 'p99'; did you mean 'p99_ms'?"),
        ("[ceilings]\np99_ms = -1", "ceilings.p99_ms: Expected float >= 0.0"),
        ("[ceilings]\np99_ms = nan", "ceilings.p99_ms: Expected float >= 0.0"),
        ('[ceilings]\np99_ms = "fast"', "ceilings.p99_ms: Expected float | null, got str"),
        ("[ceilings]\np99_ms = inf", "ceilings.p99_ms: Expected float <= 1000000000000.0"),
        ("unavailable_from_s = inf", "unavailable_from_s: Expected float <= 1000000000000.0"),
        (LACK.format("[]"), "names the faults that a run may lack"),
        (ALLOW.format("unavailable", "2026-12-01"), "names the faults that a run may lack"),
        (ALLOW.format("unknown", "2026-12-01") + "faults = ['x']", "and nothing else does"),
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("x = 1" + "0" * 5000, "not TOML: "),
        ("[floors]\nruns = 0", "floors.runs: Expected int >= 1"),
        ("[detection]\nfound = 1.5", "detection.found: Expected float <= 1.0"),
        ("[[allow]]\nverdict = 'invalid'", "no policy can allow an invalid verdict"),
        ("[[allow]]\nverdict = 'unknown'\nuntil = 2026-12-01", "missing required field reason"),
        (ALLOW.format("unknown", "2099-01-01"), "days away; at most 366"),
        (ALLOW.format("unknown", "2026-12-01").replace("issue 12", " "), "reason: Expected str"),
        (ALLOW.format("unknown", "'soon'"), "until: "),
        ("[[allow", "not TOML: "),
    ],
)
def test_bad_policies_get_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_policy(text, "gate.toml", TODAY)
    message = str(raised.value)
    assert message.startswith("gate.toml: ")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(("share", "bugs", "found"), [(0.7, 10, 7), (0.1, 30, 3), (0.55, 20, 11)])
def test_a_share_is_rounded_neither_to_judge_nor_to_tell(
    share: float, bugs: int, found: int
) -> None:
    runs = [replace(FOUND if n < found else MISSED, mutant=f"bug-{n}") for n in range(bugs)]
    policy = parse_policy(DETECT.format(share), "gate.toml", TODAY)
    assert decide(policy, runs, TODAY).code == 0
    assert decide(policy, [*runs[1:], replace(MISSED, mutant="bug-0")], TODAY).code == 2
    nearly = decide(parse_policy(DETECT.format(0.996), "gate.toml", TODAY), runs, TODAY)
    assert nearly.breaches[0][1].message.endswith("; at least 99.6%")


def loss(checker: str, *kinds: Kind, outcome: Outcome = INVALID) -> Conclusion:
    return Conclusion(checker, outcome, "", kinds=kinds)


@pytest.mark.parametrize(
    ("conclusions", "value", "is_least"),
    [
        ([loss("durability", Kind("lost-append", 5, ""))], 5, False),
        ([loss("durability", Kind("lost-append", 5, ""), Kind("altered", 2, ""))], 7, False),
        ([loss("durability", Kind("lost-append", 5, "", is_least=True))], 5, True),
        ([loss("log-anomalies", Kind("unseen", 4, ""), Kind("lost-write", 3, ""))], 7, True),
        ([loss("consumer-offsets", Kind("offset-lost", 2, ""))], 2, True),
        ([loss("consumer-offsets", Kind("offset-went-back", 2, ""))], 2, True),
        ([loss("counter", Kind("lost-add", 9, ""))], 9, True),
        (
            [
                loss("durability", Kind("lost-append", 5, "")),
                loss("log-anomalies", Kind("unseen", 4, "")),
            ],
            5,
            False,
        ),
        (
            [
                loss("durability", Kind("lost-append", 5, "")),
                loss("consumer-offsets", Kind("offset-lost", 2, "")),
            ],
            7,
            True,
        ),
        (
            [
                loss("durability", Kind("lost-append", 5, "")),
                loss("log-anomalies", outcome=UNKNOWN),
            ],
            5,
            True,
        ),
        (
            [
                loss("durability", outcome=VALID),
                loss("log-anomalies", Kind("unseen", 4, "")),
            ],
            0,
            False,
        ),
        ([loss("durability", outcome=VALID)], 0, False),
        ([loss("counter", outcome=VALID)], 0, False),
        ([loss("durability", outcome=UNKNOWN)], None, False),
        ([loss("linearizable-register", outcome=VALID)], None, False),
    ],
)
def test_losses_of_all_kinds_count_and_are_told_as_what_they_are(
    conclusions: list[Conclusion], value: int | None, is_least: bool
) -> None:
    measured = measure_loss(conclusions)
    assert measured.values.get("acknowledged_loss") == value
    assert ("acknowledged_loss" in measured.at_least) == is_least
    assert ("acknowledged_loss" in measured.missing) == (value is None)


def test_every_kind_that_is_about_keeping_data_counts_as_loss() -> None:
    assert set().union(*LOSSES) >= kinds_where(lambda kind: kind.needs_durability)
