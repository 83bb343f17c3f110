/* The native implementation of the journal's hot types. The Python module _ledger.py defines what each type does.
 *
 *     Ledger       the rows that the writer has not taken yet: a ring that grows
 *     Recorder     is called by a purgatory for each operation that ends, and adds a row to a ledger
 *
 * A line of a ledger owns the objects that it names until it is taken. It does not keep the operation. Without a global
 * lock, a ledger has a mutex for its ring and its counts. Under it nothing is allocated, freed or called. One thread
 * takes rows at a time: it works on a copy of the lines, and gives up their references after they have left the
 * ledger. */
#include "purgatory/_core/capsule.h"
#include "timer/_common.h"

static struct {
    const PurgatoryCore *purgatory;
    PyTypeObject *ledger_type;
    PyObject *drained; /* the outcome in the row of an operation that a shutdown expired */
} core;

/* ---------------------------------------------------------------- the ledger */

/* One row. What it was watched UNDER: watchers, or a tuple of them. */
enum { SOURCE, TYPE, UNDER, OUTCOME, RAISED, FIELDS };
enum { CREATED, DELAY_MS, LEFT, CHECKS, NUMBERS };
typedef struct {
    PyObject *fields[FIELDS];
    long long numbers[NUMBERS];
} Line;
enum { FIRST_LINES = 1024 };

/* A ring that grows. Any thread adds, and one thread takes at a time. */
typedef struct {
    PyObject_HEAD
    Line *lines;
    Py_ssize_t room, size, first, count; /* size: a power of two, or 0 */
    char taking;
    Mutex mutex;
} Ledger;

static inline Line *line_at(Ledger *self, Py_ssize_t place)
{
    return &self->lines[(self->first + place) & (self->size - 1)];
}

static void drop_line(Line *line)
{
    for (int i = 0; i < FIELDS; i++)
        Py_DECREF(line->fields[i]);
}

/* Double the size. 0, or -1 with an error. */
static int ledger_grow(Ledger *self, Py_ssize_t size)
{
    Py_ssize_t wanted = size == 0 ? FIRST_LINES : 2 * size;
    Line *fresh = PyMem_Calloc((size_t)wanted, sizeof *fresh), *old;
    if (fresh == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    lock_mutex(&self->mutex);
    old = fresh;
    if (self->size == size) { /* no other thread was faster */
        for (Py_ssize_t i = 0; i < self->count; i++)
            fresh[i] = *line_at(self, i);
        old = self->lines;
        self->lines = fresh;
        self->size = wanted;
        self->first = 0;
    }
    unlock_mutex(&self->mutex);
    PyMem_Free(old);
    return 0;
}

/* Add a line: 1 if the ledger took over its references, 0 if it is full, or -1 with an error. */
static int ledger_add(Ledger *self, const Line *line)
{
    for (;;) {
        lock_mutex(&self->mutex);
        Py_ssize_t size = self->size;
        int is_full = self->count >= self->room, fits = !is_full && self->count < size;
        if (fits) {
            *line_at(self, self->count) = *line;
            self->count++;
        }
        unlock_mutex(&self->mutex);
        if (fits || is_full)
            return fits;
        if (ledger_grow(self, size))
            return -1;
    }
}

static int ledger_init(Ledger *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"room", NULL};
    return PyArg_ParseTupleAndKeywords(args, kwargs, "n:Ledger", names, &self->room) ? 0 : -1;
}

static Py_ssize_t ledger_length(Ledger *self)
{
    lock_mutex(&self->mutex);
    Py_ssize_t count = self->count;
    unlock_mutex(&self->mutex);
    return count;
}

