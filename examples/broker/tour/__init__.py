"""The whole story in a minute: a replicated broker, real clients, a leader that is killed, and what was learned.

Three processes of :mod:`examples.broker` replicate a topic on loopback. A client of another project (confluent-kafka)
produces to it with ``acks=all`` and long-polls it as a consumer group. In the middle a node is killed, which leads a
third of the partitions and follows the others. Writes that wait for it time out and are sent again, until its session
is over. Then other nodes lead its partitions. Started again, it catches up, is in sync again, and leadership comes back
to it.

Then the records are counted (is every acknowledged record there, once?). The clients' figures are shown beside those of
the purgatories, Spark makes a page of the journal, and the addresses are printed.

    __main__     the order of events
    settings     how long, how much
    cluster      the processes, and that they end
    clients      the load
    ledger       what the clients saw
    outage       the leader that is killed, as a timeline
    screen       the tables
    spark        the report

Run it with ``make run``, or ``make run KEEP=1`` to look around in it until Ctrl-C.
"""
