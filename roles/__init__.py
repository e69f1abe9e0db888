"""The roles of a node. Each offers a service by name; nobody imports a role to call it.

``roles.table`` lists them, ``roles.supervisor`` runs them, ``roles.ports`` is what each is given.
"""
