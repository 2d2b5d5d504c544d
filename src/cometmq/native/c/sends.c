/* SendEncoder: sends of every kind and batches, from the bytes of a socket to a run (run.h)
 * and answers.
 *
 * It accepts or stops.  A frame that is not plain (another request, an unknown topic, a queue that
 * is held, no room in the log file ...) ends the run; Python serves it and explains what is wrong.
 *
 * The Python way is `SendProcessor._gather`, `Appender.append` and `SendAnswers.of_run`, for a batch
 * `SendProcessor._send_batch` and `Appender.put_packed`, for messages that wait `DelayedKind`,
 * `TimedKind` and `HalfKind`; the bytes are equal (tests/property/test_native_sends.py).
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "hash.h"
#include "message_keys.h"
#include "run.h"
#include "send_answers.h"
#include "send_header.h"

enum {
    /* What a message in a batch has beside body and properties. */
    PACKED_HEAD_BYTES = 22,
    UNIQ_KEY_BYTES_MAX = 255,
    LEVELS_MAX = 64,
    /* What check-back and delivery may add to the properties of half and timed messages. */
    LATER_BYTES = 100,
    PRODUCER_ID_BYTES_MAX = 255,
};

/* Bits of sysFlag: the body of a batch is never compressed. */
static const uint32_t COMPRESSED = 0x1;
/* Where messages wait: delayed ones in a queue for each level, the others in one. */
#define SCHEDULE_TOPIC "SCHEDULE_TOPIC_XXXX"
#define TIMER_TOPIC "rmq_sys_wheel_timer"
#define HALF_TOPIC "RMQ_SYS_TRANS_HALF_TOPIC"

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
    /* Width of a slot of the timer wheel. */
    int64_t precision_ms;
    /* What a recall handle has between topic and time: the broker's name between blanks. */
    Buffer handle_middle;
    /* What a run needs for a moment, kept between runs. */
    Buffer text, added, handle_text, handle, messages, answers;
} SendEncoder;

/* The topic of the last send. */
typedef struct {
    Span bytes;
    PyObject *name;
    /* 0: it did not pass every check. */
    long long queue_count;
} CheckedTopic;

/* One call of `encode`. */
typedef struct {
    Run run;
    SendEncoder *encoder;
    CheckedTopic topic;
    /* Queues with this note passed the check of their topic. */
    int64_t topics_revision;
    Span data, origin;
    int64_t store_ms;
    /* Timed messages for a slot from `timed_from_ms` on, due until `timed_until_ms`, are taken. */
    int64_t timed_from_ms, timed_until_ms;
    int takes_halves, takes_numbered;
    /* What Python needs of timed, half and numbered messages. */
    PyObject *timed, *halves, *numbered;
    /* The group of the last half message. */
    Span group_bytes;
    PyObject *group;
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

/* Find the topic of a send among those that passed every check; 1: it takes sends to the queue,
 * 0: stop, -1: an exception.  Sends in a row that name one topic look it up once. */
static int check_topic(Sends *sends, const SendHeader *send) {
    const SendEncoder *encoder = sends->encoder;
    CheckedTopic *topic = &sends->topic;
    if (topic->name == NULL || !is_equal(send->topic, topic->bytes.start, topic->bytes.size)) {
        Py_CLEAR(topic->name);
        topic->bytes = send->topic;
        topic->name = PyUnicode_FromStringAndSize((const char *)send->topic.start,
                                                  (Py_ssize_t)send->topic.size);
        PyObject *count = topic->name == NULL
                              ? NULL
                              : PyDict_GetItemWithError(encoder->queue_counts, topic->name);
        topic->queue_count = count == NULL ? 0 : PyLong_AsLongLong(count);
        if (PyErr_Occurred())
            return -1;
    }
    if (send->queue_id < 0 || send->queue_id >= topic->queue_count)
        return 0;
    if (!send->has_group_home)
        return 1;
    int is_moving = PySequence_Contains(encoder->moving_topics, topic->name);
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
                    size_t count, Span uniq_key, Span handle) {
    SendEncoder *encoder = sends->encoder;
    const Answer answer = {messages, count,    sends->run.wrote, queue->next_offset,
                           uniq_key, handle};
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
    return is_ascii(properties) && read_message_keys(properties, &keys) && keys.kind == PLAIN &&
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
                    messages->size / sizeof(Message), uniq_key, (Span){0});
}