static PyObject *ledger_put(Ledger *self, PyObject *row)
{
    Line line;
    PyObject **fields = line.fields;
    long long *numbers = line.numbers;
    row = PySequence_Tuple(row);
    if (row == NULL)
        return NULL;
    int parsed = PyArg_ParseTuple(row, "OOO!OOLLLL:put", &fields[SOURCE], &fields[TYPE], &PyTuple_Type, &fields[UNDER],
                                  &fields[OUTCOME], &fields[RAISED], &numbers[CREATED], &numbers[DELAY_MS],
                                  &numbers[LEFT], &numbers[CHECKS]);
    for (int i = 0; parsed && i < FIELDS; i++)
        Py_INCREF(fields[i]);
    Py_DECREF(row);
    if (!parsed)
        return NULL;
    int done = ledger_add(self, &line);
    if (done < 1)
        drop_line(&line);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Whether two lines are of one group: all their objects are identical. Several watchers are compared one by one. */
static int is_same_group(const Line *a, const Line *b)
{
    for (int i = 0; i < FIELDS; i++)
        if (i != UNDER && a->fields[i] != b->fields[i])
            return 0;
    PyObject *under = a->fields[UNDER], *other = b->fields[UNDER];
    if (under == other)
        return 1;
    if (!PyTuple_CheckExact(under) || !PyTuple_CheckExact(other) || PyTuple_GET_SIZE(under) != PyTuple_GET_SIZE(other))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(under); i++)
        if (PyTuple_GET_ITEM(under, i) != PyTuple_GET_ITEM(other, i))
            return 0;
    return 1;
}

static inline uint64_t mixed(uint64_t hash, const void *pointer)
{
    hash = (hash ^ (uint64_t)(uintptr_t)pointer) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

static uint64_t group_hash(const Line *line)
{
    uint64_t hash = 0;
    PyObject *under = line->fields[UNDER];
    for (int i = 0; i < FIELDS; i++)
        if (i != UNDER)
            hash = mixed(hash, line->fields[i]);
    if (!PyTuple_CheckExact(under))
        return mixed(hash, under);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(under); i++)
        hash = mixed(hash, PyTuple_GET_ITEM(under, i));
    return hash;
}

/* What a line was watched under as a tuple: a new reference, or NULL with an error. */
static PyObject *under_of(const Line *line)
{
    PyObject *under = line->fields[UNDER];
    return PyTuple_CheckExact(under) ? Py_NewRef(under) : PyTuple_Pack(1, under);
}

static int append_group(PyObject *groups, const Line *line)
{
    PyObject *under = under_of(line), *const *of = line->fields;
    PyObject *group = under == NULL ? NULL : PyTuple_Pack(FIELDS, of[SOURCE], of[TYPE], under, of[OUTCOME], of[RAISED]);
    int failed = group == NULL || PyList_Append(groups, group);
    Py_XDECREF(under);
    Py_XDECREF(group);
    return failed ? -1 : 0;
}

/* Find the groups of some lines: as tuples in `groups`, and the number of each line's group in `index`. The table has a
 * power of two of places, at least twice as many as lines, all zero. A place holds the number of a group plus one. 0,
 * or -1 with an error. */
static int group_lines(const Line *lines, Py_ssize_t count, uint32_t *table, Py_ssize_t places, uint32_t *first_of,
                       PyObject *groups, uint32_t *index)
{
    uint32_t known = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i > 0 && is_same_group(&lines[i], &lines[i - 1])) {
            index[i] = index[i - 1];
            continue;
        }
        Py_ssize_t place = (Py_ssize_t)(group_hash(&lines[i]) & (uint64_t)(places - 1));
        while (table[place] != 0 && !is_same_group(&lines[i], &lines[first_of[table[place] - 1]]))
            place = (place + 1) & (places - 1);
        if (table[place] == 0) {
            if (append_group(groups, &lines[i]))
                return -1;
            first_of[known] = (uint32_t)i;
            table[place] = ++known;
        }
        index[i] = table[place] - 1;
    }
    return 0;
}

/* Lines as (groups, the group of each line, created, delay_ms, left, checks). NULL with an error. */
static PyObject *as_columns(const Line *lines, Py_ssize_t count)
{
    Py_ssize_t places = 2;
    while (places < 2 * count)
        places *= 2;
    uint32_t *table = PyMem_Calloc((size_t)(places + count) + 1, sizeof *table);
    PyObject *groups = PyList_New(0), *index = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(uint32_t));
    PyObject *columns[NUMBERS], *taken = NULL;
    int failed = table == NULL || groups == NULL || index == NULL;
    for (int which = 0; which < NUMBERS; which++) {
        columns[which] = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(long long));
        failed |= columns[which] == NULL;
        for (Py_ssize_t i = 0; !failed && i < count; i++)
            ((long long *)PyBytes_AS_STRING(columns[which]))[i] = lines[i].numbers[which];
    }
    if (failed)
        PyErr_NoMemory();
    else if (!group_lines(lines, count, table, places, table + places, groups, (uint32_t *)PyBytes_AS_STRING(index)))
        taken = Py_BuildValue("(OOOOOO)", groups, index, columns[0], columns[1], columns[2], columns[3]);
    for (int which = 0; which < NUMBERS; which++)
        Py_XDECREF(columns[which]);
    Py_XDECREF(groups);
    Py_XDECREF(index);
    PyMem_Free(table);
    return taken;
}

