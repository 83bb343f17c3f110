/* Helpers that the C code of timer, purgatory and purgatory.journal share: versions of CPython, errors, arguments.
 *
 * Each native module is one translation unit: its main C file includes a header with its structs, then its parts in
 * order. So every function is static, the compiler inlines across parts, and a part needs no declarations of earlier
 * parts. */
#ifndef TIMER_NATIVE_COMMON_H
#define TIMER_NATIVE_COMMON_H

#include "timer/_capsule.h"

#include <structmember.h>
#include <time.h>

#ifndef Py_T_OBJECT_EX /* before CPython 3.12 */
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_BOOL T_BOOL
#endif

/* Of a function for a rare case: the usual path around its call then saves fewer registers. */
#define RARE __attribute__((cold, noinline)) static

/* The slots of a module that serves one interpreter and needs no global lock. */
#if PY_VERSION_HEX >= 0x030C0000
#define ONE_INTERPRETER {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#else
#define ONE_INTERPRETER
#endif
#if PY_VERSION_HEX >= 0x030D0000
#define NO_GLOBAL_LOCK {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#else
#define NO_GLOBAL_LOCK
#endif
#define MODULE_SLOTS(fill) {{Py_mod_exec, fill}, ONE_INTERPRETER NO_GLOBAL_LOCK {0, NULL}}

/* The C code keeps its types in static variables. So a module can be loaded once, by the main interpreter. A second
 * import in the process, or one in a subinterpreter, fails, and the pure Python implementation is used there. */
static inline int may_load(char *is_loaded, const char *module)
{
    if (!*is_loaded && PyInterpreterState_Get() == PyInterpreterState_Main())
        return 1;
    PyErr_Format(PyExc_ImportError, "%s can be loaded once, by the main interpreter", module);
    return 0;
}

/* A row of a table of members: a field that Python code reads under the field's name. */
#define READABLE(type, field, kind) {#field, kind, offsetof(type, field), READONLY, NULL}

/* ---------------------------------------------------------------- linked lists */

/* Append an item to the list from `first` to `last`, whose items are linked by their field `next`. */
#define APPEND(first, last, next, item) \
    do { \
        if ((last) != NULL) \
            (last)->next = (item); \
        else \
            (first) = (item); \
        (last) = (item); \
    } while (0)

/* Remove an item from the list from `first` to `last`, whose items are linked by `before` and `after`. */
#define UNLINK(first, last, item) \
    do { \
        if ((item)->before != NULL) \
            (item)->before->after = (item)->after; \
        else \
            (first) = (item)->after; \
        if ((item)->after != NULL) \
            (item)->after->before = (item)->before; \
        else \
            (last) = (item)->before; \
    } while (0)

/* ---------------------------------------------------------------- errors */

#if PY_VERSION_HEX < 0x030C0000 /* as of CPython 3.12, where an error is one object */
static inline PyObject *PyErr_GetRaisedException(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL) /* nearly always */
        return NULL;
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return value;
}

static inline void PyErr_SetRaisedException(PyObject *error)
{
    if (error == NULL)
        PyErr_Restore(NULL, NULL, NULL);
    else
        PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
}
#endif

/* The error that is set, or NULL, as an object that the caller owns, with its traceback. Afterwards none is set. */
static inline PyObject *take_error(void) { return PyErr_GetRaisedException(); }

/* Set an error that was taken, or none. Takes over the reference. */
static inline void set_again(PyObject *error) { PyErr_SetRaisedException(error); }

/* Raise an exception object and give up the reference to it. NULL: creating it raised another one, which stays set. */
static inline void raise_made(PyObject *error)
{
    if (error == NULL)
        return;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

/* The error of an object whose __init__ was not called. `arguments` are those of the __init__. */
static inline void raise_uninitialized(PyTypeObject *type, const char *arguments)
{
    PyErr_Format(PyExc_AttributeError, "%.200s was not initialized; call super().__init__(%s) in its __init__",
                 type->tp_name, arguments);
}

/* Whether the error that is set is an Exception. A KeyboardInterrupt or a SystemExit is not. */
static inline int is_contained(void) { return PyErr_ExceptionMatches(PyExc_Exception); }

/* ---------------------------------------------------------------- answers of calls */

/* The result of a call as 1, 0, or -1 with an error. Takes over the reference. */
static inline int truth_of_call(PyObject *answer)
{
    if (answer == NULL)
        return -1;
    int truth = answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

/* 0, or -1 with an error. Takes over the reference. */
static inline int done_call(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

/* An item of a list, as a reference that the caller owns. NULL without an error if there is none. */
static inline PyObject *item_of(PyObject *list, Py_ssize_t index)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *item = PyList_GetItemRef(list, index);
    if (item == NULL)
        PyErr_Clear();
    return item;
#else
    return index < PyList_GET_SIZE(list) ? Py_NewRef(PyList_GET_ITEM(list, index)) : NULL;
#endif
}

/* ---------------------------------------------------------------- numbers and time */

/* An int as 64 bits, or the nearest number that fits. -1 with an error if it is not an int. */
static inline int saturated(PyObject *value, int64_t *into)
{
    int overflow;
    int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && PyErr_Occurred())
        return -1;
    *into = overflow > 0 ? INT64_MAX : overflow < 0 ? -INT64_MAX : number;
    return 0;
}

/* Read the system's monotonic clock without Python, as time.monotonic_ns does: 1, or 0 where that is not possible. */
static inline int read_system_clock(int64_t *now_ns)
{
#if defined(__linux__)
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) == 0) {
        *now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
        return 1;
    }
#else
    (void)now_ns;
#endif
    return 0;
}

/* ---------------------------------------------------------------- names */

/* A name that C looks up, and where it is kept. CPython remembers the names of look-ups by their address, so a string
 * that is made for one look-up would stay in its cache. */
typedef struct {
    PyObject **place;
    const char *text;
} Name;

/* Make the names. 0, or -1 with an error. */
static inline int make_names(const Name *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
}

/* ---------------------------------------------------------------- arguments */

/* The arguments of a METH_FASTCALL | METH_KEYWORDS method, by position or by name, as borrowed references in `found`.
 * `wanted` names them and ends with NULL. The first `required` must be given. Of the others, those that are not given
 * are NULL. `call` is the signature, for the error. 0, or -1 with an error. */
static inline int each_argument(PyObject *const *args, Py_ssize_t number, PyObject *names, const char *call,
                                const char *const *wanted, Py_ssize_t required, PyObject **found)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names), used = 0, most = 0;
    for (; wanted[most] != NULL; most++)
        found[most] = most < number ? args[most] : NULL;
    if (named == 0 && required <= number && number <= most) /* nearly always */
        return 0;
    int is_complete = 1;
    for (Py_ssize_t place = 0; place < most; place++) {
        for (Py_ssize_t i = 0; i < named && found[place] == NULL; i++)
            if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), wanted[place]) == 0)
                found[place] = args[number + i];
        used += found[place] != NULL;
        is_complete &= place >= required || found[place] != NULL;
    }
    if (is_complete && used == number + named)
        return 0;
    PyErr_Format(PyExc_TypeError, "wrong arguments; call it as %s", call);
    return -1;
}

#endif