/* -- messages that wait ----------------------------------------------------------------------- */

/* Read a number as clients write it, without zeros in front, up to a largest one; 0: stop. */
static int64_t read_positive(Span text, int64_t number_max) {
    Cursor cursor = cursor_of(text);
    int64_t number = 0;
    for (int digit; (digit = take_byte(&cursor)) >= 0;) {
        if (digit < '0' || digit > '9' || number > number_max / 10)
            return 0;
        number = number * 10 + (digit - '0');
        if (number == 0 || number > number_max)
            return 0;
    }
    return number;
}

static bool add_text(Buffer *buffer, const char *text) {
    return buffer_add(buffer, text, strlen(text));
}

static bool add_span(Buffer *buffer, Span span) {
    return buffer_add(buffer, span.start, span.size);
}

static bool add_number(Buffer *buffer, int64_t number) {
    uint8_t digits[20];
    return buffer_add(buffer, digits, (size_t)(put_number(digits, number) - digits));
}

/* Begin the properties that the broker adds to a message that waits; false without memory. */
static bool begin_added(SendEncoder *encoder) {
    encoder->added.size = 0;
    return add_span(&encoder->added, buffer_span(&encoder->suffix));
}

/* Put a message into the queue in which it waits; as `encode_send`.  The properties that the broker
 * adds end with the queue for which it waits. */
static int add_waiting(Sends *sends, Span topic, int32_t queue_id, const SendHeader *send,
                       const MessageKeys *keys, Message *message, size_t later_bytes,
                       const int64_t *tags_code, Span handle, RunQueue **queue) {
    Buffer *added = &sends->encoder->added;
    if (!add_text(added, "REAL_TOPIC\x01") || !add_span(added, send->topic) ||
        !add_text(added, "\x02REAL_QID\x01") || !add_number(added, send->queue_id) ||
        !add_text(added, "\x02"))
        return PyErr_NoMemory(), -1;
    message->added = buffer_span(added);
    if (message->properties.size + message->added.size + later_bytes > PROPERTIES_BYTES_MAX)
        return 0;
    int is_found = find_queue(&sends->run, topic, queue_id, queue);
    if (is_found != 1)
        return is_found;
    if (!measure_message(&sends->run, *queue, keys, message))
        return 0;
    if (tags_code != NULL)
        message->tags_code = *tags_code;
    return add_send(sends, *queue, send, message, 1, keys->uniq_key, handle);
}

#define SPAN_OF(text) ((Span){(const uint8_t *)(text), sizeof(text) - 1})

/* Its unit has the due time in place of the tags code. */
static int encode_delayed(Sends *sends, const SendHeader *send, const MessageKeys *keys,
                          Message *message) {
    SendEncoder *encoder = sends->encoder;
    int64_t level = read_positive(keys->mark, (int64_t)encoder->level_count);
    if (level == 0)
        return 0;
    if (!begin_added(encoder))
        return PyErr_NoMemory(), -1;
    int64_t due_ms = sends->store_ms + encoder->delays_ms[level - 1];
    RunQueue *queue;
    return add_waiting(sends, SPAN_OF(SCHEDULE_TOPIC), (int32_t)level - 1, send, keys, message, 0,
                       &due_ms, (Span){0}, &queue);
}

/* Make the recall handle of a timed message (codec/recall.py); false without memory. */
static bool make_handle(SendEncoder *encoder, const SendHeader *send, const MessageKeys *keys,
                        int64_t out_ms) {
    Buffer *text = &encoder->handle_text;
    text->size = encoder->handle.size = 0;
    return add_text(text, "v1 ") && add_span(text, send->topic) &&
           add_span(text, buffer_span(&encoder->handle_middle)) && add_number(text, out_ms + 1) &&
           add_text(text, " ") && add_span(text, keys->uniq_key) &&
           add_base64(&encoder->handle, buffer_span(text));
}

/* Note what the timers need of a message: the fields of `Fresh`. */
static bool note_timed(Sends *sends, const RunQueue *queue, const Message *message, int64_t out_ms,
                       int64_t due_ms) {
    PyObject *note = PyTuple_New(7);
    return append_new(sends->timed, note) && set_number(note, 0, queue->next_offset - 1) &&
           set_number(note, 1, sends->run.wrote - message->size) &&
           set_number(note, 2, message->size) && set_number(note, 3, out_ms) &&
           set_item(note, 4, Py_NewRef(sends->topic.name)) &&
           set_item(note, 5, Py_NewRef(Py_None)) && set_number(note, 6, due_ms);
}

