/* SendEncoder: plain sends and batches, from the bytes of a socket to records, units, index keys
 * and answers.
 *
 * It accepts or stops.  A frame that is not plain (another request, an unknown topic, a queue that
 * is held, no room in the log file ...) ends the run; Python serves it and explains what is wrong.
 * Nothing here changes a store: what `encode` returns, `Appender.append_encoded` puts into log,
 * queues and index.  So a run has no effect before all of it is encoded.
 *
 * The Python way is `SendProcessor._gather`, `Appender.append` and `SendAnswers.of_run`, for a batch
 * `SendProcessor._send_batch` and `Appender.put_packed`; the bytes are equal
 * (tests/property/test_native_sends.py).
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "hash.h"
#include "message_keys.h"
#include "send_header.h"

#include <stdio.h>

enum {
    FRAME_HEAD_BYTES = 8,
    RECORD_HEAD_BYTES = 88,
    /* What a message in a batch has beside body and properties. */
    PACKED_HEAD_BYTES = 22,
    ORIGIN_BYTES = 36,
    UNIT_BYTES = 20,
    PROPERTIES_BYTES_MAX = 32767,
    /* More queues than this in one run end it. */
    QUEUES_MAX = 64,
    UNIQ_KEY_BYTES_MAX = 255,
    /* Index entries of one message. */
    INDEX_KEYS_MAX = 32,
    BINARY_HEAD_BYTES = 21,
    /* Behind an offset message id: 16 hex digits of the physical offset and a comma. */
    ID_END_BYTES = 17,
};

/* Bits of sysFlag: the body of a batch is never compressed. */
static const uint32_t COMPRESSED = 0x1;

typedef struct {
    PyObject_HEAD
    /* Topics that passed every check, with their number of queues. */
    PyObject *queue_counts;
    /* Topics whose message groups move between brokers. */
    PyObject *moving_topics;
    /* The store's queues: topic, then queue id. */
    PyObject *topics;
    /* The class of a queue that is not held. */
    PyObject *queue_type;
    PyObject *max_name, *magic_name, *topic_part_name, *is_watched_name;
    /* Properties that the broker adds. */
    Buffer suffix;
    /* Constant parts of answers: JSON before and behind the fields, binary likewise. */
    Buffer json_start, json_middle, json_end, binary_start, binary_end;
    /* Store host in hex, the beginning of message ids. */
    Buffer id_start;
    uint32_t sys_flag_mask;
    int is_indexed;
    /* SYNC_FLUSH: messages become visible after their flush. */
    int is_sync;
    /* What a run needs for a moment, kept between runs. */
    Buffer text, messages, records, answers, stored;
    bool is_busy;
} SendEncoder;

/* A queue of a run. */
typedef struct {
    Span topic_bytes;
    int32_t queue_id;
    PyObject *topic;
    PyObject *queue;
    PyObject *topic_part;
    Span topic_part_bytes;
    uint32_t magic;
    /* Hash of "topic#", with which the index hashes of its keys begin. */
    uint32_t key_prefix;
    bool is_watched;
    int64_t next_offset;
    int64_t first_position;
    size_t count;
} RunQueue;

/* A message that passed every check of the core, on its way into the records. */
typedef struct {
    Span body, properties;
    int32_t flag;
    uint32_t size;
    int64_t tags_code;
    int hash_count;
    uint32_t hashes[INDEX_KEYS_MAX];
} Message;

/* A message of a run. */
typedef struct {
    int64_t position;
    int64_t tags_code;
    uint32_t size;
    uint32_t queue_number;
} StoredMessage;

/* Where the messages of a send are stored. */
typedef struct {
    const Message *messages;
    size_t count;
    int64_t position;
    int64_t queue_offset;
    /* Without a start: a batch without an id. */
    Span uniq_key;
} Answer;

