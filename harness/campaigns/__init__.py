"""What a campaign is: its choices as data, and the schedule of faults that its seed draws."""
