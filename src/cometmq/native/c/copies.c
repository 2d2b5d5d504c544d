/* CopyEncoder: the delivery of messages that waited, from their records to a run (run.h).
 *
 * REAL_TOPIC and REAL_QID name the queue of a copy.  It keeps body, flags, born host and time, try
 * count and property bytes (docs/internals/delivery.md#delay-levels).  Copying ends before the first
 * record that is not due, and before one that is not plain: then Python delivers it, or says what is
 * wrong.
 *
 * A commit is a copy of a half message without these two properties, which are its last ones
 * (docs/internals/delivery.md#half-messages); its sysFlag says that it is one, and its prepared
 * offset where the half message is.
 *
 * The Python way is `ScheduleService._deliver`, `commit_item` and `Appender.append`; the bytes are
 * equal (tests/property/test_native_sends.py).
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "record.h"
#include "run.h"

enum { HOST_BYTES = 8, QUEUE_DIGITS_MAX = 9 };

#define HALF_TOPIC "RMQ_SYS_TRANS_HALF_TOPIC"

typedef struct {
    PyObject_HEAD
    Store store;
    Buffer store_host;
} CopyEncoder;

/* One call of `encode`. */
typedef struct {
    Run run;
    CopyEncoder *encoder;
    Span records;
    int64_t now_ms;
    /* Messages that were stored until then are due. */
    int64_t stored_until_ms;
    size_t count;
    /* Queue offset of the last record that was copied. */
    int64_t last_offset;
    /* Store time of the first message that is not due; -1: there is none. */
    int64_t waiting_ms;
    int are_commits;
} Copies;

/* Read a record that may be copied: with IPv4 hosts, with ASCII properties, and not of an open or
 * rolled-back transaction; false stops. */
static bool read_waiting(Cursor *cursor, Record *record) {
    return read_record(cursor, record) &&
           (record->sys_flag & (SYS_FLAG_ANY_V6 | SYS_FLAG_PREPARED)) == 0 &&
           is_ascii(record->properties);
}

/* Read which queue a message is for, and its keys; false stops.  Of two equal names the last one
 * with a value counts, as for `find_property` of codec/properties.py. */
static bool read_target(Span properties, MessageKeys *keys, Span *topic, int32_t *queue_id) {
    const struct {
        const char *name;
        Span *value;
    } wanted[] = {{"UNIQ_KEY", &keys->uniq_key},
                  {"KEYS", &keys->keys},
                  {"TAGS", &keys->tags},
                  {"REAL_TOPIC", topic},
                  {"REAL_QID", NULL}};
    Span number = {0};
    *keys = (MessageKeys){0};
    *topic = (Span){0};
    for (Cursor cursor = cursor_of(properties); bytes_left(&cursor) != 0;) {
        Span entry, name;
        if (!read_until(&cursor, 2, &entry))
            entry = read_rest(&cursor);
        Cursor value = cursor_of(entry);
        if (!read_until(&value, 1, &name) || bytes_left(&value) == 0)
            continue;
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if (is_equal(name, wanted[i].name, strlen(wanted[i].name)))
                *(wanted[i].value == NULL ? &number : wanted[i].value) = read_rest(&value);
    }
    if (number.size == 0 || number.size > QUEUE_DIGITS_MAX || topic->size == 0 ||
        is_equal(*topic, HALF_TOPIC, sizeof HALF_TOPIC - 1))
        return false;
    *queue_id = 0;
    Cursor digits = cursor_of(number);
    for (int digit; (digit = take_byte(&digits)) >= 0;) {
        if (digit < '0' || digit > '9')
            return false;
        *queue_id = *queue_id * 10 + (digit - '0');
    }
    return true;
}

/* Read what stands before REAL_TOPIC and REAL_QID; false where they are not the last properties. */
static bool read_own_properties(Span properties, Span topic, Span *own) {
    Cursor cursor = cursor_of(properties);
    Span before, number;
    for (Cursor real = cursor; read_until(&cursor, 2, &before); real = cursor) {
        Cursor rest = real;
        if (!read_text(&rest, "REAL_TOPIC\x01", 11) || !read_until(&rest, 2, &before) ||
            before.start != topic.start)
            continue;
        *own = span_between(cursor_of(properties), real);
        return read_text(&rest, "REAL_QID\x01", 9) && read_until(&rest, 2, &number) &&
               bytes_left(&rest) == 0;
    }
    return false;
}

/* Copy one record; 1: done, 0: stop before it, -1: an exception. */
static int copy_record(Copies *copies, const Record *record) {
    /* A store time behind the clock: the clock was set back, and the message is due at once. */
    if (record->store_ms > copies->stored_until_ms && record->store_ms <= copies->now_ms) {
        copies->waiting_ms = record->store_ms;
        return 0;
    }
    uint8_t origin[ORIGIN_BYTES];
    uint8_t *at = put_span(origin, record->born_host);
    store_u64(at, (uint64_t)copies->now_ms);
    at = put_span(at + 8, buffer_span(&copies->encoder->store_host));
    store_u32(at, (uint32_t)record->reconsume_times);
    store_u64(at + 4, (uint64_t)(copies->are_commits ? record->physical_offset
                                                     : record->prepared_offset));
    Message message = {.body = record->body,
                       .properties = record->properties,
                       .origin = {origin, ORIGIN_BYTES},
                       .flag = record->flag,
                       .sys_flag = (uint32_t)record->sys_flag,
                       .born_ms = record->born_ms};
    MessageKeys keys;
    Span topic;
    int32_t queue_id;
    RunQueue *queue;
    if (!read_target(record->properties, &keys, &topic, &queue_id))
        return 0;
    if (copies->are_commits) {
        if (!read_own_properties(record->properties, topic, &message.properties))
            return 0;
        message.sys_flag = (message.sys_flag & ~(uint32_t)SYS_FLAG_TRANSACTION) | SYS_FLAG_COMMIT;
    }
    int is_found = find_queue(&copies->run, topic, queue_id, &queue);
    if (is_found != 1)
        return is_found;
    if (!measure_message(&copies->run, queue, &keys, &message) ||
        !has_room(&copies->run, &message, 1))
        return 0;
    copies->count++;
    copies->last_offset = record->queue_offset;
    return add_messages(&copies->run, queue, &message, 1) ? 1 : -1;
}

