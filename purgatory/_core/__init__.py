"""The core of the library, in the order in which to read it. A module imports only from those above it.

Begin with the docstring of ``purgatory``, which shows the three flows, and with the package ``timer``, which the core
uses. A name with an asterisk has a C file beside it with the same steps. The C code begins with ``core.c``.

    implementation   which implementation runs
    errors           one exception class per mistake
    label            keys as text
    outcome          the states of an operation
    log              the events of the log
    observers*       the objects that are notified of operations
    retrier          the thread that repeats checks
    watchdog         the thread that reports slow callbacks
    capacity         the limit of parked operations, and of tenants
    watchers*        the operations under one key
    idle_keys*       the keys under which no operation waits
    shard*           a part of the keys, and counters
    actions          actions that wait until no lock is held
    user_lock*       the user's lock of an operation
    subclasses       the rules for operation types
    stack*           whether the stack has room for hooks
    operation*       the operation: its turn, its check, its end
    arguments*       the arguments of ``try_complete_else_watch``
    snapshot         a purgatory's figures as frozen values
    shards*          the shard of a key
    many_keys*       checks of many keys, and checks with a limit
    parking*         the flows ``try_complete_else_watch`` and ``check_and_complete``
    take_snapshot*   how the figures are taken
    missed*          events whose check was forgotten
    live             the purgatories of this process
    shutdown         how a purgatory is shut down
    waits            the operations of ``wait_for`` and ``wait_for_result``
    blocking         waits that block a thread
    purgatory        the purgatory
    number           numbers that wait for thresholds
    futures          futures with a deadline
    thresholds       purgatories of thresholds
    rare             the functions that C calls in rare cases
"""
