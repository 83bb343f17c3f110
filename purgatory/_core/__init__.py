"""The core of the library, in the order in which to read it. A module imports only from those above it.

Begin with the docstring of ``purgatory._core.purgatory``, which shows the three flows, and with the package ``timer``,
which the core uses. A name with an asterisk has a C file beside it with the same steps. The C code begins with
``core.c``.

    implementation   which implementation runs
    errors           one exception class per mistake
    label            keys as text
    outcome          the states of an operation, and counts of outcomes
    log              the events of the log
    observers*       the objects that are notified of operations
    retrier          the thread that repeats checks
    watchdog         the thread that reports slow callbacks
    places           the limit of parked operations, and of tenants
    shards*          the operations under one key, and the parts that the keys are in
    idle_keys*       the keys under which no operation waits
    actions          actions that wait until no lock is held
    hooks*           what a call of a hook needs: room on the stack, and the user's lock
    subclasses       the rules for operation types
    operation*       the operation: its turn, its check, its end
    arguments*       the arguments of ``try_complete_else_watch``
    parking*         the flows ``try_complete_else_watch`` and ``check_and_complete``
    snapshot*        a purgatory's figures as frozen values
    missed*          events whose check was forgotten
    live             the purgatories of this process
    shutdown         how a purgatory is shut down
    waits            the operations of ``wait_for`` and ``wait_for_result``
    blocking         waits that block a thread
    purgatory        the purgatory
    futures          futures with a deadline
    thresholds       numbers that rise, and waits for a threshold
    rare             the functions that C calls in rare cases
"""
