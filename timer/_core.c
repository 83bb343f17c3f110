/* The native implementation of the timer's hot types: timer._native.
 *
 * Each file repeats the Python module of its name, which defines what it does. The parts, in the order in which this file
 * includes them, with the functions that both texts have, under the same names except for `_` in front:
 *
 *     _core.h          the structs, the objects that all parts share, their locks
 *     _task.c          TimerTaskEntry: whole_delay_ms, deadline_ns, added_ns, _task_withdraw (which is cancel)
 *     _bucket.c        TimerTaskList, a linked list: remove, take, _head, close, close_if_empty
 *     _wheel.c         TimingWheel: find_bucket, place, cascade
 *     _timer.c         SystemTimer, if the bucket is there already: add, reschedule, _find_bucket
 *     _running.c       call, calls, wake_at_next_call: which calls of tasks and hooks run now
 *     _dispatch.c      Tally: add, count. DueTasks, of a batch: _gather, run_tasks, _claim, _run_task
 *
 * timer/_capsule.h says which struct owns what. Rare cases are left to Python: a new bucket (SystemTimer._add_slowly calls
 * TimingWheel.bucket_for), a delay that is not an int, a closed timer, a task that raises.
 *
 * Adding, cancelling, rescheduling and claiming do not take the timer's lock. With a global lock, each stretch of C
 * between two calls of Python is one step. So no thread sees a task between two buckets, and `closed` is read in the
 * step that inserts. Only the structure of the wheel needs the timer's lock, and only Python changes it.
 *
 * Without a global lock, two threads must not write to the same memory, or they are no faster than one. That includes
 * reference counts. So each thread gets one of LANES lanes at its first call. A timer has a cache per lane, which
 * remembers the buckets that these threads found last, and a bucket has a list per lane. An entry stays in its lane.
 * The tasks of a bucket are listed lane by lane, so tasks of different threads are not in order of arrival. A batch
 * sorts them by deadline. A clock that is advanced manually can give many tasks one deadline, so a timer with such a
 * clock uses one lane. */
#include "timer/_core.h"

#include "timer/_task.c"
#include "timer/_bucket.c"
#include "timer/_wheel.c"
#include "timer/_timer.c"
#include "timer/_running.c"
#include "timer/_dispatch.c"

/* ---------------------------------------------------------------- for other C */

/* Whether a method of a timer is this function: neither its class nor the timer itself has another one. */
static int is_own(PyObject *timer, PyObject *name, PyCFunction function)
{
    PyObject *method = PyObject_GetAttr(timer, name);
    int same = method != NULL && PyCFunction_Check(method) && PyCFunction_GET_FUNCTION(method) == function
               && PyCFunction_GET_SELF(method) == timer;
    Py_XDECREF(method);
    PyErr_Clear();
    return same;
}

static int is_native(PyObject *timer)
{
    return PyObject_TypeCheck(timer, core.quick_timer)
           && is_own(timer, core.str_add, (PyCFunction)(void (*)(void))quick_add)
           && is_own(timer, core.str_reschedule, (PyCFunction)(void (*)(void))quick_reschedule);
}

static void run_by(PyTypeObject *type, PyCFunction run)
{
    core.run_type = type;
    core.run = run;
}

static TimerCore for_others = {
    .version = TIMER_CORE_VERSION, .entry_size = sizeof(TimerEntry), .whole_delay_ms = whole_delay_ms,
    .init = entry_init_delay, .is_native = is_native, .run_by = run_by, .add = add, .reschedule = reschedule, .withdraw = withdraw,
    .set_deadline = set_deadline, .begin = begin};

/* ---------------------------------------------------------------- the module */

/* The types. A second import of the module finds the same ones. The last one is missing until all are made. */
static const struct {
    PyType_Spec *spec;
    PyTypeObject **type;
} types[] = {{&bucket_spec, &core.bucket}, {&quick_spec, &core.quick_timer}, {&tally_spec, &core.tally},
             {&due_spec, &core.due}, {&entry_spec, &core.entry}};
enum { TYPES = sizeof types / sizeof *types };

/* Once per process. 0, or -1 with an error. */
static int make_core(void)
{
    if (core.entry != NULL)
        return 0;
    const Name names[] = {{&core.str_add, "add"}, {&core.str_add_slowly, "_add_slowly"}, {&core.str_hand, "hand"},
                          {&core.str_levels, "levels"}, {&core.str_place, "place"}, {&core.str_run, "run"},
                          {&core.str_start_ns, "_start_ns"}, {&core.str_tick_ns, "_tick_ns"},
                          {&core.str_reschedule, "reschedule"}, {&core.str_reschedule_slowly, "_reschedule_slowly"},
                          {&core.str_slot, "timer._native.slot"}};
    core.system_clock = imported("time", "monotonic_ns");
    core.no_arguments = PyTuple_New(0);
    if (core.system_clock == NULL || core.no_arguments == NULL || make_names(names, sizeof names / sizeof *names))
        return -1;
    if (free_mutexes_after_fork()) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < TYPES; i++)
        if ((*types[i].type = (PyTypeObject *)PyType_FromSpec(types[i].spec)) == NULL)
            return -1;
    for_others.entry_type = core.entry;
    return PyObject_SetAttrString((PyObject *)core.entry, "_task_is_owned", Py_False);
}

static int fill(PyObject *module)
{
    static char is_loaded;
    if (!may_load(&is_loaded, "timer._native"))
        return -1;
    if (make_core())
        return -1;
    for (int i = 0; i < TYPES; i++)
        if (PyModule_AddType(module, *types[i].type))
            return -1;
    PyObject *capsule = PyCapsule_New(&for_others, TIMER_CORE_CAPSULE, NULL);
    int failed = capsule == NULL || PyModule_AddObjectRef(module, "CAPSULE", capsule);
    Py_XDECREF(capsule);
    is_loaded = !failed;
    return failed ? -1 : 0;
}

/* set_doc(attribute, doc): give a method or an attribute of a native type a docstring, which is kept for good. */
static PyObject *set_doc(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *attribute;
    const char *doc;
    if (!PyArg_ParseTuple(args, "Os:set_doc", &attribute, &doc))
        return NULL;
    size_t size = strlen(doc) + 1;
    char *kept = PyMem_Malloc(size);
    if (kept == NULL)
        return PyErr_NoMemory();
    memcpy(kept, doc, size);
    if (Py_IS_TYPE(attribute, &PyMethodDescr_Type))
        ((PyMethodDescrObject *)attribute)->d_method->ml_doc = kept;
    else if (Py_IS_TYPE(attribute, &PyGetSetDescr_Type))
        ((PyGetSetDescrObject *)attribute)->d_getset->doc = kept;
    else
        PyMem_Free(kept);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"cascade", (PyCFunction)(void (*)(void))cascade, METH_FASTCALL, NULL},
    {"set_doc", set_doc, METH_VARARGS, NULL},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL},
    {"calls", calls, METH_NOARGS, NULL},
    {"wake_at_next_call", wake_at_next_call, METH_O, NULL},
    {"name_threads_by", name_threads_by, METH_O, NULL},
    {NULL}};

static PyModuleDef_Slot module_slots[] = MODULE_SLOTS(fill);

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "timer._native", .m_doc = "The native implementation of the timer's hot types.",
    .m_methods = functions, .m_slots = module_slots};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
