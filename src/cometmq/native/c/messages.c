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

enum {
    /* Head, topic length and properties length of a record of version 1 between IPv4 hosts. */
    RECORD_BYTES_MIN = 91,
    HEAD_BYTES = 88,
    QUEUE_OFFSET_POSITION = 20,
    SYS_FLAG_POSITION = 36,
    BODY_BYTES_POSITION = 84,
    TOPIC_BYTES_MAX = 127,
    PROPERTIES_BYTES_MAX = 32767,
    COMPRESSED_FLAG = 1,
    ANY_V6_FLAG = 0x30,
};

static const uint32_t MAGIC_V1 = 0xDAA320A7u, MAGIC_V2 = 0xDAA320ABu;

/* The parts of a plain record. */
typedef struct {
    const uint8_t *head;
    Span body, topic, properties;
} Record;

static uint32_t head_u32(const uint8_t *head, size_t position) {
    return load_u32(head + position);
}

/* Read the record that comes next; false where it is not plain. */
static bool read_record(Cursor cursor, Record *record) {
    Cursor at = cursor;
    const uint8_t *head = read_bytes(&at, HEAD_BYTES);
    if (head == NULL)
        return false;
    uint32_t size = head_u32(head, 0), body_bytes = head_u32(head, BODY_BYTES_POSITION);
    if (head_u32(head, 4) != MAGIC_V1 || (head_u32(head, SYS_FLAG_POSITION) & ANY_V6_FLAG) != 0 ||
        size < RECORD_BYTES_MIN || size > INT32_MAX)
        return false;
    const uint8_t *whole = read_bytes(&cursor, size);
    if (whole == NULL)
        return false;
    at = cursor_of((Span){whole, size});
    read_bytes(&at, HEAD_BYTES);
    record->head = head;
    record->body = (Span){read_bytes(&at, body_bytes), body_bytes};
    int topic_bytes = record->body.start == NULL ? -1 : take_byte(&at);
    if (topic_bytes < 0 || topic_bytes > TOPIC_BYTES_MAX)
        return false;
    record->topic = (Span){read_bytes(&at, (size_t)topic_bytes), (size_t)topic_bytes};
    uint16_t properties_bytes;
    if (record->topic.start == NULL || !read_u16(&at, &properties_bytes))
        return false;
    record->properties = read_rest(&at);
    return record->properties.size == properties_bytes &&
           properties_bytes <= PROPERTIES_BYTES_MAX && is_ascii(record->topic);
}

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

/* -- cut_messages ------------------------------------------------------------------------------ */

/* A new message of (queue, queue offset, size, buffer, position). */
static PyObject *new_message(PyObject *type, PyObject *queue, PyObject *buffer,
                             const uint8_t *head, uint32_t size, Py_ssize_t position) {
    PyObject *fields = Py_BuildValue("(OLIOn)", queue,
                                     (long long)load_u64(head + QUEUE_OFFSET_POSITION),
                                     (unsigned int)size, buffer, position);
    if (fields == NULL)
        return NULL;
    PyObject *message = PyObject_Call(type, fields, NULL);
    Py_DECREF(fields);
    return message;
}

/* Add a message for each record; 1: done, 0: stop, -1: an exception. */
static int add_messages(PyObject *messages, PyObject *buffer, PyObject *queue, PyObject *type) {
    Cursor cursor;
    if (!cursor_at(buffer, 0, &cursor))
        return -1;
    const Cursor start = cursor;
    while (bytes_left(&cursor) != 0) {
        Py_ssize_t position = (Py_ssize_t)span_between(start, cursor).size;
        Cursor at = cursor;
        const uint8_t *head = read_bytes(&at, RECORD_BYTES_MIN);
        if (head == NULL)
            return 0;
        uint32_t size = head_u32(head, 0), magic = head_u32(head, 4);
        if ((magic != MAGIC_V1 && magic != MAGIC_V2) || size < RECORD_BYTES_MIN ||
            size > INT32_MAX || read_bytes(&cursor, size) == NULL)
            return 0;
        PyObject *message = new_message(type, queue, buffer, head, size, position);
        if (message == NULL)
            return -1;
        int result = PyList_Append(messages, message);
        Py_DECREF(message);
        if (result < 0)
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
    Cursor cursor;
    Record record;
    if (!PyArg_ParseTuple(arguments, "Sn", &buffer, &position) ||
        !cursor_at(buffer, position, &cursor))
        return NULL;
    if (!read_record(cursor, &record) ||
        (head_u32(record.head, SYS_FLAG_POSITION) & COMPRESSED_FLAG) != 0)
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
    Cursor cursor;
    Record record;
    if (!PyArg_ParseTuple(arguments, "Sny#", &buffer, &position, &name, &name_bytes) ||
        !cursor_at(buffer, position, &cursor))
        return NULL;
    if (!read_record(cursor, &record))
        Py_RETURN_NONE;
    return bytes_of(find_value(record.properties,
                               (Span){(const uint8_t *)name, (size_t)name_bytes}));
}

/* -- decode_record ----------------------------------------------------------------------------- */

static int int_at(const uint8_t *head, size_t position) {
    return (int)(int32_t)load_u32(head + position);
}

static long long long_at(const uint8_t *head, size_t position) {
    return (long long)(int64_t)load_u64(head + position);
}

PyObject *decode_record(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *buffer, *type;
    Py_ssize_t position;
    Cursor cursor;
    Record record;
    if (!PyArg_ParseTuple(arguments, "SnO", &buffer, &position, &type) ||
        !cursor_at(buffer, position, &cursor))
        return NULL;
    if (!read_record(cursor, &record))
        Py_RETURN_NONE;
    /* In the order of the layout; the two hosts have 8 bytes each. */
    const uint8_t *head = record.head;
    const char *body = (const char *)record.body.start, *topic = (const char *)record.topic.start;
    const char *properties = (const char *)record.properties.start;
    PyObject *fields = Py_BuildValue(
        "(iiiiiLLiLy#Ly#iLiy#s#y#)", int_at(head, 0), int_at(head, 4), int_at(head, 8),
        int_at(head, 12), int_at(head, 16), long_at(head, 20), long_at(head, 28),
        int_at(head, 36), long_at(head, 40), (const char *)head + 48, (Py_ssize_t)8,
        long_at(head, 56), (const char *)head + 64, (Py_ssize_t)8, int_at(head, 72),
        long_at(head, 76), int_at(head, BODY_BYTES_POSITION), body, (Py_ssize_t)record.body.size,
        topic, (Py_ssize_t)record.topic.size, properties, (Py_ssize_t)record.properties.size);
    if (fields == NULL)
        return NULL;
    PyObject *message = PyObject_Call(type, fields, NULL);
    Py_DECREF(fields);
    return message;
}