/* Copy records from `position` on; the end of the last one, -1: an exception. */
static Py_ssize_t copy_records(Copies *copies, size_t position) {
    Cursor cursor = cursor_of(copies->records);
    read_bytes(&cursor, position);
    for (;;) {
        Record record;
        size_t left = bytes_left(&cursor);
        int is_copied = read_waiting(&cursor, &record) ? copy_record(copies, &record) : 0;
        if (is_copied < 0)
            return -1;
        if (is_copied == 0)
            return (Py_ssize_t)(copies->records.size - left);
    }
}

PyDoc_STRVAR(encode_doc,
             "encode(records, position, wrote, limit, store_ms, stored_until_ms, body_bytes_max,\n"
             "       are_commits)\n"
             "--\n\n"
             "Copy `records` from `position` on into the queues that they name, as far as they were\n"
             "stored until a time, and are plain; or store the commits of half messages.\n\n"
             "Returns the end of the last one, their number, the queue offset of the last one, the\n"
             "store time of the next one if it is not due, else -1, and the run.");

static PyObject *encode(CopyEncoder *self, PyObject *arguments) {
    PyObject *store_ms, *source;
    Py_buffer records;
    Py_ssize_t position;
    long long wrote, limit, stored_until_ms, body_bytes_max;
    int are_commits;
    if (!PyArg_ParseTuple(arguments, "OnLLO!LLp", &source, &position, &wrote, &limit, &PyLong_Type,
                          &store_ms, &stored_until_ms, &body_bytes_max, &are_commits))
        return NULL;
    int64_t now_ms = PyLong_AsLongLong(store_ms);
    if (PyErr_Occurred() || PyObject_GetBuffer(source, &records, PyBUF_SIMPLE) < 0)
        return NULL;
    Copies *copies = NULL;
    if (position < 0 || position > records.len || wrote < 0 || limit < wrote ||
        body_bytes_max < 0 || body_bytes_max > INT32_MAX || self->store.topics == NULL ||
        self->store.is_busy)
        PyErr_SetString(PyExc_ValueError, "encode() got an argument that is out of range");
    else if ((copies = calloc(1, sizeof *copies)) == NULL)
        PyErr_NoMemory();
    PyObject *result = NULL;
    if (copies != NULL) {
        copies->encoder = self;
        copies->records = (Span){records.buf, (size_t)records.len};
        copies->now_ms = now_ms;
        copies->stored_until_ms = stored_until_ms;
        copies->are_commits = are_commits;
        copies->waiting_ms = -1;
        Py_ssize_t end = -1;
        if (run_open(&copies->run, &self->store, wrote, limit, store_ms, body_bytes_max))
            end = copy_records(copies, (size_t)position);
        if (end >= 0)
            result = Py_BuildValue("(nnLLN)", end, (Py_ssize_t)copies->count,
                                   (long long)copies->last_offset,
                                   (long long)copies->waiting_ms, run_result(&copies->run));
        run_close(&copies->run);
        free(copies);
    }
    PyBuffer_Release(&records);
    return result;
}

/* -- the type --------------------------------------------------------------------------------- */

static int initialise(CopyEncoder *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"topics", "queue_type", "store_host", "is_indexed", "is_sync", NULL};
    PyObject *topics, *queue_type, *store_host;
    int is_indexed, is_sync;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OSpp", names, &PyDict_Type, &topics,
                                     &queue_type, &store_host, &is_indexed, &is_sync))
        return -1;
    if (self->store.topics != NULL || PyBytes_Size(store_host) != HOST_BYTES) {
        PyErr_SetString(PyExc_ValueError, "CopyEncoder() got an argument that is out of range");
        return -1;
    }
    self->store.is_indexed = is_indexed;
    self->store.is_sync = is_sync;
    if (!store_open(&self->store, topics, queue_type))
        return -1;
    if (!buffer_add(&self->store_host, PyBytes_AsString(store_host), HOST_BYTES))
        return PyErr_NoMemory(), -1;
    return 0;
}

static int traverse(CopyEncoder *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    return store_traverse(&self->store, visit, arg);
}

static int clear(CopyEncoder *self) {
    store_clear(&self->store);
    return 0;
}

static void deallocate(CopyEncoder *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    store_free(&self->store);
    buffer_free(&self->store_host);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"encode", (PyCFunction)encode, METH_VARARGS, encode_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Encodes deliveries; see c/copies.c."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec copy_encoder_spec = {
    .name = "cometmq.native._core.CopyEncoder",
    .basicsize = sizeof(CopyEncoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