/* The first rows, up to `most`, as columns. The rows are copied, and leave the ledger after all that could fail is
 * done. */
static PyObject *ledger_take(Ledger *self, PyObject *most)
{
    Py_ssize_t count = PyNumber_AsSsize_t(most, PyExc_OverflowError);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    lock_mutex(&self->mutex);
    Py_ssize_t there = self->count; /* while `taking` is set, other threads only add to these */
    int is_ours = !self->taking;
    self->taking = 1;
    unlock_mutex(&self->mutex);
    if (!is_ours) {
        PyErr_SetString(PyExc_RuntimeError, "another thread takes rows from this ledger; call take() in one thread");
        return NULL;
    }
    count = count < 0 ? 0 : count < there ? count : there;
    if (count > INT32_MAX) /* the rest is taken next time */
        count = INT32_MAX;
    Line *lines = PyMem_Calloc((size_t)count + 1, sizeof *lines);
    if (lines == NULL)
        PyErr_NoMemory();
    else {
        lock_mutex(&self->mutex);
        for (Py_ssize_t i = 0; i < count; i++)
            lines[i] = *line_at(self, i);
        unlock_mutex(&self->mutex);
    }
    PyObject *taken = lines == NULL ? NULL : as_columns(lines, count);
    lock_mutex(&self->mutex);
    if (taken != NULL) {
        self->count -= count;
        self->first = self->count == 0 ? 0 : (self->first + count) & (self->size - 1);
    }
    self->taking = 0;
    unlock_mutex(&self->mutex);
    for (Py_ssize_t i = 0; taken != NULL && i < count; i++)
        drop_line(&lines[i]);
    PyMem_Free(lines);
    return taken;
}

/* Remove the first row. Returns 0 if there is none, or if another thread takes rows. */
static int drop_first(Ledger *self)
{
    Line line;
    lock_mutex(&self->mutex);
    int is_one = self->count > 0 && !self->taking;
    if (is_one) {
        line = *line_at(self, 0);
        self->first = (self->first + 1) & (self->size - 1);
        self->count--;
    }
    unlock_mutex(&self->mutex);
    if (is_one)
        drop_line(&line);
    return is_one;
}

/* Remove the first rows, up to `most`, without reading them. Returns how many. */
static PyObject *ledger_drop(Ledger *self, PyObject *most)
{
    Py_ssize_t count = PyNumber_AsSsize_t(most, PyExc_OverflowError), done = 0;
    if (count == -1 && PyErr_Occurred())
        return NULL;
    while (done < count && drop_first(self))
        done++;
    return PyLong_FromSsize_t(done);
}

/* In a forked child: free the mutex, and accept no more rows, because no thread takes them. Another thread of the parent
 * may have been taking some. */
static PyObject *ledger_after_fork(Ledger *self, PyObject *Py_UNUSED(none))
{
#ifdef Py_GIL_DISABLED
    self->mutex = (PyMutex){0};
#endif
    self->taking = 0;
    self->room = 0;
    Py_RETURN_NONE;
}

static int ledger_traverse(Ledger *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < self->count; i++)
        for (int field = 0; field < FIELDS; field++)
            Py_VISIT(line_at(self, i)->fields[field]);
    return 0;
}

static int ledger_clear(Ledger *self)
{
    while (drop_first(self))
        ;
    return 0;
}

DEALLOC(Ledger, ledger, PyMem_Free(self->lines))

