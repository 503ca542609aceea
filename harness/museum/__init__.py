"""Published bugs of real systems, each with a campaign that shows it and one that does not.

A folder each under `bugs`: `bug.toml` says what it is and where it was published, `campaign.toml`
is the campaign that finds it, `fixed.toml` the same with what fixes it.
"""
