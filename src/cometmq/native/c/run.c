#define PY_SSIZE_T_CLEAN
#include "run.h"

#include "hash.h"

enum {
    UNIT_BYTES = 20,
    /* How many of the last queues of a run are asked for a topic: the queues of a topic come in turn,
     * and of thousands of topics none is likely there. */
    SHARING_MAX = 8,
};

/* A message of a run. */
typedef struct {
    int64_t position;
    int64_t tags_code;
    uint32_t size;
    uint32_t queue_number;
} StoredMessage;

/* -- the store -------------------------------------------------------------------------------- */

bool store_open(Store *store, PyObject *topics, PyObject *queue_type) {
    store->topics = Py_NewRef(topics);
    store->queue_type = Py_NewRef(queue_type);
    store->max_name = PyUnicode_InternFromString("max");
    store->magic_name = PyUnicode_InternFromString("magic");
    store->topic_part_name = PyUnicode_InternFromString("topic_part");
    store->is_watched_name = PyUnicode_InternFromString("is_watched");
    return store->max_name != NULL && store->magic_name != NULL &&
           store->topic_part_name != NULL && store->is_watched_name != NULL;
}

int store_traverse(Store *store, visitproc visit, void *arg) {
    Py_VISIT(store->topics);
    Py_VISIT(store->queue_type);
    return 0;
}

void store_clear(Store *store) {
    Py_CLEAR(store->topics);
    Py_CLEAR(store->queue_type);
}

void store_free(Store *store) {
    store_clear(store);
    Py_CLEAR(store->max_name);
    Py_CLEAR(store->magic_name);
    Py_CLEAR(store->topic_part_name);
    Py_CLEAR(store->is_watched_name);
    buffer_free(&store->records);
    buffer_free(&store->stored);
    buffer_free(&store->units);
    buffer_free(&store->entries);
}

/* -- queues of a run -------------------------------------------------------------------------- */

static int64_t int_attribute(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int64_t number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return number;
}

/* Take what all queues of a topic have in common from another one of the run; false: there is none,
 * or it came long before. */
static bool share_topic(const Run *run, Span topic, RunQueue *queue) {
    for (size_t i = run->queue_count; i-- > 0 && run->queue_count - i <= SHARING_MAX;) {
        const RunQueue *other = &run->queues[i];
        if (!is_equal(other->topic_bytes, topic.start, topic.size))
            continue;
        *queue = (RunQueue){.topic_bytes = topic,
                            .topic = Py_NewRef(other->topic),
                            .topic_part = Py_NewRef(other->topic_part),
                            .topic_part_bytes = other->topic_part_bytes,
                            .magic = other->magic,
                            .key_prefix = other->key_prefix};
        return true;
    }
    *queue = (RunQueue){.topic_bytes = topic, .key_prefix = java_hash(0, topic) * 31 + '#'};
    queue->topic = PyUnicode_FromStringAndSize((const char *)topic.start, (Py_ssize_t)topic.size);
    return false;
}

/* Read the part of records that names the topic; false with an exception. */
static bool read_topic_part(const Store *store, RunQueue *queue) {
    queue->topic_part = PyObject_GetAttr(queue->queue, store->topic_part_name);
    char *bytes;
    Py_ssize_t size;
    if (queue->topic_part == NULL || PyBytes_AsStringAndSize(queue->topic_part, &bytes, &size) < 0)
        return false;
    queue->topic_part_bytes = (Span){(const uint8_t *)bytes, (size_t)size};
    queue->magic = (uint32_t)int_attribute(queue->queue, store->magic_name);
    return true;
}

