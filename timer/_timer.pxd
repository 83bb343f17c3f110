# C types for the compiled core.
cimport cython

from timer._bucket cimport TimerTaskList
from timer._task cimport TimerTaskEntry

cdef object MISSING


cdef class Adding:
    cdef public list _cascading
    cdef public object _changed, _clock, _dispatcher, _lock, _max_pending, _name, _origin_ns, _tick_ns, _wheel
    cdef public bint _closed
    cdef public dict _known
    cdef public TimerTaskList _nowhere, _recent
    cdef public Py_ssize_t _sleepers

    @cython.locals(bucket=TimerTaskList, found=TimerTaskList)
    cpdef add(self, TimerTaskEntry task)
