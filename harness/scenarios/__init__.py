"""Named sequences of faults that real consensus bugs needed, drawn as one (docs/faults.md).

`catalog` holds them, each a few steps in the vocabulary of scripts; `cast` says who is who in one
of them once it begins.
"""
