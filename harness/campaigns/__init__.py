"""Campaigns: their options as data, and the schedule of faults generated from their seed."""
