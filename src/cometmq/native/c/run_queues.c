/* extend_tails and advance_queues: the units of a run go into its queues.
 *
 * As `append_encoded` of store/append/appender.py, between whose writes to the log they stand: the
 * tails grow before it, since a tail that a reader has exported cannot, and the queues show their
 * messages behind it.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

enum { QUEUE, UNITS, NEXT_OFFSET, FIRST_POSITION, FIELD_COUNT };

static PyObject *tail_name, *max_name, *visible_name, *is_dirty_name;

bool run_queues_prepare(void) {
    tail_name = PyUnicode_InternFromString("tail");
    max_name = PyUnicode_InternFromString("max");
    visible_name = PyUnicode_InternFromString("visible");
    is_dirty_name = PyUnicode_InternFromString("is_dirty");
    return tail_name != NULL && max_name != NULL && visible_name != NULL && is_dirty_name != NULL;
}

/* The queue of a run with a number: (queue, units, next queue offset, first position); NULL with an
 * exception. */
static PyObject *queue_of_run(PyObject *queues, Py_ssize_t number) {
    PyObject *queue = PyList_GetItem(queues, number);
    if (queue != NULL && (!PyTuple_Check(queue) || PyTuple_Size(queue) != FIELD_COUNT)) {
        PyErr_SetString(PyExc_TypeError, "a queue of a run has four fields");
        return NULL;
    }
    return queue;
}

/* Add units to the tail of a queue; false with an exception. */
static bool extend_tail(PyObject *queue, PyObject *units) {
    char *bytes;
    Py_ssize_t size;
    PyObject *tail = PyObject_GetAttr(queue, tail_name);
    bool is_done = tail != NULL && PyBytes_AsStringAndSize(units, &bytes, &size) == 0;
    if (is_done && !PyByteArray_Check(tail)) {
        PyErr_SetString(PyExc_TypeError, "the tail of a queue is a bytearray");
        is_done = false;
    }
    if (is_done) {
        Py_ssize_t before = PyByteArray_Size(tail);
        is_done = size <= PY_SSIZE_T_MAX - before && PyByteArray_Resize(tail, before + size) == 0;
        if (is_done)
            memcpy(PyByteArray_AsString(tail) + before, bytes, (size_t)size);
        else if (!PyErr_Occurred())
            PyErr_NoMemory();
    }
    Py_XDECREF(tail);
    return is_done;
}

PyObject *extend_tails(PyObject *module, PyObject *queues) {
    (void)module;
    for (Py_ssize_t i = 0, count = PyList_Size(queues); i < count; i++) {
        PyObject *queue = queue_of_run(queues, i);
        if (queue == NULL || !extend_tail(PyTuple_GetItem(queue, QUEUE),
                                          PyTuple_GetItem(queue, UNITS)))
            return NULL;
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Move the ends of a queue, and let `mark` note it if it has no unsaved units yet; false with an
 * exception. */
static bool advance_queue(PyObject *run_queue, bool is_visible, PyObject *mark,
                          PyObject *store_ms) {
    PyObject *queue = PyTuple_GetItem(run_queue, QUEUE);
    PyObject *next_offset = PyTuple_GetItem(run_queue, NEXT_OFFSET);
    if (PyObject_SetAttr(queue, max_name, next_offset) < 0 ||
        (is_visible && PyObject_SetAttr(queue, visible_name, next_offset) < 0))
        return false;
    PyObject *is_dirty = PyObject_GetAttr(queue, is_dirty_name);
    if (is_dirty == NULL)
        return false;
    Py_DECREF(is_dirty);
    if (is_dirty == Py_True)
        return true;
    PyObject *marked = PyObject_CallFunctionObjArgs(
        mark, queue, PyTuple_GetItem(run_queue, FIRST_POSITION), store_ms, NULL);
    Py_XDECREF(marked);
    return marked != NULL;
}

PyObject *advance_queues(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *queues, *mark, *store_ms;
    int is_visible;
    if (!PyArg_ParseTuple(arguments, "O!pOO", &PyList_Type, &queues, &is_visible, &mark, &store_ms))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(queues); i++) {
        PyObject *queue = queue_of_run(queues, i);
        if (queue == NULL)
            return NULL;
        /* `mark` is Python, which could change the list. */
        Py_INCREF(queue);
        bool is_advanced = advance_queue(queue, is_visible, mark, store_ms);
        Py_DECREF(queue);
        if (!is_advanced)
            return NULL;
    }
    Py_RETURN_NONE;
}
