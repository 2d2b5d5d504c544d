/* read_pull: what a broker needs of the frame of a pull, without a Python object for each field. */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "pull_header.h"

enum { NO_FIELD = 0xFFFFFFFF };

/* The checked fields, each behind its length, and the code; the same for pulls that agree in all of
 * them. */
static PyObject *key_of(const PullHeader *pull) {
    size_t size = 4 + 4 * PULL_CHECKED_FIELDS;
    for (int field = 0; field < PULL_CHECKED_FIELDS; field++)
        size += pull->checked[field].start == NULL ? 0 : pull->checked[field].size;
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (key == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(key);
    store_u32(at, (uint32_t)pull->code);
    at += 4;
    for (int field = 0; field < PULL_CHECKED_FIELDS; field++) {
        Span text = pull->checked[field];
        store_u32(at, text.start == NULL ? NO_FIELD : (uint32_t)text.size);
        at += 4;
        if (text.start != NULL)
            at = put_span(at, text);
    }
    return key;
}

PyObject *read_pull_request(PyObject *module, PyObject *arguments) {
    (void)module;
    const char *data;
    Py_ssize_t size, position;
    if (!PyArg_ParseTuple(arguments, "y#n", &data, &size, &position))
        return NULL;
    if (position < 0 || position > size) {
        PyErr_SetString(PyExc_ValueError, "read_pull() got a position outside the data");
        return NULL;
    }
    Cursor cursor = cursor_of((Span){(const uint8_t *)data, (size_t)size});
    read_bytes(&cursor, (size_t)position);
    PullHeader pull;
    if (!read_pull(&cursor, &pull))
        Py_RETURN_NONE;
    PyObject *key = key_of(&pull);
    if (key == NULL)
        return NULL;
    return Py_BuildValue("(nNiiLLiiL)", size - (Py_ssize_t)bytes_left(&cursor), key,
                         pull.serialize_type, pull.opaque, (long long)pull.queue_offset,
                         (long long)pull.commit_offset, pull.max_count, pull.max_bytes,
                         (long long)pull.suspend_ms);
}
