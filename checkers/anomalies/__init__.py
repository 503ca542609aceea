"""Checkers for the anomalies that Jepsen names: logs, queues, sets, counters, ids, cycles.

Each module with a PLUGIN is a checker; docs/anomalies.md defines every anomaly, with an example.

How operations stand in OPERATIONS
----------------------------------
Every row has one key, so that histories split by key. What an invocation does with several keys
or several messages is told as follows; `cycles.transaction_cycles.explode` makes such rows of
transactions recorded whole.

- **Invocation.** Rows that share their `op` are one invocation: its micro-operations, in the order
  of `extra` {"place": n} (0 where it is missing), with equal process, times and outcome.
- **send** (or **append**): `input` is the value, `offset` where it was put (outcome ok).
- **read**: a look at one `offset`; `output` is the value there, null where the log ended before.
  Reads go anywhere, so that what none of them asked for was not missed by any.
- **poll**: a consumer's next messages of one key. Either `extra` {"output": [[offset, value], ...]}
  in the order of delivery, or a row a message with `offset` and `output`. A poll without any
  message (output null, or []) found nothing new.
- **batch**, **delay**: sends of several messages (how many: `expected`; values and offsets follow
  the first one's), and of one that comes `expected` milliseconds later, nobody knows where.
- **select**: the messages of some tags; docs/anomalies.md says more, and of **lock**, **unlock**.
- **view**: a look at the message that a batch's answer said to be at `offset`, by its id.
- **assign**, **subscribe**, **seek**: the consumer goes on elsewhere in that key; `offset` says
  where, null where nobody knows. A process that never did begins at the log's begin.
- **txn**: a transaction recorded whole, as `extra` {"input": [["send", key, value], ["poll"]],
  "output": [["send", key, [offset, value]], ["poll", {key: [[offset, value], ...]}]]}; its key is
  null. Checkers that split by key refuse it: `explode` it first.
- **enqueue**, **dequeue**, **drain**: `input`; `output` (null: it was empty); a drain's list stands
  in `extra` {"output": [...]}.
- **add** and **read** of a set: `input`; the list in `extra` {"output": [...]}.
- **add** and **read** of a counter: `input` (below 0: a decrement); `output`.
- **generate**: the id in `output`, or a text in `extra` {"output": "..."}.
- **commit**, **commit-oneway**, **reset** and **fetch** of a consumer group's offset: `input`;
  `output` (null: none was committed). The key names queue and group, as RocketMQ does:
  "topic/0@group".

What is a breach
----------------
A checker judges promises (`promises.why_not_promised`): an anomaly that the target never promised
to exclude is observed and shown, and the verdict stays valid.
"""
