from base64 import b64decode, b64encode

import httpx

DEFINITE = (httpx.ConnectError, httpx.ConnectTimeout)
CONNECTIONS = httpx.Client(trust_env=False)


def text(value):
    return b64encode(str(value).encode()).decode()


def ask(node, what, **body):
    answer = CONNECTIONS.post(f"http://{node}/v3/kv/{what}", json=body, timeout=node.timeout_s)
    return answer.raise_for_status().json()


def read(node, key):
    found = ask(node, "range", key=text(key), **node.options).get("kvs")
    return b64decode(found[0]["value"]) if found else None


def write(node, key, value):
    ask(node, "put", key=text(key), value=text(value))


def cas(node, key, expected, value):
    absent = {"target": "VERSION", "version": "0"}
    holds = absent if expected is None else {"target": "VALUE", "value": text(expected)}
    put = {"request_put": {"key": text(key), "value": text(value)}}
    return "succeeded" in ask(node, "txn", compare=[{"key": text(key), **holds}], success=[put])
