/* What the native purgatory offers to other C code of this project: the keys' watchers and the number of checks of an
 * operation. Its times are those of the timer entry that it begins with (timer/_capsule.h).
 *
 *     const PurgatoryCore *core = PyCapsule_Import(PURGATORY_CORE_CAPSULE, 0);
 *
 * Any thread may ask about an operation that it has a reference to, parked or not. */
#ifndef PURGATORY_CORE_H
#define PURGATORY_CORE_H

#include "timer/_capsule.h"

#define PURGATORY_CORE_CAPSULE "purgatory._native.CAPSULE"
#define PURGATORY_CORE_VERSION 2

typedef struct {
    int version;
    /* Every operation of the native core is one of these, and begins with a TimerEntry. */
    PyTypeObject *operation_type;
    /* The watchers that it is or was under: those of one key alone, of several keys as a tuple, or an empty tuple if it
     * never was under any. A new reference, or NULL with an error. */
    PyObject *(*under)(PyObject *operation);
    int (*checks)(PyObject *operation);
    /* Whether a shutdown expired it before its deadline. */
    int (*drained)(PyObject *operation);
} PurgatoryCore;

#endif
