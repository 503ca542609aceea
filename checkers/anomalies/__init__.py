"""Checkers for the anomalies that Jepsen names: logs, queues, sets, counters, ids, cycles.

Each PLUGIN, or one of several PLUGINS, of a module is a checker; docs/anomalies.md defines every
anomaly, with an example.

The form of operations in OPERATIONS
------------------------------------
Every row has one key, so that histories split by key. Invocations with several keys or messages
have several rows; `cycles.explode` makes such rows of transactions that were
recorded whole.

- **Invocation.** Rows that share their `op` are one invocation: its micro-operations, in the order
  of `extra` {"place": n} (0 if missing), with equal process, times and outcome.
- **send** (or **append**): `input` is the value, `offset` where it was stored (outcome ok).
- **read**: a read of one `offset`; `output` is the value there, null if the log ended before it.
  Reads choose any offset, so no read misses what was not requested.
- **poll**: a consumer's next messages of one key. Either `extra` {"output": [[offset, value], ...]}
  in the order of delivery, or a row for each message with `offset` and `output`. A poll without
  any message (output null, or []) found nothing new.
- **batch**, **delay**: sends of several messages (`expected` of them; values and offsets follow the
  first one's), and of one that arrives `expected` milliseconds later, at an unknown offset.
- **select**: the messages of some tags; see docs/anomalies.md, also for **lock**, **unlock**.
- **view**: a read, by its id, of the message that a batch's answer reported to be at `offset`.
- **assign**, **subscribe**, **seek**: the consumer continues elsewhere in that key, at `offset`,
  null if unknown. A process that never did starts at the log's first offset.
- **txn**: a transaction recorded whole, as `extra` {"input": [["send", key, value], ["poll"]],
  "output": [["send", key, [offset, value]], ["poll", {key: [[offset, value], ...]}]]}; its key is
  null. Checkers that split by key refuse it: `explode` it first.
- **enqueue**, **dequeue**, **drain**: `input`; `output` (null: it was empty); a drain's list is in
  `extra` {"output": [...]}.
- **add** and **read** of a set: `input`; the list in `extra` {"output": [...]}.
- **add** and **read** of a counter: `input` (below 0: a decrement); `output`.
- **generate**: the id in `output`, or a text in `extra` {"output": "..."}.
- **commit**, **commit-oneway**, **reset** and **fetch** of a consumer group's offset: `input`;
  `output` (null: none was committed). The key names queue and group, as RocketMQ does:
  "topic/0@group".

What counts as a violation
--------------------------
A checker judges promises (`promises.why_not_promised`): an anomaly that the target does not promise
to exclude is observed and shown, and the verdict stays VALID.
"""
