# C types for the compiled core.
cimport cython
from cpython.dict cimport PyDict_Values

from purgatory._audience cimport Audience


cdef class Watchers(dict):
    cdef public object key
    cdef public WatcherList home
    cdef public tuple alone
    cdef public bint closed, idle

    @cython.final
    cdef inline object pop(self, key, default):
        return (<dict>self).pop(key, default)

    @cython.final
    cdef inline list values(self):
        return PyDict_Values(self)


cdef class WatcherList:
    cdef public object graveyard, lock
    cdef public Audience audience
    cdef public dict by_key
    cdef public list left, waiting
    cdef public Py_ssize_t ahead, checks

    @cython.locals(watchers=Watchers)
    cpdef Watchers watch(self, key, token, operation)