/* One call of `encode`. */
typedef struct {
    SendEncoder *encoder;
    Span data;
    int64_t wrote, limit, body_bytes_max;
    PyObject *store_ms;
    Span origin;
    RunQueue queues[QUEUES_MAX];
    size_t queue_count;
    PyObject *index_keys;
    PyObject *arrivals;
} Run;

/* -- queues of a run -------------------------------------------------------------------------- */

static int64_t int_attribute(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int64_t number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return number;
}

/* Look a queue up; 1: it is there, 0: stop, -1: an exception. */
static int open_queue(Run *run, const SendHeader *send, RunQueue *queue) {
    SendEncoder *encoder = run->encoder;
    queue->topic =
        PyUnicode_FromStringAndSize((const char *)send->topic.start, (Py_ssize_t)send->topic.size);
    if (queue->topic == NULL)
        return -1;
    PyObject *count = PyDict_GetItemWithError(encoder->queue_counts, queue->topic);
    PyObject *queues = count == NULL ? NULL : PyDict_GetItemWithError(encoder->topics, queue->topic);
    if (queues == NULL)
        return PyErr_Occurred() ? -1 : 0;
    long long queue_count = PyLong_AsLongLong(count);
    if (queue_count == -1 && PyErr_Occurred())
        return -1;
    if (send->queue_id < 0 || send->queue_id >= queue_count)
        return 0;
    PyObject *queue_id = PyLong_FromLong(send->queue_id);
    if (queue_id == NULL)
        return -1;
    queue->queue = PyDict_GetItemWithError(queues, queue_id);
    Py_DECREF(queue_id);
    if (queue->queue == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(queue->queue);
    if ((PyObject *)Py_TYPE(queue->queue) != encoder->queue_type)
        return 0;
    queue->topic_part = PyObject_GetAttr(queue->queue, encoder->topic_part_name);
    char *topic_part;
    Py_ssize_t topic_part_bytes;
    if (queue->topic_part == NULL ||
        PyBytes_AsStringAndSize(queue->topic_part, &topic_part, &topic_part_bytes) < 0)
        return -1;
    queue->topic_part_bytes = (Span){(const uint8_t *)topic_part, (size_t)topic_part_bytes};
    queue->magic = (uint32_t)int_attribute(queue->queue, encoder->magic_name);
    queue->next_offset = int_attribute(queue->queue, encoder->max_name);
    PyObject *is_watched = PyObject_GetAttr(queue->queue, encoder->is_watched_name);
    if (is_watched == NULL)
        return -1;
    queue->is_watched = is_watched == Py_True;
    Py_DECREF(is_watched);
    queue->topic_bytes = send->topic;
    queue->key_prefix = java_hash(0, send->topic) * 31 + '#';
    queue->queue_id = send->queue_id;
    return PyErr_Occurred() ? -1 : 1;
}

static void close_queue(RunQueue *queue) {
    Py_CLEAR(queue->topic);
    Py_CLEAR(queue->queue);
    Py_CLEAR(queue->topic_part);
}

/* Find the queue of a send among those of the run, else look it up; as `open_queue`. */
static int find_queue(Run *run, const SendHeader *send, RunQueue **found) {
    for (size_t i = 0; i < run->queue_count; i++) {
        RunQueue *queue = &run->queues[i];
        if (queue->queue_id == send->queue_id &&
            is_equal(queue->topic_bytes, send->topic.start, send->topic.size)) {
            *found = queue;
            return 1;
        }
    }
    if (run->queue_count == QUEUES_MAX)
        return 0;
    RunQueue *queue = &run->queues[run->queue_count];
    *queue = (RunQueue){0};
    int is_open = open_queue(run, send, queue);
    if (is_open != 1) {
        close_queue(queue);
        return is_open;
    }
    run->queue_count++;
    *found = queue;
    return 1;
}

/* -- records ---------------------------------------------------------------------------------- */

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size) {
    if (size != 0)
        memcpy(at, bytes, size);
    return at + size;
}

