# C types for the compiled core.


cdef class SharedHold:
    cdef public object lock
