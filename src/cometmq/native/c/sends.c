/* SendEncoder: plain sends, delayed ones and batches, from the bytes of a socket to a run (run.h)
 * and answers.
 *
 * It accepts or stops.  A frame that is not plain (another request, an unknown topic, a queue that
 * is held, no room in the log file ...) ends the run; Python serves it and explains what is wrong.
 *
 * The Python way is `SendProcessor._gather`, `Appender.append` and `SendAnswers.of_run`, for a batch
 * `SendProcessor._send_batch` and `Appender.put_packed`, for a delayed message `DelayedKind`; the
 * bytes are equal (tests/property/test_native_sends.py).
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "hash.h"
#include "message_keys.h"
#include "run.h"
#include "send_answers.h"
#include "send_header.h"

#include <stdio.h>

enum {
    /* What a message in a batch has beside body and properties. */
    PACKED_HEAD_BYTES = 22,
    UNIQ_KEY_BYTES_MAX = 255,
    LEVELS_MAX = 64,
};

/* Bits of sysFlag: the body of a batch is never compressed. */
static const uint32_t COMPRESSED = 0x1;
/* Where delayed messages wait: one queue a level. */
#define SCHEDULE_TOPIC "SCHEDULE_TOPIC_XXXX"

typedef struct {
    PyObject_HEAD
    Store store;
    /* Topics that passed every check, with their number of queues. */
    PyObject *queue_counts;
    /* Topics whose message groups move between brokers. */
    PyObject *moving_topics;
    /* Properties that the broker adds. */
    Buffer suffix;
    AnswerParts parts;
    uint32_t sys_flag_mask;
    /* How long each delay level waits, the first one first. */
    int64_t delays_ms[LEVELS_MAX];
    size_t level_count;
    /* What a run needs for a moment, kept between runs. */
    Buffer text, added, messages, answers;
} SendEncoder;

/* One call of `encode`. */
typedef struct {
    Run run;
    SendEncoder *encoder;
    Span data, origin;
    int64_t store_ms;
} Sends;

/* -- one send --------------------------------------------------------------------------------- */

