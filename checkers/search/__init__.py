"""The general linearizability search: what it is asked, how it is driven, what it answers."""
