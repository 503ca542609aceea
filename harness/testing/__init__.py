"""For other people's tests: record what clients do, draw histories, a pytest fixture.

`checkers.api` checks what is recorded. Nothing heavy is imported before it is needed.
"""
