"""Decides whether a history is linearizable with respect to a model, and explains why not."""
