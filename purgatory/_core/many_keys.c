/* Checks of many keys, and checks with a limit (many_keys.py). On purpose, both flows take the operations of
 * a key here, in chunks, so that other threads run in between. */

enum { CHUNK = 2048 }; /* How many operations are taken in one step, at the most. */

/* Operations of one key that a check took: those that still waited after their check, then the last chunk, in order of
 * arrival. Owns a reference to each. */
typedef struct {
    Operation *few[FEW], **all;
    Py_ssize_t room, count, begin; /* begin: of the last chunk */
} Taken;

/* Make room for `more` operations. 0, or -1 with an error. */
static int make_room(Taken *taken, Py_ssize_t more)
{
    Operation **known = taken->all == taken->few ? NULL : taken->all, **larger = known;
    Py_ssize_t room = taken->count + (more > taken->count ? more : taken->count); /* at least twice as much */
    if (PyMem_Resize(larger, Operation *, room) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (known == NULL)
        memcpy(larger, taken->few, sizeof taken->few);
    taken->all = larger;
    taken->room = room;
    return 0;
}

/* Forget those of the last chunk that no longer wait under the key. */
static void drop_ended(Watchers *watchers, Taken *taken)
{
    Operation *ended[CHUNK];
    Py_ssize_t kept = taken->begin, dropped = 0;
    lock_shard(watchers->shard);
    for (Py_ssize_t i = taken->begin; i < taken->count; i++)
        if (link_in(watchers, taken->all[i]) != NULL)
            taken->all[kept++] = taken->all[i];
        else
            ended[dropped++] = taken->all[i];
    unlock_shard(watchers->shard);
    taken->count = taken->begin = kept;
    while (dropped > 0)
        Py_DECREF(ended[--dropped]);
}

/* Take up to `most` further operations: how many, or -1 with an error. They follow the last one taken that is still in
 * the list: new operations are added at its end, so all after that one are new, and all before it were taken. */
static Py_ssize_t take_further(Watchers *watchers, Taken *taken, Py_ssize_t most)
{
    Py_ssize_t waiting = watchers_length(watchers);
    most = most < waiting ? most : waiting;
    if (taken->room - taken->count < most && make_room(taken, most))
        return -1;
    Link *link = NULL;
    lock_shard(watchers->shard);
    for (Py_ssize_t last = taken->count; last > 0 && link == NULL; last--)
        link = link_in(watchers, taken->all[last - 1]);
    link = link == NULL ? watchers->head : link->after;
    for (; link != NULL && taken->count - taken->begin < most; link = link->after)
        taken->all[taken->count++] = (Operation *)Py_NewRef(link->operation);
    unlock_shard(watchers->shard);
    return taken->count - taken->begin;
}

/* A set of addresses: the watchers and the operations that a check of many keys has met. It owns none. An operation that
 * is freed meanwhile may leave its address to a new one, which is then not checked. It was checked as it was parked,
 * which was after the event. */
typedef struct {
    void *few[4 * FEW], **slots;
    size_t size, count; /* size: a power of two */
} Met;

static void put_address(Met *met, void *address)
{
    size_t place = ((uintptr_t)address >> 4) * (size_t)0x9E3779B97F4A7C15u >> 20;
    while (met->slots[place & (met->size - 1)] != NULL)
        place++;
    met->slots[place & (met->size - 1)] = address;
}

/* Add an address: 1 if it is new, 0, or -1 with an error. */
static int is_first_time(Met *met, void *address)
{
    size_t place = ((uintptr_t)address >> 4) * (size_t)0x9E3779B97F4A7C15u >> 20;
    for (; met->slots[place & (met->size - 1)] != NULL; place++)
        if (met->slots[place & (met->size - 1)] == address)
            return 0;
    if (2 * met->count >= met->size) {
        void **old = met->slots, **larger = PyMem_Calloc(4 * met->size, sizeof *larger);
        if (larger == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        size_t before = met->size;
        met->slots = larger;
        met->size *= 4;
        for (size_t i = 0; i < before; i++)
            if (old[i] != NULL)
                put_address(met, old[i]);
        if (old != met->few)
            PyMem_Free(old);
    }
    put_address(met, address);
    met->count++;
    return 1;
}

/* Whether a check must check this operation: 1, 0, or -1 with an error. A check of many keys meets one of one key
 * once. */
static int is_to_be_checked(Operation *op, Met *met)
{
    if (state_of(op) > PARKED)
        return 0;
    return met == NULL || __atomic_load_n(&op->further_count, __ATOMIC_ACQUIRE) == 0 ? 1 : is_first_time(met, op);
}

/* Check an operation, unless it has an outcome or `met` has it already, and count it if that completed it. `met` is NULL
 * for a check of one key. 0, or -1 with an error. */
static int check_one(Operation *op, Met *met, Py_ssize_t *completed)
{
    int checks = is_to_be_checked(op, met);
    int done = checks > 0 ? maybe_try_complete(op) : checks;
    *completed += done > 0 || (checks > 0 && done < 0 && state_of(op) == SATISFIED); /* a hook may have raised */
    return done < 0 ? -1 : 0;
}

/* Check the operations under a key until `*completed`, the number of completed ones, has reached the limit. 0, or -1
 * with an error. These are about as many as there are at the start. With a limit, each chunk is as long as all before
 * it. */
static int check_watchers(Watchers *watchers, Py_ssize_t limit, Met *met, Py_ssize_t *completed)
{
    Taken taken; /* not all set to zero, which would take as long as a check */
    taken.all = taken.few;
    taken.room = FEW;
    taken.count = taken.begin = 0;
    Py_ssize_t left = watchers_length(watchers), most = limit == PY_SSIZE_T_MAX ? CHUNK : FEW, further;
    int failed = 0;
    while (!failed && left > 0 && *completed < limit) {
        further = take_further(watchers, &taken, most);
        failed = further < 0;
        if (further <= 0)
            break;
        for (Py_ssize_t at = taken.begin; at < taken.count && !failed && *completed < limit; at++)
            failed = check_one(taken.all[at], met, completed);
        left = limit == PY_SSIZE_T_MAX ? left - further : left;
        most = limit == PY_SSIZE_T_MAX || 2 * most > CHUNK ? CHUNK : 2 * most;
        if (left > 0 && !failed)
            drop_ended(watchers, &taken);
    }
    for (Py_ssize_t i = 0; i < taken.count; i++)
        Py_DECREF(taken.all[i]);
    if (taken.all != taken.few)
        PyMem_Free(taken.all);
    return failed ? -1 : 0;
}

/* After an interrupt: pass the rest of a check to the retrier. The error that is set stays set. */
static void retry_rest(Parking *self, PyObject *keys, Py_ssize_t limit, Py_ssize_t completed)
{
    Kept kept = keep_error();
    PyObject *number = limit == PY_SSIZE_T_MAX ? Py_NewRef(Py_None) : PyLong_FromSsize_t(limit - completed);
    int failed = number == NULL || done_call(PyObject_CallFunctionObjArgs(core.retry_rest, self, keys, number, NULL));
    if (failed && PyErr_ExceptionMatches(PyExc_RecursionError))
        PyErr_Clear(); /* the stack is exhausted, so the check is not repeated */
    else if (failed)
        PyErr_WriteUnraisable((PyObject *)self);
    Py_XDECREF(number);
    set_again(kept);
}

/* The number of a `limit`, or PY_SSIZE_T_MAX if there is none. -1 with an error. */
static Py_ssize_t number_of_limit(PyObject *limit)
{
    if (limit == NULL || limit == Py_None)
        return PY_SSIZE_T_MAX;
    int overflow = 0;
    long long number = PyLong_CheckExact(limit) ? PyLong_AsLongLongAndOverflow(limit, &overflow) : 0;
    if (overflow > 0 || number > PY_SSIZE_T_MAX)
        return PY_SSIZE_T_MAX;
    if (number < 1 && done_call(PyObject_CallFunction(core.checked_int, "sOi", "limit", limit, 1)))
        return -1;
    return (Py_ssize_t)number;
}

/* The result of a check. If it found nothing in a closed purgatory, that is logged. -1 stands for an error. */
static PyObject *number_completed(Parking *self, Py_ssize_t completed)
{
    if (completed < 0
        || (completed == 0 && is_closed(self) && done_call(PyObject_CallOneArg(core.checked_when_closed, self->name))))
        return NULL;
    return PyLong_FromSsize_t(completed);
}

/* The watchers of the keys, each once, in order. Returns how many there are, or -1 with an error. */
static Py_ssize_t watchers_of_all(Parking *self, PyObject *keys, Watchers **found, Met *met)
{
    Py_ssize_t number = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        Watchers *watchers = shards_find(self, PyTuple_GET_ITEM(keys, i));
        int is_new = watchers == NULL ? 0 : is_first_time(met, watchers);
        if (is_new > 0)
            found[number++] = watchers;
        else
            Py_XDECREF(watchers);
        if (is_new < 0 || PyErr_Occurred()) {
            while (number > 0)
                Py_DECREF(found[--number]);
            return -1;
        }
    }
    return number;
}
