# C types for the compiled core. `_check` and `_finish` are C functions there, and can't be called from outside.
cimport cython

from purgatory._watchers cimport WatcherList
from timer._bucket cimport TimerTaskList
from timer._task cimport TimerTaskEntry

cdef int OPEN, IMMEDIATE, SATISFIED, EXPIRED, CANCELLED, FORCED
cdef object MISSING


cdef class _Homeless:
    cdef public object lock
    cdef public bint busy


cdef class Operation(TimerTaskEntry):
    cdef public object _hold, _token, _watches
    cdef public WatcherList _home
    cdef public int _outcome, _phase
    cdef public Py_ssize_t _checks
    cdef public bint _overdue, _pending

    cpdef force_complete(self)

    cdef bint _check(self) except -1

    @cython.locals(home=WatcherList, bucket=TimerTaskList)
    cdef bint _finish(self, int outcome) except -1
