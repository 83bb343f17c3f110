# C types for the compiled core.
cimport cython

from purgatory._operation cimport Operation
from purgatory._watchers cimport Watchers


cdef class Graveyard:
    cdef public object keeper, _interval, _lock, _noted, _unattended
    cdef public Py_ssize_t _purged

    @cython.locals(watchers=Watchers)
    cpdef bury(self, Operation operation, Watchers but=*)

    cpdef note_idle(self, Watchers watchers)

    @cython.locals(watchers=Watchers)
    cpdef _drop(self, Py_ssize_t most)
