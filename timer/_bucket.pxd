# C types for the compiled core; the interpreted one never reads this file.
cimport cython


cdef class TimerTaskList(dict):
    cdef public object first, end, after_ns, until_ns, lock
    cdef public Py_ssize_t level
    cdef public bint closed

    @cython.final
    cdef inline object pop(self, key, default):
        return (<dict>self).pop(key, default)
