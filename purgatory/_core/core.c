/* The native implementation of the purgatory's hot types: purgatory._native.
 *
 * The Python module that each file names defines what its type does, and has the same numbered steps, under the same
 * names (a test compares them). The files here, in the order in which this one includes them:
 *
 *     core.h             the structs, the objects that all parts share, their locks
 *     hooks.c            how much of the C stack is left, and the user's lock of an operation
 *     observers.c        calls of hooks. ObserverFlags: whether there are observers of an event
 *     shards.c           Watchers: the operations under one key. Shard: keys and counters. The shard of a key
 *     idle_keys.c        IdleKeys: the queue of keys without operations, linked through their watchers
 *     snapshot.c         visit: what a snapshot reads of each key
 *     operation.c        Operation: its steps, methods and attributes
 *     arguments.c        the arguments of try_complete_else_watch
 *     parking.c          Parking: try_complete_else_watch and check_and_complete
 *     missed.c           what the witnesses of missed checks need
 *
 * References:
 *
 *  - A list of watchers owns one reference to the operation of each link in it. So a freed operation is under no key. A
 *    link is part of its operation: the first link is in the operation itself, the links of further keys are in one
 *    array that the operation owns.
 *  - A link owns one reference to its watchers until its operation is freed. So an operation with an outcome still
 *    knows its keys, and freed watchers are in no link.
 *  - `before` and `after` of a link are borrowed: those links are in the same list.
 *  - The queue of idle keys owns a reference to its first watchers, and each of those owns one to the next.
 *  - Watchers own their shard, and a shard owns its keys. The garbage collector breaks this cycle once the purgatory is
 *    not referenced any more.
 *
 * A key is forgotten without a call of its __hash__ and __eq__, which are the user's code. The dict entry is deleted by
 * its watchers: they have the key's hash, and closed watchers equal only themselves and that key object. A key with
 * code of its own is represented in the dict by its watchers, which compare it for lookups. So a lookup that meets
 * closed watchers calls no user code, and no Python runs between "no operation is parked here" and the deletion.
 *
 * Threads. With a global lock, each stretch of C between two calls of Python is one step. Without one, an operation has
 * a mutex for its state, turn and links, and a shard has one for its counters and for the lists and marks of its keys.
 * They are taken in this order: operation, shard. The mutex of the idle keys is taken alone. Under a mutex nothing is
 * allocated, freed or called. References are given up after it is released.
 *
 * The limits of operations (places.py) are Python, and so are rare paths: rejections, contained errors, retries. `bind`
 * takes these functions from purgatory._core.rare. */
#include "purgatory/_core/core.h"

#include "purgatory/_core/hooks.c"
#include "purgatory/_core/observers.c"
#include "purgatory/_core/shards.c"
#include "purgatory/_core/idle_keys.c"
#include "purgatory/_core/snapshot.c"
#include "purgatory/_core/operation.c"
#include "purgatory/_core/arguments.c"
#include "purgatory/_core/parking.c"
#include "purgatory/_core/missed.c"

/* ---------------------------------------------------------------- for other C */

static PyObject *capsule_under(PyObject *operation)
{
    Operation *op = (Operation *)operation;
    if (__atomic_load_n(&op->further_count, __ATOMIC_ACQUIRE) > 0)
        return watches_of(op);
    lock_operation(op); /* another thread may be parking it */
    PyObject *under = Py_XNewRef((PyObject *)op->first.under);
    unlock_operation(op);
    return under == NULL ? PyTuple_New(0) : under;
}

static int capsule_checks(PyObject *operation) { return checks_of((Operation *)operation); }

static int capsule_drained(PyObject *operation)
{
    Operation *op = (Operation *)operation;
    return state_of(op) == EXPIRED && flag_of(&op->overdue) == DRAINED;
}

static PurgatoryCore for_others = {
    .version = PURGATORY_CORE_VERSION,
    .under = capsule_under,
    .checks = capsule_checks,
    .drained = capsule_drained};

/* ---------------------------------------------------------------- the module */

#define RARE_ROW(name) {&core.name, #name},
#define NAME_ROW(name) {&core.str_##name, #name},

/* bind(module): take what stays in Python from purgatory._core.rare, which calls it once. */
static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *given)
{
    const Name wanted[] = {RARE_THINGS(RARE_ROW)};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *found = PyObject_GetAttrString(given, wanted[i].text);
        if (found == NULL)
            return NULL;
        Py_XSETREF(*wanted[i].place, found);
    }
    Py_RETURN_NONE;
}

static int make_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base, PyTypeObject **into)
{
    PyObject *bases = base == NULL ? NULL : PyTuple_Pack(1, base);
    if (base != NULL && bases == NULL)
        return -1;
    *into = (PyTypeObject *)PyType_FromSpecWithBases(spec, bases);
    Py_XDECREF(bases);
    return *into == NULL ? -1 : PyModule_AddType(module, *into);
}

static int fill(PyObject *module)
{
    static char is_loaded;
    if (!may_load(&is_loaded, "purgatory._native"))
        return -1;
    core.timer = PyCapsule_Import(TIMER_CORE_CAPSULE, 0);
    if (core.timer == NULL)
        return -1;
    if (core.timer->version != TIMER_CORE_VERSION || core.timer->entry_size != sizeof(TimerEntry)) {
        PyErr_SetString(PyExc_ImportError, "timer._native and purgatory._native were not built together");
        return -1;
    }
    const Name names[] = {NAMES(NAME_ROW)};
    if (make_names(names, sizeof names / sizeof *names)
        || make_type(module, &flags_spec, NULL, &core.observer_flags)
        || make_type(module, &watchers_spec, NULL, &core.watchers)
        || make_type(module, &idle_spec, NULL, &core.idle_keys) || make_type(module, &shard_spec, NULL, &core.shard)
        || make_type(module, &operation_spec, core.timer->entry_type, &core.operation)
        || make_type(module, &parking_spec, NULL, &core.parking))
        return -1;
    core.timer->run_by(core.operation, (PyCFunction)operation_run);
    for_others.operation_type = core.operation;
    PyObject *capsule = PyCapsule_New(&for_others, PURGATORY_CORE_CAPSULE, NULL);
    int failed = capsule == NULL || PyModule_AddObjectRef(module, "CAPSULE", capsule);
    Py_XDECREF(capsule);
    if (failed)
        return -1;
    is_loaded = 1;
    return 0;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, NULL},
    {"visit", (PyCFunction)(void (*)(void))visit, METH_FASTCALL, NULL},
    {"watch_only", (PyCFunction)(void (*)(void))watch_only, METH_FASTCALL, NULL},
    {"unwatch", unwatch, METH_O, NULL},
    {NULL}};

static PyModuleDef_Slot module_slots[] = MODULE_SLOTS(fill);

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "purgatory._native",
    .m_doc = "The native implementation of the purgatory's hot types.",
    .m_methods = functions, .m_slots = module_slots};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
