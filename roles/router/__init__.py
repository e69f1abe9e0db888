"""The role ``router``: from a request to a signed plan, and from the plan to an answer."""