static PyMethodDef ledger_methods[] = {
    {"put", (PyCFunction)ledger_put, METH_O, "put($self, row, /)\n--\n\n"},
    {"take", (PyCFunction)ledger_take, METH_O, "take($self, most, /)\n--\n\n"},
    {"drop", (PyCFunction)ledger_drop, METH_O, "drop($self, most, /)\n--\n\n"},
    {"after_fork", (PyCFunction)ledger_after_fork, METH_NOARGS, NULL},
    {NULL}};

static PyType_Slot ledger_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, ledger_init}, COLLECTED(ledger), {Py_tp_methods, ledger_methods},
    {Py_sq_length, ledger_length}, {0, NULL}};

static PyType_Spec ledger_spec = {"purgatory.journal._native.Ledger", sizeof(Ledger), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, ledger_slots};

/* ---------------------------------------------------------------- the recorder */

/* What it is made of beside its ledger. The first is the SOURCE of its lines. CLOCK and SOURCE_OF may be None. */
enum { CLOCK = SOURCE + 1, SOURCE_OF, REFUSE, OTHER, PARTS };
typedef struct {
    PyObject_HEAD
    Ledger *ledger;
    PyObject *parts[PARTS]; /* owned */
} Recorder;

/* The time of the clock. 0, or -1 with an error. */
static int recorder_now(Recorder *self, int64_t *now_ns)
{
    if (self->parts[CLOCK] == Py_None && read_system_clock(now_ns))
        return 0;
    PyObject *answer;
    if (self->parts[CLOCK] == Py_None) {
        PyObject *module = PyImport_ImportModule("time");
        answer = module == NULL ? NULL : PyObject_CallMethod(module, "monotonic_ns", NULL);
        Py_XDECREF(module);
    }
    else
        answer = PyObject_CallNoArgs(self->parts[CLOCK]);
    if (answer != NULL && PyFloat_Check(answer)) /* the observer rejects such a clock, but this one has changed */
        Py_SETREF(answer, PyNumber_Long(answer));
    int failed = answer == NULL || saturated(answer, now_ns) ? -1 : 0;
    Py_XDECREF(answer);
    return failed;
}

/* The times of an operation: 1, or 0 if it was not initialized. */
static int times_of(TimerEntry *entry, int64_t left, long long *created, long long *delay_ms)
{
    int64_t delay = __atomic_load_n(&entry->delay_ms, __ATOMIC_RELAXED);
    int64_t due = __atomic_load_n(&entry->deadline_ns, __ATOMIC_RELAXED);
    int64_t moved_by_ns = __atomic_load_n(&entry->moved_by_ns, __ATOMIC_RELAXED);
    if (delay == TIMER_UNSET)
        return 0;
    *created = left; /* an operation that was never parked ended at once */
    if (due != 0) /* it was in a timer, so all of these are far from the end of 64 bits */
        *created = (int64_t)((uint64_t)due - (uint64_t)moved_by_ns - (uint64_t)delay * 1000000u);
    *delay_ms = delay + moved_by_ns / 1000000 + (moved_by_ns % 1000000 > 0);
    return 1;
}

/* Call `refuse` with the line as one tuple. */
static int recorder_refuse(Recorder *self, const Line *line)
{
    PyObject *under = under_of(line), *const *of = line->fields;
    const long long *numbers = line->numbers;
    if (under == NULL)
        return -1;
    PyObject *answer = PyObject_CallFunction(self->parts[REFUSE], "((OOOOOLLLL))", of[SOURCE], of[TYPE], under,
                                             of[OUTCOME], of[RAISED], numbers[CREATED], numbers[DELAY_MS],
                                             numbers[LEFT], numbers[CHECKS]);
    Py_DECREF(under);
    return done_call(answer);
}

