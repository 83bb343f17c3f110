/* Operation (operation.py): the methods and attributes that Python sees. The steps are in operation.c. On purpose,
 * extend() lets a native timer move the deadline without Python in between. */

/* Set the delay, unless the operation was parked already. 0, or -1 with an error. */
static int init_delay(Operation *self, PyObject *delay_ms)
{
    if (__atomic_load_n(&self->home_shard, __ATOMIC_ACQUIRE) != NULL)
        return 0; /* a second __init__ of an operation that was parked changes nothing */
    return core.timer->init(&self->entry, delay_ms);
}

static int operation_init(Operation *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"delay_ms", "lock", NULL};
    PyObject *delay_ms, *lock = Py_None;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1) /* nearly always, and three times faster than a format */
        delay_ms = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:__init__", names, &delay_ms, &lock))
        return -1;
    int is_first = self->entry.delay_ms == TIMER_UNSET;
    int has_lock = is_first && lock != Py_None; /* a second __init__ keeps the lock, which a thread may hold */
    if (has_lock && done_call(PyObject_CallOneArg(core.check_lock, lock)))
        return -1;
    if (init_delay(self, delay_ms))
        return -1;
    if (has_lock)
        Py_XSETREF(self->lock, Py_NewRef(lock));
    return 0;
}

static PyObject *operation_force_complete(Operation *self, PyObject *Py_UNUSED(none))
{
    int forced = op_check_initialized(self) ? -1 : op_end(self, FORCED);
    return forced < 0 ? NULL : PyBool_FromLong(forced);
}

static PyObject *operation_maybe_try_complete(Operation *self, PyObject *Py_UNUSED(none))
{
    int completed = op_check_initialized(self) ? -1 : maybe_try_complete(self);
    return completed < 0 ? NULL : PyBool_FromLong(completed);
}

