"""The role ``ingress``: where requests enter, get their policy and are kept account of."""
