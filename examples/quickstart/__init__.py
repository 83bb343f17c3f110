"""
A replicated log in one process, as small as it can be and still have something to wait for.

Appends with ``acks=all`` wait until every replica has the record. Long-poll fetches wait until there is enough to read.
Both are parked, in two purgatories that share one timer. Some replicas are slow, so some appends expire. Some
partitions are quiet, so some fetches expire.

    log         partitions, and how far each replica has copied them
    operations  what an append and a fetch wait for
    service     the purgatories, and who checks which key when
    load        clients and replicas
    report      what came of it, in figures
    screen      the same for the eye: a progress line, and a table at the end

Run it with ``python -m examples.quickstart``, or ``make quickstart``.
"""