static PyObject *operation_run(Operation *self, PyObject *Py_UNUSED(none))
{
    if (op_check_initialized(self) || run(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_cancel(Operation *self, PyObject *Py_UNUSED(none))
{
    int cancelled = op_check_initialized(self) ? -1 : op_end(self, CANCELLED);
    return cancelled < 0 ? NULL : PyBool_FromLong(cancelled);
}

/* Whether the operation is arriving, and so is added to the timer with this delay. */
static int set_delay_of_arriving(Operation *self, int64_t whole_ms)
{
    lock_operation(self);
    Shard *home_shard = home_of(self);
    int arrives = self->state == ARRIVING && !flag_of(&self->overdue);
    if (arrives) {
        lock_shard(home_shard);
        home_shard->extended++;
        unlock_shard(home_shard);
        __atomic_store_n(&self->entry.delay_ms, whole_ms, __ATOMIC_RELAXED); /* see start_waiting() */
        self->extended = 1;
    }
    unlock_operation(self);
    return arrives;
}

static PyObject *operation_extend(Operation *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"delay_ms", NULL};
    PyObject *delay_ms;
    if (each_argument(args, number, names, "extend(delay_ms)", wanted, 1, &delay_ms) || op_check_initialized(self))
        return NULL;
    /* 1. check the delay */
    int64_t whole_ms = core.timer->whole_delay_ms(delay_ms);
    if (whole_ms < 0)
        return NULL;
    Shard *home_shard = home_of(self);
    int moved = 0, counts = 0, is_timed = home_shard->timer != NULL && home_shard->timer != Py_None;
    /* 2. set the delay of one that is arriving */
    if (is_timed && state_of(self) == ARRIVING)
        counts = set_delay_of_arriving(self, whole_ms);
    /* 3. move the deadline of one that is parked */
    if (is_timed && !counts && state_of(self) == PARKED)
        moved = home_shard->native_timer
            ? core.timer->reschedule(home_shard->timer, &self->entry, delay_ms)
            : truth_of_call(PyObject_CallMethodObjArgs(home_shard->timer, core.str_reschedule, self, delay_ms, NULL));
    if (moved < 0)
        return NULL;
    if (!moved)
        return PyBool_FromLong(counts);
    /* 4. count it, unless the operation has an outcome */
    /* It may have got an outcome meanwhile. A thread that completes it from now on sees the new deadline. */
    lock_operation(self);
    counts = self->state == PARKED && !flag_of(&self->overdue);
    lock_shard(home_shard);
    home_shard->extended += counts;
    unlock_shard(home_shard);
    unlock_operation(self);
    if (!counts)
        core.timer->withdraw(&self->entry);
    return PyBool_FromLong(counts);
}

static PyObject *operation_expire_for_shutdown(Operation *self, PyObject *Py_UNUSED(none))
{
    if (op_check_initialized(self) || op_expire_for_shutdown(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_retry(Operation *self, PyObject *Py_UNUSED(none))
{
    if (op_retry(self))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_after_fork(Operation *self, PyObject *is_mine)
{
    if (op_after_fork(self, is_mine == Py_True))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_nothing(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none)) { Py_RETURN_NONE; }

static PyObject *operation_undefined(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    PyErr_SetNone(PyExc_NotImplementedError);
    return NULL;
}

static PyObject *get_state(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : PyLong_FromLong(state_of(self));
}
static PyObject *get_recheck(Operation *self, void *Py_UNUSED(none))
{
    return PyBool_FromLong(flag_of(&self->recheck));
}
static PyObject *get_overdue(Operation *self, void *Py_UNUSED(none))
{
    return PyLong_FromLong(flag_of(&self->overdue));
}
static PyObject *get_turn(Operation *self, void *Py_UNUSED(none))
{
    return PyBool_FromLong(flag_of(&self->turn));
}
static PyObject *operation_is_parked(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : PyBool_FromLong(state_of(self) == PARKED);
}
static PyObject *operation_is_completed(Operation *self, void *Py_UNUSED(none))
{
    if (op_check_initialized(self))
        return NULL;
    int state = state_of(self);
    return PyBool_FromLong(state > PARKED && state != CANCELLED);
}
static PyObject *operation_outcome(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : Py_NewRef(PyTuple_GET_ITEM(core.outcomes, state_of(self)));
}
static PyObject *operation_drained(Operation *self, void *Py_UNUSED(none))
{
    if (op_check_initialized(self))
        return NULL;
    return PyBool_FromLong(state_of(self) == EXPIRED && flag_of(&self->overdue) == DRAINED);
}
static PyObject *get_home_shard(Operation *self, void *Py_UNUSED(none))
{
    return Py_NewRef((PyObject *)home_of(self));
}

/* The watchers that it is or was under, or their keys. */
static PyObject *links_of(Operation *self, int keys)
{
    if (op_check_initialized(self))
        return NULL;
    int room = 1 + __atomic_load_n(&self->further_count, __ATOMIC_ACQUIRE);
    PyObject *found = PyList_New(room);
    if (found == NULL)
        return NULL;
    Py_ssize_t number = 0;
    lock_operation(self); /* another thread may be parking it */
    for (int i = 0; i < room; i++) {
        Watchers *under = link_at(self, i)->under;
        if (under != NULL)
            PyList_SET_ITEM(found, number++, Py_NewRef(keys ? under->key : (PyObject *)under));
    }
    unlock_operation(self);
    PyObject *tuple = PyTuple_New(number);
    for (Py_ssize_t i = 0; tuple != NULL && i < number; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(PyList_GET_ITEM(found, i)));
    Py_DECREF(found);
    return tuple;
}
static PyObject *get_watches(Operation *self, void *Py_UNUSED(none)) { return links_of(self, 0); }
static PyObject *operation_keys(Operation *self, void *Py_UNUSED(none)) { return links_of(self, 1); }
static PyObject *operation_checks(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : PyLong_FromLong(checks_of(self));
}
static PyObject *operation_created_ns(PyObject *self, void *Py_UNUSED(none))
{
    return PyObject_GetAttr(self, core.str_added_ns);
}

static int operation_traverse(Operation *self, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)self->home_shard);
    Py_VISIT(self->lock);
    Py_VISIT(self->context);
    for (int i = 0; i <= self->further_count; i++)
        Py_VISIT((PyObject *)link_at(self, i)->under);
    return core.timer->entry_type->tp_traverse((PyObject *)self, visit, arg);
}

static int operation_clear(Operation *self)
{
    Py_CLEAR(self->lock);
    Py_CLEAR(self->context);
    return core.timer->entry_type->tp_clear((PyObject *)self);
}

static void operation_dealloc(Operation *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->context);
    for (int i = 0; i <= self->further_count; i++)
        Py_CLEAR(link_at(self, i)->under);
    Py_CLEAR(self->home_shard);
    PyMem_Free(self->further);
    self->further = NULL;
    self->further_count = 0;
    core.timer->entry_type->tp_dealloc((PyObject *)self);
}

static PyMethodDef operation_methods[] = {
    {"try_complete", operation_undefined, METH_NOARGS, NULL},
    {"on_complete", operation_nothing, METH_NOARGS, "on_complete($self, /)\n--\n\n"},
    {"on_expiration", operation_nothing, METH_NOARGS, "on_expiration($self, /)\n--\n\n"},
    {"force_complete", (PyCFunction)operation_force_complete, METH_NOARGS, "force_complete($self, /)\n--\n\n"},
    {"maybe_try_complete", (PyCFunction)operation_maybe_try_complete, METH_NOARGS,
     "maybe_try_complete($self, /)\n--\n\n"},
    {"run", (PyCFunction)operation_run, METH_NOARGS, "run($self, /)\n--\n\n"},
    {"_op_expire_for_shutdown", (PyCFunction)operation_expire_for_shutdown, METH_NOARGS, NULL},
    {"_op_retry", (PyCFunction)operation_retry, METH_NOARGS, NULL},
    {"_op_after_fork", (PyCFunction)operation_after_fork, METH_O, NULL},
    {"cancel", (PyCFunction)operation_cancel, METH_NOARGS, "cancel($self, /)\n--\n\n"},
    {"extend", (PyCFunction)(void (*)(void))operation_extend, METH_FASTCALL | METH_KEYWORDS,
     "extend($self, /, delay_ms)\n--\n\n"},
    {NULL}};

static PyGetSetDef operation_attributes[] = { /* no setters */
    {"_op_state", (getter)get_state}, {"_op_checks", (getter)operation_checks}, {"_op_recheck", (getter)get_recheck},
    {"_op_overdue", (getter)get_overdue}, {"_op_turn", (getter)get_turn}, {"_op_home_shard", (getter)get_home_shard},
    {"_op_watches", (getter)get_watches}, {"is_completed", (getter)operation_is_completed},
    {"outcome", (getter)operation_outcome}, {"is_parked", (getter)operation_is_parked}, {"drained", (getter)operation_drained}, {"keys", (getter)operation_keys},
    {"checks", (getter)operation_checks}, {"created_ns", operation_created_ns}, {NULL}};

static PyType_Slot operation_slots[] = {
    {Py_tp_doc, "Operation(delay_ms, *, lock=None)\n--\n\n"}, {Py_tp_init, operation_init}, COLLECTED(operation),
    {Py_tp_methods, operation_methods}, {Py_tp_getset, operation_attributes}, {0, NULL}};

static PyType_Spec operation_spec = {"purgatory._native.Operation", sizeof(Operation), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, operation_slots};
