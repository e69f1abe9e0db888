"""What a request may do: pure functions from policies and risk to limits. They only ever narrow."""
