"""Uses Apache's C++ client through its Python binding; speaks as the Java programs do.

produce NAMESRV TOPIC GROUP FIRST COUNT SECONDS, push or pull NAMESRV TOPIC GROUP COUNT SECONDS. It
prints "ok NUMBER ? OFFSET MSGID", "unknown NUMBER REASON", "got BODY QUEUE OFFSET RECONSUMED", and
"done" or "late". A process of its own: the client's threads end with it.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, SendStatus

LOCK = threading.Lock()


def say(line: str) -> None:
    with LOCK:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def produce(
    name_servers: str, topic: str, group: str, first: int, count: int, seconds: float
) -> bool:
    producer = Producer(group, timeout=3000)
    producer.set_namesrv_addr(name_servers)
    producer.start()
    end, sent = time.monotonic() + seconds, 0
    while sent < count and time.monotonic() < end:
        number = first + sent
        message = Message(topic)
        message.set_body(str(number))
        message.set_tags("even" if number % 2 == 0 else "odd")
        message.set_keys(f"key{number}")
        try:
            # Its send_sync sends again by itself what may be stored; here nothing is.
            result = producer.send_orderly(message, number, retry_times=0)
        except Exception as error:
            say(f"unknown {number} {' '.join(str(error).split())[:200]}")
            time.sleep(0.1)
            continue
        if result.status == SendStatus.OK:
            say(f"ok {number} ? {result.offset} {result.msg_id}")
            sent += 1
        else:
            say(f"unknown {number} {result.status.name}")
    return sent == count


def push(name_servers: str, topic: str, group: str, count: int, seconds: float) -> bool:
    seen: set[str] = set()

    def take(message: object) -> None:
        body = message.body.decode()
        seen.add(body)
        say(f"got {body} {message.queue_id} {message.queue_offset} {message.reconsume_times}")

    consumer = PushConsumer(group, orderly=True)
    consumer.set_namesrv_addr(name_servers)
    consumer.set_thread_count(2)
    consumer.subscribe(topic, take)
    consumer.start()
    end = time.monotonic() + seconds
    while len(seen) < count and time.monotonic() < end:
        time.sleep(0.05)
    return len(seen) >= count


def pull(name_servers: str, topic: str, group: str, count: int, seconds: float) -> bool:
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(name_servers)
    consumer.start()
    seen: set[str] = set()
    end = time.monotonic() + seconds
    while len(seen) < count and time.monotonic() < end:
        try:
            for message in consumer.pull(topic):  # each queue up to its end, then the next one
                body = message.body.decode()
                seen.add(body)
                say(f"got {body} {message.queue_id} {message.queue_offset} 0")
        except Exception as error:  # the topic's route is not known yet
            say(f"later {' '.join(str(error).split())[:200]}")
        time.sleep(0.5)
    return len(seen) >= count


def main() -> None:
    what, name_servers, topic, group, *numbers = sys.argv[1:]
    if what == "produce":
        first, count, seconds = numbers
        is_done = produce(name_servers, topic, group, int(first), int(count), float(seconds))
    else:
        count, seconds = numbers
        consume = push if what == "push" else pull
        is_done = consume(name_servers, topic, group, int(count), float(seconds))
    say("done" if is_done else "late")
    os._exit(0 if is_done else 1)  # the library's threads hold up an ordinary exit


main()
