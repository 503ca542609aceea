"""Decides whether a history is linearizable with respect to a model, and writes down why not."""