static uint8_t *put_span(uint8_t *at, Span span) {
    return put_bytes(at, span.start, span.size);
}

/* Write the record of a message (docs/internals/store.md#record); `added` goes behind its
 * properties. */
static void write_record(uint8_t *at, const Run *run, const RunQueue *queue, const SendHeader *send,
                         const Message *message, Span added) {
    Span body = message->body, properties = message->properties;
    uint32_t sys_flag = (uint32_t)send->sys_flag & run->encoder->sys_flag_mask;
    store_u32(at, message->size);
    store_u32(at + 4, queue->magic);
    store_u32(at + 8, crc32_of(body) & 0x7FFFFFFF);
    store_u32(at + 12, (uint32_t)send->queue_id);
    store_u32(at + 16, (uint32_t)message->flag);
    store_u64(at + 20, (uint64_t)queue->next_offset);
    store_u64(at + 28, (uint64_t)run->wrote);
    store_u32(at + 36, send->is_batch ? sys_flag & ~COMPRESSED : sys_flag);
    store_u64(at + 40, (uint64_t)send->born_ms);
    memcpy(at + 48, run->origin.start, ORIGIN_BYTES);
    store_u32(at + 84, (uint32_t)body.size);
    at = put_span(at + RECORD_HEAD_BYTES, body);
    at = put_span(at, queue->topic_part_bytes);
    store_u16(at, (uint16_t)(properties.size + added.size));
    put_span(put_span(at + 2, properties), added);
}

/* -- answers ---------------------------------------------------------------------------------- */

