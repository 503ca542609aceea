"""The gate of a CI: a policy and what is known of runs -> rulings, and the files that tell them."""
