"""Every record that crosses a boundary: its fields, its one encoding, its signature, and who may issue it.

    canonical, ids, dsse, base, fields    bytes, names, signatures; what records have in common
    plan, policy, expert, tools           execution plans, limits, expert packages, tool proposals and attestations
    memory, consensus, settlement         memory events and provenance, votes, task records and receipts
    swarm, events                         certificates, announcements, revocations; learning and audit events
    registry, schema                      the closed set of records; their JSON Schemas (``configs/schemas``)
    outcome, roster, replay, verify       "may I believe this record?"
    generation, methods, services         what one asks of a model; how services are called

Nothing is re-exported here: each name has one home, and an engine child or ``gnusnode --help`` loads only what it uses.
Nothing in here does I/O.
"""