static bool is_alphanumeric(Span text) {
    Cursor cursor = cursor_of(text);
    for (int byte; (byte = take_byte(&cursor)) >= 0;)
        if (!((byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
              (byte >= 'a' && byte <= 'z')))
            return false;
    return true;
}

/* Write the message id: store host and physical offset in upper-case hex. */
static uint8_t *put_message_id(uint8_t *at, const SendEncoder *encoder, int64_t position) {
    memcpy(at, encoder->id_start.bytes, encoder->id_start.size);
    at += encoder->id_start.size;
    for (int shift = 60; shift >= 0; shift -= 4)
        *at++ = (uint8_t)"0123456789ABCDEF"[(uint64_t)position >> shift & 0xF];
    return at;
}

static uint8_t *put_buffer(uint8_t *at, const Buffer *buffer) {
    return put_bytes(at, buffer->bytes, buffer->size);
}

static uint8_t *put_number(uint8_t *at, int64_t number) {
    uint8_t digits[20];
    int count = 0;
    uint64_t value = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[count++] = (uint8_t)('0' + value % 10);
    while ((value /= 10) != 0);
    if (number < 0)
        *at++ = '-';
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

#define PUT_TEXT(at, text) put_bytes(at, text, sizeof(text) - 1)

/* Write the ids of the messages of a send, with commas between them. */
static uint8_t *put_message_ids(uint8_t *at, const SendEncoder *encoder, const Answer *answer) {
    int64_t position = answer->position;
    for (size_t i = 0; i < answer->count; i++) {
        if (i != 0)
            *at++ = ',';
        at = put_message_id(at, encoder, position);
        position += answer->messages[i].size;
    }
    return at;
}

static uint8_t *put_json_answer(uint8_t *at, const SendEncoder *encoder, const SendHeader *send,
                                const Answer *answer) {
    at = put_buffer(at, &encoder->json_start);
    at = put_message_ids(at, encoder, answer);
    at = PUT_TEXT(at, "\",\"queueId\":\"");
    at = put_number(at, send->queue_id);
    at = PUT_TEXT(at, "\",\"queueOffset\":\"");
    at = put_number(at, answer->queue_offset);
    if (answer->uniq_key.start != NULL) {
        at = PUT_TEXT(at, "\",\"transactionId\":\"");
        at = put_span(at, answer->uniq_key);
    }
    at = PUT_TEXT(at, "\"");
    at = put_buffer(at, &encoder->json_middle);
    at = put_number(at, send->opaque);
    return put_buffer(at, &encoder->json_end);
}

static uint8_t *put_field(uint8_t *at, const char *name, size_t name_bytes, size_t value_bytes) {
    store_u16(at, (uint16_t)name_bytes);
    at = put_bytes(at + 2, name, name_bytes);
    store_u32(at, (uint32_t)value_bytes);
    return at + 4;
}

#define PUT_FIELD(at, name, value_bytes) put_field(at, name, sizeof(name) - 1, value_bytes)

static uint8_t *put_number_field(uint8_t *at, const char *name, size_t name_bytes, int64_t number) {
    uint8_t text[20];
    size_t size = (size_t)(put_number(text, number) - text);
    return put_bytes(put_field(at, name, name_bytes, size), text, size);
}

static uint8_t *put_binary_answer(uint8_t *at, const SendEncoder *encoder, const SendHeader *send,
                                  const Answer *answer) {
    uint8_t *head = at;
    at = put_buffer(at, &encoder->binary_start);
    store_u32(at, (uint32_t)send->opaque);
    store_u32(at + 4, 1);
    store_u32(at + 8, 0);
    uint8_t *ext = head + BINARY_HEAD_BYTES;
    size_t id_bytes = encoder->id_start.size + ID_END_BYTES;
    at = PUT_FIELD(ext, "msgId", answer->count * id_bytes - 1);
    at = put_message_ids(at, encoder, answer);
    at = put_number_field(at, "queueId", 7, send->queue_id);
    at = put_number_field(at, "queueOffset", 11, answer->queue_offset);
    if (answer->uniq_key.start != NULL) {
        at = PUT_FIELD(at, "transactionId", answer->uniq_key.size);
        at = put_span(at, answer->uniq_key);
    }
    at = put_buffer(at, &encoder->binary_end);
    store_u32(ext - 4, (uint32_t)(at - ext));
    return at;
}

/* The most bytes of an answer; fixed texts and numbers take less than 256. */
static size_t answer_bytes_max(const SendEncoder *encoder, size_t count, Span uniq_key) {
    return 256 + encoder->json_start.size + encoder->json_middle.size + encoder->json_end.size +
           encoder->binary_end.size + count * (encoder->id_start.size + ID_END_BYTES) +
           uniq_key.size;
}

/* Add the answer of a send that will be stored; false without memory. */
static bool add_answer(SendEncoder *encoder, const SendHeader *send, const Answer *answer) {
    uint8_t *frame = buffer_room(&encoder->answers,
                                 answer_bytes_max(encoder, answer->count, answer->uniq_key));
    if (frame == NULL)
        return false;
    uint8_t *header = frame + FRAME_HEAD_BYTES;
    bool is_json = send->serialize_type == SERIALIZE_JSON;
    uint8_t *end =
        (is_json ? put_json_answer : put_binary_answer)(header, encoder, send, answer);
    uint32_t header_bytes = (uint32_t)(end - header);
    store_u32(frame, header_bytes + 4);
    store_u32(frame + 4, (uint32_t)send->serialize_type << 24 | header_bytes);
    encoder->answers.size += (size_t)(end - frame);
    return true;
}

/* -- a run ------------------------------------------------------------------------------------ */

/* Append an object to a list and give it up; false with an exception. */
static bool append_new(PyObject *list, PyObject *item) {
    if (item == NULL)
        return false;
    int result = PyList_Append(list, item);
    Py_DECREF(item);
    return result == 0;
}

/* Put the hashes of a message's index entries into `hashes`, in Java's order; return their number,
 * or -1 where there are more than fit. */
static int hash_index_keys(const RunQueue *queue, const MessageKeys *keys, uint32_t *hashes) {
    int count = 0;
    if (keys->uniq_key.start != NULL)
        hashes[count++] = index_hash(java_hash(queue->key_prefix, keys->uniq_key));
    Cursor cursor = cursor_of(keys->keys);
    for (Span word; read_word(&cursor, &word);) {
        if (count == INDEX_KEYS_MAX - 1)
            return -1;
        hashes[count++] = index_hash(java_hash(queue->key_prefix, word));
    }
    if (keys->tags.start != NULL) {
        uint32_t prefix = java_hash(queue->key_prefix, (Span){(const uint8_t *)"T#", 2});
        hashes[count++] = index_hash(java_hash(prefix, keys->tags));
    }
    return count;
}

/* Note what the index needs of a message: topic, position, store time, hashes of its keys. */
static bool note_index_keys(Run *run, const RunQueue *queue, const Message *message) {
    PyObject *position = PyLong_FromLongLong(run->wrote);
    PyObject *packed = PyBytes_FromStringAndSize(
        (const char *)message->hashes, message->hash_count * (Py_ssize_t)sizeof *message->hashes);
    PyObject *note = NULL;
    if (position != NULL && packed != NULL)
        note = PyTuple_Pack(4, queue->topic, position, run->store_ms, packed);
    Py_XDECREF(position);
    Py_XDECREF(packed);
    return append_new(run->index_keys, note);
}

static bool note_arrival(Run *run, const RunQueue *queue, int64_t tags_code) {
    PyObject *arrival = Py_BuildValue("(OiLL)", queue->topic, queue->queue_id,
                                      (long long)queue->next_offset, (long long)tags_code);
    return append_new(run->arrivals, arrival);
}

/* Note the arrival of messages that were just added to a queue, once for equal tags codes in a row.
 * With SYNC_FLUSH messages become visible later, by the arrivals; so every queue has them. */
static bool note_arrivals(Run *run, const RunQueue *queue, const Message *messages, size_t count) {
    if (!queue->is_watched && !run->encoder->is_sync)
        return true;
    for (size_t i = 0; i < count; i++)
        if ((i == 0 || messages[i].tags_code != messages[i - 1].tags_code) &&
            !note_arrival(run, queue, messages[i].tags_code))
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

/* -- one send --------------------------------------------------------------------------------- */

/* Check a message, whose keys were read, and finish it; false stops. */
static bool is_plain(const Run *run, const RunQueue *queue, const MessageKeys *keys, Span added,
                     Message *message) {
    size_t properties_bytes = message->properties.size + added.size;
    if (message->body.size > (uint64_t)run->body_bytes_max ||
        properties_bytes > PROPERTIES_BYTES_MAX)
        return false;
    message->size = (uint32_t)(RECORD_HEAD_BYTES + message->body.size +
                               queue->topic_part_bytes.size + 2 + properties_bytes);
    message->tags_code = keys->tags.start == NULL ? 0 : (int32_t)java_hash(0, keys->tags);
    message->hash_count = hash_index_keys(queue, keys, message->hashes);
    return message->hash_count >= 0;
}

/* Add a message to the run. */
static bool add_message(Run *run, RunQueue *queue, const SendHeader *send, const Message *message,
                        Span added) {
    SendEncoder *encoder = run->encoder;
    uint8_t *record = buffer_room(&encoder->records, message->size);
    StoredMessage stored = {run->wrote, message->tags_code, message->size,
                            (uint32_t)(queue - run->queues)};
    if (record == NULL || !buffer_add(&encoder->stored, &stored, sizeof stored))
        return PyErr_NoMemory(), false;
    write_record(record, run, queue, send, message, added);
    encoder->records.size += message->size;
    if (encoder->is_indexed && !note_index_keys(run, queue, message))
        return false;
    if (queue->count++ == 0)
        queue->first_position = run->wrote;
    queue->next_offset++;
    run->wrote += message->size;
    return true;
}

/* Add the messages of a send, which the log file has room for, and its answer; as `encode_send`. */
static int add_send(Run *run, RunQueue *queue, const SendHeader *send, const Message *messages,
                    size_t count, Span uniq_key, Span added) {
    const Answer answer = {messages, count, run->wrote, queue->next_offset, uniq_key};
    int64_t left = run->limit - run->wrote;
    for (size_t i = 0; i < count; i++)
        if ((left -= messages[i].size) < 0)
            return 0;
    if (!send->is_oneway && !add_answer(run->encoder, send, &answer))
        return PyErr_NoMemory(), -1;
    for (size_t i = 0; i < count; i++)
        if (!add_message(run, queue, send, &messages[i], added))
            return -1;
    return note_arrivals(run, queue, messages, count) ? 1 : -1;
}

/* Read the messages of a packed batch (codec/batch.py) into `messages`; as `encode_send`. */
static int read_batch(const Run *run, const RunQueue *queue, Span packed) {
    Buffer *messages = &run->encoder->messages;
    messages->size = 0;
    Cursor cursor = cursor_of(packed);
    while (bytes_left(&cursor) != 0) {
        Message message = {0};
        MessageKeys keys;
        uint32_t total, flag, body_bytes;
        uint16_t properties_bytes;
        /* Magic and CRC do not count. */
        if (!read_u32(&cursor, &total) || read_bytes(&cursor, 8) == NULL ||
            !read_u32(&cursor, &flag) || !read_u32(&cursor, &body_bytes))
            return 0;
        message.flag = (int32_t)flag;
        message.body = (Span){read_bytes(&cursor, body_bytes), body_bytes};
        if (message.body.start == NULL || !read_u16(&cursor, &properties_bytes))
            return 0;
        message.properties = (Span){read_bytes(&cursor, properties_bytes), properties_bytes};
        if (message.properties.start == NULL ||
            total != PACKED_HEAD_BYTES + message.body.size + message.properties.size ||
            !is_ascii(message.properties) || !read_message_keys(message.properties, &keys) ||
            !is_plain(run, queue, &keys, (Span){0}, &message))
            return 0;
        if (!buffer_add(messages, &message, sizeof message))
            return PyErr_NoMemory(), -1;
    }
    return messages->size != 0;
}

/* Encode a batch: its properties are those of the answer, each message brings its own. */
static int encode_batch(Run *run, RunQueue *queue, const SendHeader *send, Span packed,
                        Span uniq_key) {
    if (packed.size > (uint64_t)run->body_bytes_max)
        return 0;
    int is_read = read_batch(run, queue, packed);
    if (is_read != 1)
        return is_read;
    const Buffer *messages = &run->encoder->messages;
    return add_send(run, queue, send, (const Message *)(const void *)messages->bytes,
                    messages->size / sizeof(Message), uniq_key, (Span){0});
}

/* Encode one send; 1: done, 0: stop before it, -1: an exception. */
static int encode_send(Run *run, const SendHeader *send, Span body) {
    SendEncoder *encoder = run->encoder;
    Message message = {.body = body, .properties = send->properties, .flag = send->flag};
    if (!send->is_batch && send->properties.size != 0 && !ends_with(send->properties, 2)) {
        message.properties = with_separator(&encoder->text, send->properties);
        if (message.properties.start == NULL)
            return PyErr_NoMemory(), -1;
    }
    MessageKeys keys;
    if (!read_message_keys(message.properties, &keys) ||
        (keys.uniq_key.start == NULL && !send->is_batch) ||
        keys.uniq_key.size > UNIQ_KEY_BYTES_MAX || !is_alphanumeric(keys.uniq_key) ||
        (keys.has_wait_false && encoder->is_sync))
        return 0;
    RunQueue *queue;
    int is_found = find_queue(run, send, &queue);
    if (is_found != 1)
        return is_found;
    if (send->has_group_home) {
        int is_moving = PySequence_Contains(encoder->moving_topics, queue->topic);
        if (is_moving != 0)
            return is_moving < 0 ? -1 : 0;
    }
    if (send->is_batch)
        return encode_batch(run, queue, send, body, keys.uniq_key);
    Span added = buffer_span(&encoder->suffix);
    if (!is_plain(run, queue, &keys, added, &message))
        return 0;
    return add_send(run, queue, send, &message, 1, keys.uniq_key, added);
}

/* Encode the sends of the data from `position` on; the end of the last one, -1: an exception. */
static Py_ssize_t encode_sends(Run *run, size_t position) {
    Cursor cursor = cursor_of(run->data);
    read_bytes(&cursor, position);
    for (;;) {
        SendHeader send;
        Span body;
        size_t left = bytes_left(&cursor);
        int is_encoded = read_send(&cursor, &run->encoder->text, &send, &body)
                             ? encode_send(run, &send, body)
                             : 0;
        if (is_encoded < 0)
            return -1;
        if (is_encoded == 0)
            return (Py_ssize_t)(run->data.size - left);
    }
}

static PyObject *bytes_of(const Buffer *buffer) {
    return PyBytes_FromStringAndSize((const char *)buffer->bytes, (Py_ssize_t)buffer->size);
}

/* (queue, units, next queue offset, physical offset of the first record) */
static PyObject *queue_result(const Run *run, size_t number) {
    const RunQueue *queue = &run->queues[number];
    PyObject *units = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(queue->count * UNIT_BYTES));
    if (units == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(units);
    const Buffer *stored = &run->encoder->stored;
    for (size_t i = 0; i < stored->size; i += sizeof(StoredMessage)) {
        StoredMessage message;
        memcpy(&message, stored->bytes + i, sizeof message);
        if (message.queue_number != number)
            continue;
        store_u64(at, (uint64_t)message.position);
        store_u32(at + 8, message.size);
        store_u64(at + 12, (uint64_t)message.tags_code);
        at += UNIT_BYTES;
    }
    return Py_BuildValue("(ONLL)", queue->queue, units, (long long)queue->next_offset,
                         (long long)queue->first_position);
}

static PyObject *run_result(const Run *run, Py_ssize_t end) {
    PyObject *queues = PyList_New(0);
    for (size_t i = 0; queues != NULL && i < run->queue_count; i++)
        if (run->queues[i].count != 0 && !append_new(queues, queue_result(run, i)))
            Py_CLEAR(queues);
    if (queues == NULL)
        return NULL;
    return Py_BuildValue("(nNNNOO)", end, bytes_of(&run->encoder->records),
                         bytes_of(&run->encoder->answers), queues, run->index_keys, run->arrivals);
}

PyDoc_STRVAR(
    encode_doc,
    "encode(data, position, wrote, limit, store_ms, origin, body_bytes_max)\n--\n\n"
    "Encode the plain sends of `data` from `position` on; None where the first frame is none.\n\n"
    "`wrote` is the physical offset of the first record, `limit` where the log file ends, `origin`\n"
    "the part of a record with hosts and store time.  Returns the end of the last frame, the\n"
    "records, the answers, the queues (queue, units, next queue offset, first physical offset), the\n"
    "index keys and the arrivals at watched queues.");

static PyObject *encode(SendEncoder *self, PyObject *arguments) {
    PyObject *data, *store_ms, *origin;
    Py_ssize_t position;
    long long wrote, limit, body_bytes_max;
    if (!PyArg_ParseTuple(arguments, "SnLLO!SL", &data, &position, &wrote, &limit, &PyLong_Type,
                          &store_ms, &origin, &body_bytes_max))
        return NULL;
    if (position < 0 || position > PyBytes_Size(data) || PyBytes_Size(origin) != ORIGIN_BYTES ||
        wrote < 0 || limit < wrote || body_bytes_max < 0 || body_bytes_max > INT32_MAX ||
        self->queue_counts == NULL || self->is_busy) {
        PyErr_SetString(PyExc_ValueError, "encode() got an argument that is out of range");
        return NULL;
    }
    Run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return PyErr_NoMemory();
    run->encoder = self;
    run->data = (Span){(const uint8_t *)PyBytes_AsString(data), (size_t)PyBytes_Size(data)};
    run->wrote = wrote;
    run->limit = limit;
    run->body_bytes_max = body_bytes_max;
    run->store_ms = store_ms;
    run->origin = (Span){(const uint8_t *)PyBytes_AsString(origin), ORIGIN_BYTES};
    run->index_keys = PyList_New(0);
    run->arrivals = PyList_New(0);
    self->records.size = self->answers.size = self->stored.size = 0;
    self->is_busy = true;
    PyObject *result = NULL;
    if (run->index_keys != NULL && run->arrivals != NULL) {
        Py_ssize_t end = encode_sends(run, (size_t)position);
        if (end == position)
            result = Py_NewRef(Py_None);
        else if (end > position)
            result = run_result(run, end);
    }
    self->is_busy = false;
    for (size_t i = 0; i < run->queue_count; i++)
        close_queue(&run->queues[i]);
    Py_CLEAR(run->index_keys);
    Py_CLEAR(run->arrivals);
    free(run);
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
                            "sys_flag_mask", "is_indexed",  "is_sync",   NULL};
    PyObject *queue_counts, *moving_topics, *topics, *queue_type, *suffix, *id_start;
    PyObject *json_start, *json_middle, *json_end, *binary_start, *binary_end;
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "O!OO!OS(SSS)(SS)SIpp", names, &PyDict_Type, &queue_counts,
            &moving_topics, &PyDict_Type, &topics, &queue_type, &suffix, &json_start, &json_middle,
            &json_end, &binary_start, &binary_end, &id_start,
            &self->sys_flag_mask, &self->is_indexed, &self->is_sync))
        return -1;
    if (PyBytes_Size(binary_start) != 5 || self->queue_counts != NULL) {
        PyErr_SetString(PyExc_ValueError, "SendEncoder() got an argument that is out of range");
        return -1;
    }
    self->queue_counts = Py_NewRef(queue_counts);
    self->moving_topics = Py_NewRef(moving_topics);
    self->topics = Py_NewRef(topics);
    self->queue_type = Py_NewRef(queue_type);
    self->max_name = PyUnicode_InternFromString("max");
    self->magic_name = PyUnicode_InternFromString("magic");
    self->topic_part_name = PyUnicode_InternFromString("topic_part");
    self->is_watched_name = PyUnicode_InternFromString("is_watched");
    if (self->max_name == NULL || self->magic_name == NULL || self->topic_part_name == NULL ||
        self->is_watched_name == NULL)
        return -1;
    if (!copy_bytes(&self->suffix, suffix) || !copy_bytes(&self->json_start, json_start) ||
        !copy_bytes(&self->json_middle, json_middle) || !copy_bytes(&self->json_end, json_end) ||
        !copy_bytes(&self->binary_start, binary_start) ||
        !copy_bytes(&self->binary_end, binary_end) || !copy_bytes(&self->id_start, id_start)) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int traverse(SendEncoder *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->queue_counts);
    Py_VISIT(self->moving_topics);
    Py_VISIT(self->topics);
    Py_VISIT(self->queue_type);
    return 0;
}

static int clear(SendEncoder *self) {
    Py_CLEAR(self->queue_counts);
    Py_CLEAR(self->moving_topics);
    Py_CLEAR(self->topics);
    Py_CLEAR(self->queue_type);
    return 0;
}

static void deallocate(SendEncoder *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_CLEAR(self->max_name);
    Py_CLEAR(self->magic_name);
    Py_CLEAR(self->topic_part_name);
    Py_CLEAR(self->is_watched_name);
    Buffer *buffers[] = {&self->suffix,       &self->json_start, &self->json_middle,
                         &self->json_end,     &self->binary_start, &self->binary_end,
                         &self->id_start,     &self->text,       &self->messages,
                         &self->records,      &self->answers,    &self->stored};
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