static int encode_timed(Sends *sends, const SendHeader *send, const MessageKeys *keys,
                        Message *message) {
    SendEncoder *encoder = sends->encoder;
    int64_t due_ms = read_positive(keys->mark, sends->timed_until_ms);
    if (due_ms <= sends->store_ms)
        return 0;
    /* The slot before the due time, never the slot of the due time. */
    int64_t out_ms = (due_ms - 1) / encoder->precision_ms * encoder->precision_ms;
    if (out_ms < sends->timed_from_ms)
        return 0;
    if (!begin_added(encoder) || !add_text(&encoder->added, "TIMER_OUT_MS\x01") ||
        !add_number(&encoder->added, out_ms) || !add_text(&encoder->added, "\x02") ||
        !make_handle(encoder, send, keys, out_ms))
        return PyErr_NoMemory(), -1;
    RunQueue *queue;
    int is_added = add_waiting(sends, SPAN_OF(TIMER_TOPIC), 0, send, keys, message, LATER_BYTES,
                               NULL, buffer_span(&encoder->handle), &queue);
    if (is_added == 1 && !note_timed(sends, queue, message, out_ms, due_ms))
        return -1;
    return is_added;
}

static PyObject *text_of(Span text) {
    return PyUnicode_FromStringAndSize((const char *)text.start, (Py_ssize_t)text.size);
}

/* The group of a half message; those in a row mostly name one. */
static PyObject *group_of(Sends *sends, Span group) {
    if (sends->group == NULL || !is_equal(group, sends->group_bytes.start, sends->group_bytes.size)) {
        Py_CLEAR(sends->group);
        sends->group = text_of(group);
        sends->group_bytes = group;
    }
    return sends->group == NULL ? NULL : Py_NewRef(sends->group);
}

/* Note what the transactions need of a half message: queue offset, physical offset, born time,
 * group, topic, UNIQ_KEY, and the record. */
static bool note_half(Sends *sends, const RunQueue *queue, const SendHeader *send,
                      const MessageKeys *keys, const Message *message) {
    const Buffer *records = &sends->run.store->records;
    const char *record = (const char *)records->bytes + records->size - message->size;
    PyObject *note = PyTuple_New(7);
    return append_new(sends->halves, note) && set_number(note, 0, queue->next_offset - 1) &&
           set_number(note, 1, sends->run.wrote - message->size) &&
           set_number(note, 2, send->born_ms) && set_item(note, 3, group_of(sends, keys->group)) &&
           set_item(note, 4, Py_NewRef(sends->topic.name)) &&
           set_item(note, 5, text_of(keys->uniq_key)) &&
           set_item(note, 6, PyBytes_FromStringAndSize(record, (Py_ssize_t)message->size));
}

static int encode_half(Sends *sends, const SendHeader *send, const MessageKeys *keys,
                       Message *message) {
    SendEncoder *encoder = sends->encoder;
    if (!sends->takes_halves || keys->has_check || !is_equal(keys->mark, "true", 4) ||
        keys->group.start == NULL)
        return 0;
    if (!begin_added(encoder) || !add_text(&encoder->added, "__transactionId__\x01") ||
        !add_span(&encoder->added, keys->uniq_key) || !add_text(&encoder->added, "\x02"))
        return PyErr_NoMemory(), -1;
    RunQueue *queue;
    int is_added = add_waiting(sends, SPAN_OF(HALF_TOPIC), 0, send, keys, message, LATER_BYTES,
                               NULL, (Span){0}, &queue);
    if (is_added == 1 && !note_half(sends, queue, send, keys, message))
        return -1;
    return is_added;
}

/* -- messages that their producer numbers ----------------------------------------------------- */

/* Note the producer's id, the number and the physical offset of a message; 1: done, 0: stop,
 * -1: an exception. */
static int note_numbered(Sends *sends, const Message *message, Span producer, int64_t number) {
    return append_new(sends->numbered,
                      Py_BuildValue("(s#LL)", (const char *)producer.start,
                                    (Py_ssize_t)producer.size, (long long)number,
                                    (long long)(sends->run.wrote - message->size)))
               ? 1
               : -1;
}

