/* Missed checks (missed.py): what its witnesses need of the lists of operations. */

/* watch_only(witness, shard, key): put an operation under one key without parking it. */
static PyObject *watch_only(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t number)
{
    if (number != 3 || !IS_OPERATION(args[0]) || !PyObject_TypeCheck(args[1], core.shard)
        || ((Operation *)args[0])->home_shard != NULL) {
        PyErr_SetString(PyExc_TypeError, "watch_only(witness, shard, key) takes an operation that is new");
        return NULL;
    }
    Operation *witness = (Operation *)args[0];
    Shard *shard = (Shard *)args[1];
    witness->home_shard = (Shard *)Py_NewRef(shard);
    return watch(shard, args[2], witness, &witness->first) ? NULL : Py_NewRef(Py_None);
}

/* unwatch(witness): remove it. */
static PyObject *unwatch(PyObject *Py_UNUSED(module), PyObject *witness)
{
    PyObject *deferred = NULL;
    if (!IS_OPERATION(witness)) {
        PyErr_SetString(PyExc_TypeError, "unwatch(witness) takes an operation");
        return NULL;
    }
    op_remove((Operation *)witness, &deferred);
    return raise_deferred(deferred) ? NULL : Py_NewRef(Py_None);
}
