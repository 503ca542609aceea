"""Detection power, measured: planted bugs are hunted, and the correct system must stay clean.

`plan` says who is hunted and how, `hunting` hunts one, `scorecard` adds up what came of all.
"""