/* The value is the producer's id, a colon and the number.  Python looks the numbers up before it
 * stores the run, and stores no run with a repetition. */
static int encode_numbered(Sends *sends, RunQueue *queue, const SendHeader *send,
                           const MessageKeys *keys, Message *message) {
    Cursor value = cursor_of(keys->mark);
    Span producer;
    if (!sends->takes_numbered || !is_ascii(keys->mark) || !read_until(&value, ':', &producer) ||
        producer.size == 0 || producer.size > PRODUCER_ID_BYTES_MAX)
        return 0;
    int64_t number = read_positive(read_rest(&value), INT64_MAX / 16);
    if (number == 0)
        return 0;
    int is_added = add_send(sends, queue, send, message, 1, keys->uniq_key, (Span){0});
    if (is_added != 1)
        return is_added;
    /* The message is stored as PRODUCED_SEQ: the eighth letter differs. */
    Buffer *records = &sends->run.store->records;
    Span before = span_between(cursor_of(message->properties), cursor_of(keys->mark));
    size_t from_end = message->added.size + message->properties.size - before.size;
    records->bytes[records->size - from_end - sizeof "PRODUCER_SEQ" + 7] = 'D';
    return note_numbered(sends, message, producer, number);
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
        (send->is_batch ? keys.kind != PLAIN : keys.uniq_key.start == NULL))
        return 0;
    Message message = new_message(sends, send, body, properties);
    if (keys.kind != PLAIN && keys.kind != NUMBERED) {
        static int (*const encode_kind[])(Sends *, const SendHeader *, const MessageKeys *,
                                          Message *) = {
            [DELAYED] = encode_delayed, [TIMED] = encode_timed, [HALF] = encode_half};
        int takes_sends = keys.has_real ? 0 : check_topic(sends, send);
        return takes_sends != 1 ? takes_sends
                                : encode_kind[keys.kind](sends, send, &keys, &message);
    }
    RunQueue *queue;
    int is_found = find_queue(&sends->run, send->topic, send->queue_id, &queue);
    if (is_found == 1 && (*queue->note != sends->topics_revision || send->has_group_home))
        is_found = check_topic(sends, send);
    if (is_found != 1)
        return is_found;
    *queue->note = sends->topics_revision;
    if (send->is_batch)
        return encode_batch(sends, queue, send, body, keys.uniq_key);
    message.added = buffer_span(&encoder->suffix);
    if (!measure_message(&sends->run, queue, &keys, &message))
        return 0;
    if (keys.kind == NUMBERED)
        return encode_numbered(sends, queue, send, &keys, &message);
    return add_send(sends, queue, send, &message, 1, keys.uniq_key, (Span){0});
}

/* (level, next queue offset) of each queue in which delayed messages wait. */
static PyObject *delayed_of(const Run *run) {
    PyObject *levels = PyList_New(0);
    for (size_t i = 0; levels != NULL && i < run->queue_count; i++) {
        const RunQueue *queue = &run->queues[i];
        if (!is_equal(queue->topic_bytes, SCHEDULE_TOPIC, sizeof SCHEDULE_TOPIC - 1) ||
            queue->count == 0)
            continue;
        PyObject *level = Py_BuildValue("(iL)", (int)queue->queue_id + 1,
                                        (long long)queue->next_offset);
        if (!append_new(levels, level))
            Py_CLEAR(levels);
    }
    return levels;
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
    "encode(data, position, wrote, limit, store_ms, origin, body_bytes_max, timed_from_ms,\n"
    "       timed_until_ms, takes_halves, takes_numbered, topics_revision)\n--\n\n"
    "Encode the plain sends of `data` from `position` on; None where the first frame is none.\n\n"
    "`topics_revision`, a positive number, is another one after each change of a topic.\n"
    "`wrote` is the physical offset of the first record, `limit` where the log file ends, `origin`\n"
    "the part of a record with hosts and store time.  Returns the end of the last frame, the\n"
    "answers, the run (records, queues with units, next queue offset and first physical offset,\n"
    "index entries, arrivals at watched queues), the levels of delayed messages with the next queue\n"
    "offset of each, and what Python needs of timed, half and numbered\n"
    "messages.");

