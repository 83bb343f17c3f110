/* The lock that an operation shares with its user (user_lock.py). On purpose, call_with() is in two parts
 * here, with the call in between. */

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