static PyObject *recorder_finished(Recorder *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "finished() takes an operation, its outcome and an error or None");
        return NULL;
    }
    if (self->ledger == NULL || self->parts[OTHER] == NULL) /* without __init__, or cleared by the collector */
        Py_RETURN_NONE;
    PyObject *op = given[0];
    Line line;
    int64_t left;
    long long *numbers = line.numbers;
    int done = -1;
    PyObject *source_of = self->parts[SOURCE_OF];
    PyObject *source = source_of == Py_None ? Py_NewRef(self->parts[SOURCE]) : PyObject_CallOneArg(source_of, op);
    if (source == NULL || recorder_now(self, &left))
        ;
    else if (!PyObject_TypeCheck(op, core.purgatory->operation_type)
             || !times_of((TimerEntry *)op, left, &numbers[CREATED], &numbers[DELAY_MS]))
        done = done_call(PyObject_CallFunction(self->parts[OTHER], "OOOOL", source, op, given[1], given[2],
                                               (long long)left));
    else if ((line.fields[UNDER] = core.purgatory->under(op)) != NULL) {
        line.fields[SOURCE] = Py_NewRef(source);
        line.fields[TYPE] = Py_NewRef(Py_TYPE(op));
        line.fields[OUTCOME] = Py_NewRef(core.purgatory->drained(op) ? core.drained : given[1]);
        line.fields[RAISED] = Py_NewRef(given[2]);
        numbers[LEFT] = left;
        numbers[CHECKS] = core.purgatory->checks(op);
        int added = ledger_add(self->ledger, &line); /* 1: the ledger owns the references now */
        done = added == 0 ? recorder_refuse(self, &line) : added;
        if (added < 1)
            drop_line(&line);
    }
    Py_XDECREF(source);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int recorder_init(Recorder *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ledger", "source", "clock", "source_of", "refuse", "other", NULL};
    PyObject *ledger, *given[PARTS];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOOO:Recorder", names, core.ledger_type, &ledger, &given[SOURCE],
                                     &given[CLOCK], &given[SOURCE_OF], &given[REFUSE], &given[OTHER]))
        return -1;
    Py_XSETREF(self->ledger, (Ledger *)Py_NewRef(ledger));
    for (int part = 0; part < PARTS; part++)
        Py_XSETREF(self->parts[part], Py_NewRef(given[part]));
    return 0;
}

static int recorder_traverse(Recorder *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)self->ledger);
    for (int part = 0; part < PARTS; part++)
        Py_VISIT(self->parts[part]);
    return 0;
}

/* Its callables may refer to it. A cleared recorder records nothing. */
static int recorder_clear(Recorder *self)
{
    Py_CLEAR(self->ledger);
    for (int part = 0; part < PARTS; part++)
        Py_CLEAR(self->parts[part]);
    return 0;
}

DEALLOC(Recorder, recorder, (void)0)

static PyMethodDef recorder_methods[] = {
    {"finished", (PyCFunction)(void (*)(void))recorder_finished, METH_FASTCALL,
     "finished($self, operation, outcome, error, /)\n--\n\n"},
    {NULL}};

static PyType_Slot recorder_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, recorder_init}, COLLECTED(recorder),
    {Py_tp_methods, recorder_methods}, {0, NULL}};

static PyType_Spec recorder_spec = {"purgatory.journal._native.Recorder", sizeof(Recorder), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, recorder_slots};

/* ---------------------------------------------------------------- the module */

static PyTypeObject *make_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *made = (PyTypeObject *)PyType_FromSpec(spec);
    return made == NULL || PyModule_AddType(module, made) ? NULL : made;
}

static int fill(PyObject *module)
{
    static char is_loaded;
    if (!may_load(&is_loaded, "purgatory.journal._native"))
        return -1;
    core.purgatory = PyCapsule_Import(PURGATORY_CORE_CAPSULE, 0);
    if (core.purgatory == NULL)
        return -1;
    if (core.purgatory->version != PURGATORY_CORE_VERSION) {
        PyErr_SetString(PyExc_ImportError, "purgatory._native and purgatory.journal._native were not built together");
        return -1;
    }
    Py_XSETREF(core.drained, PyUnicode_InternFromString("drained"));
    if (core.drained == NULL)
        return -1;
    core.ledger_type = make_type(module, &ledger_spec);
    if (core.ledger_type == NULL || make_type(module, &recorder_spec) == NULL)
        return -1;
    is_loaded = 1;
    return 0;
}

static PyModuleDef_Slot module_slots[] = MODULE_SLOTS(fill);

static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "purgatory.journal._native",
                             .m_doc = "The native implementation of the journal's hot types.", .m_slots = module_slots};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