static PyObject *encode(SendEncoder *self, PyObject *arguments) {
    PyObject *data, *store_ms, *origin;
    Py_ssize_t position;
    long long wrote, limit, body_bytes_max, timed_from_ms, timed_until_ms, topics_revision;
    int takes_halves, takes_numbered;
    if (!PyArg_ParseTuple(arguments, "SnLLO!SLLLppL", &data, &position, &wrote, &limit,
                          &PyLong_Type, &store_ms, &origin, &body_bytes_max, &timed_from_ms,
                          &timed_until_ms, &takes_halves, &takes_numbered, &topics_revision))
        return NULL;
    if (position < 0 || position > PyBytes_Size(data) || PyBytes_Size(origin) != ORIGIN_BYTES ||
        wrote < 0 || limit < wrote || body_bytes_max < 0 || body_bytes_max > INT32_MAX ||
        topics_revision < 1 || self->queue_counts == NULL || self->store.is_busy) {
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
    sends->timed_from_ms = timed_from_ms;
    sends->timed_until_ms = timed_until_ms;
    sends->takes_halves = takes_halves;
    sends->takes_numbered = takes_numbered;
    sends->topics_revision = topics_revision;
    sends->timed = PyList_New(0);
    sends->halves = PyList_New(0);
    sends->numbered = PyList_New(0);
    self->answers.size = 0;
    PyObject *result = NULL;
    if (run_open(&sends->run, &self->store, wrote, limit, store_ms, body_bytes_max) &&
        !PyErr_Occurred()) {
        Py_ssize_t end = encode_sends(sends, (size_t)position);
        if (end == position)
            result = Py_NewRef(Py_None);
        else if (end > position)
            result = Py_BuildValue("(nNNNOOO)", end, buffer_bytes(&self->answers),
                                   run_result(&sends->run), delayed_of(&sends->run), sends->timed,
                                   sends->halves, sends->numbered);
    }
    run_close(&sends->run);
    Py_CLEAR(sends->topic.name);
    Py_CLEAR(sends->group);
    Py_CLEAR(sends->timed);
    Py_CLEAR(sends->halves);
    Py_CLEAR(sends->numbered);
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
                            "sys_flag_mask", "delays_ms",   "precision_ms", "broker_name",
                            "is_indexed",   "is_sync",     NULL};
    PyObject *queue_counts, *moving_topics, *topics, *queue_type, *suffix, *id_start, *delays_ms;
    PyObject *broker_name;
    long long precision_ms;
    PyObject *json_start, *json_middle, *json_end, *binary_start, *binary_end;
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "O!OO!OS(SSS)(SS)SISLSpp", names, &PyDict_Type, &queue_counts,
            &moving_topics, &PyDict_Type, &topics, &queue_type, &suffix, &json_start, &json_middle,
            &json_end, &binary_start, &binary_end, &id_start,
            &self->sys_flag_mask, &delays_ms, &precision_ms, &broker_name, &self->store.is_indexed, &self->store.is_sync))
        return -1;
    size_t delays_bytes = (size_t)PyBytes_Size(delays_ms);
    if (PyBytes_Size(binary_start) != 5 || self->queue_counts != NULL ||
        delays_bytes > sizeof self->delays_ms || delays_bytes % sizeof(int64_t) != 0 ||
        precision_ms < 1) {
        PyErr_SetString(PyExc_ValueError, "SendEncoder() got an argument that is out of range");
        return -1;
    }
    self->queue_counts = Py_NewRef(queue_counts);
    self->moving_topics = Py_NewRef(moving_topics);
    if (!store_open(&self->store, topics, queue_type))
        return -1;
    memcpy(self->delays_ms, PyBytes_AsString(delays_ms), delays_bytes);
    self->precision_ms = precision_ms;
    self->level_count = delays_bytes / sizeof(int64_t);
    AnswerParts *parts = &self->parts;
    if (!copy_bytes(&self->suffix, suffix) || !copy_bytes(&parts->json_start, json_start) ||
        !copy_bytes(&parts->json_middle, json_middle) || !copy_bytes(&parts->json_end, json_end) ||
        !copy_bytes(&parts->binary_start, binary_start) ||
        !copy_bytes(&parts->binary_end, binary_end) || !copy_bytes(&parts->id_start, id_start) ||
        !add_text(&self->handle_middle, " ") || !buffer_add(&self->handle_middle, PyBytes_AsString(broker_name), (size_t)PyBytes_Size(broker_name)) ||
        !add_text(&self->handle_middle, " ")) {
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
                         &self->handle_middle, &self->handle_text, &self->handle, &self->messages,     &self->answers};
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
