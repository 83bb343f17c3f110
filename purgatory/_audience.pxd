# C types for the compiled core.


cdef class Audience:
    cdef public object name, _errors, _lock
    cdef public tuple finishers, leavers, parkers, _observers, _room
