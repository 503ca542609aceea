import pymysql


def open(node):
    at = {"host": node.host, "port": node.port, "read_timeout": node.timeout_s, "user": "root"}
    found_rows = pymysql.constants.CLIENT.FOUND_ROWS  # else a cas to the same value counts as none
    return pymysql.connect(**at, database="kv", autocommit=True, client_flag=found_rows)


def close(session):
    session.close()


def ask(session, statement, *values):
    with session.cursor() as cursor:
        return cursor.execute(statement, values), cursor.fetchone()


def read(session, key):
    _, row = ask(session, "SELECT value FROM registers WHERE name = %s", key)
    return row and row[0]


def write(session, key, value):
    ask(session, "REPLACE INTO registers VALUES (%s, %s)", key, value)


def cas(session, key, expected, value):
    if expected is None:
        return ask(session, "INSERT IGNORE INTO registers VALUES (%s, %s)", key, value)[0] == 1
    update = "UPDATE registers SET value = %s WHERE name = %s AND value = %s"
    return ask(session, update, value, key, expected)[0] == 1