/* Look a queue up; 1: it is there, 0: stop, -1: an exception. */
static int open_queue(const Run *run, Span topic, int32_t queue_id, RunQueue *queue) {
    const Store *store = run->store;
    bool is_shared = share_topic(run, topic, queue);
    PyObject *queues =
        queue->topic == NULL ? NULL : PyDict_GetItemWithError(store->topics, queue->topic);
    if (queues == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *number = PyLong_FromLong(queue_id);
    if (number == NULL)
        return -1;
    queue->queue = PyDict_GetItemWithError(queues, number);
    Py_DECREF(number);
    if (queue->queue == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(queue->queue);
    if ((PyObject *)Py_TYPE(queue->queue) != store->queue_type)
        return 0;
    if (!is_shared && !read_topic_part(store, queue))
        return -1;
    queue->next_offset = int_attribute(queue->queue, store->max_name);
    PyObject *is_watched = PyObject_GetAttr(queue->queue, store->is_watched_name);
    if (is_watched == NULL)
        return -1;
    queue->is_watched = is_watched == Py_True;
    Py_DECREF(is_watched);
    queue->queue_id = queue_id;
    return PyErr_Occurred() ? -1 : 1;
}

static void close_queue(RunQueue *queue) {
    Py_CLEAR(queue->topic);
    Py_CLEAR(queue->queue);
    Py_CLEAR(queue->topic_part);
}

int find_queue(Run *run, Span topic, int32_t queue_id, RunQueue **found) {
    for (size_t i = 0; i < run->queue_count; i++) {
        RunQueue *queue = &run->queues[i];
        if (queue->queue_id == queue_id && is_equal(queue->topic_bytes, topic.start, topic.size)) {
            *found = queue;
            return 1;
        }
    }
    if (run->queue_count == QUEUES_MAX)
        return 0;
    RunQueue *queue = &run->queues[run->queue_count];
    int is_open = open_queue(run, topic, queue_id, queue);
    if (is_open != 1) {
        close_queue(queue);
        return is_open;
    }
    run->queue_count++;
    *found = queue;
    return 1;
}

/* -- records ---------------------------------------------------------------------------------- */

/* Write the record of a message (docs/internals/store.md#record). */
static void write_record(uint8_t *at, const Run *run, const RunQueue *queue,
                         const Message *message) {
    store_u32(at, message->size);
    store_u32(at + 4, queue->magic);
    store_u32(at + 8, crc32_of(message->body) & 0x7FFFFFFF);
    store_u32(at + 12, (uint32_t)queue->queue_id);
    store_u32(at + 16, (uint32_t)message->flag);
    store_u64(at + 20, (uint64_t)queue->next_offset);
    store_u64(at + 28, (uint64_t)run->wrote);
    store_u32(at + 36, message->sys_flag);
    store_u64(at + 40, (uint64_t)message->born_ms);
    put_span(at + 48, message->origin);
    store_u32(at + 84, (uint32_t)message->body.size);
    at = put_span(at + RECORD_HEAD_BYTES, message->body);
    at = put_span(at, queue->topic_part_bytes);
    store_u16(at, (uint16_t)(message->properties.size + message->added.size));
    put_span(put_span(at + 2, message->properties), message->added);
}

/* -- index and arrivals ----------------------------------------------------------------------- */

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

/* Note the index entries of a message; false without memory. */
static bool note_entries(Run *run, const Message *message) {
    IndexEntry entry = {.distance = (uint32_t)(run->wrote - run->start)};
    for (int i = 0; i < message->hash_count; i++) {
        entry.hash = message->hashes[i];
        if (!buffer_add(&run->store->entries, &entry, sizeof entry))
            return false;
    }
    return true;
}

/* The index entries of all messages, or None; NULL with an exception. */
static PyObject *entries_of(const Run *run) {
    const Store *store = run->store;
    if (!store->is_indexed)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(nLON)", (Py_ssize_t)(store->stored.size / sizeof(StoredMessage)),
                         (long long)run->start, run->store_ms, buffer_bytes(&store->entries));
}

static bool note_arrival(Run *run, const RunQueue *queue, int64_t tags_code) {
    PyObject *arrival = Py_BuildValue("(OiLL)", queue->topic, queue->queue_id,
                                      (long long)queue->next_offset, (long long)tags_code);
    return append_new(run->arrivals, arrival);
}

/* Note the arrival of messages that were just added to a queue, once for equal tags codes in a row.
 * With SYNC_FLUSH messages become visible later, by the arrivals; so every queue has them. */
static bool note_arrivals(Run *run, const RunQueue *queue, const Message *messages, size_t count) {
    if (!queue->is_watched && !run->store->is_sync)
        return true;
    for (size_t i = 0; i < count; i++)
        if ((i == 0 || messages[i].tags_code != messages[i - 1].tags_code) &&
            !note_arrival(run, queue, messages[i].tags_code))
            return false;
    return true;
}

/* -- messages --------------------------------------------------------------------------------- */

bool measure_message(const Run *run, const RunQueue *queue, const MessageKeys *keys,
                     Message *message) {
    size_t properties_bytes = message->properties.size + message->added.size;
    if (message->body.size > (uint64_t)run->body_bytes_max ||
        properties_bytes > PROPERTIES_BYTES_MAX)
        return false;
    message->size = (uint32_t)(RECORD_HEAD_BYTES + message->body.size +
                               queue->topic_part_bytes.size + 2 + properties_bytes);
    message->tags_code = keys->tags.start == NULL ? 0 : (int32_t)java_hash(0, keys->tags);
    message->hash_count = hash_index_keys(queue, keys, message->hashes);
    return message->hash_count >= 0;
}

bool has_room(const Run *run, const Message *messages, size_t count) {
    int64_t left = run->limit - run->wrote;
    for (size_t i = 0; i < count; i++)
        if ((left -= messages[i].size) < 0)
            return false;
    return true;
}

static bool add_message(Run *run, RunQueue *queue, const Message *message) {
    Store *store = run->store;
    uint8_t *record = buffer_room(&store->records, message->size);
    StoredMessage stored = {run->wrote, message->tags_code, message->size,
                            (uint32_t)(queue - run->queues)};
    if (record == NULL || !buffer_add(&store->stored, &stored, sizeof stored) ||
        (store->is_indexed && !note_entries(run, message)))
        return PyErr_NoMemory(), false;
    write_record(record, run, queue, message);
    store->records.size += message->size;
    if (queue->count++ == 0)
        queue->first_position = run->wrote;
    queue->next_offset++;
    run->wrote += message->size;
    return true;
}

bool add_messages(Run *run, RunQueue *queue, const Message *messages, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!add_message(run, queue, &messages[i]))
            return false;
    return note_arrivals(run, queue, messages, count);
}

