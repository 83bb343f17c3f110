/* Whether the stack has room for the hooks of an operation (hooks.py), and the lock that an operation shares
 * with its user. On purpose, call_with() is in two parts here, with the call in between, and the C stack is examined,
 * too.
 *
 * A chain of hooks that complete further operations nests calls of the interpreter on the C stack. CPython 3.11 does
 * not bound that. CPython 3.12 and 3.13 count calls, but not bytes. CPython 3.14 and newer compare addresses, and keep
 * a margin that differs from build to build. So the address of the stack is compared here, with a larger margin: an
 * operation takes an outcome only if the interpreter can still start its hook. */

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

enum { LEAST_MARGIN = 64 * 1024, MOST_MARGIN = 256 * 1024, FRAMES = 8 };

/* Of this thread: no outcome is taken below the first address, and no hook is called below the second. 0: not known
 * yet. */
THREAD_LOCAL uintptr_t outcomes_end, hooks_end;

static inline uintptr_t stack_address(void) { return (uintptr_t)__builtin_frame_address(0); }

/* Find this thread's stack. There is no bound where that fails, nor for a thread whose first hook runs on another stack
 * than the thread's own. */
static void find_stack(void)
{
    uintptr_t lowest = 0, size = 0, here = stack_address();
#if defined(__linux__)
    pthread_attr_t attributes;
    void *start = NULL;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        if (pthread_attr_getstack(&attributes, &start, &bytes) == 0) {
            lowest = (uintptr_t)start;
            size = bytes;
        }
        pthread_attr_destroy(&attributes);
    }
#elif defined(__APPLE__)
    size = pthread_get_stacksize_np(pthread_self());
    lowest = (uintptr_t)pthread_get_stackaddr_np(pthread_self()) - size;
#endif
    uintptr_t margin = size / 4;
    margin = margin < LEAST_MARGIN ? LEAST_MARGIN : margin > MOST_MARGIN ? MOST_MARGIN : margin;
    margin = margin > size / 2 ? size / 2 : margin;
    int is_known = lowest != 0 && lowest < here && here - lowest <= size;
    outcomes_end = is_known ? lowest + margin : 1;
    hooks_end = is_known ? lowest + margin / 2 : 1;
}

RARE int reject_depth(const char *what)
{
    PyErr_Format(PyExc_RecursionError, "maximum recursion depth exceeded while %s; let hooks nest less deeply", what);
    return 0;
}

/* Whether the stack has room for a call of a hook: 1, or 0 with an error. */
static inline int has_room_for_call(void)
{
    if (hooks_end == 0)
        find_stack();
    return stack_address() > hooks_end ? 1 : reject_depth("calling a hook of an operation");
}

/* Whether the stack has room for a hook that must start: 1, or 0 with an error. Asked before an outcome is taken. */
static int has_room_for_outcome(void)
{
    PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
    int remaining = thread->py_recursion_remaining;
#else
    int remaining = thread->recursion_remaining;
#endif
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
    if (thread->c_recursion_remaining < remaining)
        remaining = thread->c_recursion_remaining;
#endif
    if (outcomes_end == 0)
        find_stack();
    return remaining > FRAMES && stack_address() > outcomes_end ? 1 : reject_depth("completing an operation");
}

/* ---------------------------------------------------------------- the user's lock */

/* Take the user's lock, and wait for it if `wait` is true: 1, 0 if it is taken, or -1 with an error. */
static int take_lock(Operation *op, int wait)
{
    PyObject *given[2] = {op->user_lock, wait ? Py_True : Py_False};
    PyObject *answer = PyObject_VectorcallMethod(core.str_acquire, given, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    int taken = truth_of_call(Py_XNewRef(answer));
    if (taken == 0 && wait) {
        raise_made(PyObject_CallFunctionObjArgs(core.lock_not_taken, op, answer, NULL));
        taken = -1;
    }
    Py_XDECREF(answer);
    return taken;
}

/* Release the user's lock, and return `answer`, or -1 with the error that the release raised. An error that is set
 * stays set. */
static int release_lock(Operation *op, int answer)
{
    PyObject *kept = take_error();
    if (done_call(PyObject_CallMethodNoArgs(op->user_lock, core.str_release))) {
        Py_XDECREF(kept);
        return -1;
    }
    set_again(kept);
    return answer;
}
