# C types for the compiled core. Times stay Python integers: a delay may be longer than 64 bits of nanoseconds.
cimport cython

from timer._bucket cimport TimerTaskList


cdef class TimerTaskEntry:
    cdef object __weakref__
    cdef public TimerTaskList _bucket
    cdef public object _deadline_ns, _delay_ms

    @cython.locals(bucket=TimerTaskList)
    cpdef cancel(self)