/* -- begin and end ---------------------------------------------------------------------------- */

bool run_open(Run *run, Store *store, int64_t wrote, int64_t limit, PyObject *store_ms,
              int64_t body_bytes_max) {
    run->store = store;
    run->start = run->wrote = wrote;
    run->limit = limit;
    run->store_ms = store_ms;
    run->body_bytes_max = body_bytes_max;
    store->records.size = store->stored.size = store->entries.size = 0;
    store->is_busy = true;
    run->arrivals = PyList_New(0);
    return run->arrivals != NULL;
}

void run_close(Run *run) {
    run->store->is_busy = false;
    for (size_t i = 0; i < run->queue_count; i++)
        close_queue(&run->queues[i]);
    Py_CLEAR(run->arrivals);
}

/* Put the units of all messages into `units`, queue by queue; false without memory. */
static bool sort_units(const Run *run, Buffer *units) {
    uint8_t *next[QUEUES_MAX];
    units->size = 0;
    for (size_t i = 0; i < run->queue_count; i++) {
        if (buffer_room(units, run->queues[i].count * UNIT_BYTES) == NULL)
            return false;
        units->size += run->queues[i].count * UNIT_BYTES;
    }
    uint8_t *at = units->bytes;
    for (size_t i = 0; i < run->queue_count; i++) {
        next[i] = at;
        at += run->queues[i].count * UNIT_BYTES;
    }
    Cursor cursor = cursor_of(buffer_span(&run->store->stored));
    const uint8_t *stored;
    while ((stored = read_bytes(&cursor, sizeof(StoredMessage))) != NULL) {
        StoredMessage message;
        memcpy(&message, stored, sizeof message);
        uint8_t *unit = next[message.queue_number];
        store_u64(unit, (uint64_t)message.position);
        store_u32(unit + 8, message.size);
        store_u64(unit + 12, (uint64_t)message.tags_code);
        next[message.queue_number] += UNIT_BYTES;
    }
    return true;
}

PyObject *run_result(const Run *run) {
    Buffer *units = &run->store->units;
    if (!sort_units(run, units))
        return PyErr_NoMemory();
    PyObject *queues = PyList_New(0);
    Cursor cursor = cursor_of(buffer_span(units));
    for (size_t i = 0; queues != NULL && i < run->queue_count; i++) {
        const RunQueue *queue = &run->queues[i];
        Py_ssize_t size = (Py_ssize_t)(queue->count * UNIT_BYTES);
        const char *queue_units = (const char *)read_bytes(&cursor, (size_t)size);
        if (size != 0 &&
            !append_new(queues, Py_BuildValue("(Oy#LL)", queue->queue, queue_units, size,
                                              (long long)queue->next_offset,
                                              (long long)queue->first_position)))
            Py_CLEAR(queues);
    }
    if (queues == NULL)
        return NULL;
    return Py_BuildValue("(NNNO)", buffer_bytes(&run->store->records), queues, entries_of(run),
                         run->arrivals);
}
