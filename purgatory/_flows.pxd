# C types for the compiled core.
cimport cython

from purgatory._audience cimport Audience
from purgatory._graveyard cimport Graveyard
from purgatory._operation cimport Operation, _Homeless
from purgatory._watchers cimport WatcherList, Watchers

cdef int OPEN, IMMEDIATE
cdef object NEVER_HOME
cdef _Homeless homeless


cdef class Flows:
    cdef public set _admitted
    cdef public Audience _audience
    cdef public Graveyard _graveyard
    cdef public object _name, _room, _timer
    cdef public bint _closed
    cdef public Py_ssize_t _shard_count
    cdef public list _shards

    @cython.locals(op=Operation, home=WatcherList, watchers=Watchers)
    cpdef bint try_complete_else_watch(self, operation, watch_keys) except -1

    @cython.locals(operation=Operation, shard=WatcherList, watchers=Watchers, operations=list, completed=Py_ssize_t, graves=Py_ssize_t)
    cpdef check_and_complete(self, key)
