/* Calls of the user's hooks, and the try_complete methods that are called without Python. */

/* How many hooks this thread is in. Each has a frame of the interpreter's on the C stack, of which CPython 3.12 and newer
 * keep count, and 3.11 doesn't: with a recursion limit that its user has raised, a chain of hooks would use it up. */
enum { DEEPEST = 4000, FRAMES = 8 }; /* some 700 bytes each; and what a hook needs to begin */
#if PY_VERSION_HEX < 0x030C0000
#ifdef __GLIBC__ /* whose loader has room for four bytes more: found without a call */
static _Thread_local __attribute__((tls_model("initial-exec"))) int depth;
#else
static _Thread_local int depth;
#endif

static int is_too_deep(int most)
{
    if (depth <= most)
        return 0;
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: a hook in a hook, and so on");
    return 1;
}

static inline void go_deeper(int by) { depth += by; }
#else
static inline int is_too_deep(int Py_UNUSED(most)) { return 0; }
static inline void go_deeper(int Py_UNUSED(by)) {}
#endif

static inline PyObject *call_hook(Operation *op, PyObject *name)
{
    PyObject *self = (PyObject *)op;
    if (is_too_deep(DEEPEST + FRAMES))
        return NULL;
    go_deeper(1);
    PyObject *answer = PyObject_VectorcallMethod(name, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    go_deeper(-1);
    return answer;
}

/* The same in the context of whoever parked the operation, if that was kept. */
static PyObject *call_hook_in_context(Operation *op, PyObject *name)
{
    PyObject *context = __atomic_load_n(&op->context, __ATOMIC_ACQUIRE);
    if (context == NULL)
        return call_hook(op, name);
    if (PyContext_Enter(context)) { /* no reason not to answer */
        PyErr_Clear();
        return call_hook(op, name);
    }
    PyObject *answer = call_hook(op, name);
    Kept kept = keep_error();
    if (PyContext_Exit(context))
        PyErr_WriteUnraisable(context);
    set_again(kept);
    return answer;
}

/* Contain what a hook raised: the error that is set. `keys` are those that it is about to be parked under, or NULL. 0, or
 * -1 if that raised in turn. */
static int contain(Operation *op, PyObject *hook, PyObject *keys)
{
    PyObject *error = take_error();
    int failed = done_call(PyObject_CallFunctionObjArgs(core.contain, op, hook, error, keys, NULL));
    Py_DECREF(error);
    return failed;
}

/* The types of which it is known that their try_complete is C's own, and what it does: by the version that a type has until
 * anything of it, or of a base, is set anew. There is no second type of a version. */
typedef int (*Look)(Operation *op);
typedef struct {
    PyTypeObject *type; /* borrowed: compared, and nothing else */
    unsigned int version;
    Look look;
} ReadyMade;
enum { FUTURES, THRESHOLD, READY_MADE };
static ReadyMade ready_made[READY_MADE];

/* 0 if it has none now. From 3.13 on that is all there is to it, and the flag is not to be relied upon; before, a version
 * that holds no more may stay where it was. */
static inline unsigned int version_of(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG))
        return 0;
#endif
    return __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
}

/* try_complete(): 1, 0, or -1 with an error. */
static inline int look_of(Operation *op)
{
    PyTypeObject *type = Py_TYPE(op);
    for (int i = 0; i < READY_MADE; i++)
        if (type == __atomic_load_n(&ready_made[i].type, __ATOMIC_RELAXED)) {
            unsigned int version = __atomic_load_n(&ready_made[i].version, __ATOMIC_RELAXED);
            if (version != 0 && version == version_of(type))
                return ready_made[i].look(op);
        }
    return truth_of_call(call_hook(op, core.str_try_complete));
}
