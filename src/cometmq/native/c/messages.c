/* cut_messages, record_body, record_property and decode_record: what a consumer reads of a pull answer.
 *
 * They give what split_messages of client/message/message.py and decode_message of
 * codec/stored_message.py give.  A record is plain where its magic is that of version 1, both
 * hosts are IPv4, the lengths of its parts add up to its total size, and its topic is ASCII.  Each
 * function stops, with None, at the first record that is not; Python then reads it, or says what
 * is wrong with it.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "record.h"

static PyObject *bytes_of(Span span) {
    return PyBytes_FromStringAndSize((const char *)span.start, (Py_ssize_t)span.size);
}

/* A cursor at a position of a bytes object; false with an exception where that is not in it. */
static bool cursor_at(PyObject *buffer, Py_ssize_t position, Cursor *cursor) {
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(buffer, &start, &size) < 0)
        return false;
    *cursor = cursor_of((Span){(const uint8_t *)start, (size_t)size});
    if (position < 0 || read_bytes(cursor, (size_t)position) == NULL) {
        PyErr_SetString(PyExc_ValueError, "a record's position is not in the buffer");
        return false;
    }
    return true;
}

/* Read the record at a position of a bytes object; 1: it is plain, 0: stop, -1: an exception. */
static int read_plain_record(PyObject *buffer, Py_ssize_t position, Record *record) {
    Cursor cursor;
    if (!cursor_at(buffer, position, &cursor))
        return -1;
    return read_record(&cursor, record) && record->magic == MAGIC_V1 &&
           (record->sys_flag & SYS_FLAG_ANY_V6) == 0 && is_ascii(record->topic);
}

/* -- cut_messages ------------------------------------------------------------------------------ */

/* Add a message of (queue, queue offset, size, buffer, position); false with an exception. */
static bool add_message(PyObject *messages, PyObject *type, PyObject *queue, PyObject *buffer,
                        Span record, Py_ssize_t position) {
    PyObject *fields = Py_BuildValue("(OLnOn)", queue, (long long)queue_offset_of(record),
                                     (Py_ssize_t)record.size, buffer, position);
    if (fields == NULL)
        return false;
    PyObject *message = PyObject_Call(type, fields, NULL);
    Py_DECREF(fields);
    return append_new(messages, message);
}

/* Add a message for each record; 1: done, 0: stop, -1: an exception. */
static int add_messages(PyObject *messages, PyObject *buffer, PyObject *queue, PyObject *type) {
    Cursor cursor;
    if (!cursor_at(buffer, 0, &cursor))
        return -1;
    Py_ssize_t position = 0;
    for (Span record; bytes_left(&cursor) != 0; position += (Py_ssize_t)record.size) {
        if (!read_record_bytes(&cursor, &record))
            return 0;
        if (!add_message(messages, type, queue, buffer, record, position))
            return -1;
    }
    return 1;
}

PyObject *cut_messages(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *buffer, *queue, *type;
    if (!PyArg_ParseTuple(arguments, "SOO", &buffer, &queue, &type))
        return NULL;
    PyObject *messages = PyList_New(0);
    if (messages == NULL)
        return NULL;
    int result = add_messages(messages, buffer, queue, type);
    if (result == 1)
        return messages;
    Py_DECREF(messages);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- record_body ------------------------------------------------------------------------------- */

PyObject *record_body(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *buffer;
    Py_ssize_t position;
    Record record;
    if (!PyArg_ParseTuple(arguments, "Sn", &buffer, &position))
        return NULL;
    int is_plain = read_plain_record(buffer, position, &record);
    if (is_plain < 0)
        return NULL;
    if (!is_plain || record.sys_flag & SYS_FLAG_COMPRESSED)
        Py_RETURN_NONE;
    return bytes_of(record.body);
}

/* -- record_property --------------------------------------------------------------------------- */

/* The value of a property, empty where there is none: the last one that is not empty, as
 * find_property of codec/properties.py. */
static Span find_value(Span properties, Span name) {
    enum { NAME_END = 1, VALUE_END = 2 };
    Span value = {properties.start, 0};
    Cursor cursor = cursor_of(properties);
    while (bytes_left(&cursor) != 0) {
        Span property;
        if (!read_until(&cursor, VALUE_END, &property))
            property = read_rest(&cursor);
        Cursor rest = cursor_of(property);
        if (read_text(&rest, (const char *)name.start, name.size) && read_byte(&rest, NAME_END) &&
            bytes_left(&rest) != 0)
            value = read_rest(&rest);
    }
    return value;
}

PyObject *record_property(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *buffer;
    Py_ssize_t position, name_bytes;
    const char *name;
    Record record;
    if (!PyArg_ParseTuple(arguments, "Sny#", &buffer, &position, &name, &name_bytes))
        return NULL;
    int is_plain = read_plain_record(buffer, position, &record);
    if (is_plain < 0)
        return NULL;
    if (!is_plain)
        Py_RETURN_NONE;
    return bytes_of(find_value(record.properties,
                               (Span){(const uint8_t *)name, (size_t)name_bytes}));
}

/* -- decode_record ----------------------------------------------------------------------------- */

#define BYTES(span) (const char *)(span).start, (Py_ssize_t)(span).size

PyObject *decode_record(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *buffer, *type;
    Py_ssize_t position;
    Record record;
    if (!PyArg_ParseTuple(arguments, "SnO", &buffer, &position, &type))
        return NULL;
    int is_plain = read_plain_record(buffer, position, &record);
    if (is_plain < 0)
        return NULL;
    if (!is_plain)
        Py_RETURN_NONE;
    PyObject *fields = Py_BuildValue(
        "(iiiiiLLiLy#Ly#iLiy#s#y#)", (int)record.bytes.size, (int)record.magic,
        (int)record.body_crc, record.queue_id, record.flag, (long long)record.queue_offset,
        (long long)record.physical_offset, record.sys_flag, (long long)record.born_ms,
        BYTES(record.born_host), (long long)record.store_ms, BYTES(record.store_host),
        record.reconsume_times, (long long)record.prepared_offset, (int)record.body.size,
        BYTES(record.body), BYTES(record.topic), BYTES(record.properties));
    if (fields == NULL)
        return NULL;
    PyObject *message = PyObject_Call(type, fields, NULL);
    Py_DECREF(fields);
    return message;
}