static bool is_alphanumeric(Span text) {
    Cursor cursor = cursor_of(text);
    for (int byte; (byte = take_byte(&cursor)) >= 0;)
        if (!((byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
              (byte >= 'a' && byte <= 'z')))
            return false;
    return true;
}

/* Return a property string with the separator that it lacks, in `text`, where it may be already;
 * without a start: no memory. */
static Span with_separator(Buffer *text, Span properties) {
    if (properties.start != text->bytes) {
        text->size = 0;
        if (!buffer_add(text, properties.start, properties.size))
            return (Span){0};
    }
    return buffer_add(text, "\x02", 1) ? buffer_span(text) : (Span){0};
}

/* Check that a topic takes sends to a queue; 1: it does, 0: stop, -1: an exception. */
static int check_topic(const SendEncoder *encoder, const SendHeader *send, RunQueue *queue) {
    if (!queue->takes_sends) {
        PyObject *count = PyDict_GetItemWithError(encoder->queue_counts, queue->topic);
        if (count == NULL)
            return PyErr_Occurred() ? -1 : 0;
        long long queue_count = PyLong_AsLongLong(count);
        if (queue_count == -1 && PyErr_Occurred())
            return -1;
        if (send->queue_id < 0 || send->queue_id >= queue_count)
            return 0;
        queue->takes_sends = true;
    }
    if (!send->has_group_home)
        return 1;
    int is_moving = PySequence_Contains(encoder->moving_topics, queue->topic);
    return is_moving < 0 ? -1 : !is_moving;
}

/* What the messages of a send have in common. */
static Message new_message(const Sends *sends, const SendHeader *send, Span body, Span properties) {
    return (Message){.body = body,
                     .properties = properties,
                     .origin = sends->origin,
                     .flag = send->flag,
                     .sys_flag = (uint32_t)send->sys_flag & sends->encoder->sys_flag_mask,
                     .born_ms = send->born_ms};
}

/* Add the messages of a send and its answer; 1: done, 0: stop, -1: an exception. */
static int add_send(Sends *sends, RunQueue *queue, const SendHeader *send, const Message *messages,
                    size_t count, Span uniq_key) {
    SendEncoder *encoder = sends->encoder;
    const Answer answer = {messages, count, sends->run.wrote, queue->next_offset, uniq_key};
    if (!has_room(&sends->run, messages, count))
        return 0;
    if (!send->is_oneway && !add_answer(&encoder->answers, &encoder->parts, send, &answer))
        return PyErr_NoMemory(), -1;
    return add_messages(&sends->run, queue, messages, count) ? 1 : -1;
}

/* -- batches ---------------------------------------------------------------------------------- */

/* Read a message of a packed batch (codec/batch.py); false stops. */
static bool read_packed(const Sends *sends, const RunQueue *queue, const SendHeader *send,
                        Cursor *cursor, Message *message) {
    uint32_t total, flag, body_bytes;
    uint16_t properties_bytes;
    /* Magic and CRC do not count. */
    if (!read_u32(cursor, &total) || read_bytes(cursor, 8) == NULL || !read_u32(cursor, &flag) ||
        !read_u32(cursor, &body_bytes))
        return false;
    Span body = {read_bytes(cursor, body_bytes), body_bytes};
    if (body.start == NULL || !read_u16(cursor, &properties_bytes))
        return false;
    Span properties = {read_bytes(cursor, properties_bytes), properties_bytes};
    if (properties.start == NULL || total != PACKED_HEAD_BYTES + body.size + properties.size)
        return false;
    *message = new_message(sends, send, body, properties);
    message->flag = (int32_t)flag;
    message->sys_flag &= ~COMPRESSED;
    MessageKeys keys;
    return is_ascii(properties) && read_message_keys(properties, &keys) && !keys.is_marked &&
           measure_message(&sends->run, queue, &keys, message);
}

/* Encode a batch: its properties are those of the answer, each message brings its own. */
static int encode_batch(Sends *sends, RunQueue *queue, const SendHeader *send, Span packed,
                        Span uniq_key) {
    Buffer *messages = &sends->encoder->messages;
    messages->size = 0;
    if (packed.size == 0 || packed.size > (uint64_t)sends->run.body_bytes_max)
        return 0;
    for (Cursor cursor = cursor_of(packed); bytes_left(&cursor) != 0;) {
        Message message;
        if (!read_packed(sends, queue, send, &cursor, &message))
            return 0;
        if (!buffer_add(messages, &message, sizeof message))
            return PyErr_NoMemory(), -1;
    }
    return add_send(sends, queue, send, (const Message *)(const void *)messages->bytes,
                    messages->size / sizeof(Message), uniq_key);
}

/* -- delayed sends ---------------------------------------------------------------------------- */

/* Read a delay level as clients write it; 0 for anything else. */
static size_t read_level(const SendEncoder *encoder, Span text) {
    Cursor cursor = cursor_of(text);
    size_t level = 0;
    for (int digit; (digit = take_byte(&cursor)) >= 0;) {
        level = level * 10 + (size_t)(digit - '0');
        if (digit < '0' || digit > '9' || level == 0 || level > encoder->level_count)
            return 0;
    }
    return level;
}

/* Encode a delayed message: it waits in the queue of its level, and its unit has
 * the due time in place of the tags code. */
static int encode_delayed(Sends *sends, const SendHeader *send, Message *message,
                          const MessageKeys *keys) {
    SendEncoder *encoder = sends->encoder;
    size_t level = read_level(encoder, keys->delay);
    if (level == 0 || keys->has_real)
        return 0;
    char names[32];
    int name_bytes = snprintf(names, sizeof names, "\x02REAL_QID\x01%d\x02", (int)send->queue_id);
    encoder->added.size = 0;
    if (!buffer_add(&encoder->added, encoder->suffix.bytes, encoder->suffix.size) ||
        !buffer_add(&encoder->added, "REAL_TOPIC\x01", 11) ||
        !buffer_add(&encoder->added, send->topic.start, send->topic.size) ||
        !buffer_add(&encoder->added, names, (size_t)name_bytes))
        return PyErr_NoMemory(), -1;
    message->added = buffer_span(&encoder->added);
    RunQueue *queue;
    Span topic = {(const uint8_t *)SCHEDULE_TOPIC, sizeof SCHEDULE_TOPIC - 1};
    int is_found = find_queue(&sends->run, topic, (int32_t)level - 1, &queue);
    if (is_found != 1)
        return is_found;
    if (!measure_message(&sends->run, queue, keys, message))
        return 0;
    message->tags_code = sends->store_ms + encoder->delays_ms[level - 1];
    return add_send(sends, queue, send, message, 1, keys->uniq_key);
}

/* -- a run ------------------------------------------------------------------------------------ */

/* Encode one send; 1: done, 0: stop before it, -1: an exception. */
static int encode_send(Sends *sends, const SendHeader *send, Span body) {
    SendEncoder *encoder = sends->encoder;
    Span properties = send->properties;
    if (!send->is_batch && properties.size != 0 && !ends_with(properties, 2)) {
        properties = with_separator(&encoder->text, properties);
        if (properties.start == NULL)
            return PyErr_NoMemory(), -1;
    }
    MessageKeys keys;
    if (!read_message_keys(properties, &keys) || keys.uniq_key.size > UNIQ_KEY_BYTES_MAX ||
        !is_alphanumeric(keys.uniq_key) || (keys.has_wait_false && encoder->store.is_sync) ||
        (send->is_batch ? keys.is_marked : keys.uniq_key.start == NULL))
        return 0;
    RunQueue *queue;
    int is_found = find_queue(&sends->run, send->topic, send->queue_id, &queue);
    if (is_found == 1)
        is_found = check_topic(encoder, send, queue);
    if (is_found != 1)
        return is_found;
    if (send->is_batch)
        return encode_batch(sends, queue, send, body, keys.uniq_key);
    Message message = new_message(sends, send, body, properties);
    if (keys.is_marked)
        return encode_delayed(sends, send, &message, &keys);
    message.added = buffer_span(&encoder->suffix);
    if (!measure_message(&sends->run, queue, &keys, &message))
        return 0;
    return add_send(sends, queue, send, &message, 1, keys.uniq_key);
}

/* Encode the sends of the data from `position` on; the end of the last one, -1: an exception. */
static Py_ssize_t encode_sends(Sends *sends, size_t position) {
    Cursor cursor = cursor_of(sends->data);
    read_bytes(&cursor, position);
    for (;;) {
        SendHeader send;
        Span body;
        size_t left = bytes_left(&cursor);
        int is_encoded = read_send(&cursor, &sends->encoder->text, &send, &body)
                             ? encode_send(sends, &send, body)
                             : 0;
        if (is_encoded < 0)
            return -1;
        if (is_encoded == 0)
            return (Py_ssize_t)(sends->data.size - left);
    }
}

PyDoc_STRVAR(
    encode_doc,
    "encode(data, position, wrote, limit, store_ms, origin, body_bytes_max)\n--\n\n"
    "Encode the plain sends of `data` from `position` on; None where the first frame is none.\n\n"
    "`wrote` is the physical offset of the first record, `limit` where the log file ends, `origin`\n"
    "the part of a record with hosts and store time.  Returns the end of the last frame, the\n"
    "answers, and the run: records, queues (queue, units, next queue offset, first physical\n"
    "offset), index keys, arrivals at watched queues.");

static PyObject *encode(SendEncoder *self, PyObject *arguments) {
    PyObject *data, *store_ms, *origin;
    Py_ssize_t position;
    long long wrote, limit, body_bytes_max;
    if (!PyArg_ParseTuple(arguments, "SnLLO!SL", &data, &position, &wrote, &limit, &PyLong_Type,
                          &store_ms, &origin, &body_bytes_max))
        return NULL;
    if (position < 0 || position > PyBytes_Size(data) || PyBytes_Size(origin) != ORIGIN_BYTES ||
        wrote < 0 || limit < wrote || body_bytes_max < 0 || body_bytes_max > INT32_MAX ||
        self->queue_counts == NULL || self->store.is_busy) {
        PyErr_SetString(PyExc_ValueError, "encode() got an argument that is out of range");
        return NULL;
    }
    Sends *sends = calloc(1, sizeof *sends);
    if (sends == NULL)
        return PyErr_NoMemory();
    sends->encoder = self;
    sends->data = (Span){(const uint8_t *)PyBytes_AsString(data), (size_t)PyBytes_Size(data)};
    sends->origin = (Span){(const uint8_t *)PyBytes_AsString(origin), ORIGIN_BYTES};
    sends->store_ms = PyLong_AsLongLong(store_ms);
    self->answers.size = 0;
    PyObject *result = NULL;
    if (run_open(&sends->run, &self->store, wrote, limit, store_ms, body_bytes_max) &&
        !PyErr_Occurred()) {
        Py_ssize_t end = encode_sends(sends, (size_t)position);
        if (end == position)
            result = Py_NewRef(Py_None);
        else if (end > position)
            result = Py_BuildValue("(nNN)", end, buffer_bytes(&self->answers), run_result(&sends->run));
    }
    run_close(&sends->run);
    free(sends);
    return result;
}

/* -- the type --------------------------------------------------------------------------------- */

static bool copy_bytes(Buffer *buffer, PyObject *bytes) {
    buffer->size = 0;
    return buffer_add(buffer, PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes));
}

