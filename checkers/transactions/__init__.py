"""Isolation levels of transactions on registers and lists (docs/isolation.md).

A history's transactions are read (`history`), each read is traced to the transaction that wrote
what it saw (`observed`), and the orders that follow are searched for cycles, by Adya's kinds where
reads show the order of versions, and by what weak levels force (`forbidden_cycles`). Where reads do
not show it, `polygraph` chooses the order.
"""
