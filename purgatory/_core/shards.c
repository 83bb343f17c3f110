/* The shards of a purgatory (shards.py). A shard is made for its first operation. On purpose, an array has
 * those that were made, by number, beside Python's dict. So finding one is two reads. */

/* The number of the shard that a key belongs to: hash(key) % count, as in Python. -1 with an error if it has no
 * hash. */
static inline Py_ssize_t number_of_shard(Parking *self, PyObject *key)
{
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1)
        return -1;
    Py_ssize_t number = hash % self->count;
    return number < 0 ? number + self->count : number;
}

/* The shard with a number, borrowed. NULL without an error if it was not made yet. A shard is made once and stays. */
static inline Shard *shard_numbered(Parking *self, Py_ssize_t number)
{
    Shard **by_number = __atomic_load_n(&self->by_number, __ATOMIC_ACQUIRE);
    return by_number == NULL ? NULL : __atomic_load_n(&by_number[number], __ATOMIC_ACQUIRE);
}

/* The same, made if there is none yet. NULL with an error. */
static Shard *make_shard(Parking *self, Py_ssize_t number)
{
    Shard **by_number = __atomic_load_n(&self->by_number, __ATOMIC_ACQUIRE), **none = NULL;
    if (by_number == NULL) {
        by_number = PyMem_Calloc((size_t)self->count, sizeof *by_number);
        if (by_number == NULL)
            return (Shard *)PyErr_NoMemory();
        if (!__atomic_compare_exchange_n(&self->by_number, &none, by_number, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            PyMem_Free(by_number); /* another thread was faster */
            by_number = none;
        }
    }
    PyObject *given = PyLong_FromSsize_t(number), *made = NULL;
    if (given != NULL) /* an int that is its own hash, so it belongs to this shard */
        made = PyObject_CallMethodOneArg(self->shards, core.str_shard_for, given);
    Py_XDECREF(given);
    if (made != NULL && (!PyObject_TypeCheck(made, core.shard) || ((Shard *)made)->by_key == NULL)) {
        PyErr_SetString(PyExc_TypeError, "shards must make Shard objects");
        Py_CLEAR(made);
    }
    if (made != NULL) /* `shards` makes each one once, so another thread can only have set the same one */
        Py_XDECREF(__atomic_exchange_n(&by_number[number], (Shard *)made, __ATOMIC_ACQ_REL));
    return (Shard *)made;
}

/* The shard that a key belongs to, borrowed. NULL with an error. */
static inline Shard *shard_for(Parking *self, PyObject *key)
{
    Py_ssize_t number = number_of_shard(self, key);
    Shard *shard = number < 0 ? NULL : shard_numbered(self, number);
    return shard != NULL || number < 0 ? shard : make_shard(self, number);
}

/* Replace the TypeError of a key that has no hash by the library's own. */
static void reject_unhashable(PyObject *keys)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyObject *kept = take_error();
        PyObject *error = PyObject_CallFunctionObjArgs(core.unhashable, keys, Py_None, NULL);
        if (error == NULL || error == Py_None) { /* the key's own code raised it: that error stays */
            if (error == NULL)
                PyErr_Clear();
            Py_XDECREF(error);
            set_again(kept);
            return;
        }
        raise_made(error);
        Py_XDECREF(kept);
    }
}

/* The watchers of a key, as a reference that the caller owns. NULL if there are none, or with an error. */
static Watchers *shards_find(Parking *self, PyObject *key)
{
    Py_ssize_t number = number_of_shard(self, key);
    Shard *shard = number < 0 ? NULL : shard_numbered(self, number);
    if (number >= 0)
        return shard == NULL ? NULL : find(shard, key);
    PyObject *keys = PyTuple_Pack(1, key);
    if (keys != NULL)
        reject_unhashable(keys);
    Py_XDECREF(keys);
    return NULL;
}