static int initialise(SendEncoder *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"queue_counts", "moving_topics", "topics",      "queue_type",
                            "suffix",       "json_answer",   "binary_answer", "id_start",
                            "sys_flag_mask", "delays_ms",   "is_indexed",  "is_sync",   NULL};
    PyObject *queue_counts, *moving_topics, *topics, *queue_type, *suffix, *id_start, *delays_ms;
    PyObject *json_start, *json_middle, *json_end, *binary_start, *binary_end;
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "O!OO!OS(SSS)(SS)SISpp", names, &PyDict_Type, &queue_counts,
            &moving_topics, &PyDict_Type, &topics, &queue_type, &suffix, &json_start, &json_middle,
            &json_end, &binary_start, &binary_end, &id_start,
            &self->sys_flag_mask, &delays_ms, &self->store.is_indexed, &self->store.is_sync))
        return -1;
    size_t delays_bytes = (size_t)PyBytes_Size(delays_ms);
    if (PyBytes_Size(binary_start) != 5 || self->queue_counts != NULL ||
        delays_bytes > sizeof self->delays_ms || delays_bytes % sizeof(int64_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "SendEncoder() got an argument that is out of range");
        return -1;
    }
    self->queue_counts = Py_NewRef(queue_counts);
    self->moving_topics = Py_NewRef(moving_topics);
    if (!store_open(&self->store, topics, queue_type))
        return -1;
    memcpy(self->delays_ms, PyBytes_AsString(delays_ms), delays_bytes);
    self->level_count = delays_bytes / sizeof(int64_t);
    AnswerParts *parts = &self->parts;
    if (!copy_bytes(&self->suffix, suffix) || !copy_bytes(&parts->json_start, json_start) ||
        !copy_bytes(&parts->json_middle, json_middle) || !copy_bytes(&parts->json_end, json_end) ||
        !copy_bytes(&parts->binary_start, binary_start) ||
        !copy_bytes(&parts->binary_end, binary_end) || !copy_bytes(&parts->id_start, id_start)) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int traverse(SendEncoder *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->queue_counts);
    Py_VISIT(self->moving_topics);
    return store_traverse(&self->store, visit, arg);
}

static int clear(SendEncoder *self) {
    Py_CLEAR(self->queue_counts);
    Py_CLEAR(self->moving_topics);
    store_clear(&self->store);
    return 0;
}

static void deallocate(SendEncoder *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    clear(self);
    store_free(&self->store);
    AnswerParts *parts = &self->parts;
    Buffer *buffers[] = {&self->suffix,       &parts->json_start, &parts->json_middle,
                         &parts->json_end,    &parts->binary_start, &parts->binary_end,
                         &parts->id_start,    &self->text,        &self->added,
                         &self->messages,     &self->answers};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        buffer_free(buffers[i]);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"encode", (PyCFunction)encode, METH_VARARGS, encode_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Encodes plain sends; see c/sends.c."},
    {Py_tp_init, initialise},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec send_encoder_spec = {
    .name = "cometmq.native._core.SendEncoder",
    .basicsize = sizeof(SendEncoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
